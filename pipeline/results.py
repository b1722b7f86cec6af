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
    histograms: list[dict[str, Any]]  # of the scores: query_set, alone, and a `ScoreHistogram`

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
            results = [Result(**entry) for entry in saved["results"]]
            fusion = any(result.fused for result in results)
            results = [result._replace(alone=fusion and not result.fused) for result in results]
            measurements = {
                measurement.key: measurement
                for ranking in dict.fromkeys(result.key[:2] for result in results)
                for measurement in read_measurements(run.path, *ranking)
            }
            results = [result._replace(measurement=measurements.get(result.key)) for result in results]
            return cls(run, saved["data"], results, saved.get("histograms", []))
        except (TypeError, KeyError) as error:
            raise UserError(f"{run.evaluation} is damaged: evaluate this ranker again") from error


class MeasuredRow(NamedTuple):
    """A ranker in the results table."""

    model: str
    seeds: list[SeedResults]
    results: list[Result]  # averages over the seeds


def collect_rows(
    data_folder: Path, data: RetrievalData, measured: Mapping[RunFolder, SeedResults]
) -> list[MeasuredRow]:
    """Return the rows of all rankers that were measured on this very data, in the order of the table.

    `measured` has the results that are in memory; others are read from their folders.
    """
    rows = []
    for model, seeds in sorted(trained_models(data_folder).items(), key=lambda item: table_order(item[0])):
        runs = [RunFolder(data_folder / model / f"seed-{seed}") for seed in seeds]
        usable = [results for run in runs if (results := measured.get(run) or _read_usable(run, model, data))]
        if usable:
            rows.append(_averaged(model, data_folder / model, usable))
    tested = iter(with_tests([result for row in rows for result in row.results]))
    return [row._replace(results=[next(tested) for _ in row.results]) for row in rows]


def _read_usable(run: RunFolder, model: str, data: RetrievalData) -> SeedResults | None:
    """Return the results of a seed if they belong into the table; if they exist and do not, say why."""
    if not run.evaluation.is_file():
        return None
    about = f"{model} (seed {run.seed}) is not in the table"
    if (dependency := changed_dependency(run)) is not None:
        say(f"{about}, as {dependency} was trained again since: python train.py --model {model}")
        return None
    try:
        results = SeedResults.read(run)
    except UserError as error:
        say(f"{about}: {error}")
        return None
    if results.data != data.fingerprint() or not results.results:
        say(f"{about}: it was measured on other data or candidates; python evaluate.py --models {model}")
        return None
    return results


def _averaged(model: str, folder: Path, seeds: list[SeedResults]) -> MeasuredRow:
    """Average the seeds, per query; the averages are written beside the seeds' folders."""
    settings = [seed.run.load_config() for seed in seeds]
    if any(config.get(section) != settings[0].get(section) for config in settings for section in ("model", "data")):
        say(f"{model}: its seeds were trained with different settings; the table shows the average of all")
    by_key = [{result.key: result for result in seed.results} for seed in seeds]
    everywhere = [key for key in by_key[0] if all(key in of_seed for of_seed in by_key)]
    if missing := {f"{key[0]} {key[2]}": None for of_seed in by_key for key in of_seed if key not in everywhere}:
        say(f"{model}: not all seeds are measured on {', '.join(missing)}: it is not in the table")
    averages = []
    for key in everywhere:
        same = [of_seed[key] for of_seed in by_key]
        device, threads = same[0].device, same[0].threads
        times = [result.ms_per_1k for result in same if (result.device, result.threads) == (device, threads)]
        values = [result.value for result in same]
        measured = [result.measurement for result in same if result.measurement is not None]
        averages.append(
            same[0]._replace(
                value=float(np.mean(values)), seeds=len(same), ms_per_1k=float(np.median(times)), seed_values=values,
                measurement=over_seeds(model, measured) if len(measured) == len(same) else None,
            )
        )  # fmt: skip
    write_measurements(folder, [result.measurement for result in averages if result.measurement])
    return MeasuredRow(model, seeds, averages)


def with_tests(results: Sequence[Result], path: Path = HYPOTHESES) -> list[Result]:
    """Return the results with `significance` filled in, for the main measure of each query set."""
    threshold, hypotheses = read_hypotheses(path)
    known = {*names("model"), *(result.model for result in results)}
    rows = dict.fromkeys(name for hypothesis in hypotheses for name in (hypothesis.row, hypothesis.against))
    if unknown := [name for name in rows if name.removesuffix(".alone") not in known]:
        say(f"{path}: there is no ranker {', '.join(unknown)}; its hypotheses are not tested")
    tested = list(results)
    for query_set in dict.fromkeys(result.query_set for result in results):
        main: dict[str, int] = {}  # row -> number of its result for the main measure, which comes first
        for number, result in enumerate(results):
            if result.query_set == query_set:
                main.setdefault(result.model + (".alone" if result.alone else ""), number)
        values = {name: results[number].per_query for name, number in main.items()}
        for name, tests in verdicts(values, hypotheses, threshold).items():
            tested[main[name]] = results[main[name]]._replace(significance=[test._asdict() for test in tests])
    return tested
