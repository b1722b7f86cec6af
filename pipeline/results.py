"""The results of all rankers on one data set: what each seed has measured, averaged over the seeds, tested.

OUTPUT_DIR/<data>/<model>/seed-<n>/evaluation.json   entries of results.json for one seed, histograms of its scores
OUTPUT_DIR/<data>/<model>/per_query/                 each query's mean over the seeds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datamodules.retrieval_data import RetrievalData
from evaluation.measurements import over_seeds, read_measurements, write_measurements
from evaluation.results_table import Result
from evaluation.significance import read_hypotheses, verdicts
from lexical.errors import UserError
from lexical.small_files import read_json, write_json
from lexical.terminal import say
from lightning_modules.registry import table_order
from pipeline.configs import CONFIGS, names
from pipeline.dependencies import changed_dependency
from pipeline.run_folder import RunFolder, trained_models

HYPOTHESES = CONFIGS / "hypotheses.yaml"


class SeedResults(NamedTuple):
    """What evaluate.py has measured for one seed of a ranker."""

    run: RunFolder
    data: str  # fingerprint
    results: list[Result]  # the main measure of a query set comes first
    histograms: list[dict[str, Any]]  # of the scores: query_set, alone, and a `score_histogram`

    @property
    def rankings(self) -> list[tuple[str, bool]]:
        """(query set, alone) of each ranking that was measured."""
        return list(dict.fromkeys((result.query_set, result.alone) for result in self.results))

    def write(self, seconds: float) -> None:
        """Write evaluation.json; `seconds` is how long the evaluation took."""
        entries = [result.entry() for result in self.results]
        content = {"data": self.data, "results": entries, "histograms": self.histograms, "seconds": seconds}
        write_json(self.run.evaluation, content)

    @classmethod
    def read(cls, run: RunFolder) -> SeedResults:
        saved = read_json(run.evaluation)
        try:
            fusion = any(entry["fused"] for entry in saved["results"])
            results = [Result(**entry, alone=fusion and not entry["fused"]) for entry in saved["results"]]
            seed = cls(run, saved["data"], results, saved.get("histograms", []))
        except (TypeError, KeyError) as error:
            raise UserError(f"{run.evaluation} is damaged: evaluate this ranker again") from error
        read = {
            measurement.key: measurement
            for ranking in seed.rankings
            for measurement in read_measurements(run.path, *ranking)
        }
        results = [result._replace(measurement=read.get(result.key)) for result in results]
        if any(result.measurement and len(result.measurement.queries) < result.queries for result in results):
            raise UserError(f"{run.path}/per_query is damaged, queries are missing: evaluate this ranker again")
        return seed._replace(results=results)


class MeasuredRow(NamedTuple):
    """A ranker in the results table."""

    model: str
    seeds: list[SeedResults]
    results: list[Result]  # averages over the seeds


def times(rows: Sequence[MeasuredRow]) -> list[str]:
    """Return how long data, training and measurement of the rows took, as lines; the longest first."""
    kinds: dict[str, dict[str, float]] = {"training": {}, "measuring": {}}
    of_data = 0.0
    for row in rows:
        for seed in row.seeds:
            trained = read_json(seed.run.development) if seed.run.development.is_file() else {}
            measured = read_json(seed.run.evaluation)
            own = float(trained.get("seconds_of_data", 0.0))
            of_data += own
            for kind, seconds in (
                ("training", trained.get("seconds", 0.0) - own),
                ("measuring", measured.get("seconds", 0.0)),
            ):
                kinds[kind][row.model] = kinds[kind].get(row.model, 0.0) + seconds
    lines = [f"time of the data: {of_data:.0f} s"] if of_data >= 1 else []
    for kind, seconds in kinds.items():
        longest = sorted(seconds.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{model} {value:.0f}" for model, value in longest)
        lines.append(f"time of {kind}: {sum(seconds.values()):.0f} s ({parts})")
    return lines


def collect_rows(
    data_folder: Path, data: RetrievalData, measured: Mapping[RunFolder, SeedResults]
) -> list[MeasuredRow]:
    """Return the rows of all rankers that were measured on this very data, in the order of the table.

    `measured` has the results that are in memory; others are read from their folders.
    """
    rows = []
    for model, seeds in sorted(trained_models(data_folder).items(), key=lambda item: table_order(item[0])):
        runs = [RunFolder(data_folder / model / f"seed-{seed}") for seed in seeds]
        if usable := [results for run in runs if (results := measured.get(run) or _read_usable(run, data))]:
            rows.append(_averaged(model, data_folder / model, usable))
    tested = iter(with_tests([result for row in rows for result in row.results]))
    return [row._replace(results=[next(tested) for _ in row.results]) for row in rows]


def _read_usable(run: RunFolder, data: RetrievalData) -> SeedResults | None:
    """Return the results of a seed if they belong in the table; if they exist and do not, say why."""
    if not run.evaluation.is_file():
        return None
    about = f"{run.model} (seed {run.seed}) is not in the table"
    try:
        results = SeedResults.read(run)
        if (dependency := changed_dependency(run)) is not None:
            say(f"{about}, as {dependency} was trained again since: python train.py --model {run.model}")
        elif results.data != data.fingerprint() or not results.results:
            say(f"{about}: it was measured on other data or candidates; python evaluate.py --models {run.model}")
        else:
            return results
    except UserError as error:
        say(f"{about}: {error}")
    return None


def _averaged(model: str, folder: Path, seeds: list[SeedResults]) -> MeasuredRow:
    """Average the seeds, per query; the averages are written beside the seeds' folders."""
    settings = [seed.run.load_config() for seed in seeds]
    if any(config.get(section) != settings[0].get(section) for config in settings for section in ("model", "data")):
        say(f"{model}: its seeds were trained with different settings; the table shows the average of all")
    by_key: dict[tuple[str, bool, str], list[Result]] = {}
    for seed in seeds:
        for result in seed.results:
            by_key.setdefault(result.key, []).append(result)
    if missing := {f"{key[0]} {key[2]}": None for key, same in by_key.items() if len(same) < len(seeds)}:
        say(f"{model}: not all seeds are measured on {', '.join(missing)}: it is not in the table")
    averages = [_average(same) for same in by_key.values() if len(same) == len(seeds)]
    write_measurements(folder, [result.measurement for result in averages if result.measurement])
    return MeasuredRow(model, seeds, averages)


def _average(same: Sequence[Result]) -> Result:
    """Average one value over the seeds; its time is the median of those on the first seed's device."""
    device, threads = same[0].device, same[0].threads
    times = [result.ms_per_1k for result in same if (result.device, result.threads) == (device, threads)]
    values = [result.value for result in same]
    measurements = [result.measurement for result in same if result.measurement]
    return same[0]._replace(
        value=float(np.mean(values)), seeds=len(same), ms_per_1k=float(np.median(times)), seed_values=values,
        measurement=over_seeds(same[0].model, measurements) if len(measurements) == len(same) else None,
    )  # fmt: skip


def with_tests(results: Sequence[Result], path: Path = HYPOTHESES) -> list[Result]:
    """Return the results with `significance` filled in, for the main measure of each query set."""
    threshold, hypotheses = read_hypotheses(path)
    known = {*names("model"), *(result.model for result in results)}
    tested = dict.fromkeys(name for hypothesis in hypotheses for name in (hypothesis.row, hypothesis.against))
    if unknown := [name for name in tested if name.removesuffix(".alone") not in known]:
        say(f"{path}: there is no ranker {', '.join(unknown)}; its hypotheses are not tested")
    significance: dict[tuple[str, tuple[str, bool, str]], list[dict[str, Any]]] = {}
    for main in main_results(results).values():
        rows = {result.model + (".alone" if result.alone else ""): result for result in main}
        values = {name: result.measured.per_query for name, result in rows.items()}
        for name, tests in verdicts(values, hypotheses, threshold).items():
            significance[rows[name].model, rows[name].key] = [test._asdict() for test in tests]
    return [result._replace(significance=significance.get((result.model, result.key), [])) for result in results]


def main_results(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return query set -> the result of each row for the main measure, which comes first."""
    main: dict[str, dict[str, Result]] = {}
    for result in results:
        main.setdefault(result.query_set, {}).setdefault(result.row_name, result)
    return {query_set: list(rows.values()) for query_set, rows in main.items()}
