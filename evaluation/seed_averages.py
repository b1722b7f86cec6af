"""Per-query values averaged over seeds (section "Experimental setup"): what tables and tests of significance use."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evaluation.measures import Measured
from lexical.errors import UserError


def read_measured(path: Path) -> list[Measured]:
    """All measures of a per_query file."""
    found: dict[str, dict[str, float]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                found.setdefault(row["measure"], {})[row["query"]] = float(row["value"])
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}: train.py and evaluate.py write it") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): evaluate this ranker again") from error
    if not found:
        raise UserError(f"{path} has no queries")
    return [Measured(measure, values) for measure, values in found.items()]


def seed_average(files: Sequence[Path]) -> list[Measured]:
    """Each query's mean over the seeds. Every seed must have measured every query."""
    seeds = [read_measured(path) for path in files]
    for path, seed in zip(files, seeds, strict=True):
        if [one.measure for one in seed] != [one.measure for one in seeds[0]]:
            raise UserError(f"{path} has other measures than {files[0]}: evaluate this ranker again")
    averaged = []
    for number, first in enumerate(seeds[0]):
        for path, seed in zip(files, seeds, strict=True):
            if different := set(seed[number].per_query) ^ set(first.per_query):
                raise UserError(f"{path} and {files[0]} differ in the query {min(different)}: evaluate it again")
        mean = {q: float(np.mean([seed[number].per_query[q] for seed in seeds])) for q in first.per_query}
        averaged.append(Measured(first.measure, mean))
    return averaged
