"""What each design decision is worth: rankers with changed settings, each compared with its base on the test queries.

The lines of this table stand in configs/ablations.yaml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.measurements import Measurement
from evaluation.results_table import pipe_table
from evaluation.significance import Hypothesis, Verdict, read_entries, verdicts
from lexical.errors import UserError

MARK = "★"
HEADER = [
    "line", "claim", "setting", "fused", "alone", "difference", "relative", "effect size", "p", "p (Holm)", "entries",
    "MB", "pairs kept",
]  # fmt: skip


class Ablation(NamedTuple):
    """A line of configs/ablations.yaml."""

    name: str
    row: str  # the base, a ranker of configs/model
    claim: str
    ranker: str = ""  # the one that is trained, where that is not the row
    changes: Mapping[str, Any] = {}  # setting -> value
    measure_only: bool = False  # the trained base is measured with these settings

    @property
    def is_base(self) -> bool:
        return not self.changes and self.model == self.row

    @property
    def model(self) -> str:
        """The ranker that is trained."""
        return self.ranker or self.row

    @property
    def setting(self) -> str:
        """What is changed, in a few words."""
        changes = [f"{key} {_shown(value)}" for key, value in self.changes.items()]
        return ", ".join([self.model] * (self.model != self.row) + changes) or "base"


class Export(NamedTuple):
    """Size of an exported table."""

    entries: int
    bytes: int
    share_of_pairs: float


class MeasuredLine(NamedTuple):
    """A line and its main measure on a query set."""

    ablation: Ablation
    row: Measurement  # fused where the row is a fusion
    alone: Measurement | None = None  # the ranker without BM25, where the row is a fusion
    export: Export | None = None
    against_base: Verdict | None = None  # None for the base itself

    def entry(self) -> dict[str, Any]:
        """Return the line's entry of ablations.json."""
        return {
            **{key: getattr(self.ablation, key) for key in ("name", "row", "claim", "setting")},
            "query_set": self.row.query_set,
            "measure": self.row.measure,
            "value": self.row.mean,
            "value_alone": self.alone and self.alone.mean,
            "seeds": len(self.row.values),
            "queries": len(self.row.queries),
            "against_base": self.against_base and self.against_base._asdict(),
            "export": self.export and self.export._asdict(),
        }

    def cells(self) -> list[str]:
        """Return the line of the table, under `HEADER`."""
        verdict, size = self.against_base, self.export
        mark = MARK if verdict and verdict.significant else ""
        alone = f"{self.alone.mean:.4f}" if self.alone else ""
        test = verdict.cells() if verdict else [""] * 5
        export = [f"{size.entries:,}", f"{size.bytes / 1e6:.1f}", f"{100 * size.share_of_pairs:.2f}%"] if size else []
        about = [self.ablation.name, self.ablation.claim, self.ablation.setting]
        return [*about, f"{self.row.mean:.4f}{mark}", alone, *test, *(export or [""] * 3)]


def read_ablations(path: Path) -> tuple[float, list[Ablation]]:
    """Return threshold and lines of a file such as configs/ablations.yaml, grouped by row, each base first."""
    expected = "{name, row, claim} with perhaps ranker, changes, measure_only"
    threshold, lines = read_entries(path, "ablations", Ablation, expected)
    for number, line in enumerate(lines):
        if problem := _problem(line, lines[:number]):
            raise UserError(f"{path}: the line {line.name!r} {problem}")
    rows = list(dict.fromkeys(line.row for line in lines))
    return threshold, sorted(lines, key=lambda line: rows.index(line.row))


def _problem(line: Ablation, before: Sequence[Ablation]) -> str:
    """Return what is wrong with a line; empty if nothing is."""
    if not all(isinstance(text, str) and text.strip() for text in (line.name, line.row, line.claim, line.model)):
        return "must have name, row and claim, all of them texts"
    if not re.fullmatch(r"[\w-][\w.-]*", line.name):
        return "must have a name of letters, digits, '.', '-', '_'"
    if line.name in {other.name for other in before}:
        return "is there twice"
    if not isinstance(line.changes, dict) or not all(isinstance(key, str) for key in line.changes):
        return "must have `changes` with settings and their values"
    if line.is_base == any(other.row == line.row for other in before):
        return f"repeats the base {line.row}" if line.is_base else f"precedes its base, {{row: {line.row}}} unchanged"
    if line.measure_only and line.model != line.row:
        return "cannot be `measure_only`: that is for changed settings of the trained base"
    return ""


def compare_with_bases(lines: Sequence[MeasuredLine], threshold: float) -> list[MeasuredLine]:
    """Return the lines with their tests; those of one base are a family of Holm's correction."""
    compared = []
    for _, group in groupby(lines, key=lambda line: line.ablation.row):
        base, *others = group
        values = {line.ablation.name: line.row.per_query for line in (base, *others)}
        hypotheses = [Hypothesis(line.ablation.name, base.ablation.name, MARK) for line in others]
        tests = verdicts(values, hypotheses, threshold)
        compared += [base, *(line._replace(against_base=tests[line.ablation.name][0]) for line in others)]
    return compared


def markdown(lines: Sequence[MeasuredLine], title: str, threshold: float) -> str:
    """Return one table for each base."""
    row = lines[0].row
    parts = [f"# {title}, {row.measure} on {len(row.queries):,} queries ({row.query_set})"]
    for _, group in groupby(lines, key=lambda line: line.ablation.row):
        family = list(group)
        width = len(HEADER) if any(line.export for line in family) else len(HEADER) - len(Export._fields)
        parts.append(pipe_table(HEADER[:width], [line.cells()[:width] for line in family]))
    test = f"paired two-sided t-test, p below {threshold:g} after Holm's correction"
    note = f"{MARK} significantly different from the base: {test}"
    return "\n\n".join([*parts, note]) + "\n"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
