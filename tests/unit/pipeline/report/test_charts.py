"""The charts hold the right data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.report.charts import MAX_QUERY, curve_chart, difference_chart, score_chart, speed_chart
from pipeline.results import main_results
from tests.fixtures.small_report import ALONE, BM25, FUSED, TEXTS, SmallReport, large_report, small_report


@pytest.fixture
def report(tmp_path: Path) -> SmallReport:
    return small_report(tmp_path)


def rows_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = chart["datasets"]["rows"]
    return rows


def test_the_points_of_a_query_set_have_their_rows_and_times(report: SmallReport) -> None:
    points = rows_of(speed_chart(main_results(report.results)["test"]))
    assert [(point["name"], point["part"], point["alone"], point["ms_per_1k"]) for point in points] == [
        ("bm25_lemm", "baselines", False, 0.3),
        ("nn_model1", "our methods", False, 12.0),
        ("nn_model1 (alone)", "our methods", True, 11.0),
    ]
    assert [point["value"] for point in points] == [pytest.approx(np.mean(row)) for row in (BM25, FUSED, ALONE)]


def test_the_queries_have_a_value_for_each_row(report: SmallReport) -> None:
    first, second = (
        difference_chart(results, report.data.query_set(name), limit=100)
        for name, results in main_results(report.results).items()
    )
    assert [query["values"] for query in rows_of(first)] == [list(row) for row in zip(BM25, FUSED, ALONE, strict=True)]
    assert [query["query"] for query in rows_of(first)] == TEXTS
    assert [query["id"] for query in rows_of(second)] == ["q1", "q2"]
    choices = {param["name"]: param for param in first["params"]}
    assert choices["A"]["value"] == 1 and choices["B"]["value"] == 0  # the best row against the first
    assert choices["A"]["bind"]["labels"] == ["bm25_lemm", "nn_model1", "nn_model1 (alone)"]
    assert {param["name"]: param for param in second["params"]}["A"]["bind"]["labels"] == ["bm25_lemm", "nn_model1"]


def test_a_set_that_is_too_large_for_a_page_is_an_evenly_spread_sample(tmp_path: Path) -> None:
    report = large_report(tmp_path, 20_000, 8, "long " * 1000)
    chart = difference_chart(report.results, report.data.query_set("test"), limit=10_000)
    queries = rows_of(chart)
    assert len(queries) == 10_000
    assert [query["id"] for query in queries[:3]] == ["q000000", "q000002", "q000004"]
    assert queries[3]["values"][7] == pytest.approx(report.results[7].measured.values[0, 6], abs=5e-5)
    assert all(len(query["query"]) == MAX_QUERY and query["query"].endswith("…") for query in queries)
    assert "10,000 of 20,000 queries" in json.dumps(chart)
    assert len(rows_of(difference_chart(report.results, report.data.query_set("test"), limit=20_000))) == 20_000


def test_a_value_that_is_not_a_number_is_a_gap() -> None:
    chart = curve_chart({2: [(1, 0.5), (2, None)]}, "training loss")
    assert rows_of(chart) == [{"seed": 2, "step": 1, "value": 0.5}, {"seed": 2, "step": 2, "value": None}]
    assert rows_of(curve_chart({1: [(1, None)]}, "training loss"))[0]["value"] is None


def test_a_query_set_without_stored_scores_has_no_histograms(report: SmallReport) -> None:
    chart = score_chart(report.rows, "test")
    assert chart is not None and chart["params"][0]["bind"]["labels"] == ["bm25_lemm, seed 1", "nn_model1, seed 1"]
    assert sum(rows_of(chart)[0]["relevant documents"]) == 19
    assert score_chart(report.rows, "test_cpu") is None


def test_a_ranker_alone_has_a_histogram_of_its_own(report: SmallReport) -> None:
    base, network, *_ = report.rows
    seed = network.seeds[0]
    both = [*seed.histograms, {**seed.histograms[0], "alone": True}]
    chart = score_chart([base, network._replace(seeds=[seed._replace(histograms=both)])], "test")
    assert chart is not None
    labels = chart["params"][0]["bind"]["labels"]
    assert labels == ["bm25_lemm, seed 1", "nn_model1, seed 1", "nn_model1 (alone), seed 1"]
