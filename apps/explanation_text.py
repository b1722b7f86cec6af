"""Explanations for a terminal: the document with its evidence highlighted, and a table "query word <- document words".

Texts come from data: they are written as `rich.text.Text`, never as markup, and without control characters.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from apps.explanation import Explanation, Feature, FeatureView, differences, feature_view
from lexical.terminal import printable

SHADES = ("grey70", "yellow3", "bold yellow1", "bold black on yellow3")  # of a document word, by its importance
STEPS = (0.02, 0.1, 0.35)  # importance per query word at which the next shade begins
SNIPPET = 420  # characters of a document that are shown


def show(explanations: list[Explanation], console: Console, pieces: bool = False, whole: bool = False) -> None:
    """Print the explanations, each with a snippet of its document or with the whole text."""
    for explanation in explanations:
        rank = "  " if explanation.rank is None else f"{explanation.rank}. "
        score = f"  {explanation.score:.7g}"
        head = Text.assemble((rank, "bold"), (_printable(explanation.document), "bold cyan"), score)
        if len(explanation.features) > 1:
            parts = [f"{each.weight:.4g} x {each.value:.5g} {_printable(each.name)}" for each in explanation.features]
            head.append("  = " + " + ".join(parts), "dim")
        view = feature_view(explanation.main, explanation.query, explanation.text, pieces)
        console.print(head)
        console.print(Padding(_highlighted(explanation.text, view, None if whole else SNIPPET), (0, 0, 0, 3)))
        console.print(Padding(_table(explanation.main, view), (0, 0, 1, 3)))


def show_difference(first: Explanation, second: Explanation, console: Console) -> None:
    """Print why the first document is above or below the second."""
    more = first.score - second.score
    ids = [(_printable(explanation.document), "bold") for explanation in (first, second)]
    scores = f" by {abs(more):.6g}: {first.score:.7g} against {second.score:.7g}"
    console.print(Text.assemble(ids[0], f" is {'above' if more >= 0 else 'below'} ", ids[1], scores))
    table = Table("query word", box=None, pad_edge=False)
    several = len(first.features) > 1
    for name in [*(feature.name for feature in first.features), *(["together"] if several else [])]:
        table.add_column(_printable(name), justify="right")
    words = sorted(differences(first, second), key=lambda word: -abs(sum(word.by_feature)))
    totals = tuple(sum(column) for column in zip(*(word.by_feature for word in words), strict=True))
    rows = [(word.word, "", word.by_feature) for word in words]
    for name, style, values in [*rows, ("sum", "bold", totals)] if rows else []:
        cells = [*values, sum(values)] if several else values
        table.add_row(Text(_printable(name), style), *map(_signed, cells))
    console.print(Padding(table, (0, 0, 1, 2)))


def _table(feature: Feature, view: FeatureView) -> Table:
    model1 = feature.evidence.kind == "model1"
    table = Table("query word", "log P(q|D)" if model1 else "adds", "", "document words (share)", box=None)
    table.columns[1].justify = "right"
    for word in view.query:
        shares = Text()
        for share in view.strongest(word):
            times = f" x{share.times}" if share.times > 1 else ""
            shares.append(f"{_printable(share.text)}{times}").append(f" {100 * share.share:.0f}%   ", "dim")
        value = word.log_score if model1 else word.value
        table.add_row(Text(_printable(word.text), "bold"), f"{value:.3f}", "<-", shares or Text("nothing", "dim"))
    for unread in view.unread_query:
        table.add_row(Text(_printable(unread.text), "dim"), "", "", Text("not read: the query is too long", "dim"))
    return table


def _highlighted(text: str, view: FeatureView, most: int | None) -> Text:
    weights = view.importance() / max(1, len(view.query))
    begin, end = (0, len(text)) if most is None else _window(view, weights, len(text), most)
    shown = Text("… " if begin else "", "dim")
    position = begin
    for number, (word, weight) in enumerate(zip(view.document, weights, strict=True)):
        if word.start < position or word.end > end:
            continue
        shown.append(_printable(text[position : word.start]), "grey70")
        if number in view.chunks:
            shown.append("| ", "magenta")
        shade = SHADES[int(np.searchsorted(STEPS, weight, side="right"))]
        shown.append(_printable(text[word.start : word.end]), shade)
        position = word.end
    shown.append(_printable(text[position:end]), "grey70" if view.unread_from is None else "grey42")
    return shown.append(" …", "dim") if end < len(text) else shown


def _window(view: FeatureView, weights: np.ndarray, length: int, most: int) -> tuple[int, int]:
    """Return the first of the stretches of the text, `most` characters long, that hold the most evidence."""
    if length <= most or not len(weights):
        return 0, min(length, most)
    starts = np.array([word.start for word in view.document])
    ends = np.array([word.end for word in view.document])
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    evidence = sums[np.searchsorted(ends, starts + most, side="right")] - sums[:-1]
    best = int(starts[int(np.argmax(evidence >= evidence.max() - 1e-9))])
    begin = max(0, min(best - 40, length - most))
    return begin, begin + most


def _signed(value: float) -> Text:
    return Text(f"{value:+.4f}", "green" if value > 0 else "red" if value < 0 else "dim")


def _printable(text: str) -> str:
    """Replace white space by blanks and escape whatever else a terminal would obey."""
    return printable("".join(" " if c.isspace() else c for c in text))
