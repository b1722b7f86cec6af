"""What the report on a data set shows, gathered from the folders of its rankers.

metrics.csv                 learning curves; metrics.before-<n>.csv was written before the n-th interruption
evaluation.json             histograms of the scores
<model>/per_query/          each query's mean over the seeds
table/                      translation tables: their strongest translations
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datamodules.retrieval_data import RetrievalData
from datamodules.text.analysis import FIELDS, stop_words
from datamodules.text.query_sets import DEVELOPMENT
from evaluation.paper_rows import part, place
from evaluation.report.report import Curve, Point, QuerySetValues, Report, ReportRow, RowScores, Training
from evaluation.report.score_histogram import ScoreHistogram
from evaluation.report.translation_picture import (
    ShownTable,
    TranslationPicture,
    frequent_words,
    least_documents,
    translation_picture,
)
from evaluation.results_table import Result, Table
from evaluation.seed_averages import read_measured
from lexical.errors import UserError
from lexical.model1.table_files import load_table
from lexical.terminal import say
from pipeline.run_folder import RunFolder, read_json, trained_models

VALIDATION, LOSS = "val/mrr", "train/loss"
TABLES = {"EM": ("model1_bwps", "model1_word"), "neural": ("nn_model1_exp",)}  # the first that is there


class SeedFolder(NamedTuple):
    """A seed whose results are in the table."""

    seed: int
    folder: RunFolder
    evaluation: dict[str, Any]


def gather_report(results: Sequence[Result], table: Table, data: RetrievalData, data_folder: Path) -> Report:
    fusions = {one.model for one in results if one.fused}
    names = sorted({(one.model, one.model in fusions and not one.fused) for one in results}, key=_as_in_the_table)
    places = {name: number for number, name in enumerate(names)}
    main: dict[tuple[int, str], Result] = {}
    for one in results:  # the main measure comes first
        main.setdefault((places[one.model, one.model in fusions and not one.fused], one.query_set), one)
    sets = list(dict.fromkeys(one.query_set for one in results))
    seeds = {model: _seeds(data_folder, model, data) for model in dict.fromkeys(model for model, _ in names)}
    return Report(
        data=data.name,
        summary=summary(results),
        table=table,
        rows=[ReportRow(model + (" (alone)" if alone else ""), part(model), alone) for model, alone in names],
        points=[Point(row, name, one.value, one.ms_per_1k, one.device) for (row, name), one in main.items()],
        trainings=[found for model, mine in seeds.items() if (found := training(model, mine))],
        query_sets=[_per_query(name, names, main, data, data_folder) for name in sets],
        scores=[one for row, (model, alone) in enumerate(names) for one in _scores(row, alone, seeds[model], sets)],
        translations=translations(seeds, data),
    )


def summary(results: Sequence[Result]) -> str:
    """Queries of each set, rankers, seeds: one line."""
    sizes = {one.query_set: one.queries for one in results}
    rankers, seeds = len({one.model for one in results}), sorted({one.seeds for one in results})
    trained = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seed{'s' if seeds[0] > 1 else ''}"
    queries = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    return f"Queries: {queries} · {rankers} ranker{'s' if rankers > 1 else ''} · {trained} each"


def _as_in_the_table(row: tuple[str, bool]) -> tuple[int, str, bool]:
    return (*place(row[0]), row[1])


def _seeds(data_folder: Path, model: str, data: RetrievalData) -> list[SeedFolder]:
    """Those measured on this very data; the others have been named when the table was made."""
    found = []
    for seed in trained_models(data_folder).get(model, []):
        folder = RunFolder(data_folder / model / f"seed-{seed}")
        try:
            evaluation = read_json(folder.evaluation)
        except UserError:
            continue
        if isinstance(evaluation, dict) and evaluation.get("data") == data.fingerprint():
            found.append(SeedFolder(seed, folder, evaluation))
    return found


def training(model: str, seeds: Sequence[SeedFolder]) -> Training | None:
    """None for a ranker that was not trained by gradients."""
    curves: dict[str, list[Curve]] = {VALIDATION: [], LOSS: []}
    for one in seeds:
        for metric, points in read_metrics(one.folder.path, list(curves)).items():
            if points:
                curves[metric].append(Curve(one.seed, [step for step, _ in points], [value for _, value in points]))
    return Training(model, curves[VALIDATION], curves[LOSS]) if any(curves.values()) else None


def read_metrics(folder: Path, metrics: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each metric, over all interruptions of the training.

    A resumed training repeats the steps since its last checkpoint: what an older file has from there on is void. So is
    all of it when the training was begun anew.
    """
    before = sorted(folder.glob("metrics.before-*.csv"), key=lambda path: (len(path.name), path.name))
    points: dict[str, list[tuple[int, float]]] = {metric: [] for metric in metrics}
    for path in [*before, folder / "metrics.csv"]:
        if not path.is_file():
            continue
        new = _read_file(path, metrics)
        first = min((step for found in new.values() for step, _ in found), default=None)
        for metric, found in new.items():
            points[metric] = [point for point in points[metric] if first is None or point[0] < first] + found
    return points


def _read_file(path: Path, metrics: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {metric: [] for metric in metrics}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                for metric in metrics:
                    if line.get(metric):
                        found[metric].append((int(line["step"]), float(line[metric])))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): remove it, or train this ranker again") from error
    return found


def _per_query(
    name: str,
    rows: Sequence[tuple[str, bool]],
    main: Mapping[tuple[int, str], Result],
    data: RetrievalData,
    folder: Path,
) -> QuerySetValues:
    query_set = data.query_set(name)
    values: dict[int, np.ndarray] = {}
    measure = ""
    for row, (model, alone) in enumerate(rows):
        if (row, name) not in main:
            continue
        path = RunFolder(folder / model).per_query(name, alone)
        measure, of_query = read_measured(path)[0]
        if missing := [query for query in query_set.ids if query not in of_query]:
            raise UserError(f"{path} has no value for the query {missing[0]}: evaluate {model} again")
        values[row] = np.array([of_query[query] for query in query_set.ids])
    return QuerySetValues(name, measure, query_set.ids, query_set.texts, values)


def _scores(row: int, alone: bool, seeds: Sequence[SeedFolder], sets: Sequence[str]) -> list[RowScores]:
    """Of the first seed that has them: scores of different seeds have no common scale."""
    for one in seeds:
        stored = [
            RowScores(
                row, found["query_set"], one.seed, ScoreHistogram(found["edges"], found["relevant"], found["others"])
            )
            for found in one.evaluation.get("histograms", [])
            if found["alone"] == alone and found["query_set"] in sets
        ]
        if stored:
            return stored
    return []


def translations(seeds: Mapping[str, Sequence[SeedFolder]], data: RetrievalData) -> TranslationPicture | None:
    """Of the first seed of each kind of table; None, and one line that says why, where a table is damaged.

    The words are counted in the first table's field; a table of another field is asked for the same words.
    """
    shown: list[ShownTable] = []
    fields: list[str] = []
    least = 1
    try:
        for kind, rows in TABLES.items():
            row = next((row for row in rows if seeds.get(row)), None)
            if row is None:
                continue
            first = seeds[row][0]
            saved = load_table(first.folder.table)
            field = saved.meta.get("field")
            if field not in FIELDS:
                raise UserError(f"{first.folder.table} does not say which field its words are of")
            least = least_documents(len(data.prepared.collection))
            frequency = np.asarray(data.prepared.field(field).forward.document_frequency)
            if len(frequency) != len(saved.vocabulary):
                raise UserError(f"{first.folder.table} has other words than the field {field}")
            shown.append(ShownTable(row, kind, first.seed, saved.table, saved.vocabulary, frequency >= least))
            fields.append(field)
    except UserError as error:
        say(f"results.html does not show translations: {error}")
        return None
    if not shown:
        return None
    tokens = data.prepared.query_tokens(DEVELOPMENT, fields[0]).values
    words = frequent_words(tokens, data.prepared.field(fields[0]).vocabulary(), stop_words())
    return translation_picture(words, shown, least)
