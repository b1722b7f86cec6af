"""Measured values in full precision: what a ranking is worth for every query and seed, by one measure.

Results tables, tests of significance, the report and W&B are all computed from `Measurement`s. Those of each seed are
written once, and read again when other rows are measured later:

    <run>/per_query/<query_set>[.alone].tsv      query, measure, value
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lexical.errors import UserError
from lexical.small_files import write_text


class Measurement(NamedTuple):
    """One measure of the ranking of a query set."""

    query_set: str
    alone: bool  # the ranker's own ranking, where the row of the results table is fused with BM25
    measure: str  # MRR, nDCG@10 or recall@K
    queries: Sequence[str]  # ids of all judged queries
    values: np.ndarray  # (seeds, queries) float64

    @property
    def key(self) -> tuple[str, bool, str]:
        return self.query_set, self.alone, self.measure

    @property
    def per_query(self) -> dict[str, float]:
        """Each query's mean over the seeds: what tests of significance compare."""
        return dict(zip(self.queries, self.values.mean(axis=0).tolist(), strict=True))

    @property
    def mean(self) -> float:
        """The value in the results table: the mean over the queries, then over the seeds."""
        return float(np.mean([np.mean(of_seed) for of_seed in self.values]))


def ranking_name(query_set: str, alone: bool) -> str:
    """Return the name of the files of a ranking: the row, or the ranker without BM25."""
    return f"{query_set}{'.alone' if alone else ''}"


def per_query_path(folder: Path, query_set: str, alone: bool) -> Path:
    return folder / "per_query" / f"{ranking_name(query_set, alone)}.tsv"


def write_measurements(folder: Path, measurements: Sequence[Measurement]) -> None:
    """Write each query's mean over the seeds with all digits, a file for each ranking."""
    for (query_set, alone), group in groupby(measurements, key=lambda measurement: measurement.key[:2]):
        lines = ["query\tmeasure\tvalue"]
        for measurement in group:
            values = measurement.per_query.items()
            lines += [f"{query}\t{measurement.measure}\t{value!r}" for query, value in values]
        write_text(per_query_path(folder, query_set, alone), "\n".join(lines) + "\n")


def read_measurements(folder: Path, query_set: str, alone: bool) -> list[Measurement]:
    """Return all measures of a ranking, the main measure first."""
    path = per_query_path(folder, query_set, alone)
    values: dict[str, dict[str, float]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                values.setdefault(line["measure"], {})[line["query"]] = float(line["value"])
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}: evaluate.py writes it") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): evaluate this ranker again") from error
    if not values:
        raise UserError(f"{path} has no queries: evaluate this ranker again")
    return [
        Measurement(query_set, alone, measure, list(per_query), np.array([list(per_query.values())]))
        for measure, per_query in values.items()
    ]


def over_seeds(ranker: str, seeds: Sequence[Measurement]) -> Measurement:
    """Join the measurements of several seeds, each of the same queries."""
    queries = seeds[0].queries
    per_query = [measurement.per_query for measurement in seeds]
    for values in per_query:
        if different := values.keys() ^ set(queries):
            query = f"the query {min(different)} of {seeds[0].query_set}"
            raise UserError(f"{ranker}: not all seeds have measured {query}: evaluate this ranker again")
    return seeds[0]._replace(values=np.array([[values[query] for query in queries] for values in per_query]))
