"""The report on one data set: a page that needs no network and no server (results.html).

page.html is filled with the results table and the charts that charts.py declares; page.js draws them with Vega's
runtime. Jinja escapes every text of the data, in HTML and in JSON.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader

from datamodules.retrieval_data import RetrievalData
from evaluation.results_table import OUTCOME_HEADER, Result, Table
from pipeline.report import charts
from pipeline.report.learning_curves import METRICS, learning_curves
from pipeline.report.translations import min_documents, strongest_translations
from pipeline.results import MeasuredRow, main_results

FOLDER = Path(__file__).parent


def report_page(rows: Sequence[MeasuredRow], table: Table, data: RetrievalData) -> str:
    """Return the whole page as HTML."""
    results = [result for row in rows for result in row.results]
    main = main_results(results)
    words = strongest_translations([row.seeds[0].run for row in rows], data)
    largest = max((value for word in words for table in word.tables.values() for value in table.values()), default=0.0)
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return environment.get_template("page.html").render(
        data=data.name,
        summary=summary(results),
        query_sets=list(main),
        table=table,
        outcome_header=OUTCOME_HEADER,
        speed={name: charts.speed_chart(of_set) for name, of_set in main.items()},
        curves=_curve_charts(rows),
        differences={
            name: charts.difference_chart(of_set, data.query_set(name), charts.MAX_VALUES // len(main) // len(of_set))
            for name, of_set in main.items()
        },
        scores={name: chart for name in main if (chart := charts.score_chart(rows, name))},
        words=words,
        draw_translations=functools.partial(charts.translation_chart, largest=largest),
        min_documents=min_documents(len(data.prepared.collection)),
        config=charts.CONFIG,
        script=_script(),
        policy=base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode(),
    )


@functools.cache
def _script() -> str:
    """Return page.js with the Vega that it draws with."""
    return vl_convert.javascript_bundle((FOLDER / "page.js").read_text(encoding="utf-8"))


def _curve_charts(rows: Sequence[MeasuredRow]) -> dict[str, dict[str, Any]]:
    """Return ranker -> metric -> chart, for all rankers that were trained by gradients."""
    drawn: dict[str, dict[str, Any]] = {}
    for row in rows:
        curves = {seed.run.seed: learning_curves(seed.run.path) for seed in row.seeds}
        for metric, title in METRICS.items():
            if points := {seed: of_seed[metric] for seed, of_seed in curves.items() if of_seed[metric]}:
                drawn.setdefault(row.model, {})[title] = charts.curve_chart(points, title)
    return drawn


def summary(results: Sequence[Result]) -> str:
    """Return queries of each set, rankers and seeds in one line."""
    sizes = {result.query_set: result.queries for result in results}
    rankers, seeds = len({result.model for result in results}), sorted({result.seeds for result in results})
    trained = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seed{'s' if seeds[0] > 1 else ''}"
    queries = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    return f"Queries: {queries} · {rankers} ranker{'s' if rankers > 1 else ''} · {trained} each"
