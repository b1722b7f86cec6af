"""The report on one data set: a page that needs no network and no server (results.html).

`Report` is what the page shows, `report_page` is the page: report_page.html with the table, the data as JSON and
its scripts put into it. Texts from data stay texts: in the table they are escaped, in the JSON no character is left
that could end the script element, and the script writes them with textContent only.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from evaluation.page_template import filled, page_part, script_json
from evaluation.report.score_histogram import ScoreHistogram
from evaluation.report.translation_picture import TableColumn, TranslationPicture
from evaluation.results_table import Table
from evaluation.table_formats import html_outcomes, html_table

UNIT = 10_000  # per-query values are integers of 1 / UNIT
LISTED = 10  # largest wins and losses that the page lists
MOST_VALUES = 600_000  # per-query values on the page, of all rows and query sets together: about 3 MB
MOST_TEXT = 600_000  # characters of query texts on the page
LONGEST_TEXT = 300  # characters of one query
MOST_POINTS = 200  # of one learning curve
LONGEST_WORD = 80  # characters of a word in the picture of translations

_SCRIPTS = ("report_page.js", "report_translations.js")
_TRANSLATIONS_LINK = '<a href="#translations">Translations</a>'
_TRANSLATIONS = """
  <section id="translations">
    <h2>Strongest translations of the most frequent query words</h2>
    <p class="quiet"></p>
    <div class="legend"></div>
    <div class="panels"></div>
    <p class="quiet left-out"></p>
  </section>"""


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
    values: list[float]


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
    row: int
    query_set: str
    seed: int
    histogram: ScoreHistogram


class Report(NamedTuple):
    data: str
    summary: str
    table: Table
    rows: list[ReportRow]
    points: list[Point]
    trainings: list[Training]
    query_sets: list[QuerySetValues]
    scores: list[RowScores]
    translations: TranslationPicture | None = None  # None: no table to show, and no such section


def report_page(report: Report) -> str:
    """The whole page."""
    tests = ""
    if report.table.outcomes:
        count = f"{len(report.table.outcomes):,} test{'s' if len(report.table.outcomes) > 1 else ''} of significance"
        box = f'<div class="scroll" tabindex="0" role="region" aria-label="Tests">{html_outcomes(report.table)}</div>'
        tests = f"<details><summary>{count}</summary>\n{box}</details>"
    parts = {
        "title": html.escape(f"Results on {report.data}"),
        "summary": html.escape(report.summary),
        "table": html_table(report.table._replace(notes=[])),  # only the table scrolls sideways, not its notes
        "notes": "\n".join(f"<p>{html.escape(note)}</p>" for note in report.table.notes),
        "tests": tests,
        "data": script_json(page_data(report)),
        "translations_link": _TRANSLATIONS_LINK if report.translations else "",
        "translations": _TRANSLATIONS if report.translations else "",
        "script": "\n".join(page_part(__file__, name) for name in _SCRIPTS),
    }
    return filled(page_part(__file__, "report_page.html"), parts)


def page_data(report: Report) -> dict[str, Any]:
    """What the scripts draw; its short keys are read there and nowhere else."""
    places = {one.name: number for number, one in enumerate(report.query_sets)}
    return {
        "unit": UNIT,
        "listed": LISTED,
        "rows": [one._asdict() for one in report.rows],
        "sets": _query_sets(report.query_sets),
        "points": [{**one._asdict(), "set": places[one.query_set]} for one in report.points],
        "trainings": [
            {"ranker": one.ranker, "validation": _curves(one.validation), "loss": _curves(one.loss)}
            for one in report.trainings
        ],
        "scores": [
            {"row": one.row, "set": places[one.query_set], "seed": one.seed, **one.histogram._asdict()}
            for one in report.scores
        ],
        "translations": _translations(report.translations) if report.translations else None,
    }


def _query_sets(query_sets: Sequence[QuerySetValues]) -> list[dict[str, Any]]:
    """The values as integers. What is too much for a page is left out and counted, of the largest sets first."""
    values_left, text_left = MOST_VALUES, MOST_TEXT
    done: dict[str, dict[str, Any]] = {}
    for one in sorted(query_sets, key=lambda one: len(one.ids)):
        total = len(one.ids)
        kept = min(total, values_left // max(1, len(one.values)))
        values_left -= kept * len(one.values)
        queries = np.arange(total) * kept // max(1, total)
        queries = np.flatnonzero(np.diff(queries, prepend=-1))  # `kept` of them, evenly spread
        values = {row: np.rint(np.asarray(of_row)[queries] * UNIT).astype(int) for row, of_row in one.values.items()}
        listed = _listed(list(values.values()))
        texts: dict[int, list[str]] = {}
        for query in listed:
            shown = [one.ids[queries[query]], _shortened(one.texts[queries[query]])]
            text_left -= sum(map(len, shown))
            if text_left < 0:
                text_left = 0
                break
            texts[query] = shown
        done[one.name] = {
            "name": one.name, "measure": one.measure, "total": total, "queries": len(queries),
            "textless": len(listed) - len(texts), "texts": texts,
            "values": {row: of_row.tolist() for row, of_row in values.items()},
        }  # fmt: skip
    return [done[one.name] for one in query_sets]


def _listed(rows: Sequence[np.ndarray]) -> list[int]:
    """Queries among the largest wins of any row over any other, those in most lists first.

    The page sorts the same way: difference down, then place in the set up.
    """
    found: Counter[int] = Counter()
    for a, b in permutations(rows, 2):
        difference = a - b
        keys = -difference * len(a) + np.arange(len(a))
        first = np.argpartition(keys, LISTED)[:LISTED] if len(keys) > LISTED else np.arange(len(keys))
        found.update(int(query) for query in first if difference[query] > 0)
    return sorted(found, key=lambda query: (-found[query], query))


def _translations(picture: TranslationPicture) -> dict[str, Any]:
    def column(one: TableColumn) -> dict[str, Any]:
        words = [
            {
                "itself": _rounded(of.itself),
                "strongest": [[_shortened(d, LONGEST_WORD), _rounded(value)] for d, value in of.strongest],
            }
            for of in one.words
        ]
        return {"row": one.row, "kind": one.kind, "seed": one.seed, "words": words}

    words = [{"word": _shortened(one.word, LONGEST_WORD), "times": one.times} for one in picture.query_words]
    columns = [column(one) for one in picture.columns]
    return {"words": words, "columns": columns, "least": picture.least_documents}


def _shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _rounded(probability: float) -> float:
    return float(f"{probability:.4g}")


def _curves(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    return [_thinned(one) for one in curves]


def _thinned(curve: Curve) -> dict[str, Any]:
    """At most MOST_POINTS points: the means of equal stretches. A value that is no number leaves a gap."""
    parts = np.array_split(np.arange(len(curve.steps)), min(len(curve.steps), MOST_POINTS) or 1)
    means = [float(np.mean([curve.values[i] for i in part])) for part in parts if len(part)]
    return {
        "seed": curve.seed,
        "steps": [curve.steps[part[-1]] for part in parts if len(part)],
        "values": [float(f"{mean:.5g}") if math.isfinite(mean) else None for mean in means],
        "of": len(curve.steps),
    }
