"""Explanations for a terminal: the document with its words lit up, and a table "query word <- document words".

Texts come from data: they are written as `rich.text.Text`, never as markup, and without control characters.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from apps.explanation import (
    Explanation,
    Feature,
    FeatureView,
    differences,
    feature_view,
    importance,
    strongest,
)

SHADES = ("grey70", "yellow3", "bold yellow1", "bold black on yellow3")  # of a document word, by how much rests on it
STEPS = (0.02, 0.1, 0.35)  # of the query's words
SNIPPET = 420  # characters of a document that are shown
LEAST = 0.01  # a smaller part of what a query word rests on is not listed


def show(explanations: list[Explanation], console: Console, pieces: bool = False, whole: bool = False) -> None:
    """Prints the explanations, best document first."""
    for explanation in explanations:
        for line in _document(explanation, pieces, whole):
            console.print(line)


def show_difference(one: Explanation, other: Explanation, console: Console) -> None:
    """Prints why `one` is above `other`, or below."""
    more = one.score - other.score
    where = "above" if more >= 0 else "below"
    console.print(
        Text.assemble(
            (_plain(one.document), "bold"), f" is {where} ", (_plain(other.document), "bold"),
            f" by {abs(more):.6g}: {one.score:.7g} against {other.score:.7g}",
        )
    )  # fmt: skip
    table = Table("query word", box=None, pad_edge=False)
    for feature in one.features:
        table.add_column(_plain(feature.name), justify="right")
    if len(one.features) > 1:
        table.add_column("together", justify="right")
    found = differences(one, other)
    for each in sorted(found, key=lambda each: -abs(each.total)):
        cells = [*each.by_feature, *([each.total] if len(one.features) > 1 else [])]
        table.add_row(Text(_plain(each.text)), *(_signed(cell) for cell in cells))
    sums = [sum(column) for column in zip(*(each.by_feature for each in found), strict=True)]
    if sums:
        table.add_row(Text("sum", "bold"), *map(_signed, [*sums, *([sum(sums)] if len(sums) > 1 else [])]))
    console.print(Padding(table, (0, 0, 1, 2)))


def _document(explanation: Explanation, pieces: bool, whole: bool) -> Iterator[RenderableType]:
    rank = "  " if explanation.rank is None else f"{explanation.rank}. "
    head = Text.assemble((rank, "bold"), (_plain(explanation.document), "bold cyan"), f"  {explanation.score:.7g}")
    if len(explanation.features) > 1:
        parts = [f"{each.weight:.4g} x {each.value:.5g} {_plain(each.name)}" for each in explanation.features]
        head.append("  = " + " + ".join(parts), "dim")
    yield head
    view = feature_view(explanation.main, explanation.query, explanation.text, pieces)
    yield Padding(_highlighted(explanation.text, view, None if whole else SNIPPET), (0, 0, 0, 3))
    yield Padding(_table(explanation.main, view), (0, 0, 1, 3))


def _table(feature: Feature, view: FeatureView) -> Table:
    model1 = feature.evidence.kind == "model1"
    table = Table("query word", "log P(q|D)" if model1 else "adds", "", "document words (share)", box=None)
    table.columns[1].justify = "right"
    for word in view.query:
        rests = Text()
        shares = [one for one in strongest(view, word) if one.share >= LEAST]
        for one in shares:
            times = f" x{one.times}" if one.times > 1 else ""
            rests.append(f"{_plain(one.text)}{times}").append(f" {100 * one.share:.0f}%   ", "dim")
        others = float(word.fractions.sum()) - sum(one.share for one in shares)
        for name, share in (("other words", others), ("the collection", word.smoothing), ("the floor", word.floor)):
            if share >= LEAST:
                rests.append(name, "italic dim").append(f" {100 * share:.0f}%   ", "dim")
        value = word.log_score if model1 else word.value
        table.add_row(Text(_plain(word.word.text), "bold"), f"{value:.3f}", "<-", rests or Text("nothing", "dim"))
    for unread in view.unread_query:
        table.add_row(Text(_plain(unread.text), "dim"), "", "", Text("not read: the query is too long", "dim"))
    return table


def _highlighted(text: str, view: FeatureView, most: int | None) -> Text:
    weights = importance(view) / max(1, len(view.query))
    begin, end = (0, len(text)) if most is None else _window(view, weights, len(text), most)
    shown = Text("… " if begin else "", "dim")
    at = begin
    starts = set(view.chunks)
    for number, (word, weight) in enumerate(zip(view.document, weights, strict=True)):
        if word.end <= begin or word.start < at or word.end > end:
            continue
        shown.append(_plain(text[at : word.start]), "grey70")
        if number in starts:
            shown.append("| ", "magenta")  # a chunk begins
        shade = SHADES[int(np.searchsorted(STEPS, weight, side="right"))]
        shown.append(_plain(text[word.start : word.end]), shade)
        at = word.end
    shown.append(_plain(text[at:end]), "grey70" if view.unread_from is None else "grey42")
    return shown.append(" …", "dim") if end < len(text) else shown


def _window(view: FeatureView, weights: np.ndarray, length: int, most: int) -> tuple[int, int]:
    """The stretch of the text on which most rests; from the beginning where it makes no difference."""
    if length <= most or not len(weights):
        return 0, min(length, most)
    best, begin = -1.0, 0
    ends = np.array([word.end for word in view.document])
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    for number, word in enumerate(view.document):
        last = int(np.searchsorted(ends, word.start + most, side="right"))
        if sums[last] - sums[number] > best + 1e-9:
            best, begin = sums[last] - sums[number], word.start
    begin = max(0, min(begin - 40, length - most))
    return begin, begin + most


def _signed(value: float) -> Text:
    return Text(f"{value:+.4f}", "green" if value > 0 else "red" if value < 0 else "dim")


def _plain(text: str) -> str:
    """White space as blanks; whatever else a terminal would obey is escaped."""
    blanks = "".join(" " if c.isspace() else c for c in text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in blanks)
