"""The report: what the page holds, text that stays text, its size, its charts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from evaluation.page_template import filled, script_json
from evaluation.report.charts import MAX_QUERY, MAX_VALUES, curve_chart, difference_chart, score_chart, speed_chart
from evaluation.report.report import MAX_STEPS, Curve, QuerySetValues, Report, report_page, thin
from evaluation.report.score_histogram import BINS, score_histogram
from evaluation.results_table import build_table
from lightning_modules.registry import row_of
from tests import ROOT
from tests.fixtures.small_report import ALONE, BM25, FUSED, HOSTILE, TEXTS, small_report, small_results

# --- the page


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, text: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += text

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    return report_page(small_report())


def test_the_page_has_its_sections_and_requests_nothing(page: str) -> None:
    elements = Elements(page)
    sections = [attributes["id"] for attributes in elements.attributes("section")]
    assert sections == ["table", "speed", "curves", "queries", "scores", "translations"]
    assert "<title>Results on small</title>" in page and "<h1>Results on small</h1>" in page
    assert "Queries: test 5, test_cpu 2 · 2 rankers · 1 seed each" in page
    assert page.count('<table class="results">') == 1 and "<summary>2 tests of significance</summary>" in page
    assert not [
        tag for tag, attributes in elements.elements if "src" in attributes or tag in ("link", "iframe", "base")
    ]
    assert all(attributes["href"].startswith("#") for attributes in elements.attributes("a"))  # type: ignore[union-attr]


def test_only_the_page_s_own_script_may_run(page: str) -> None:
    elements = Elements(page)
    kinds = [attributes.get("type") for attributes in elements.attributes("script")]
    assert set(kinds[:-1]) == {"application/json"} and kinds[-1] is None
    digest = base64.b64encode(hashlib.sha256(elements.scripts[-1].encode()).digest()).decode()
    policy = elements.attributes("meta")[2]["content"]
    assert policy is not None and f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy


def test_hostile_text_stays_text() -> None:
    page = report_page(small_report(model=HOSTILE, data=HOSTILE))
    elements = Elements(page)
    assert not elements.attributes("img") and not elements.attributes("i")
    assert not [name for _, attributes in elements.elements for name in attributes if name.startswith("on")]
    specifications = [json.loads(script) for script in elements.scripts[:-1]]
    differences = next(
        spec for spec in specifications if spec.get("description") == "Differences by query between two rows, test"
    )
    assert differences["datasets"]["rows"][2]["query"] == TEXTS[2] == HOSTILE
    assert any(param["bind"]["labels"][1] == HOSTILE for param in differences["params"])
    assert "{{" not in re.sub(r"\{\{script\}\}", "", page[: page.index("<script>")])


def test_missing_parts_are_named() -> None:
    report = small_report()._replace(
        trainings=[], scores=[], translations=None, table=build_table([small_results()[0]], row_of)
    )
    page = report_page(report)
    assert "None: no ranker of this table was trained by gradients." in page
    assert "None were stored: evaluate the rankers again to see them." in page
    assert "None: there is no table." in page and "<summary>0 tests of significance</summary>" in page


def test_json_in_a_script_has_no_character_that_could_end_it() -> None:
    content = {"a": HOSTILE, "b": ["\u2029", "ü", "<!--", 1.5, None]}
    text = script_json(content)
    assert not re.search("[<>&\u2028\u2029]", text) and json.loads(text) == content
    with pytest.raises(ValueError, match="JSON"):
        script_json(float("nan"))


def test_a_part_cannot_hold_a_placeholder() -> None:
    assert filled("{{a}} {{b}}", {"a": "{{b}}", "b": "c"}) == "{{b}} c"


def test_gathering_a_report_does_not_import_altair() -> None:
    code = "import sys, evaluation.report.report; sys.exit('altair' in sys.modules or 'vl_convert' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# --- charts


def rows_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    return chart["datasets"]["rows"]


def test_the_points_of_a_query_set_have_their_rows_and_times() -> None:
    report = small_report()
    points = rows_of(speed_chart(report, report.query_sets[0]))
    assert [(point["name"], point["part"], point["alone"], point["ms_per_1k"]) for point in points] == [
        ("bm25_lemm", "baselines", False, 0.3),
        ("nn_model1", "our methods", False, 12.0),
        ("nn_model1 (alone)", "our methods", True, 11.0),
    ]
    assert [point["value"] for point in points] == [pytest.approx(np.mean(row)) for row in (BM25, FUSED, ALONE)]


def test_the_queries_have_a_value_for_each_row() -> None:
    report = small_report()
    first, second = (difference_chart(report, query_set) for query_set in report.query_sets)
    assert [query["values"] for query in rows_of(first)] == [list(row) for row in zip(BM25, FUSED, ALONE, strict=True)]
    assert [query["query"] for query in rows_of(first)] == TEXTS
    assert [query["id"] for query in rows_of(second)] == ["q1", "q2"]
    choices = {param["name"]: param for param in first["params"]}
    assert choices["A"]["value"] == 1 and choices["B"]["value"] == 0  # the best row against the first
    assert choices["A"]["bind"]["labels"] == ["bm25_lemm", "nn_model1", "nn_model1 (alone)"]
    assert {param["name"]: param for param in second["params"]}["A"]["bind"]["labels"] == ["bm25_lemm", "nn_model1"]


def with_set(queries: int, rows: int, text: str) -> Report:
    rng = np.random.default_rng(1)
    ids = [f"q{i:06d}" for i in range(queries)]
    values = {row: rng.random(queries) for row in range(rows)}
    query_set = QuerySetValues("test", "MRR", ids, [text] * queries, values)
    report = small_report()
    row = report.rows[0]
    return report._replace(query_sets=[query_set], points=[], scores=[], rows=[row] * rows)


def test_a_page_of_20_000_queries_and_many_rows_is_below_6_megabytes() -> None:
    report = with_set(20_000, 20, "a question of some forty characters, and more")
    assert 2e6 < len(report_page(report).encode()) < 6e6
    assert len(rows_of(difference_chart(report, report.query_sets[0]))) == 20_000


def test_a_set_that_is_too_large_for_a_page_is_an_evenly_spread_sample() -> None:
    report = with_set(20_000, 40, "long " * 1000)
    (query_set,) = report.query_sets
    chart = difference_chart(report, query_set)
    queries = rows_of(chart)
    assert len(queries) == MAX_VALUES // 40 == 10_000
    assert [query["id"] for query in queries[:3]] == ["q000000", "q000002", "q000004"]
    assert queries[3]["values"][7] == pytest.approx(query_set.values[7][6], abs=5e-5)
    assert all(len(query["query"]) == MAX_QUERY and query["query"].endswith("…") for query in queries)
    assert "10,000 of 20,000 queries" in json.dumps(chart)


def test_a_long_curve_is_the_means_of_stretches_and_nan_a_gap() -> None:
    long = thin(Curve(1, list(range(400)), [float(i) for i in range(400)]))
    assert long.steps == list(range(1, 400, 2)) and long.values == [i + 0.5 for i in range(0, 400, 2)]
    assert len(long.steps) == MAX_STEPS
    short = thin(Curve(2, [1, 2, 3], [0.123456789, float("nan"), float("inf")]))
    assert short == Curve(2, [1, 2, 3], [0.12346, None, None])
    assert rows_of(curve_chart([short], "training loss"))[1] == {"seed": 2, "step": 2, "value": None}


def test_a_query_set_without_stored_scores_has_no_histograms() -> None:
    report = small_report()
    chart = score_chart(report, report.query_sets[0])
    assert chart is not None and chart["params"][0]["bind"]["labels"] == ["bm25_lemm, seed 1", "nn_model1, seed 1"]
    assert sum(rows_of(chart)[0]["relevant documents"]) == 19
    assert score_chart(report, report.query_sets[1]) is None


# --- histograms


def test_a_histogram_by_hand() -> None:
    """Others spread over 0..30, two relevant scores in the fourth bin."""
    others = np.arange(0, 30.001, 0.01)
    scores, relevant = np.append(others, [3.5, 3.6]), np.append(np.zeros(len(others), bool), [True, True])
    counts = score_histogram(scores, relevant)
    assert counts is not None and len(counts.edges) == BINS + 1
    assert (counts.edges[0], counts.edges[-1]) == (pytest.approx(0.15), pytest.approx(29.85))
    assert counts.relevant == [0, 0, 0, 2] + [0] * 26  # edges 0.15 + 0.99 n: 3.12 to 4.11
    assert sum(counts.others) == len(others)
    assert counts.others[0] == counts.others[-1] == pytest.approx(114, abs=1)  # 99 in the bin and 15 beyond it


def test_a_histogram_equals_numpy_s_with_tails_in_the_outer_bins() -> None:
    rng = np.random.default_rng(5)
    scores, relevant = rng.normal(size=5000).astype(np.float32), rng.random(5000) < 0.02
    scores[relevant] += 6
    counts = score_histogram(scores, relevant)
    assert counts is not None
    assert counts.edges[0] == pytest.approx(np.quantile(scores[~relevant], 0.005), abs=1e-6)
    assert counts.edges[-1] == pytest.approx(np.quantile(scores[relevant], 0.995), abs=1e-6)
    for group, counted in ((scores[relevant], counts.relevant), (scores[~relevant], counts.others)):
        inside, _ = np.histogram(group, counts.edges)
        assert counted[1:-1] == inside[1:-1].tolist() and sum(counted) == len(group)


@pytest.mark.parametrize("value", [0.0, -7.25, 1e9])
def test_scores_that_are_all_equal_have_a_histogram(value: float) -> None:
    counts = score_histogram(np.full(9, value), np.arange(9) < 2)
    assert counts is not None and (sum(counts.relevant), sum(counts.others)) == (2, 7)
    assert all(a < b for a, b in zip(counts.edges, counts.edges[1:], strict=False))


def test_a_histogram_without_relevant_documents_or_without_any() -> None:
    counts = score_histogram(np.arange(5.0), np.zeros(5, bool))
    assert counts is not None and sum(counts.relevant) == 0 and sum(counts.others) == 5
    assert score_histogram(np.zeros(0), np.zeros(0, bool)) is None
