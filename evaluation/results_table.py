"""The results table: measured values as rows and columns, before any format (`table_formats`) is chosen.

A row is a ranker, fused with BM25 or alone; a column is a query set with its main measure, then the recall of the
candidates, then the time to rank 1,000 documents with the device that took it. The best value of a column is bold,
marks say which tests were significant, and the paper's figures for the same data stand beside ours, under their own
heading. Rows and columns come in the order of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import yaml

from evaluation.measurements import Measurement
from evaluation.measures import is_recall
from evaluation.significance import ROUNDING, Verdict


class Result(NamedTuple):
    """One value of the table: an entry of results.json."""

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
    alone: bool = False  # the ranker without BM25, where the row is fused with it; not in results.json
    measurement: Measurement | None = None  # what the value is computed from; not in results.json

    def entry(self) -> dict[str, Any]:
        """Return the entry of results.json."""
        return dict(list(self._asdict().items())[:-2])

    @property
    def per_query(self) -> dict[str, float]:
        """Each query's mean over the seeds."""
        assert self.measurement is not None
        return self.measurement.per_query

    @property
    def key(self) -> tuple[str, bool, str]:
        """The `Measurement.key`."""
        return self.query_set, self.alone, self.measure

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds."""
        return float(np.std(self.seed_values, ddof=1)) if len(self.seed_values) > 1 else 0.0


class RowDescription(Protocol):
    """How a ranker stands in the table: a row of the registry."""

    @property
    def label(self) -> str: ...  # in the paper's words
    @property
    def part(self) -> str: ...  # the heading that it stands under
    @property
    def group(self) -> int: ...  # rows of one group stand together, between two rules


class Cell(NamedTuple):
    text: str
    best: bool = False  # of its column
    marks: str = ""
    spread: str = ""  # over the seeds


class TableRow(NamedTuple):
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
    rows: list[TableRow]
    outcomes: list[Outcome]
    notes: list[str]  # to be read under the table


class PaperFigures(NamedTuple):
    """What the paper printed for one data set."""

    source: str
    rows: Mapping[str, Mapping[str, str]]  # ranker -> query set or "time" -> as printed
    notes: list[str]

    def of(self, model: str, column: str) -> Cell:
        return Cell(self.rows.get(model, {}).get(column, ""))


def paper_figures(path: Path, data: str) -> PaperFigures | None:
    """Return the paper's figures for `data`; None where it has none."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if data not in content or data in ("source", "notes"):
        return None
    source, notes = content["source"], content["notes"].items()
    of_data = [f"{source}, {key.split('/')[1]}: {text}" for key, text in notes if key.startswith(data + "/")]
    return PaperFigures(source, content[data], of_data)


def build_table(
    results: Sequence[Result], describe: Callable[[str], RowDescription], paper: PaperFigures | None = None
) -> Table:
    fusions = {result.model for result in results if result.fused}
    columns = list(dict.fromkeys((result.query_set, result.measure) for result in results))
    by_row: dict[tuple[str, bool], dict[tuple[str, str], Result]] = {}
    for result in results:
        by_row.setdefault((result.model, result.fused), {})[result.query_set, result.measure] = result
    best = {column: _best([cells[column].value for cells in by_row.values() if column in cells]) for column in columns}
    rows = []
    for (model, fused), of_row in by_row.items():
        alone = model in fusions and not fused
        printed = PaperFigures("", {}, []) if alone or paper is None else paper
        first = next(iter(of_row.values()))
        cells = []
        for query_set, measure in columns:
            cells.append(_cell(of_row.get((query_set, measure)), best[query_set, measure]))
            if paper and not is_recall(measure):
                cells.append(printed.of(model, query_set))
        cells += [Cell(_time(first.ms_per_1k)), Cell(_device(first))]
        if paper:
            cells.append(printed.of(model, "time"))
        suffix = (" (alone)" if alone else "") + (f", {first.seeds} seeds" if first.seeds > 1 else "")
        row = describe(model)
        rows.append(TableRow(model + suffix, row.label + suffix, row.part, row.group, cells))
    outcomes = [
        Outcome(result.model, result.query_set, result.measure, Verdict(**verdict))
        for result in results
        for verdict in result.significance
    ]
    return Table(_header(columns, paper), rows, outcomes, _notes(results, outcomes, paper))


def _header(columns: Sequence[tuple[str, str]], paper: PaperFigures | None) -> list[str]:
    header = []
    for query_set, measure in columns:
        header.append(f"{query_set} {measure}")
        if paper and not is_recall(measure):
            header.append(f"{query_set} {measure} in the paper")
    return [*header, "ms per 1K", "device", *(["per 1K in the paper"] if paper else [])]


def _best(values: Sequence[float]) -> float | None:
    """Return the largest value; None where all are equal: then none is best."""
    return max(values) if max(values) - min(values) > ROUNDING else None


def _cell(result: Result | None, best: float | None) -> Cell:
    if result is None:
        return Cell("")
    marks = dict.fromkeys(verdict["mark"] for verdict in result.significance if verdict["significant"])
    spread = f"±{result.spread:.4f}" if result.seeds > 1 else ""
    is_best = best is not None and best - result.value < ROUNDING
    return Cell(f"{result.value:.4f}", is_best, "".join(marks), spread)


def _notes(results: Sequence[Result], outcomes: Sequence[Outcome], paper: PaperFigures | None) -> list[str]:
    notes = []
    for mark in dict.fromkeys(outcome.verdict.mark for outcome in outcomes if outcome.verdict.significant):
        tested = [outcome for outcome in outcomes if outcome.verdict.mark == mark]
        pairs = dict.fromkeys(f"{outcome.row} against {outcome.verdict.against}" for outcome in tested)
        notes.append(f"{mark} significant difference (paired two-sided t-test), tested: {'; '.join(pairs)}")
    if any(result.seeds > 1 for result in results):
        notes.append("± standard deviation over the seeds; figures and tests use each query's mean over the seeds")
    if paper:
        notes += [f'"in the paper": as printed by {paper.source}, on their machines', *paper.notes]
    return notes


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 999.5 else f"{milliseconds:,.0f}"


def _device(result: Result) -> str:
    threads = "" if result.device != "cpu" else f", {result.threads} thread{'s' if result.threads != 1 else ''}"
    return f"{result.device}{threads}"
