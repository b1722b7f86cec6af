"""What each design decision is worth: rankers with one thing changed, each compared with its base (`Ablation.row`).

Which ones there are is data: configs/ablations.yaml. The figures are those of one query set and its main measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from evaluation.significance import THRESHOLD, Hypothesis, Verdict, verdicts
from lexical.errors import UserError

MARK = "★"
HEADER = [
    "line", "claim", "setting", "fused", "alone", "difference", "relative", "effect size", "p", "p (Holm)", "entries",
    "MB", "pairs kept",
]  # fmt: skip


class Ablation(NamedTuple):
    """A line of configs/ablations.yaml."""

    name: str
    row: str  # the base that it is compared with
    claim: str
    ranker: str = ""  # that is trained; the row where not given
    changes: Mapping[str, Any] = {}  # setting -> value
    measure_only: bool = False

    @property
    def is_base(self) -> bool:
        return not self.changes and self.trains == self.row

    @property
    def trains(self) -> str:
        return self.ranker or self.row

    @property
    def setting(self) -> str:
        """What is changed, in a few words."""
        other = [self.trains] if self.trains != self.row else []
        return ", ".join([*other, *(f"{key} {_shown(value)}" for key, value in self.changes.items())]) or "base"


class Ablations(NamedTuple):
    threshold: float
    lines: list[Ablation]  # grouped by row, the base first

    def base(self, row: str) -> Ablation:
        return next(one for one in self.lines if one.row == row)

    def only(self, names: Sequence[str]) -> Ablations:
        """These lines and their bases."""
        if unknown := [name for name in names if name not in {one.name for one in self.lines}]:
            known = ", ".join(one.name for one in self.lines)
            raise UserError(f"--only: there is no line {unknown[0]!r}; known are: {known}")
        rows = {one.row for one in self.lines if one.name in names}
        kept = [one for one in self.lines if one.name in names or (one.is_base and one.row in rows)]
        return self._replace(lines=kept)


class Export(NamedTuple):
    """The table of a line that is an export."""

    entries: int
    bytes: int
    share_of_pairs: float


class Measured(NamedTuple):
    """A line on one query set: each query's main measure, mean over the seeds."""

    ablation: Ablation
    query_set: str
    measure: str
    values: Mapping[str, float]  # of the row, fused where it is a fusion
    alone: Mapping[str, float] | None  # without BM25, where the row is a fusion
    seeds: int
    export: Export | None = None


class Line(NamedTuple):
    """An entry of ablations.json."""

    name: str
    row: str
    claim: str
    setting: str
    query_set: str
    measure: str
    value: float
    value_alone: float | None
    seeds: int
    queries: int
    against_base: dict[str, Any] | None  # `Verdict`; None for the base
    export: dict[str, Any] | None  # `Export`


def read_ablations(path: Path) -> Ablations:
    """One clear line for a file that is not as expected."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        threshold = float(content.get("threshold", THRESHOLD))
        lines = [Ablation(**one) for one in content["ablations"]]
    except (OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        wanted = "a list `ablations` of {name, row, claim} with perhaps ranker, changes, measure_only"
        raise UserError(f"{path} cannot be used ({' '.join(str(error).split())}): it must have {wanted}") from error
    if not 0 < threshold < 1:
        raise UserError(f"{path}: the threshold {threshold:g} must be between 0 and 1")
    for number, one in enumerate(lines):
        if problem := _problem(one, lines[:number]):
            raise UserError(f"{path}: the line {one.name!r} {problem}")
    rows = list(dict.fromkeys(one.row for one in lines))
    return Ablations(threshold, sorted(lines, key=lambda one: rows.index(one.row)))


def _problem(one: Ablation, before: Sequence[Ablation]) -> str:
    if not all(isinstance(text, str) and text.strip() for text in (one.name, one.row, one.claim, one.trains)):
        return "must have name, row and claim, all of them texts"
    if not all(letter.isalnum() or letter in "._-" for letter in one.name) or one.name.startswith("."):
        return "must have a name of letters, digits, '.', '-', '_'"
    if one.name in {other.name for other in before}:
        return "is there twice"
    if not isinstance(one.changes, dict) or not all(isinstance(key, str) for key in one.changes):
        return "must have `changes` with settings and their values"
    if not isinstance(one.measure_only, bool):
        return "must have true or false for `measure_only`"
    if one.is_base == any(other.row == one.row for other in before):
        return (
            f"is the base {one.row} again" if one.is_base else f"comes before its base: {{row: {one.row}}}, no changes"
        )
    if one.measure_only and (one.is_base or one.trains != one.row):
        return "cannot be `measure_only`: that is for changed settings of the trained base"
    return ""


def compare_with_bases(measured: Sequence[Measured], threshold: float) -> list[Line]:
    """Every line; lines whose base is missing are not tested."""
    found = []
    for row in dict.fromkeys(one.ablation.row for one in measured):
        group = [one for one in measured if one.ablation.row == row]
        values = {one.ablation.name: one.values for one in group}
        base = next((one.ablation.name for one in group if one.ablation.is_base), "")
        tests = verdicts(values, [Hypothesis(name, base, MARK) for name in values if name != base], threshold)
        found += [_line(one, tests.get(one.ablation.name, [])) for one in group]
    return found


def _line(one: Measured, tests: Sequence[Verdict]) -> Line:
    return Line(
        name=one.ablation.name,
        row=one.ablation.row,
        claim=one.ablation.claim,
        setting=one.ablation.setting,
        query_set=one.query_set,
        measure=one.measure,
        value=_mean(one.values),
        value_alone=None if one.alone is None else _mean(one.alone),
        seeds=one.seeds,
        queries=len(one.values),
        against_base=tests[0]._asdict() if tests else None,
        export=None if one.export is None else one.export._asdict(),
    )


def cells(line: Line) -> list[str]:
    """A line of the table, under `HEADER`."""
    figures = [f"{line.value:.4f}", "" if line.value_alone is None else f"{line.value_alone:.4f}"]
    tests, export = [""] * 5, [""] * 3
    if line.against_base is not None:
        found = Verdict(**line.against_base)
        figures[0] += found.mark if found.significant else ""
        tests = [
            f"{found.difference:+.4f}", f"{100 * found.relative:+.1f}%", f"{found.effect_size:+.2f}",
            f"{found.p_value:.2g}", f"{found.p_holm:.2g}",
        ]  # fmt: skip
    if line.export is not None:
        size = Export(**line.export)
        export = [f"{size.entries:,}", f"{size.bytes / 1e6:.1f}", f"{100 * size.share_of_pairs:.2f}%"]
    return [line.name, line.claim, line.setting, *figures, *tests, *export]


def markdown(lines: Sequence[Line], title: str, notes: Sequence[str]) -> str:
    """One table for each base."""
    parts = [f"# {title}"]
    for row in dict.fromkeys(line.row for line in lines):
        group = [line for line in lines if line.row == row]
        width = len(HEADER) if any(line.export for line in group) else len(HEADER) - len(Export._fields)
        table = [HEADER, ["---"] * width, *map(cells, group)]
        parts.append(
            "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in one[:width]) + " |" for one in table)
        )
    return "\n\n".join([*parts, *notes]) + "\n"


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / max(1, len(values))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
