"""The paired t-test over queries, against the formula and through the command line."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from evaluation.significance import compare, read_per_query
from lexical.errors import UserError
from tests import ROOT


def test_the_p_value_is_that_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(50), rng.random(50)
    difference = a - b
    statistic = difference.mean() / (difference.std(ddof=1) / math.sqrt(50))
    found = compare(dict(enumerate(a)), dict(enumerate(b)))  # type: ignore[arg-type]
    assert found.p_value == pytest.approx(2 * student.sf(abs(statistic), 49), rel=1e-9)
    assert (found.queries, found.better, found.worse) == (50, int((a > b).sum()), int((a < b).sum()))
    assert found.mean - found.other_mean == pytest.approx(difference.mean())
    assert found.effect_size == pytest.approx(difference.mean() / difference.std(ddof=1))


def test_queries_are_paired_by_their_id() -> None:
    assert compare({"a": 1.0, "b": 0.0}, {"b": 0.0, "a": 1.0}).p_value == 1.0


@pytest.mark.parametrize("values", [{"a": 1.0}, {"a": 0.5, "b": 0.5}])
def test_where_nothing_differs_nothing_is_significant(values: dict[str, float]) -> None:
    assert compare(values, dict(values)).p_value == 1.0


def test_other_queries_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="2 queries are measured for one of the rankings only"):
        compare({"a": 1.0, "b": 0.0}, {"a": 1.0, "c": 0.0})


def test_the_main_measure_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("query\tmeasure\tvalue\nq1\tMRR\t0.5\nq2\tMRR\t1\nq1\trecall@1000\t1\n")
    assert read_per_query(tmp_path / "test.tsv") == ("MRR", {"q1": 0.5, "q2": 1.0})


def test_a_quotation_mark_is_a_letter(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text('query\tmeasure\tvalue\n"q1\tMRR\t0.5\n"q2\tMRR\t1\n')
    assert read_per_query(tmp_path / "test.tsv")[1] == {'"q1': 0.5, '"q2': 1.0}


@pytest.mark.parametrize(
    "content", ["", "a\tb\n1\t2\n", "query\tmeasure\tvalue\nq\tMRR\tx\n", "query\tmeasure\tvalue\n"]
)
def test_a_damaged_file_gets_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "test.tsv").write_text(content)
    with pytest.raises(UserError):
        read_per_query(tmp_path / "test.tsv")


def test_the_command_compares_rows_and_names_what_is_missing(tmp_path: Path) -> None:
    for name, values in (("one", (1, 1, 0.5, 1)), ("two", (0.5, 0.25, 0.5, 0.2))):
        folder = tmp_path / name / "per_query"
        folder.mkdir(parents=True)
        lines = [f"q{i}\tMRR\t{value}" for i, value in enumerate(values)]
        (folder / "test.tsv").write_text("\n".join(["query\tmeasure\tvalue", *lines]) + "\n")
        (folder / "test.alone.tsv").write_text("\n".join(["query\tmeasure\tvalue", *lines[::-1]]) + "\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "evaluation.significance", str(tmp_path), *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    done = run("one", "two", "one.alone")
    first, second = done.stdout.splitlines()
    assert first.startswith("one 0.8750, two 0.3625 (MRR, 4 queries): +0.5125, better for 3, worse for 0, p = ")
    assert second.endswith("p = 1, not significant at 0.05; effect size +0.00")
    missing = run("one", "three")
    assert missing.returncode == 2 and "three" in missing.stderr and "Traceback" not in missing.stderr
