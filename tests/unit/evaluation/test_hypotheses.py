"""Averages over seeds, tests and marks of a hand-made experiment: two rankers, three seeds, five queries."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from evaluation.hypotheses import Hypothesis, holm, read_hypotheses, verdicts
from evaluation.results_table import Result, build_table
from evaluation.seed_averages import seed_average
from evaluation.table_formats import markdown
from lexical.errors import UserError
from pipeline.results import HYPOTHESES, with_tests

QUERIES = ("q1", "q2", "q3", "q4", "q5")
BASE = (0.5, 0.25, 1.0, 0.2, 0.5)  # bm25_lemm, without seeds
SEEDS = (  # of nn_model1
    (1.0, 0.5, 1.0, 0.2, 0.5),
    (1.0, 0.5, 1.0, 0.5, 1.0),
    (0.5, 0.5, 1.0, 0.2, 0.75),
)
MEANS = (5 / 6, 0.5, 1.0, 0.3, 0.75)  # by hand
DIFFERENCES = (1 / 3, 0.25, 0.0, 0.1, 0.25)


def student_4(t: float) -> float:
    """The two-sided p-value of Student's t with four degrees of freedom, in closed form."""
    x = t / math.sqrt(1 + t * t / 4)
    return 1 - 2 * (3 / 8) * x * (1 - x * x / 12)


def p_by_hand() -> float:
    mean = sum(DIFFERENCES) / 5
    variance = sum((one - mean) ** 2 for one in DIFFERENCES) / 4
    return student_4(mean / math.sqrt(variance / 5))


def write(path: Path, values: tuple[float, ...], queries: tuple[str, ...] = QUERIES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{query}\tMRR\t{value}" for query, value in zip(queries, values, strict=True)]
    path.write_text("\n".join(["query\tmeasure\tvalue", *lines]) + "\n")
    return path


def seed_files(folder: Path) -> list[Path]:
    return [write(folder / f"seed-{n}" / "test.tsv", values) for n, values in enumerate(SEEDS, start=1)]


def test_the_average_of_each_query_is_that_of_its_seeds(tmp_path: Path) -> None:
    (mean,) = seed_average(seed_files(tmp_path))
    assert mean.per_query == pytest.approx(dict(zip(QUERIES, MEANS, strict=True)))


def test_a_query_missing_in_one_seed_is_an_error_that_names_it(tmp_path: Path) -> None:
    files = seed_files(tmp_path)
    write(files[1], SEEDS[1][:4], QUERIES[:4])
    with pytest.raises(UserError, match=r"seed-2/test.tsv and .*seed-1/test.tsv differ in the query q5"):
        seed_average(files)


def result(model: str, values: tuple[float, ...], fused: bool = False) -> Result:
    mean = sum(values) / len(values)
    return Result(model, fused, "test", "MRR", mean, 1, len(values), 1000, 1.0, "cpu", 2, [])


def test_p_value_mark_and_effect_of_the_hand_made_example(tmp_path: Path) -> None:
    """d = 0.1867, sd = 0.1341, t = 3.11, four degrees of freedom: p = 0.0358."""
    write(tmp_path / "bm25_lemm/per_query/test.tsv", BASE)
    (mean,) = seed_average(seed_files(tmp_path / "nn_model1"))
    write(tmp_path / "nn_model1/per_query/test.tsv", tuple(mean.per_query.values()))
    rows = with_tests([result("bm25_lemm", BASE), result("nn_model1", MEANS, fused=True)], tmp_path)
    ((found,), p_value) = rows[1].significance, p_by_hand()
    assert p_value == pytest.approx(0.0358, abs=1e-4)
    assert found["p_value"] == pytest.approx(p_value, rel=1e-6) == found["p_holm"]  # one test: nothing to correct
    assert found["difference"] == pytest.approx(sum(DIFFERENCES) / 5)
    assert (found["against"], found["better"], found["worse"], found["significant"]) == ("bm25_lemm", 4, 0, True)
    assert found["effect_size"] == pytest.approx(0.186667 / 0.134060, rel=1e-3)
    assert rows[0].significance == [] and "**0.6767**★" in markdown(build_table(rows))
    json.dumps([one._asdict() for one in rows], allow_nan=False)


def test_a_mistyped_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "bm25_lemm/per_query/test.tsv", BASE)
    mine = tmp_path / "mine.yaml"
    mine.write_text("hypotheses:\n- {row: nn_modell.alone, against: bm25_lemm, mark: a}\n")
    assert with_tests([result("bm25_lemm", BASE)], tmp_path, mine)[0].significance == []
    assert f"{mine}: there is no ranker nn_modell.alone" in capsys.readouterr().err


def test_a_difference_that_is_not_significant_has_no_mark(tmp_path: Path) -> None:
    close = (0.5, 0.25, 1.0, 0.2, 0.4)
    write(tmp_path / "bm25_lemm/per_query/test.tsv", BASE)
    write(tmp_path / "nn_model1/per_query/test.tsv", close)
    rows = with_tests([result("bm25_lemm", BASE), result("nn_model1", close, fused=True)], tmp_path)
    assert rows[1].significance[0]["significant"] is False and "★" not in markdown(build_table(rows)).split("row")[0]


@pytest.fixture(scope="module")
def little_garbage() -> Iterator[None]:
    """statsmodels collects garbage in every call, which takes long where much has been imported."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("little_garbage")
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_equals_an_independent_library(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1].tolist())


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_all_hypotheses_of_a_query_set_are_corrected_together() -> None:
    rows = {name: dict(zip(QUERIES, values, strict=True)) for name, values in (("a", BASE), ("b", MEANS), ("c", MEANS))}
    asked = [Hypothesis("b", "a", "★"), Hypothesis("c", "a", "#"), Hypothesis("b", "not measured", "★")]
    found = verdicts(rows, asked, 0.05)
    assert [one.p_holm for one in (*found["b"], *found["c"])] == pytest.approx([2 * p_by_hand()] * 2)
    assert [(one.against, one.mark) for one in found["c"]] == [("a", "#")]


def test_rows_measured_on_other_queries_get_one_line() -> None:
    with pytest.raises(UserError, match="b and a cannot be compared"):
        verdicts({"a": {"q1": 1.0}, "b": {"q2": 1.0}}, [Hypothesis("b", "a", "★")], 0.05)


def test_the_papers_hypotheses_are_there_and_name_known_rows() -> None:
    from pipeline.configs import names

    asked = read_hypotheses(HYPOTHESES)
    pairs = {(one.row, one.against): one.mark for one in asked.hypotheses}
    assert asked.threshold == 0.05
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
