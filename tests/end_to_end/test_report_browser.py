"""The report as a person meets it: opened from disk in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.report.report import QuerySetValues, report_page
from evaluation.report.translation_picture import (
    QueryWord,
    TableColumn,
    Translation,
    TranslationPicture,
    WordTranslations,
)
from tests.fixtures import browser
from tests.fixtures.browser import OpenPage
from tests.fixtures.small_report import HOSTILE, small_report


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "results.html"
    path.write_text(report_page(small_report()), encoding="utf-8")
    return path


def counts(page: Any) -> list[str]:
    return page.locator("#queries .counts span").all_inner_texts()


def test_the_page_opens_without_errors_and_without_the_network(browser_page: OpenPage, report_file: Path) -> None:
    page = browser_page.open(report_file)
    assert browser_page.errors == []
    assert browser_page.requests == [report_file.as_uri()]
    charts = page.locator("svg[role=img]")
    assert charts.count() == 1 + 2 + 1 + 1  # speed, two curves, differences, scores
    assert all(charts.nth(number).get_attribute("aria-label") for number in range(charts.count()))
    labels = page.locator("select").evaluate_all("all => all.map(one => [...one.labels].map(label => label.innerText))")
    assert len(labels) == 6 and all(len(one) == 1 and one[0] for one in labels)


def test_the_differences_are_those_of_the_chosen_rows(browser_page: OpenPage, report_file: Path) -> None:
    """The best row against the first one, by hand: q1 +0.5, q2 -0.5, q3 +1, q4 and q5 equal."""
    page = browser_page.open(report_file)
    assert counts(page) == ["2 better", "2 equal", "1 worse", "mean difference +0.2000"]
    wins, losses = page.locator("#queries .lists table").all()
    assert wins.locator("tbody td:last-child").all_inner_texts() == ["+1.0000", "+0.5000"]
    assert "how to bake bread" in wins.inner_text()
    assert losses.locator("tbody td:last-child").all_inner_texts() == ["−0.5000"]
    assert "q2: A 0.5000, B 1.0000" in losses.inner_text()


def test_another_choice_draws_the_chart_again(browser_page: OpenPage, report_file: Path) -> None:
    page = browser_page.open(report_file)

    def bars() -> list[str | None]:
        return [one.get_attribute("d") for one in page.locator("#queries path.bars").all()]

    first = bars()
    page.get_by_role("button", name="Swap A and B").click()
    assert bars() != first and counts(page)[0] == "1 better"
    page.locator("#queries-a").select_option(label="nn_model1 (alone)")
    assert counts(page) == ["0 better", "2 equal", "3 worse", "mean difference −0.2500"]
    page.locator("#queries-set").select_option(label="test_cpu")
    assert "(alone)" not in page.locator("#queries-a").inner_text()  # not measured on that set
    assert sum(int(text.split()[0]) for text in counts(page)[:3]) == 2
    assert browser_page.errors == []


def test_the_other_selects_draw_again_too(browser_page: OpenPage, report_file: Path) -> None:
    page = browser_page.open(report_file)
    page.locator("#speed-set").select_option(label="test_cpu")
    assert page.locator("#speed figcaption").inner_text() == "MRR on test_cpu."
    page.locator("#scores-row").select_option(label="nn_model1")
    assert page.locator("#scores figcaption").inner_text().startswith("nn_model1 on test, seed 1: 19 relevant")
    assert browser_page.errors == []


def test_hovering_and_the_keyboard_show_the_tooltip(browser_page: OpenPage, report_file: Path) -> None:
    page = browser_page.open(report_file)
    tip = page.locator("#tip")
    assert not tip.is_visible()
    mark = page.locator("#speed figure circle.mark").first
    mark.hover()
    assert tip.is_visible() and tip.inner_text() == "bm25_lemm\nMRR 0.4500\n0.3 ms per 1,000 documents, cpu"
    page.mouse.move(1, 1)
    page.locator("#queries-b").focus()
    assert not tip.is_visible()
    page.keyboard.press("Tab")  # the button
    page.keyboard.press("Tab")  # the chart
    assert tip.is_visible() and tip.inner_text().startswith("+1.0000")
    page.keyboard.press("End")
    assert tip.inner_text() == "−0.5000 (A 0.5000, B 1.0000)\nrepair of a car"
    page.keyboard.press("Escape")
    assert not tip.is_visible()


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_scrolls_the_table_and_not_the_page(browser_page: OpenPage, report_file: Path, width: int) -> None:
    browser_page.page.set_viewport_size({"width": width, "height": 800})
    page = browser_page.open(report_file)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.get_by_role("region", name="Results table").evaluate("box => box.scrollWidth > box.clientWidth")
    assert page.locator("#speed figure svg").bounding_box()["width"] <= width


def test_names_in_the_scatter_plot_do_not_overlap(browser_page: OpenPage, report_file: Path) -> None:
    page = browser_page.open(report_file)
    boxes = [one.bounding_box() for one in page.locator("#speed text.name").all()]
    assert len(boxes) == 3
    for number, a in enumerate(boxes):
        for b in boxes[:number]:
            beside = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            assert beside or a["y"] + a["height"] <= b["y"] + 2 or b["y"] + b["height"] <= a["y"] + 2


def test_on_paper_there_are_no_controls_and_the_colours_are_light(browser_page: OpenPage, report_file: Path) -> None:
    page = browser_page.page
    page.emulate_media(color_scheme="dark")
    browser_page.open(report_file)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.locator("select").first.is_visible() and page.evaluate(ground) == "rgb(18, 22, 28)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert not [one for one in page.locator("select, button, nav, #tip, summary").all() if one.is_visible()]
    assert page.locator("#queries figcaption").inner_text() == "MRR on test; A: nn_model1, B: bm25_lemm."


def test_hostile_texts_are_shown_and_not_run(browser_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "results.html"
    path.write_text(report_page(small_report(model=HOSTILE, data=HOSTILE)), encoding="utf-8")
    page = browser_page.open(path)
    assert page.evaluate("window.hacked") is None and browser_page.errors == [] and len(browser_page.requests) == 1
    assert page.locator("#queries .lists td").first.evaluate("cell => cell.firstChild.data") == HOSTILE
    assert page.locator("img").count() == 0


def test_an_empty_report_says_what_is_missing(browser_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "results.html"
    path.write_text(report_page(small_report()._replace(trainings=[], scores=[])), encoding="utf-8")
    page = browser_page.open(path)
    assert page.locator("#curves p").inner_text() == "None: no ranker of this table was trained by gradients."
    assert page.locator("#scores p").inner_text() == "None were stored: evaluate the rankers again to see them."
    assert browser_page.errors == []


def test_twenty_thousand_queries_are_drawn_and_what_is_left_out_is_said(browser_page: OpenPage, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = {row: rng.random(20_000) for row in range(40)}
    report = small_report()
    rows = [report.rows[0]._replace(name=f"row {row}") for row in values]
    ids = [str(number) for number in range(20_000)]
    large = QuerySetValues("test", "MRR", ids, ids, values)
    points = [report.points[0]._replace(row=row, value=0.3 + row / 100) for row in values]
    path = tmp_path / "results.html"
    large_report = report._replace(rows=rows, query_sets=[large], points=points, scores=[])
    path.write_text(report_page(large_report), encoding="utf-8")
    page = browser_page.open(path)
    assert browser_page.errors == []
    assert "The page has 15,000 of the 20,000 queries" in page.locator("#queries .left-out").inner_text()
    assert sum(int(text.split()[0].replace(",", "")) for text in counts(page)[:3]) == 15_000
    assert page.locator("#queries .lists tbody tr").count() == 20
    assert page.locator("#speed .key").count() == 0
    page.set_viewport_size({"width": 390, "height": 800})  # too narrow for forty names: numbers and a key
    page.wait_for_selector("#speed .key")
    assert page.locator("#speed .key li").count() == page.locator("#speed text.name").count() == 40
    assert page.locator("#speed text.name").first.inner_html().isdigit()
    assert "is not on this page" not in page.locator("#queries .lists").inner_text()


SCRIPT, LONG = "<script>alert(1)</script>", 80 * "a"
PICTURE = TranslationPicture(
    [QueryWord("graph", 1200), QueryWord(SCRIPT, 1)],
    [
        TableColumn(
            "model1_bwps", "EM", 1,
            [
                WordTranslations(0.35, [Translation("node", 0.4), Translation(SCRIPT, 0.2), Translation(LONG, 1e-4)]),
                WordTranslations(0.35, [Translation("tree", 0.1)]),
            ],
        ),
        TableColumn(
            HOSTILE, "neural", 2,
            [WordTranslations(0.05, [Translation("edge", 0.8)]), WordTranslations(0.2, [Translation(HOSTILE, 0.2)])],
        ),
    ],
    least_documents=20,
)  # fmt: skip


def bar_widths(panel: Any, colour: str) -> list[float]:
    return [float(one.get_attribute("width")) for one in panel.locator(f"rect.{colour}").all()]


def test_the_strongest_translations_are_bars_of_one_scale(browser_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "results.html"
    path.write_text(report_page(small_report()._replace(translations=PICTURE)), encoding="utf-8")
    page = browser_page.open(path)
    assert browser_page.errors == [] and browser_page.requests == [path.as_uri()]
    assert page.locator("nav a").last.get_attribute("href") == "#translations"
    section = page.locator("#translations")
    legend = section.locator(".legend span").all_inner_texts()
    assert legend == ["EM: model1_bwps, seed 1", f"neural: {HOSTILE}, seed 2"]
    assert "set and not learned: 0.35 in model1_bwps, 0.05 to 0.2 in" in section.locator(".left-out").inner_text()
    first, second = section.locator(".panel").all()
    assert first.locator("h3").inner_text() == "graph 1,200 times"
    assert second.locator("h3").inner_text() == f"{SCRIPT} 1 time"
    em, neural = bar_widths(first, "blue"), bar_widths(first, "orange")
    assert neural[0] == pytest.approx(2 * em[0]) == pytest.approx(4 * em[1]) and em[2] == 1  # hardly to be seen
    assert bar_widths(second, "blue") == [pytest.approx(em[0] / 4)]
    texts = first.locator("text").all_text_contents()
    assert texts[0] == "node" and texts[3] == "EM" and texts[-3:] == ["edge", "neural", "0.800"]
    assert texts[1].startswith("<script>al") and texts[2].endswith("aa…")  # too long for their place
    assert [text for text in texts if text[0] in "01"] == ["0.400", "0.200", "1e-4", "0.800"]
    label = first.locator("svg").get_attribute("aria-label")
    assert label.startswith(f"Strongest translations of graph. model1_bwps: node 0.4, {SCRIPT} 0.2, aaa")
    first.locator("svg").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#tip").inner_text() == f"T(graph | {SCRIPT}) = 0.2\nmodel1_bwps"
    assert page.locator("script").count() == 2 and page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
    page.set_viewport_size({"width": 320, "height": 800})  # columns below each other
    page.wait_for_function("document.querySelector('#translations svg').viewBox.baseVal.width < 320")
    places = [first.locator(f"rect.{colour}").last.bounding_box() for colour in ("blue", "orange")]
    assert places[0]["x"] == pytest.approx(places[1]["x"]) and places[0]["y"] < places[1]["y"]
    assert page.evaluate("document.documentElement.scrollWidth") == 320 and browser_page.errors == []


def test_one_table_is_one_column_and_no_table_no_section(browser_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "results.html"
    one = PICTURE._replace(columns=PICTURE.columns[:1])
    path.write_text(report_page(small_report()._replace(translations=one)), encoding="utf-8")
    page = browser_page.open(path)
    assert (
        page.locator("#translations rect.blue").count() == 1 + 4
        and page.locator("#translations rect.orange").count() == 0
    )
    path.write_text(report_page(small_report()), encoding="utf-8")
    page = browser_page.open(path)
    assert page.locator("#translations").count() == page.locator("a[href='#translations']").count() == 0
    assert browser_page.errors == []


def test_without_a_browser_tests_are_skipped_but_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "BROWSERS", ("no-such-browser",))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium here"):
        browser.find_browser()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Chromium here"):
        browser.find_browser()
