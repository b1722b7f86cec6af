"""The report's charts, declared in Altair: each function returns a Vega-Lite specification that holds its data.

Colours are CSS variables of page.html, so that one SVG serves light screens, dark screens and paper.
Names and texts are data, or titles of whole charts: Vega-Lite copies the title of an axis into expressions as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from datamodules.text.query_sets import QuerySet
from evaluation.results_table import Result
from lightning_modules.registry import row_of
from pipeline.report.learning_curves import Curve
from pipeline.results import MeasuredRow

COLOURS = [f"var(--colour-{number})" for number in range(6)]
CONFIG = {
    "font": 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
    "background": None,
    "view": {"stroke": None},
    "range": {"category": COLOURS},
    "style": {
        "guide-label": {"fill": "var(--quiet)", "fontSize": 12},
        "guide-title": {"fill": "var(--quiet)", "fontSize": 12, "fontWeight": "normal"},
    },
    "axis": {"gridColor": "var(--grid)", "domainColor": "var(--quiet)", "ticks": False, "labelPadding": 6},
    "axisX": {"grid": False, "titleAnchor": "end"},
    "axisY": {"domain": False, "title": None},
    "title": {"color": "var(--quiet)", "fontSize": 12, "fontWeight": "normal", "anchor": "start", "offset": 12},
    "legend": {"labelColor": "var(--ink)", "orient": "top", "titleOrient": "left", "offset": 10},
    "text": {"color": "var(--ink)", "fontSize": 12},
    "tooltipFormat": {"numberFormat": ",.4~r"},
}  # fmt: skip
DECIMALS = 4  # of per-query values
MAX_VALUES = 400_000  # per-query values on the page, of all rows and query sets together: about 3 MB
MAX_QUERY = 120  # characters of a query text
MARKED_STEPS = 20  # a curve with no more steps shows each of them
RELEVANT, OTHERS = "relevant documents", "other candidates"


def speed_chart(results: Sequence[Result]) -> dict[str, Any]:
    """Draw the value of every row of one query set against its time, each with its name where there is room for it."""
    points = [
        {
            "name": result.row_name, "part": row_of(result.model).part, "alone": result.alone, "value": result.value,
            "ms_per_1k": result.ms_per_1k, "device": result.device,
        }
        for result in results
    ]  # fmt: skip
    base = alt.Chart().encode(
        x=alt.X("ms_per_1k:Q").title("ms per 1,000 documents (log scale)").scale(type="log", nice=False, padding=60),
        y=alt.Y("value:Q").scale(zero=False, padding=20),
    )
    fill = alt.Fill("part:N", sort=None, title=None)
    marks = base.mark_point(size=80, strokeWidth=2, opacity=1).encode(
        stroke=alt.Stroke("part:N", sort=None, title=None),
        shape=alt.Shape("part:N", sort=None, title=None),
        fill=alt.condition("datum.alone", alt.value("var(--ground)"), fill),
        tooltip=["name:N", "value:Q", "ms_per_1k:Q", "device:N"],
    )
    names = base.mark_text().encode(text="name:N")
    spec = _finished(alt.layer(marks, names), points, 480, f"{results[0].measure} on {results[0].query_set}")
    # Vega's label transform, which Vega-Lite does not offer: names do not overlap; those without room are hidden.
    anchors = ["right", "left", "top", "bottom", "top-right", "bottom-right", "top-left", "bottom-left"]
    label = {
        "type": "label", "size": [{"signal": "max(1, width)"}, {"signal": "height"}], "avoidMarks": ["layer_0_marks"],
        "anchor": anchors * 2, "offset": [8] * len(anchors) + [14] * len(anchors),
    }  # fmt: skip
    patch = [{"op": "add", "path": "/marks/1/transform", "value": [label]}]
    return spec | {"usermeta": {"embedOptions": {"patch": patch}}}


def curve_chart(curves: Mapping[int, Curve], title: str) -> dict[str, Any]:
    """Draw one metric over the steps, one line for each seed; a value of None leaves a gap."""
    points = [{"seed": seed, "step": step, "value": value} for seed in curves for step, value in curves[seed]]
    values = [value for curve in curves.values() for _, value in curve if value is not None] or [0.0]
    margin = 0.05 * (max(values) - min(values)) or 0.01  # of a single value, too: its axis must have labels
    base = alt.Chart().encode(
        x=alt.X("step:Q").title("optimiser steps").scale(zero=True).axis(tickCount=4, format=",d"),
        y=alt.Y("value:Q").scale(domain=[min(values) - margin, max(values) + margin]).axis(tickCount=4),
        color=alt.Color("seed:N", legend=alt.Legend() if len(curves) > 1 else None),
    )
    lines = base.mark_line(strokeWidth=1.75, aria=False)
    marked = max(map(len, curves.values())) <= MARKED_STEPS
    marks = base.mark_point(filled=True, size=30, opacity=1 if marked else 0, aria=False)
    marks = marks.encode(tooltip=["seed:N", "step:Q", "value:Q"])
    return _finished(alt.layer(lines, marks), points, 220, title)


def difference_chart(results: Sequence[Result], query_set: QuerySet, limit: int) -> dict[str, Any]:
    """Draw what row A gains and loses against row B, a bar for each query, sorted; at first A is the best row.

    Of more than `limit` queries an evenly spread sample is drawn.
    """
    ids, total, count = query_set.ids, len(query_set), min(len(query_set), limit)
    sample = [number * total // count for number in range(count)]
    texts = [text if len(text) <= MAX_QUERY else text[: MAX_QUERY - 1] + "…" for text in query_set.texts]
    measured = [result.measured.per_query for result in results]
    values = np.array([[row[ids[i]] for row in measured] for i in sample]).round(DECIMALS)  # (queries, rows)
    queries = [{"id": ids[i], "query": texts[i], "values": values[n].tolist()} for n, i in enumerate(sample)]
    scale, title = alt.Scale(domain=[0, count], nice=False), f"{count:,} of {total:,} queries, sorted by difference"
    base = (
        alt.Chart()
        .transform_calculate(A="datum.values[A]", B="datum.values[B]", difference="datum.values[A] - datum.values[B]")
        .transform_window(rank="row_number()", sort=[alt.SortField("difference", "descending")])
        .transform_filter("datum.difference != 0")
        .transform_calculate(before="datum.rank - 1")
        .encode(
            x=alt.X("before:Q", scale=scale, axis=alt.Axis(tickCount=8, tickMinStep=1, title=title)),
            x2="rank:Q",
            y="difference:Q",
        )
    )
    colour = alt.condition("datum.difference > 0", alt.value(COLOURS[0]), alt.value(COLOURS[1]))
    bars = base.mark_rect(strokeWidth=0.5, aria=False).encode(y2=alt.datum(0), fill=colour, stroke=colour)
    targets = base.mark_rect(opacity=0, aria=False).encode(  # as tall as the chart: a short bar is hard to point at
        y=alt.value(0), y2=alt.value("height"), tooltip=["query:N", "difference:Q", "A:Q", "B:Q"]
    )
    names, best = [result.row_name for result in results], int(np.argmax(values.mean(axis=0)))
    choices = [_choice("A", "Row A", names, best), _choice("B", "Row B", names, 0 if best else len(names) - 1)]
    chart = alt.layer(bars, targets).add_params(*choices)
    return _finished(chart, queries, 300, f"A − B, {results[0].measure} on {results[0].query_set}")


def score_chart(rows: Sequence[MeasuredRow], query_set: str) -> dict[str, Any] | None:
    """Draw how the chosen row scores relevant documents and the other candidates; None where no scores are stored.

    Only the first seed of a row is shown: scores of different seeds have no common scale.
    """
    stored = [(row, entry) for row in rows for entry in row.seeds[0].histograms if entry["query_set"] == query_set]
    if not stored:
        return None
    names, values = [], []
    for number, (row, entry) in enumerate(stored):
        names.append(f"{row.model}{' (alone)' if entry['alone'] else ''}, seed {row.seeds[0].run.seed}")
        counts = {RELEVANT: entry["relevant"], OTHERS: entry["others"]}
        values.append({"row": number, "low": entry["edges"][:-1], "high": entry["edges"][1:], **counts})
    bars = (
        alt.Chart()
        .transform_filter("datum.row == chosen")
        .transform_flatten(["low", "high", RELEVANT, OTHERS])
        .transform_fold([RELEVANT, OTHERS], as_=["documents", "count"])
        .transform_joinaggregate(total="sum(count)", groupby=["documents"])
        .transform_calculate(share="datum.total > 0 ? datum.count / datum.total : 0")
        .mark_rect(opacity=0.5)
        .encode(
            x=alt.X("low:Q").title("score").scale(zero=False, nice=False).axis(tickCount=8),
            x2="high:Q",
            y=alt.Y("share:Q").axis(format="%", tickCount=4),
            y2=alt.datum(0),
            color=alt.Color("documents:N", sort=None, title=None),
            tooltip=["documents:N", "low:Q", "high:Q", "count:Q", alt.Tooltip("share:Q", format=".1%")],
        )
        .add_params(_choice("chosen", "Row", names, 0))
    )
    return _finished(bars, values, 320, f"share of the documents, {query_set}")


def translation_chart(translations: Mapping[str, float], title: str, colour: str, largest: float) -> dict[str, Any]:
    """Draw T(q|d) of the strongest document words d of one query word q; `largest` is that of all such charts."""
    words = alt.Axis(grid=False, labelLimit=104, minExtent=110, maxExtent=110, labelColor="var(--ink)")
    base = alt.Chart().encode(
        x=alt.X("probability:Q").axis(None).scale(domain=[0, largest * 1.3], nice=False),
        y=alt.Y("word:N", sort=None, axis=words),
        tooltip=["word:N", "probability:Q"],
    )
    number = alt.Text("probability:Q", format=".2~r")
    numbers = base.mark_text(align="left", dx=4, fill="var(--quiet)").encode(text=number)
    rows = [{"word": word, "probability": probability} for word, probability in translations.items()]
    return _finished(alt.layer(base.mark_bar(size=12, color=colour), numbers), rows, 18 * len(rows) + 28, title)


def _choice(name: str, title: str, labels: Sequence[str], value: int) -> alt.Parameter:
    """Return the parameter of a select element: the position of the chosen label."""
    options: list[Any] = list(range(len(labels)))
    return alt.param(name, value=value, bind=alt.binding_select(options=options, labels=list(labels), name=title))


def _finished(chart: Any, values: Sequence[dict[str, Any]], height: int, title: str) -> dict[str, Any]:
    """Return the specification, as wide as its place on the page, with its data under the name `rows`."""
    chart.data = alt.NamedData("rows")
    spec: dict[str, Any] = chart.properties(width="container", height=height, title=title).to_dict()
    return {key: value for key, value in spec.items() if key != "config"} | {"datasets": {"rows": list(values)}}
