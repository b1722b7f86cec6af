"""The report as a person meets it: opened from disk in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import browser
from tests.fixtures.browser import OpenPage
from tests.fixtures.small_report import HOSTILE, large_report, small_report


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "results.html"
    path.write_text(small_report(path.parent).page(), encoding="utf-8")
    return path


def open_report(browser_page: OpenPage, path: Path) -> Any:
    """Open the page and wait for the charts that it shows at first."""
    page = browser_page.open(path)
    drawn(page)
    return page


def drawn(page: Any) -> None:
    page.evaluate("Promise.all([...document.querySelectorAll('figure')].map((figure) => figure.drawn))")


def test_the_page_opens_without_errors_and_without_the_network(browser_page: OpenPage, report_file: Path) -> None:
    page = open_report(browser_page, report_file)
    assert browser_page.errors == [] and browser_page.requests == [report_file.as_uri()]
    charts = page.locator("figure:not([hidden]) svg.marks")
    assert charts.count() == 1 + 2 + 1 + 1 + 4  # speed, two curves, differences, scores, two words in two tables
    labels = page.locator(".chart[aria-label], .chart [aria-label][role^=graphics-document]")
    assert labels.count() >= charts.count()
    selects = page.locator("select").evaluate_all("all => all.map(select => select.labels[0].innerText.trim())")
    assert [label.split("\n")[0].split(" ")[0] for label in selects] == ["Charts", "Row", "Row", "Row"]


def test_the_differences_are_those_of_the_chosen_rows(browser_page: OpenPage, report_file: Path) -> None:
    """The best row against the first one, by hand: q1 +0.5, q2 -0.5, q3 +1, q4 and q5 equal."""
    page = open_report(browser_page, report_file)
    queries = page.locator("#queries figure:not([hidden])")
    counts = queries.locator("p")
    assert counts.inner_text() == "A: 2 better, 2 equal, 1 worse; mean difference +0.2000"
    wins, losses = queries.locator("table").all()
    assert wins.locator("td:last-child").all_inner_texts() == ["+1.0000", "+0.5000"]
    assert "how to bake bread" in wins.inner_text()
    assert losses.locator("td:last-child").all_inner_texts() == ["−0.5000"]
    assert "q2: A 0.5000, B 1.0000" in losses.inner_text()
    bars = queries.locator("g.mark-rect").first
    before = bars.inner_html()
    page.get_by_label("Row A").select_option(label="nn_model1 (alone)")
    assert counts.inner_text() == "A: 1 better, 0 equal, 4 worse; mean difference −0.0500"
    assert bars.inner_html() != before and browser_page.errors == []


def test_another_query_set_shows_its_own_charts(browser_page: OpenPage, report_file: Path) -> None:
    page = open_report(browser_page, report_file)
    page.get_by_label("Charts show").select_option(label="test_cpu")
    drawn(page)
    assert "MRR on test_cpu" in page.locator("#speed figure:not([hidden])").inner_text()
    queries = page.locator("#queries figure:not([hidden])")
    assert "(alone)" not in queries.inner_text()  # not measured on that set
    assert queries.locator("p").inner_text() == "A: 1 better, 0 equal, 1 worse; mean difference 0.0000"
    assert page.locator("#scores figure:not([hidden])").count() == 0 and browser_page.errors == []


def test_hovering_a_mark_shows_its_values(browser_page: OpenPage, report_file: Path) -> None:
    page = open_report(browser_page, report_file)
    page.locator("#speed .mark-symbol.role-mark path").first.hover()
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    assert tip.locator("td.value").all_inner_texts() == ["bm25_lemm", "0.45", "0.3", "cpu"]
    page.locator("#queries figure:not([hidden]) .mark-rect").last.locator("path").nth(2).hover()
    page.wait_for_function("document.querySelector('#vg-tooltip-element').innerText.includes('difference')")
    assert tip.locator("td.value").all_inner_texts()[1:] == ["1", "1", "0"]
    assert "</script><script>window.hacked" in tip.inner_text() and page.evaluate("window.hacked") is None


def test_names_in_the_scatter_plot_do_not_overlap(browser_page: OpenPage, report_file: Path) -> None:
    page = open_report(browser_page, report_file)
    names = page.locator("#speed figure:not([hidden]) .mark-text.role-mark text").all()
    boxes = [name.bounding_box() for name in names]
    assert len(boxes) == 3
    for number, a in enumerate(boxes):
        for b in boxes[:number]:
            beside = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            assert beside or a["y"] + a["height"] <= b["y"] + 2 or b["y"] + b["height"] <= a["y"] + 2


def test_a_phone_scrolls_the_table_and_not_the_page(browser_page: OpenPage, report_file: Path) -> None:
    page = open_report(browser_page, report_file)
    page.set_viewport_size({"width": 320, "height": 800})
    page.wait_for_function("document.querySelector('#speed svg').getBoundingClientRect().width <= 320")
    assert page.evaluate("document.documentElement.scrollWidth") == 320 and browser_page.errors == []
    assert page.get_by_role("region", name="Results table").evaluate("box => box.scrollWidth > box.clientWidth")


def test_on_paper_there_are_no_controls_and_the_colours_are_light(browser_page: OpenPage, report_file: Path) -> None:
    browser_page.page.emulate_media(color_scheme="dark")
    page = open_report(browser_page, report_file)
    background = "getComputedStyle(document.body).backgroundColor"
    bar = "getComputedStyle(document.querySelector('#translations .mark-rect path')).fill"
    assert page.evaluate(background) == "rgb(18, 22, 28)" and page.evaluate(bar) == "rgb(92, 179, 240)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(background) == "rgb(255, 255, 255)" and page.evaluate(bar) == "rgb(0, 103, 168)"
    assert not [control for control in page.locator("nav, details").all() if control.is_visible()]
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#speed figure:not([hidden]) svg").evaluate("svg => svg.getBoundingClientRect().width") <= 680


def test_hostile_text_is_shown_and_not_run(browser_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "results.html"
    path.write_text(small_report(tmp_path, model=HOSTILE, data=HOSTILE).page(), encoding="utf-8")
    page = open_report(browser_page, path)
    assert page.evaluate("window.hacked") is None and browser_page.errors == [] and len(browser_page.requests) == 1
    assert page.locator("#queries figure:not([hidden]) td").first.evaluate("cell => cell.firstChild.data") == HOSTILE
    assert page.locator("img").count() == 0 and page.locator("h3", has_text="<i> 1 time").count() == 1


def test_twenty_thousand_queries_and_forty_rows_are_drawn(browser_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "results.html"
    path.write_text(large_report(tmp_path, queries=20_000, rows=40, text="a query").page(), encoding="utf-8")
    page = open_report(browser_page, path)
    assert browser_page.errors == [] and "10,000 of 20,000 queries" in page.locator("#queries figure").inner_text()
    assert page.locator("#queries table tr").count() == 20
    assert page.locator("#speed .mark-symbol.role-mark path").count() == 40


def test_without_a_browser_tests_are_skipped_but_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "BROWSERS", ("no-such-browser",))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium here"):
        browser.find_browser()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Chromium here"):
        browser.find_browser()
