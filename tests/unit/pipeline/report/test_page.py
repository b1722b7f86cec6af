"""The report: what the page holds, text that stays text, its size."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import markupsafe
import pytest

from evaluation.results_table import build_table
from lightning_modules.registry import row_of
from pipeline.report.page import report_page, summary
from pipeline.results import MeasuredRow
from tests import ROOT
from tests.fixtures.measured_rows import measurement, result
from tests.fixtures.small_report import HOSTILE, TEXTS, SmallReport, large_report, small_report


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
def report(tmp_path_factory: pytest.TempPathFactory) -> SmallReport:
    return small_report(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(report: SmallReport) -> str:
    return report.page()


def test_the_page_has_its_sections_and_requests_nothing(page: str) -> None:
    elements = Elements(page)
    sections = [attributes["id"] for attributes in elements.attributes("section")]
    assert sections == ["table", "speed", "curves", "queries", "scores", "translations"]
    assert "<title>Results on small</title>" in page and "<h1>Results on small</h1>" in page
    assert "Queries: test 5, test_cpu 2 · 2 rankers · 1 seed each" in page
    assert "<summary>2 tests of significance</summary>" in page and "fewer than 20 documents" in page
    assert not [
        tag for tag, attributes in elements.elements if "src" in attributes or tag in ("link", "iframe", "base")
    ]
    assert all(attributes["href"].startswith("#") for attributes in elements.attributes("a"))  # type: ignore[union-attr]


def test_every_chart_is_described_and_belongs_to_its_query_set(page: str) -> None:
    elements = Elements(page)
    charts = zip(elements.attributes("figure"), elements.scripts, strict=False)
    described = [(figure["data-set"], json.loads(script)["description"]) for figure, script in charts]
    assert described == [
        ("test", "Main measure against time, test"), ("test_cpu", "Main measure against time, test_cpu"),
        ("", "validation MRR of nn_model1 over the steps"), ("", "training loss of nn_model1 over the steps"),
        ("test", "Differences by query between two rows, test"),
        ("test_cpu", "Differences by query between two rows, test_cpu"), ("test", "Histograms of scores, test"),
        ("", "Strongest translations of graph, EM: model1_bwps, seed 1"),
        ("", "Strongest translations of graph, neural: nn_model1_exp, seed 2"),
        ("", "Strongest translations of <i>, EM: model1_bwps, seed 1"),
        ("", "Strongest translations of <i>, neural: nn_model1_exp, seed 2"),
    ]  # fmt: skip


def test_only_the_page_s_own_script_may_run(page: str) -> None:
    elements = Elements(page)
    kinds = [attributes.get("type") for attributes in elements.attributes("script")]
    assert set(kinds[:-1]) == {"application/json"} and kinds[-1] is None
    digest = base64.b64encode(hashlib.sha256(elements.scripts[-1].encode()).digest()).decode()
    policy = elements.attributes("meta")[2]["content"]
    assert policy is not None and f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    elements = Elements(small_report(tmp_path, model=HOSTILE, data=HOSTILE).page())
    assert not elements.attributes("img") and not elements.attributes("i")
    assert not [name for _, attributes in elements.elements for name in attributes if name.startswith("on")]
    assert not [script for script in elements.scripts[:-1] if re.search("[<>&]", script)]
    specifications = [json.loads(script) for script in elements.scripts[:-1]]
    differences = next(
        spec for spec in specifications if spec.get("description") == "Differences by query between two rows, test"
    )
    assert differences["datasets"]["rows"][2]["query"] == TEXTS[2] == HOSTILE
    assert any(param["bind"]["labels"][1] == HOSTILE for param in differences["params"])


def test_missing_parts_are_named(report: SmallReport) -> None:
    base = report.rows[0]
    without = MeasuredRow(base.model, [base.seeds[0]._replace(histograms=[])], base.results[:1])
    page = report._replace(rows=[without]).page()
    assert "None: no ranker of this table was trained by gradients." in page
    assert "None were stored: evaluate the rankers again to see them." in page
    assert "None: there is no table." in page and "<summary>0 tests of significance</summary>" in page


def test_the_table_is_that_of_the_other_formats(report: SmallReport, page: str) -> None:
    """The best value of a column is bold, marks are raised, headings stand above the rows of a part."""
    text = re.sub(r"\s*\n\s*", "", page[page.index("<tbody>") : page.index("</tbody>")])
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", text)
    assert [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows] == [
        ["baselines"],
        ["bm25_lemm", "0.4500", "0.7500", "0.3", "cpu, 2 threads"],
        ["our methods"],
        ["nn_model1", "<b>0.6500</b><sup>★</sup>", "0.7500<sup>★</sup>", "12", "cpu, 2 threads"],
        ["nn_model1 (alone)", "0.4000", "", "11", "cpu, 2 threads"],
    ]
    assert re.findall("<tr (class=[a-z]+)><td[^>]*>([^<]*)", text) == [
        ("class=group", "bm25_lemm"), ("class=group", "nn_model1")
    ]  # fmt: skip
    assert all(f"<p>{markupsafe.escape(note)}</p>" in page for note in report.table.notes)
    assert re.findall("<td>(.*?)</td>", page[page.index("<details>") :])[:3] == ["nn_model1", "bm25_lemm", "test MRR"]


def test_several_seeds_have_a_spread(report: SmallReport) -> None:
    base = report.rows[0]
    seeds = result("bm25_lemm", measurement((0.5, 0.5), (0.7, 0.7)), seed_values=[0.5, 0.7])
    rows = [base._replace(results=[seeds])]
    data = report.data
    data.query_set = {"test": data.query_set("test_cpu")}.__getitem__
    page = report_page(rows, build_table(rows[0].results, row_of), data)
    assert "<td>0.6000&nbsp;<small>±0.1414</small></td>" in page


def test_the_summary_counts_queries_rankers_and_seeds(report: SmallReport) -> None:
    first, *others = report.results
    assert summary([first, *others]) == "Queries: test 5, test_cpu 2 · 2 rankers · 1 seed each"
    assert summary([first, others[1]._replace(seeds=5)]) == "Queries: test 5 · 2 rankers · 1 to 5 seeds each"
    assert summary([first._replace(queries=20_000)]) == "Queries: test 20,000 · 1 ranker · 1 seed each"


def test_a_page_of_20_000_queries_and_many_rows_is_below_6_megabytes(tmp_path: Path) -> None:
    report = large_report(tmp_path, 20_000, 20, "a question of some forty characters, and more")
    assert 2e6 < len(report.page().encode()) < 6e6


def test_the_report_is_imported_when_it_is_written() -> None:
    """Altair takes a second to import; explain.py and serve.py load rankers without it."""
    module = ast.parse((ROOT / "pipeline/evaluating.py").read_text(encoding="utf-8"))
    assert not [node for node in module.body if "pipeline.report" in ast.unparse(node).split("def ")[0]]
