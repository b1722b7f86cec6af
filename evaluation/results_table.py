"""The results table: measured values as rows and columns, before any format (`table_formats`) is chosen.

A row is a ranker (alone, or fused with BM25), in the order and groups of the paper's table; a column is a query set
with its main measure, then the recall of the candidates, then the time to rank 1,000 documents with the device that
took it. The best value of a column is bold, marks say what the tests of significance found, and where the paper has a
figure for the same data it stands beside ours, under its own heading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from evaluation.hypotheses import Verdict
from evaluation.paper_rows import group, label, part, place


class Result(NamedTuple):
    """One measured value: an entry of results.json."""

    model: str
    fused: bool
    query_set: str
    measure: str
    value: float
    seeds: int
    queries: int
    depth: int
    ms_per_1k: float
    device: str
    threads: int
    significance: list[dict[str, Any]]  # `Verdict`
    seed_values: Sequence[float] = ()  # of each seed; their mean is `value`

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds."""
        return float(np.std(self.seed_values, ddof=1)) if len(self.seed_values) > 1 else 0.0


class Cell(NamedTuple):
    text: str
    best: bool = False  # of its column
    marks: str = ""
    spread: str = ""  # over the seeds


class Row(NamedTuple):
    name: str  # of the ranker, for --model
    label: str  # in the paper's words
    part: str
    group: int
    cells: list[Cell]


class Outcome(NamedTuple):
    """One line of the list of tests."""

    row: str
    query_set: str
    measure: str
    verdict: Verdict


class Table(NamedTuple):
    header: list[str]  # behind the name of the ranker
    rows: list[Row]
    outcomes: list[Outcome]
    notes: list[str]  # to be read under the table


class PaperFigures(NamedTuple):
    """What the paper printed for one data set."""

    source: str
    rows: Mapping[str, Mapping[str, str]]  # ranker -> query set or "time" -> as printed
    notes: list[str]

    def of(self, model: str, column: str) -> str:
        return self.rows.get(model, {}).get(column, "")


def paper_figures(path: Path, data: str) -> PaperFigures | None:
    """The paper's figures for `data`; None where it has none."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if data not in content or data in ("source", "notes"):
        return None
    notes = [
        f"{content['source']}, {key.split('/')[1]}: {text}"
        for key, text in content["notes"].items()
        if key.startswith(data + "/")
    ]
    return PaperFigures(content["source"], content[data], notes)


def build_table(results: Sequence[Result], paper: PaperFigures | None = None) -> Table:
    names = sorted({(one.model, one.fused) for one in results}, key=lambda row: (*place(row[0]), not row[1]))
    fusions = {model for model, fused in names if fused}
    columns = list(dict.fromkeys((one.query_set, one.measure) for one in results))
    values = {(one.model, one.fused, one.query_set, one.measure): one for one in results}
    best = {column: _best([values.get((*row, *column)) for row in names]) for column in columns}
    header, rows = _header(columns, paper), []
    for row in names:
        model, fused = row
        alone = model in fusions and not fused
        known = [values[(*row, *column)] for column in columns if (*row, *column) in values]
        cells = []
        for column in columns:
            cells.append(_cell(values.get((*row, *column)), best[column]))
            if paper and _is_main(column[1]):
                cells.append(Cell("" if alone else paper.of(model, column[0])))
        cells += [Cell(_time(known[0].ms_per_1k)), Cell(_device(known[0]))]
        if paper:
            cells.append(Cell("" if alone else paper.of(model, "time")))
        behind = (" (alone)" if alone else "") + (f", {known[0].seeds} seeds" if known[0].seeds > 1 else "")
        rows.append(Row(model + behind, label(model) + behind, part(model), group(model), cells))
    outcomes = [
        Outcome(one.model, one.query_set, one.measure, Verdict(**found))
        for one in results
        for found in one.significance
    ]
    return Table(header, rows, outcomes, _notes(results, outcomes, paper))


def _header(columns: Sequence[tuple[str, str]], paper: PaperFigures | None) -> list[str]:
    header = []
    for query_set, measure in columns:
        header.append(f"{query_set} {measure}")
        if paper and _is_main(measure):
            header.append(f"{query_set} {measure} in the paper")
    return [*header, "ms per 1K", "device", *(["per 1K in the paper"] if paper else [])]


def _is_main(measure: str) -> bool:
    return not measure.startswith("recall@")


def _best(column: Sequence[Result | None]) -> float | None:
    """The largest value; None where all are equal: then none is best."""
    numbers = [_rounded(one.value) for one in column if one is not None]
    return max(numbers) if len(set(numbers)) > 1 else None


def _rounded(value: float) -> float:
    """Means over seeds of the same value differ in their last bits."""
    return round(value, 9)


def _cell(one: Result | None, best: float | None) -> Cell:
    if one is None:
        return Cell("")
    marks = dict.fromkeys(found["mark"] for found in one.significance if found["significant"])
    spread = f"±{one.spread:.4f}" if one.seeds > 1 else ""
    return Cell(f"{one.value:.4f}", _rounded(one.value) == best, "".join(marks), spread)


def _notes(results: Sequence[Result], outcomes: Sequence[Outcome], paper: PaperFigures | None) -> list[str]:
    notes = []
    for mark in dict.fromkeys(one.verdict.mark for one in outcomes if one.verdict.significant):
        pairs = dict.fromkeys(
            f"{one.row} against {one.verdict.against}" for one in outcomes if one.verdict.mark == mark
        )
        notes.append(f"{mark} significant difference (paired two-sided t-test), tested: {'; '.join(pairs)}")
    if any(one.seeds > 1 for one in results):
        notes.append("± standard deviation over the seeds; figures and tests use each query's mean over the seeds")
    if paper:
        notes += [f'"in the paper": as printed by {paper.source}, on their machines', *paper.notes]
    return notes


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 999.5 else f"{milliseconds:,.0f}"


def _device(result: Result) -> str:
    threads = "" if result.device != "cpu" else f", {result.threads} thread{'s' if result.threads != 1 else ''}"
    return f"{result.device}{threads}"
