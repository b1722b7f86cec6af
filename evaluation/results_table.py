"""The results table: measured values as rows and columns, in Markdown and LaTeX; the report has it in HTML.

A row is a ranker, fused with BM25 or alone; a column is a query set with its main measure, then the recall of the
candidates, then the time to rank 1,000 documents with the device that took it. The best value of a column is bold,
marks say which tests were significant, and the paper's figures for the same data stand beside ours, under their own
heading. Rows and columns come in the order of the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from evaluation.measurements import Measurement
from evaluation.measures import RECALL, is_recall
from evaluation.significance import ROUNDING, Verdict

OUTCOME_HEADER = [
    "row", "against", "query set", "difference", "relative", "effect size", "better", "worse", "p", "p (Holm)", ""
]  # fmt: skip
_TEX_MARKS = {"★": r"\star", "†": r"\dagger", "‡": r"\ddagger", "#": r"\#"}


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
    measurement: Measurement | None = None  # what it is computed from, where that was written; not in results.json

    def entry(self) -> dict[str, Any]:
        """Return the entry of results.json."""
        return dict(list(self._asdict().items())[:-2])

    @property
    def row_name(self) -> str:
        return self.model + (" (alone)" if self.alone else "")

    @property
    def measured(self) -> Measurement:
        assert self.measurement is not None
        return self.measurement

    @property
    def key(self) -> tuple[str, bool, str]:
        """The `Measurement.key`."""
        return self.query_set, self.alone, self.measure

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds."""
        return float(np.std(self.seed_values, ddof=1)) if len(self.seed_values) > 1 else 0.0


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

    result: Result
    verdict: Verdict

    def cells(self) -> list[str]:
        """Return the line under `OUTCOME_HEADER`."""
        difference, relative, effect, p_value, p_holm = self.verdict.cells()
        return [
            self.result.model, self.verdict.against, f"{self.result.query_set} {self.result.measure}", difference,
            relative, effect, f"{self.verdict.better:,}", f"{self.verdict.worse:,}", p_value, p_holm,
            self.verdict.mark if self.verdict.significant else "",
        ]  # fmt: skip


class Table(NamedTuple):
    header: list[str]  # behind the name of the ranker
    rows: list[TableRow]
    outcomes: list[Outcome]
    notes: list[str]  # to be read under the table


class PaperFigures(NamedTuple):
    """What the paper printed for one data set."""

    rows: Mapping[str, Mapping[str, str]]  # ranker -> query set or "time" -> as printed
    notes: list[str]

    def column(self, name: str) -> dict[str, Cell]:
        """Return ranker -> cell."""
        return {ranker: Cell(printed.get(name, "")) for ranker, printed in self.rows.items()}


def paper_figures(path: Path, data: str) -> PaperFigures | None:
    """Return the paper's figures for `data`; None where it has none."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if data not in content or data in ("source", "notes"):
        return None
    source, notes = content["source"], content["notes"].items()
    of_data = [f"{source}, {key.split('/')[1]}: {text}" for key, text in notes if key.startswith(data + "/")]
    return PaperFigures(content[data], [f'"in the paper": as printed by {source}, on their machines', *of_data])


def build_table(results: Sequence[Result], describe: Callable[[str], Any], paper: PaperFigures | None = None) -> Table:
    """Return the table; `describe` returns a ranker's row of the registry, with `label`, `part` and `group`."""
    columns: dict[str, dict[str, Cell]] = {}  # heading -> row -> cell
    for query_set, measure in dict.fromkeys((result.query_set, result.measure) for result in results):
        measured = [result for result in results if (result.query_set, result.measure) == (query_set, measure)]
        values = [result.value for result in measured]
        best = max(values) if max(values) - min(values) > ROUNDING else math.inf  # where all are equal none is best
        columns[f"{query_set} {measure}"] = {result.row_name: _cell(result, best) for result in measured}
        if paper and not is_recall(measure):
            columns[f"{query_set} {measure} in the paper"] = paper.column(query_set)
    first: dict[str, Result] = {}
    for result in results:
        first.setdefault(result.row_name, result)
    columns["ms per 1K"] = {name: Cell(_time(result.ms_per_1k)) for name, result in first.items()}
    columns["device"] = {name: Cell(_device(result)) for name, result in first.items()}
    if paper:
        columns["per 1K in the paper"] = paper.column("time")
    rows = []
    for name, result in first.items():
        suffix = (" (alone)" if result.alone else "") + (f", {result.seeds} seeds" if result.seeds > 1 else "")
        row = describe(result.model)
        cells = [column.get(name, Cell("")) for column in columns.values()]
        rows.append(TableRow(result.model + suffix, row.label + suffix, row.part, row.group, cells))
    outcomes = [Outcome(result, Verdict(**verdict)) for result in results for verdict in result.significance]
    return Table(list(columns), rows, outcomes, _notes(results, outcomes, paper))


def narrowed(table: Table, width: int) -> Table:
    """Return the table in `width` characters: the device is left out first, then recalls, then other last columns."""
    columns = list(enumerate(table.header))
    by_value = [column for column in columns if not (column[1] == "device" or RECALL in column[1])]
    recalls = [column for column in columns if RECALL in column[1]]
    widths = [max(map(len, [header, *(row.cells[i].text + row.cells[i].marks for row in table.rows)])) + 2
              for i, header in columns]  # fmt: skip
    room = width - max(len(row.name) for row in table.rows) - 4
    kept: list[int] = []
    for i, _ in [*by_value, *recalls, *(column for column in columns if column[1] == "device")]:
        if not kept or widths[i] + sum(widths[j] for j in kept) <= room:
            kept.append(i)
        else:
            break
    kept.sort()
    if left_out := [header for i, header in columns if i not in kept]:
        notes = [*table.notes, f"not shown: {', '.join(left_out)}"]
        rows = [row._replace(cells=[row.cells[i] for i in kept]) for row in table.rows]
        return table._replace(header=[table.header[i] for i in kept], rows=rows, notes=notes)
    return table


def _cell(result: Result, best: float) -> Cell:
    marks = dict.fromkeys(verdict["mark"] for verdict in result.significance if verdict["significant"])
    spread = f"±{result.spread:.4f}" if result.seeds > 1 else ""
    return Cell(f"{result.value:.4f}", best - result.value < ROUNDING, "".join(marks), spread)


def _notes(results: Sequence[Result], outcomes: Sequence[Outcome], paper: PaperFigures | None) -> list[str]:
    notes = []
    for mark in dict.fromkeys(outcome.verdict.mark for outcome in outcomes if outcome.verdict.significant):
        tested = [outcome for outcome in outcomes if outcome.verdict.mark == mark]
        pairs = dict.fromkeys(f"{outcome.result.model} against {outcome.verdict.against}" for outcome in tested)
        notes.append(
            f"{mark} significant difference (paired two-sided t-test, Holm's correction), tested: {'; '.join(pairs)}"
        )
    if any(result.seeds > 1 for result in results):
        notes.append("± standard deviation over the seeds; figures and tests use each query's mean over the seeds")
    return notes + (paper.notes if paper else [])


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 999.5 else f"{milliseconds:,.0f}"


def _device(result: Result) -> str:
    threads = "" if result.device != "cpu" else f", {result.threads} thread{'s' if result.threads != 1 else ''}"
    return f"{result.device}{threads}"


# --- formats


def markdown(table: Table) -> str:
    """Return the table, what its marks mean, and the list of tests."""

    def shown(cell: Cell) -> str:
        text = f"**{cell.text}**" if cell.best else cell.text
        return " ".join(filter(None, [text + cell.marks, cell.spread]))

    rows = [[row.name, *map(shown, row.cells)] for row in table.rows]
    parts = [pipe_table(["ranker", *table.header], rows), *(_escaped(note) for note in table.notes)]
    if table.outcomes:
        parts.append(pipe_table(OUTCOME_HEADER, [outcome.cells() for outcome in table.outcomes]))
    return "\n\n".join(parts) + "\n"


def pipe_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in (header, ["---"] * len(header), *rows))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def latex(table: Table) -> str:
    r"""Return a tabular for ``\usepackage{booktabs}``, rows in the paper's words and groups."""

    def shown(cell: Cell) -> str:
        text = rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text)
        marks = "".join(_TEX_MARKS.get(mark, rf"\mathrm{{{_tex(mark)}}}") for mark in cell.marks)
        text += f"$^{{{marks}}}$" if marks else ""
        return text + (rf" {{\tiny $\pm${cell.spread[1:]}}}" if cell.spread else "")

    width = len(table.header) + 1
    lines = [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    lines.append(" & ".join(["ranker", *map(_tex, table.header)]) + r" \\")
    for part, rows in groupby(table.rows, key=lambda row: row.part):
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{_tex(part)}}}}} \\"]
        for _, group in groupby(rows, key=lambda row: row.group):
            lines.append(r"\midrule")
            lines += [" & ".join([_tex(row.label), *map(shown, row.cells)]) + r" \\" for row in group]
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    replaced = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "★": r"$^{\star}$"}
    return "".join(replaced.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
