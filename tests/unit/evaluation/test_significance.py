"""The paired t-test over queries and Holm's correction: by hand, by the formula, and through the command line."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from evaluation.measurements import write_measurements
from evaluation.significance import Hypothesis, compare, main, read_hypotheses, verdicts
from lexical.errors import UserError
from pipeline.configs import names
from pipeline.results import HYPOTHESES
from tests.fixtures.measured_rows import QUERIES, measurement

BASE = dict(zip(QUERIES, (0.5, 0.25, 1.0, 0.2, 0.5), strict=True))
ROW = dict(zip(QUERIES, (5 / 6, 0.5, 1.0, 0.3, 0.75), strict=True))
DIFFERENCES = (1 / 3, 0.25, 0.0, 0.1, 0.25)
TEST = Hypothesis("b", "a", "★")
OTHERS = {"c": (0.6, 0.35, 1.0, 0.3, 0.4), "d": (0.5, 0.5, 0.0, 0.2, 1.0)}


def p_by_hand() -> float:
    """d = 0.1867, sd = 0.1341, t = 3.11; Student's t with four degrees of freedom in closed form: p = 0.0358."""
    mean = sum(DIFFERENCES) / 5
    variance = sum((difference - mean) ** 2 for difference in DIFFERENCES) / 4
    t = mean / math.sqrt(variance / 5)
    x = t / math.sqrt(1 + t * t / 4)
    return 1 - 2 * (3 / 8) * x * (1 - x * x / 12)


def test_a_verdict_by_hand() -> None:
    verdict = compare(TEST, ROW, BASE)
    assert verdict.p_value == pytest.approx(p_by_hand(), rel=1e-6) == pytest.approx(0.0358, abs=1e-4)
    assert verdict.difference == pytest.approx(sum(DIFFERENCES) / 5)
    assert verdict.relative == pytest.approx(sum(DIFFERENCES) / 2.45)
    assert verdict.effect_size == pytest.approx(0.186667 / 0.134060, rel=1e-3)
    assert (verdict.against, verdict.mark, verdict.queries) == ("a", "★", 5)
    assert (verdict.better, verdict.worse) == (4, 0)


def test_the_p_value_is_that_of_the_formula() -> None:
    a, b = np.random.default_rng(0).random((2, 50))
    difference = a - b
    statistic = difference.mean() / (difference.std(ddof=1) / math.sqrt(50))
    verdict = compare(TEST, {str(i): x for i, x in enumerate(a)}, {str(i): x for i, x in enumerate(b)})
    assert verdict.p_value == pytest.approx(2 * student.sf(abs(statistic), 49), rel=1e-9)
    assert (verdict.better, verdict.worse) == (int((a > b).sum()), int((a < b).sum()))


def test_queries_are_paired_by_their_id() -> None:
    assert compare(TEST, {"q1": 1.0, "q2": 0.0}, {"q2": 0.0, "q1": 1.0}).p_value == 1.0


@pytest.mark.parametrize("values", [{"q1": 1.0}, {"q1": 0.5, "q2": 0.5}])
def test_where_nothing_differs_nothing_is_significant(values: dict[str, float]) -> None:
    assert compare(TEST, values, dict(values)).p_value == 1.0


def test_the_last_bits_of_a_mean_over_seeds_are_no_difference() -> None:
    third = (1 / 3 + 1 / 3 + 1 / 3 + 1 / 3 + 1 / 3) / 5
    verdict = compare(TEST, {"q1": third, "q2": 0.5}, {"q1": np.nextafter(third, 0), "q2": 0.5})
    assert (verdict.better, verdict.worse, verdict.p_value) == (0, 0, 1.0)


def test_rows_measured_on_other_queries_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="b and a cannot be compared: 2 queries are measured for one of them only"):
        compare(TEST, {"q1": 1.0, "q2": 0.0}, {"q1": 1.0, "q3": 0.0})


def test_holm_by_hand() -> None:
    """The smallest of three p-values counts three times, the next twice, and none falls below the one before."""
    others = {name: dict(zip(QUERIES, values, strict=True)) for name, values in OTHERS.items()}
    tested = verdicts({"a": BASE, "b": ROW, **others}, [Hypothesis(row, "a", "") for row in "bcd"], 0.05)
    first, second, third = sorted((verdict for (verdict,) in tested.values()), key=lambda verdict: verdict.p_value)
    assert first.p_value < second.p_value < third.p_value
    assert first.p_holm == pytest.approx(3 * first.p_value)
    assert second.p_holm == pytest.approx(max(first.p_holm, 2 * second.p_value))
    assert third.p_holm == pytest.approx(min(1, max(second.p_holm, third.p_value)))


def test_all_hypotheses_of_a_query_set_are_corrected_together() -> None:
    hypotheses = [TEST, Hypothesis("c", "a", "#"), Hypothesis("b", "not measured", "★")]
    tested = verdicts({"a": BASE, "b": ROW, "c": ROW}, hypotheses, 0.05)
    assert [verdict.p_holm for verdict in (*tested["b"], *tested["c"])] == pytest.approx([2 * p_by_hand()] * 2)
    assert [(verdict.against, verdict.mark) for verdict in tested["c"]] == [("a", "#")]
    assert verdicts({"b": ROW}, hypotheses, 0.05) == {}


def test_a_mark_is_that_of_the_corrected_p_value() -> None:
    """p = 0.0358 alone; two hypotheses double it beyond 0.05."""
    (verdict,) = verdicts({"a": BASE, "b": ROW}, [TEST], 0.05)["b"]
    assert verdict.p_holm == verdict.p_value < 0.05 and verdict.significant
    both = verdicts({"a": BASE, "b": ROW, "c": ROW}, [TEST, Hypothesis("c", "a", "#")], 0.05)
    assert all(verdict.p_value < 0.05 < verdict.p_holm for row in both.values() for verdict in row)
    assert not any(verdict.significant for row in both.values() for verdict in row)


def test_the_papers_hypotheses_name_known_rows() -> None:
    threshold, hypotheses = read_hypotheses(HYPOTHESES)
    pairs = {(hypothesis.row, hypothesis.against): hypothesis.mark for hypothesis in hypotheses}
    assert threshold == 0.05
    assert pairs["model1_word", "bm25_lemm_word"] == "★" and pairs["bert_model1_full", "bert_model1_short"] == "#"
    assert {against for row, against in pairs if row == "nn_model1"} == {"bm25_lemm", "bm25_lemm_bwps", "model1_bwps"}
    assert {name for pair in pairs for name in pair} <= set(names("model"))


@pytest.mark.parametrize(
    "content",
    ["", "hypotheses: 3", "hypotheses: [{row: a}]", "hypotheses: [{row: a, against: b, mark: 3}]", "threshold: x",
     "{threshold: 2, hypotheses: []}", "hypotheses: [{row: a, against: b, mark: c, more: d}]", "[1"],
)  # fmt: skip
def test_a_damaged_file_of_hypotheses_gets_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "hypotheses.yaml").write_text(content)
    with pytest.raises(UserError, match=r"hypotheses\.yaml"):
        read_hypotheses(tmp_path / "hypotheses.yaml")


def test_the_command_compares_rows_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (1, 1, 0.5, 1), (0.5, 0.25, 0.5, 0.2)
    write_measurements(tmp_path / "first", [measurement(first), measurement(first, alone=True)])
    write_measurements(tmp_path / "second", [measurement(second)])
    main([str(tmp_path), "first", "second", "first.alone"])
    line, alone = capsys.readouterr().out.splitlines()
    assert line.startswith("first 0.8750, second 0.3625 (MRR, 4 queries): +0.5125, better for 3, worse for 0, p = ")
    assert alone.endswith("p = 1, after Holm's correction 1: not significant at 0.05; effect size +0.00")
    with pytest.raises(UserError, match=r"there is no .*third"):
        main([str(tmp_path), "first", "third"])
