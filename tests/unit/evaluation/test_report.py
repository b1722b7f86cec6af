"""The report: what the page holds, texts that stay texts, its size, and where its data comes from."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluation.measures import Measured, per_query_tsv
from evaluation.page_template import script_json
from evaluation.report.report import (
    MOST_TEXT,
    MOST_VALUES,
    Curve,
    QuerySetValues,
    Training,
    page_data,
    report_page,
)
from evaluation.report.score_histogram import BINS, score_histogram
from evaluation.results_table import build_table
from lexical.errors import UserError
from pipeline.report_data import gather_report, read_metrics, summary
from pipeline.run_folder import RunFolder, write_json, write_text
from tests.fixtures.small_report import ALONE, BM25, FUSED, HOSTILE, IDS, TEXTS, small_report, small_results

# --- the page


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, text: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += text


def test_the_page_has_its_sections_and_asks_for_nothing() -> None:
    page = report_page(small_report())
    elements = Elements(page).found
    assert [one["id"] for tag, one in elements if tag == "section"] == ["table", "speed", "curves", "queries", "scores"]
    assert "<title>Results on small</title>" in page and "<h1>Results on small</h1>" in page
    assert "Queries: test 5, test_cpu 2 · 2 rankers · 1 seed each" in page
    assert page.count('<table class="results">') == 1 and "<noscript>" in page
    policy = next(one["content"] for tag, one in elements if one.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert not [one for tag, one in elements if "src" in one or tag in ("link", "iframe", "base")]
    assert all(one["href"].startswith("#") for tag, one in elements if "href" in one)
    assert not [name for _, one in elements for name in one if name.startswith("on") or name == "style"]
    assert not re.search(r"url\(|@import|innerHTML|insertAdjacentHTML|document\.write|eval\(", page)
    assert set(re.findall(r"https?://[^\"]*", page)) == {"http://www.w3.org/2000/svg"}
    assert "{{" not in page.replace("{{script}}", "")  # the one in HOSTILE


def test_the_list_of_tests_is_there_only_where_there_are_tests() -> None:
    report = small_report()
    assert "<summary>2 tests of significance</summary>" in report_page(report)
    without = build_table([one._replace(significance=[]) for one in small_results()])
    assert "<details>" not in report_page(report._replace(table=without))


def test_hostile_texts_stay_texts() -> None:
    page = report_page(small_report(model=HOSTILE, data=HOSTILE))
    elements = Elements(page)
    assert [one.get("type") for tag, one in elements.found if tag == "script"] == ["application/json", None]
    assert not [tag for tag, _ in elements.found if tag == "img"]
    embedded = json.loads(elements.scripts[0])
    assert embedded["rows"][1]["name"] == HOSTILE and embedded["sets"][0]["texts"]["2"] == ["q3", HOSTILE]
    assert elements.scripts[1].startswith('\n"use strict"')


def test_json_in_a_script_has_no_character_that_could_end_it() -> None:
    content = {"a": HOSTILE, "b": ["\u2029", "ü", "<!--", 1.5, None]}
    text = script_json(content)
    assert not re.search("[<>&\u2028\u2029]", text) and json.loads(text) == content
    with pytest.raises(ValueError, match="JSON"):
        script_json(float("nan"))


# --- per-query values


def test_values_are_integers_and_the_texts_those_of_the_lists() -> None:
    first, second = page_data(small_report())["sets"]
    assert first["values"] == {row: [round(10_000 * v) for v in of] for row, of in enumerate((BM25, FUSED, ALONE))}
    assert (first["total"], first["queries"], first["textless"]) == (5, 5, 0)
    assert first["texts"] == {query: [IDS[query], TEXTS[query]] for query in range(5)}
    assert set(second["texts"]) == {0, 1}


def test_every_query_that_can_be_listed_has_its_text() -> None:
    """Against a plain sort of every pair of rows."""
    rng = np.random.default_rng(3)
    values = {row: 1 / rng.integers(1, 9, 400) for row in range(4)}
    (found,) = page_data(with_set(400, values))["sets"]
    expected = set()
    for a, b in permutations(values, 2):
        difference = [x - y for x, y in zip(found["values"][a], found["values"][b], strict=True)]
        order = sorted(range(400), key=lambda query: (-difference[query], query))
        expected |= {query for query in order[:10] if difference[query] > 0}
    assert set(found["texts"]) == expected and found["textless"] == 0


def with_set(queries: int, values: dict[int, np.ndarray], text: str = "text of {}") -> Any:
    ids = [f"q{i:06d}" for i in range(queries)]
    texts = [text.format(i) for i in range(queries)]
    mine = QuerySetValues("test", "MRR", ids, texts, values)
    return small_report()._replace(query_sets=[mine], points=[], scores=[])


def test_a_page_of_20_000_queries_and_many_rows_is_below_5_megabytes() -> None:
    rng = np.random.default_rng(1)
    values = {row: rng.random(20_000) for row in range(26)}
    report = with_set(20_000, values, "a question of some forty characters, number {}")
    page = report_page(report)
    assert 2e6 < len(page.encode()) < 5e6
    (found,) = page_data(report)["sets"]
    assert found["queries"] == found["total"] == 20_000 and found["textless"] == 0


def test_what_is_too_much_for_a_page_is_left_out_and_counted() -> None:
    rng = np.random.default_rng(2)
    values = {row: rng.random(20_000) for row in range(60)}
    report = with_set(20_000, values, "long " * 1000 + "{}")
    (found,) = page_data(report)["sets"]
    assert found["total"] == 20_000 and found["queries"] == MOST_VALUES // 60
    assert all(len(of_row) == found["queries"] for of_row in found["values"].values())
    assert found["values"][7] == np.rint(values[7][::2] * 10_000).tolist()  # 10,000 of 20,000: every other one
    assert found["textless"] > 0
    texts = [text for _, text in found["texts"].values()]
    assert all(len(text) == 300 and text.endswith("…") for text in texts) and sum(map(len, texts)) <= MOST_TEXT
    assert len(report_page(report).encode()) < 5e6


# --- learning curves


def curves_of(*curves: Curve) -> list[dict[str, Any]]:
    return page_data(small_report()._replace(trainings=[Training("a", list(curves), [])]))["trainings"][0]["validation"]


def test_a_long_curve_is_the_means_of_stretches_and_nan_a_gap() -> None:
    (long,) = curves_of(Curve(1, list(range(400)), [float(i) for i in range(400)]))
    assert long["steps"] == list(range(1, 400, 2)) and long["values"] == [i + 0.5 for i in range(0, 400, 2)]
    assert long["of"] == 400
    (short,) = curves_of(Curve(2, [1, 2, 3], [0.123456789, float("nan"), float("inf")]))
    assert short == {"seed": 2, "steps": [1, 2, 3], "values": [0.12346, None, None], "of": 3}


METRICS = ["val/mrr", "train/loss"]


def test_metrics_of_a_run_that_was_not_interrupted(tmp_path: Path) -> None:
    lines = "step,train/loss,val/mrr,development/mrr\n49,0.5,,\n99,0.4,,\n99,,0.31,\n0,,,0.4\n"
    (tmp_path / "metrics.csv").write_text(lines)
    assert read_metrics(tmp_path, METRICS) == {"val/mrr": [(99, 0.31)], "train/loss": [(49, 0.5), (99, 0.4)]}


def test_a_resumed_run_replaces_what_it_repeats(tmp_path: Path) -> None:
    """Resumed after step 100: the first file's steps from there on were lost with the process."""
    (tmp_path / "metrics.before-1.csv").write_text(
        "step,train/loss,val/mrr\n49,0.9,\n99,0.8,0.1\n149,0.7,\n199,0.6,0.2\n"
    )
    (tmp_path / "metrics.before-2.csv").write_text("step,train/loss,val/mrr\n149,0.75,\n199,0.65,0.25\n249,0.6,\n")
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/mrr\n249,0.55,\n299,0.5,0.3\n")
    found = read_metrics(tmp_path, METRICS)
    assert found["train/loss"] == [(49, 0.9), (99, 0.8), (149, 0.75), (199, 0.65), (249, 0.55), (299, 0.5)]
    assert found["val/mrr"] == [(99, 0.1), (199, 0.25), (299, 0.3)]


def test_a_run_that_was_begun_anew_has_nothing_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.before-1.csv").write_text("step,train/loss\n49,0.9\n99,0.8\n")
    (tmp_path / "metrics.csv").write_text("step,train/loss\n49,0.7\n")
    assert read_metrics(tmp_path, METRICS)["train/loss"] == [(49, 0.7)]


def test_the_tenth_interruption_comes_behind_the_ninth(tmp_path: Path) -> None:
    for number in range(1, 12):
        (tmp_path / f"metrics.before-{number}.csv").write_text(f"step,train/loss\n{number},{number}\n")
    assert [step for step, _ in read_metrics(tmp_path, METRICS)["train/loss"]] == list(range(1, 12))


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,train/loss\nx,0.9\n")
    with pytest.raises(UserError, match=r"metrics\.csv is damaged"):
        read_metrics(tmp_path, METRICS)


# --- histograms


def test_a_histogram_by_hand() -> None:
    """Others spread over 0..30, one relevant score in the middle of the fourth bin, one beyond the range."""
    others = np.arange(0, 30.001, 0.01)
    scores, relevant = np.append(others, [3.5, 3.6]), np.append(np.zeros(len(others), bool), [True, True])
    found = score_histogram(scores, relevant)
    assert found is not None and len(found.edges) == BINS + 1
    assert (found.edges[0], found.edges[-1]) == (pytest.approx(0.15), pytest.approx(29.85))
    assert found.relevant == [0, 0, 0, 2] + [0] * 26  # edges 0.15 + 0.99 n: 3.12 to 4.11
    assert sum(found.others) == len(others)
    assert found.others[0] == found.others[-1] == pytest.approx(114, abs=1)  # 99 in the bin and 15 beyond it


def test_a_histogram_is_numpys_with_tails_in_the_outer_bins() -> None:
    rng = np.random.default_rng(5)
    scores, relevant = rng.normal(size=5000).astype(np.float32), rng.random(5000) < 0.02
    scores[relevant] += 6
    found = score_histogram(scores, relevant)
    assert found is not None
    assert found.edges[0] == pytest.approx(np.quantile(scores[~relevant], 0.005), abs=1e-6)
    assert found.edges[-1] == pytest.approx(np.quantile(scores[relevant], 0.995), abs=1e-6)
    for mine, counted in ((scores[relevant], found.relevant), (scores[~relevant], found.others)):
        inside, _ = np.histogram(mine, found.edges)
        assert counted[1:-1] == inside[1:-1].tolist() and sum(counted) == len(mine)


@pytest.mark.parametrize("value", [0.0, -7.25, 1e9])
def test_scores_that_are_all_equal_have_a_histogram(value: float) -> None:
    found = score_histogram(np.full(9, value), np.arange(9) < 2)
    assert found is not None and (sum(found.relevant), sum(found.others)) == (2, 7)
    assert all(a < b for a, b in zip(found.edges, found.edges[1:], strict=False))


def test_a_histogram_without_relevant_documents_or_without_any() -> None:
    found = score_histogram(np.arange(5.0), np.zeros(5, bool))
    assert found is not None and sum(found.relevant) == 0 and sum(found.others) == 5
    assert score_histogram(np.zeros(0), np.zeros(0, bool)) is None


# --- from the folders


def write_outputs(folder: Path, histograms: bool) -> None:
    for model, alone_too in (("bm25_lemm", False), ("nn_model1", True)):
        for alone in (False, True)[: 1 + alone_too]:
            values = ALONE if alone else FUSED if alone_too else BM25
            measured = Measured("MRR", dict(zip(IDS, values, strict=True)))
            for name in ("test", "test_cpu"):
                write_text(RunFolder(folder / model).per_query(name, alone), per_query_tsv([measured]))
        for seed in (1, 2):
            seed_folder = RunFolder(folder / model / f"seed-{seed}")
            counted = score_histogram(np.arange(10.0) * seed, np.arange(10) > 7)
            assert counted is not None
            stored = [{"query_set": "test", "alone": alone, **counted._asdict()} for alone in (False, True)]
            saved = {"data": "these" if seed == 1 else "others", "results": []}
            write_json(seed_folder.evaluation, saved | ({"histograms": stored} if histograms else {}))
            write_text(seed_folder.config, "{}\n")
            if model == "nn_model1":
                write_text(seed_folder.path / "metrics.csv", f"step,train/loss,val/mrr\n9,0.5,\n9,,0.{seed}\n")


DATA: Any = SimpleNamespace(
    name="small", fingerprint=lambda: "these", query_set=lambda name: SimpleNamespace(ids=IDS, texts=TEXTS)
)


def test_a_report_is_gathered_from_the_folders(tmp_path: Path) -> None:
    write_outputs(tmp_path, histograms=True)
    results = small_results()
    report = gather_report(results, build_table(results), DATA, tmp_path)
    assert [tuple(row) for row in report.rows] == [
        ("bm25_lemm", "baselines", False),
        ("nn_model1", "our methods", False),
        ("nn_model1 (alone)", "our methods", True),
    ]
    assert [(one.row, one.query_set, one.ms_per_1k) for one in report.points[:3]] == [
        (0, "test", 0.3), (1, "test", 12.0), (2, "test", 11.0)
    ]  # fmt: skip
    assert [one.tolist() for one in report.query_sets[0].values.values()] == [list(BM25), list(FUSED), list(ALONE)]
    # the second seed was measured on other data
    assert report.trainings == [Training("nn_model1", [Curve(1, [9], [0.1])], [Curve(1, [9], [0.5])])]
    assert [(one.row, one.query_set, one.seed) for one in report.scores] == [
        (0, "test", 1),
        (1, "test", 1),
        (2, "test", 1),
    ]
    assert "small" in report_page(report)


def test_an_evaluation_from_before_histograms_has_none(tmp_path: Path) -> None:
    write_outputs(tmp_path, histograms=False)
    results = small_results()
    report = gather_report(results, build_table(results), DATA, tmp_path)
    assert report.scores == [] and page_data(report)["scores"] == []


def test_a_query_without_a_value_is_named(tmp_path: Path) -> None:
    write_outputs(tmp_path, histograms=True)
    path = RunFolder(tmp_path / "nn_model1").per_query("test", alone=True)
    path.write_text("".join(line for line in path.open() if not line.startswith("q4\t")))
    results = small_results()
    with pytest.raises(UserError, match="no value for the query q4: evaluate nn_model1 again"):
        gather_report(results, build_table(results), DATA, tmp_path)


def test_the_summary_counts_queries_rankers_and_seeds() -> None:
    results = small_results()
    assert summary(results) == "Queries: test 5, test_cpu 5 · 2 rankers · 1 seed each"
    assert summary([results[0], results[1]._replace(seeds=5)]) == "Queries: test 5 · 2 rankers · 1 to 5 seeds each"
    assert summary([results[0]._replace(queries=20_000)]) == "Queries: test 20,000 · 1 ranker · 1 seed each"
