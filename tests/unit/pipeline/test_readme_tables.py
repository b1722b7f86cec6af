"""The README's tables are those of results/, and say what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.results_table import Result
from lexical.errors import UserError
from scripts.readme_tables import README, RESULTS, SECTION, experiment_table, with_tables

TEST = {
    "against": "bm25_lemm", "mark": "★", "queries": 5, "difference": 0.1, "relative": 0.25, "better": 3, "worse": 1,
    "effect_size": 0.5, "p_value": 0.01, "p_holm": 0.02, "significant": True,
}  # fmt: skip


def result(model: str, query_set: str, value: float, fused: bool = False, measure: str = "MRR") -> Result:
    tests = [TEST] if model != "bm25_lemm" and measure == "MRR" else []
    return Result(model, fused, query_set, measure, value, 1, 5, 20, 1.5, "cpu", 1, tests)


def test_a_table_has_the_rows_of_the_paper_and_the_tests_that_belong_to_them() -> None:
    rows = [
        result("bm25_lemm", "test", 0.4), result("bm25_lemm", "test_cpu", 0.3),
        result("nn_model1", "test", 0.5, fused=True), result("nn_model1", "test", 0.2),
        result("nn_model1", "test_cpu", 0.35, fused=True),
        result("nn_model1", "test", 0.9, fused=True, measure="recall@100"),
        result("bert_model1_short", "test_cpu", 0.6),
    ]  # fmt: skip
    assert experiment_table(rows).splitlines() == [
        "| ranker | test MRR | test_cpu MRR | ms per 1K | device |",
        "| --- | --- | --- | --- | --- |",
        "| bm25_lemm | 0.4000 | 0.3000 | 1.5 | cpu, 1 thread |",
        "| nn_model1 | **0.5000**★ | 0.3500★ | 1.5 | cpu, 1 thread |",
        "| bert_model1_short |  | **0.6000**★ | 1.5 | cpu, 1 thread |",
        "",
        "| row | against | query set | difference | relative | effect size | better | worse | p | p (Holm) |  |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| nn_model1 | bm25_lemm | test MRR | +0.1000 | +25.0% | +0.50 | 3 | 1 | 0.01 | 0.02 | ★ |",
        "| bert_model1_short | bm25_lemm | test_cpu MRR | +0.1000 | +25.0% | +0.50 | 3 | 1 | 0.01 | 0.02 | ★ |",
    ]


def test_the_readme_shows_what_is_in_results() -> None:
    text = README.read_text(encoding="utf-8")
    assert {match[1] for match in SECTION.finditer(text)} >= {"pydocs_passage"}
    assert with_tables(text, RESULTS) == text  # else: python scripts/readme_tables.py


def test_a_table_that_was_not_measured_gets_one_line(tmp_path: Path) -> None:
    section = "<!-- experiment mine:begin -->\nold\n<!-- experiment mine:end -->\n"
    with pytest.raises(UserError, match="make paper DATA=mine OUTPUT_DIR="):
        with_tables(section, tmp_path)
