"""What the report on a data set shows, gathered from the measured rows and the folders of their seeds.

metrics.csv    learning curves; metrics.before-<n>.csv was written before the n-th interruption
table/         translation tables: their strongest translations
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from datamodules.retrieval_data import RetrievalData
from datamodules.text.analysis import FIELDS, stop_words
from datamodules.text.query_sets import DEVELOPMENT
from evaluation.report.report import Curve, Point, QuerySetValues, Report, ReportRow, RowScores, Training
from evaluation.report.score_histogram import ScoreHistogram
from evaluation.report.translation_picture import (
    ShownTable,
    TranslationPicture,
    frequent_words,
    min_documents,
    translation_picture,
)
from evaluation.results_table import Result, Table
from lexical.errors import UserError
from lexical.model1.table_files import load_table
from lexical.terminal import say
from lightning_modules.registry import row_of
from pipeline.results import MeasuredRow
from pipeline.run_folder import RunFolder

VALIDATION, LOSS = "val/mrr", "train/loss"
TABLES = {"EM": ("model1_bwps", "model1_word"), "neural": ("nn_model1_exp",)}  # the first that is there


def gather_report(rows: Sequence[MeasuredRow], table: Table, data: RetrievalData) -> Report:
    """Return the content of the page; a fused row stands before the same ranker alone, as in the table."""
    results = [result for row in rows for result in row.results]
    main: dict[tuple[str, bool], dict[str, Result]] = {}  # row of the report -> query set -> its main measure
    for result in results:
        main.setdefault((result.model, result.alone), {}).setdefault(result.query_set, result)
    names = list(main)
    sets = list(dict.fromkeys(result.query_set for result in results))
    return Report(
        data=data.name,
        summary=summary(results),
        table=table,
        rows=[ReportRow(model + (" (alone)" if alone else ""), row_of(model).part, alone) for model, alone in names],
        points=[
            Point(number, name, result.value, result.ms_per_1k, result.device)
            for number, of_row in enumerate(main.values())
            for name, result in of_row.items()
        ],
        trainings=[curves for row in rows if (curves := training(row)) is not None],
        query_sets=[_query_set(name, list(main.values()), data) for name in sets],
        scores=[scores for row in rows for scores in _scores(row, names, sets)],
        translations=translations({row.model: row.seeds[0].run for row in rows}, data),
    )


def summary(results: Sequence[Result]) -> str:
    """Return queries of each set, rankers and seeds in one line."""
    sizes = {result.query_set: result.queries for result in results}
    rankers, seeds = len({result.model for result in results}), sorted({result.seeds for result in results})
    trained = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seed{'s' if seeds[0] > 1 else ''}"
    queries = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    return f"Queries: {queries} · {rankers} ranker{'s' if rankers > 1 else ''} · {trained} each"


def _query_set(name: str, rows: Sequence[Mapping[str, Result]], data: RetrievalData) -> QuerySetValues:
    query_set = data.query_set(name)
    values: dict[int, np.ndarray] = {}
    measure = ""
    for number, of_row in enumerate(rows):
        if name not in of_row:
            continue
        measure, per_query = of_row[name].measure, of_row[name].per_query
        if missing := [query for query in query_set.ids if query not in per_query]:
            model = of_row[name].model
            raise UserError(f"{model} has no value for the query {missing[0]} of {name}: evaluate it again")
        values[number] = np.array([per_query[query] for query in query_set.ids])
    return QuerySetValues(name, measure, query_set.ids, query_set.texts, values)


def _scores(row: MeasuredRow, names: Sequence[tuple[str, bool]], sets: Sequence[str]) -> list[RowScores]:
    """Return histograms of the first seed that has them: scores of different seeds have no common scale."""
    for seed in row.seeds:
        if stored := [entry for entry in seed.histograms if entry["query_set"] in sets]:
            return [
                RowScores(
                    names.index((row.model, entry["alone"])), entry["query_set"], seed.run.seed,
                    ScoreHistogram(entry["edges"], entry["relevant"], entry["others"]),
                )
                for entry in sorted(stored, key=lambda entry: entry["alone"])
            ]  # fmt: skip
    return []


# --- learning curves


def training(row: MeasuredRow) -> Training | None:
    """Return the learning curves of all seeds; None for a ranker that was not trained by gradients."""
    curves: dict[str, list[Curve]] = {VALIDATION: [], LOSS: []}
    for seed in row.seeds:
        for metric, points in read_metrics(seed.run.path, list(curves)).items():
            if points:
                steps, values = zip(*points, strict=True)
                curves[metric].append(Curve(seed.run.seed, list(steps), list(values)))
    return Training(row.model, curves[VALIDATION], curves[LOSS]) if any(curves.values()) else None


def read_metrics(folder: Path, metrics: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of each metric, over all interruptions of the training.

    A resumed training repeats the steps since its last checkpoint, and one that was started anew repeats all of them:
    what an older file has from the first step of a newer one on does not count.
    """
    before = sorted(folder.glob("metrics.before-*.csv"), key=lambda path: (len(path.name), path.name))
    points: list[tuple[str, int, float]] = []
    for path in [*before, folder / "metrics.csv"]:
        newer = _read_points(path, metrics) if path.is_file() else []
        first = min((step for _, step, _ in newer), default=None)
        points = [point for point in points if first is None or point[1] < first] + newer
    return {metric: [(step, value) for name, step, value in points if name == metric] for metric in metrics}


def _read_points(path: Path, metrics: Sequence[str]) -> list[tuple[str, int, float]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                (metric, int(line["step"]), float(line[metric]))
                for line in csv.DictReader(file)
                for metric in metrics
                if line.get(metric)
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): remove it, or train this ranker again") from error


# --- translations


def translations(runs: Mapping[str, RunFolder], data: RetrievalData) -> TranslationPicture | None:
    """Return the picture of one table of each kind; None, and one line that says why, where a table is damaged.

    The words are counted in the first table's field; a table of another field shows the same words.

    Args:
        runs: a trained seed of each row.
    """
    shown: list[ShownTable] = []
    fields: list[str] = []
    least = 1
    try:
        for kind, rows in TABLES.items():
            row = next((row for row in rows if row in runs), None)
            if row is None:
                continue
            folder = runs[row].table
            saved = load_table(folder)
            field = saved.meta.get("field")
            if field not in FIELDS:
                raise UserError(f"{folder} does not say which field its words are of")
            least = min_documents(len(data.prepared.collection))
            frequency = np.asarray(data.prepared.field(field).forward.document_frequency)
            if len(frequency) != len(saved.vocabulary):
                raise UserError(f"{folder} has other words than the field {field}")
            shown.append(ShownTable(row, kind, runs[row].seed, saved.table, saved.vocabulary, frequency >= least))
            fields.append(field)
    except UserError as error:
        say(f"results.html does not show translations: {error}")
        return None
    if not shown:
        return None
    tokens = data.prepared.query_tokens(DEVELOPMENT, fields[0]).values
    words = frequent_words(tokens, data.prepared.field(fields[0]).vocabulary(), stop_words())
    return translation_picture(words, shown, least)
