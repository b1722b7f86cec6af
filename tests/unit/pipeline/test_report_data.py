"""Where the report gets its data: measured rows, learning curves, histograms, translation tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluation.report.report import Curve, Training, report_page
from evaluation.report.score_histogram import score_histogram
from evaluation.results_table import build_table
from lexical.errors import UserError
from lexical.index.ragged import Ragged, ragged
from lexical.model1.table import TranslationTable
from lexical.model1.table_files import save_table
from lexical.small_files import write_text
from lightning_modules.registry import row_of
from pipeline.report_data import gather_report, read_metrics, summary, translations
from pipeline.results import MeasuredRow, SeedResults
from pipeline.run_folder import RunFolder
from tests.fixtures.measured_rows import QUERIES, measurement, result

BM25, FUSED, ALONE = (0.5, 1.0, 0.0, 0.25, 0.5), (1.0, 0.5, 1.0, 0.25, 0.5), (0.2, 0.5, 1.0, 0.2, 0.1)
TEXTS = ["how to bake bread", "repair of a car", "a", "stars in the sky", "who wrote this book"]
DATA: Any = SimpleNamespace(name="small", query_set=lambda name: SimpleNamespace(ids=QUERIES, texts=TEXTS))
METRICS = ["val/mrr", "train/loss"]


def rows(folder: Path, histograms: bool = True) -> list[MeasuredRow]:
    base = [result("bm25_lemm", measurement(BM25, query_set=name)) for name in ("test", "test_cpu")]
    network = [
        result("nn_model1", measurement(values, query_set=name, alone=alone), fused=not alone, ms_per_1k=12.0)
        for name in ("test", "test_cpu")
        for values, alone in ((FUSED, False), (ALONE, True))
    ]
    measured = []
    for model, results in (("bm25_lemm", base), ("nn_model1", network)):
        seeds = []
        for seed in (1, 2):
            run = RunFolder(folder / model / f"seed-{seed}")
            if model == "nn_model1":
                write_text(run.path / "metrics.csv", f"step,train/loss,val/mrr\n9,0.5,\n9,,0.{seed}\n")
            counts = score_histogram(np.arange(10.0) * seed, np.arange(10) > 7)
            assert counts is not None
            variants = (False, True) if model == "nn_model1" else (False,)
            stored = [{"query_set": "test", "alone": alone, **counts._asdict()} for alone in variants]
            seeds.append(SeedResults(run, "these", [], stored if histograms else []))
        measured.append(MeasuredRow(model, seeds, results))
    return measured


def report_of(measured: list[MeasuredRow]) -> Any:
    results = [one for row in measured for one in row.results]
    return gather_report(measured, build_table(results, row_of), DATA)


def test_a_report_is_gathered_from_measured_rows(tmp_path: Path) -> None:
    report = report_of(rows(tmp_path))
    assert [tuple(row) for row in report.rows] == [
        ("bm25_lemm", "baselines", False),
        ("nn_model1", "our methods", False),
        ("nn_model1 (alone)", "our methods", True),
    ]
    assert [(point.row, point.query_set, point.ms_per_1k) for point in report.points] == [
        (0, "test", 1.5), (0, "test_cpu", 1.5), (1, "test", 12.0), (1, "test_cpu", 12.0),
        (2, "test", 12.0), (2, "test_cpu", 12.0),
    ]  # fmt: skip
    values = [values.tolist() for values in report.query_sets[0].values.values()]
    assert values == [list(BM25), list(FUSED), list(ALONE)] and report.query_sets[0].measure == "MRR"
    curves = [
        [Curve(seed, [9], [value]) for seed, value in pairs] for pairs in (((1, 0.1), (2, 0.2)), ((1, 0.5), (2, 0.5)))
    ]
    assert report.trainings == [Training("nn_model1", *curves)]
    assert [(scores.row, scores.query_set, scores.seed) for scores in report.scores] == [
        (0, "test", 1), (1, "test", 1), (2, "test", 1)
    ]  # fmt: skip
    assert "small" in report_page(report)


def test_an_evaluation_without_histograms_has_none(tmp_path: Path) -> None:
    assert report_of(rows(tmp_path, histograms=False)).scores == []


def test_a_query_without_a_value_is_named(tmp_path: Path) -> None:
    base, network = rows(tmp_path)
    short = measurement(FUSED[:3])
    results = [network.results[0]._replace(measurement=short), *network.results[1:]]
    with pytest.raises(UserError, match="nn_model1 has no value for the query q4 of test"):
        report_of([base, network._replace(results=results)])


def test_the_summary_counts_queries_rankers_and_seeds(tmp_path: Path) -> None:
    first, second, *others = [one for row in rows(tmp_path) for one in row.results]
    assert summary([first, second, *others]) == "Queries: test 5, test_cpu 5 · 2 rankers · 1 seed each"
    assert summary([first, others[0]._replace(seeds=5)]) == "Queries: test 5 · 2 rankers · 1 to 5 seeds each"
    assert summary([first._replace(queries=20_000)]) == "Queries: test 20,000 · 1 ranker · 1 seed each"


# --- learning curves


def test_metrics_of_a_training_that_was_not_interrupted(tmp_path: Path) -> None:
    lines = "step,train/loss,val/mrr,development/mrr\n49,0.5,,\n99,0.4,,\n99,,0.31,\n0,,,0.4\n"
    (tmp_path / "metrics.csv").write_text(lines)
    assert read_metrics(tmp_path, METRICS) == {"val/mrr": [(99, 0.31)], "train/loss": [(49, 0.5), (99, 0.4)]}


def test_a_resumed_training_replaces_what_it_repeats(tmp_path: Path) -> None:
    """Resumed after step 100: the first file's steps from there on were lost with the process."""
    (tmp_path / "metrics.before-1.csv").write_text(
        "step,train/loss,val/mrr\n49,0.9,\n99,0.8,0.1\n149,0.7,\n199,0.6,0.2\n"
    )
    (tmp_path / "metrics.before-2.csv").write_text("step,train/loss,val/mrr\n149,0.75,\n199,0.65,0.25\n249,0.6,\n")
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/mrr\n249,0.55,\n299,0.5,0.3\n")
    metrics = read_metrics(tmp_path, METRICS)
    assert metrics["train/loss"] == [(49, 0.9), (99, 0.8), (149, 0.75), (199, 0.65), (249, 0.55), (299, 0.5)]
    assert metrics["val/mrr"] == [(99, 0.1), (199, 0.25), (299, 0.3)]


def test_a_training_that_was_started_anew_has_nothing_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.before-1.csv").write_text("step,train/loss\n49,0.9\n99,0.8\n")
    (tmp_path / "metrics.csv").write_text("step,train/loss\n49,0.7\n")
    assert read_metrics(tmp_path, METRICS)["train/loss"] == [(49, 0.7)]


def test_the_tenth_interruption_comes_after_the_ninth(tmp_path: Path) -> None:
    for number in range(1, 12):
        (tmp_path / f"metrics.before-{number}.csv").write_text(f"step,train/loss\n{number},{number}\n")
    assert [step for step, _ in read_metrics(tmp_path, METRICS)["train/loss"]] == list(range(1, 12))


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,train/loss\nx,0.9\n")
    with pytest.raises(UserError, match=r"metrics\.csv is damaged"):
        read_metrics(tmp_path, METRICS)


# --- translations

VOCABULARY = ["the", "graph", "node", "##s", "tree"]
TOKENS = Ragged(np.array([0, 4, 7]), np.array([0, 1, 3, 4, 0, 1, -1], np.int32))


def data_with(field: str) -> Any:
    """Development queries in one field only. All words are in enough documents."""
    prepared = SimpleNamespace(
        query_tokens=lambda query_set, name: {("development", field): TOKENS}[query_set, name],
        field=lambda _: SimpleNamespace(
            vocabulary=lambda: VOCABULARY,
            forward=SimpleNamespace(document_frequency=np.ones(len(VOCABULARY) + 1, np.int64)),
        ),
        collection=range(50),
    )
    return SimpleNamespace(prepared=prepared)


def write_table(folder: Path, field: str, d: str) -> RunFolder:
    """A run whose table translates graph and tree into `d`."""
    run, vocabulary = RunFolder(folder), sorted({*VOCABULARY, d})
    probabilities = {"graph": {"graph": 0.35, d: 0.25}, "tree": {"tree": 0.35, d: 0.125}, "the": {d: 0.5}}
    rows = [sorted((vocabulary.index(d), p) for d, p in probabilities.get(q, {}).items()) for q in vocabulary]
    values = np.array([p for row in rows for _, p in row], np.float32)
    table = TranslationTable(ragged([[d for d, _ in row] for row in rows], np.int32), values)
    save_table(table, vocabulary, {"field": field}, run.table)
    return run


def test_one_table_of_each_kind_is_shown(tmp_path: Path) -> None:
    """Words are counted in the field of the first table: graph 2, tree 1."""
    runs = {
        "model1_word": write_table(tmp_path / "word" / "seed-1", "word_all", "of-words"),
        "model1_bwps": write_table(tmp_path / "bwps" / "seed-1", "bwps", "of-pieces"),
        "nn_model1_exp": write_table(tmp_path / "nn" / "seed-2", "bwps", "of-network"),
    }
    picture = translations(runs, data_with("bwps"))
    assert picture is not None and [tuple(word) for word in picture.query_words] == [("graph", 2), ("tree", 1)]
    assert [(table.row, table.kind, table.seed, table.strongest[1][0].word) for table in picture.tables] == [
        ("model1_bwps", "EM", 1, "of-pieces"), ("nn_model1_exp", "neural", 2, "of-network")
    ]  # fmt: skip
    del runs["model1_bwps"]
    without = translations(runs, data_with("word_all"))
    assert without is not None and [table.row for table in without.tables] == ["model1_word", "nn_model1_exp"]
    assert translations({"bm25_lemm": runs["model1_word"]}, data_with("bwps")) is None


@pytest.mark.parametrize("broken", ["table.safetensors", "meta.json", "field", "missing"])
def test_a_damaged_table_is_named_in_one_line_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    good = write_table(tmp_path / "bwps" / "seed-1", "bwps", "mouse")
    bad = write_table(tmp_path / "nn" / "seed-1", "" if broken == "field" else "bwps", "mouse")
    if broken == "missing":
        bad.table.rename(tmp_path / "elsewhere")
    elif broken != "field":
        path = bad.table / broken
        path.write_bytes(path.read_bytes()[:-9])
    assert translations({"model1_bwps": good, "nn_model1_exp": bad}, data_with("bwps")) is None
    line = capsys.readouterr().err
    assert line.startswith("results.html does not show translations: ") and str(bad.table) in line
    assert line.count("\n") == 1
