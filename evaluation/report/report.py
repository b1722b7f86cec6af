"""The report on one data set: a page that needs no network and no server (results.html).

`Report` is what the page shows; `report_page` fills report_page.html with the results table, the charts that charts.py
declares and the Vega runtime that draws them. Text from data stays text: it is escaped in HTML, and in JSON no
character is left that could end the script element.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluation.page_template import filled, page_part, script_json
from evaluation.report.score_histogram import ScoreHistogram
from evaluation.report.translation_picture import TranslationPicture
from evaluation.results_table import Table
from evaluation.table_formats import html_outcomes, html_table

MAX_STEPS = 200  # points of one learning curve


class ReportRow(NamedTuple):
    """A row of the results table."""

    name: str  # as in the table
    part: str  # baselines, our methods, others
    alone: bool  # a ranker without BM25 that also has a fused row


class Point(NamedTuple):
    """Main measure and time of a row on a query set."""

    row: int
    query_set: str
    value: float
    ms_per_1k: float
    device: str


class Curve(NamedTuple):
    """One metric of one seed."""

    seed: int
    steps: list[int]  # of the optimiser
    values: Sequence[float | None]


class Training(NamedTuple):
    """Learning curves of a ranker, a curve a seed."""

    ranker: str
    validation: list[Curve]
    loss: list[Curve]


class QuerySetValues(NamedTuple):
    """The main measure of every query of a set."""

    name: str
    measure: str
    ids: Sequence[str]
    texts: Sequence[str]
    values: Mapping[int, np.ndarray]  # row -> (queries,)


class RowScores(NamedTuple):
    """How one seed of a row scores the candidates of a query set."""

    row: int
    query_set: str
    seed: int
    histogram: ScoreHistogram


class Report(NamedTuple):
    """What the page shows; rows are positions in `rows`."""

    data: str
    summary: str
    table: Table
    rows: list[ReportRow]
    points: list[Point]
    trainings: list[Training]
    query_sets: list[QuerySetValues]
    scores: list[RowScores]
    translations: TranslationPicture | None = None  # None: there is no table to show


def report_page(report: Report) -> str:
    """Return the whole page as HTML."""
    from evaluation.report.charts import CONFIG, difference_chart, score_chart, speed_chart  # altair: only to draw

    names = [html.escape(query_set.name) for query_set in report.query_sets]
    count = len(report.table.outcomes)
    parts = {
        "policy": base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode(),
        "title": html.escape(f"Results on {report.data}"),
        "summary": html.escape(report.summary),
        "query_sets": "".join(f"<option>{name}</option>" for name in names),
        "table": html_table(report.table._replace(notes=[])),  # only the table scrolls sideways, not its notes
        "notes": "\n".join(f"<p>{html.escape(note)}</p>" for note in report.table.notes),
        "test_count": f"{count:,} test{'s' if count != 1 else ''} of significance",
        "tests": html_outcomes(report.table),
        "speed": _charts_of_sets(report, "Main measure against time", speed_chart),
        "curves": "".join(map(_training_panel, report.trainings))
        or "None: no ranker of this table was trained by gradients.",
        "queries": _charts_of_sets(report, "Differences by query between two rows", difference_chart),
        "scores": _charts_of_sets(report, "Histograms of scores", score_chart)
        or "None were stored: evaluate the rankers again to see them.",
        "translations": _translations(report.translations) if report.translations else "None: there is no table.",
        "config": script_json(CONFIG),
        "script": _script(),
    }
    return filled(page_part(__file__, "report_page.html"), parts)


@functools.cache
def _script() -> str:
    """Return report_page.js with the Vega that it draws with."""
    import vl_convert

    return vl_convert.javascript_bundle(page_part(__file__, "report_page.js"))


def _figure(label: str, chart: Mapping[str, Any], query_set: str = "") -> str:
    """Return a figure with its chart's specification; it is shown while `query_set` is chosen, or always."""
    specification = script_json({"description": label, **chart})
    return (
        f'<figure data-set="{html.escape(query_set)}"><div class="chart"></div>'
        f'<script type="application/json">{specification}</script></figure>\n'
    )


def _charts_of_sets(report: Report, label: str, draw: Callable[[Report, QuerySetValues], Any]) -> str:
    charts = {query_set.name: draw(report, query_set) for query_set in report.query_sets}
    return "".join(_figure(f"{label}, {name}", chart, name) for name, chart in charts.items() if chart)


def _training_panel(training: Training) -> str:
    from evaluation.report.charts import curve_chart

    metrics = (("validation MRR", training.validation), ("training loss", training.loss))
    figures = [
        _figure(f"{title} of {training.ranker} over the steps", curve_chart(list(map(thin, curves)), title))
        for title, curves in metrics
        if curves
    ]
    return f'<div class="panel"><h3>{html.escape(training.ranker)}</h3>{"".join(figures)}</div>\n'


def thin(curve: Curve) -> Curve:
    """Return at most MAX_STEPS points, the means of equal stretches; None where a value is not a number."""
    stretches = np.array_split(np.arange(len(curve.steps)), min(len(curve.steps), MAX_STEPS))
    means = [float(np.mean(np.asarray(curve.values, float)[stretch])) for stretch in stretches]
    steps = [curve.steps[stretch[-1]] for stretch in stretches]
    return Curve(curve.seed, steps, [float(f"{mean:.5g}") if math.isfinite(mean) else None for mean in means])


def _translations(picture: TranslationPicture) -> str:
    from evaluation.report.charts import COLOURS, translation_chart

    largest = max(entry.probability for table in picture.tables for word in table.strongest for entry in word)
    panels = []
    for position, (word, times) in enumerate(picture.query_words):
        figures = []
        for table, colour in zip(picture.tables, COLOURS, strict=False):
            title = f"{table.kind}: {table.row}, seed {table.seed}"
            chart = translation_chart(table.strongest[position], title, colour, largest)
            figures.append(_figure(f"Strongest translations of {word}, {title}", chart))
        heading = f"<h3>{html.escape(word)} <small>{times:,} time{'s' if times > 1 else ''}</small></h3>"
        panels.append(f'<div class="panel">{heading}<div class="beside">{"".join(figures)}</div></div>\n')
    note = f"Document words of fewer than {picture.min_documents} documents are left out."
    return f'<div class="panels wide">\n{"".join(panels)}</div>\n<p class="quiet">{note}</p>'
