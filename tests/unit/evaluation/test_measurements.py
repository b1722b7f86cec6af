"""Measurements are written with all digits, read back equal, and joined over seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluation.measurements import Measurement, over_seeds, per_query_path, read_measurements, write_measurements
from lexical.errors import UserError
from tests.fixtures.measured_rows import QUERIES, measurement

RANKS = [[1.0, 0.5, 0.0, 0.2, 0.25], [0.5, 0.5, 0.0, 0.1, 0.5], [0.0, 0.5, 0.3, 0.6, 0.75]]


def read(folder: Path, text: str) -> list[Measurement]:
    path = per_query_path(folder, "test", alone=False)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return read_measurements(folder, "test", alone=False)


def test_the_mean_over_seeds_by_hand() -> None:
    mean = over_seeds("a", [measurement(values) for values in RANKS])
    assert mean.per_query == pytest.approx({"q1": 0.5, "q2": 0.5, "q3": 0.1, "q4": 0.3, "q5": 0.5})
    assert mean.values.mean(axis=1) == pytest.approx([0.39, 0.32, 0.43]) and mean.mean == pytest.approx(0.38)


def test_seeds_may_list_their_queries_in_another_order() -> None:
    reversed_order = measurement(RANKS[1][::-1], queries=QUERIES[::-1])
    mean = over_seeds("a", [measurement(RANKS[0]), reversed_order])
    assert mean.per_query == pytest.approx({"q1": 0.75, "q2": 0.5, "q3": 0.0, "q4": 0.15, "q5": 0.375})


@pytest.mark.parametrize("short", [0, 2])
def test_a_query_that_one_seed_does_not_have_is_named(short: int) -> None:
    seeds = [measurement(values) for values in RANKS]
    seeds[short] = measurement([1.0] * 4, queries=["q1", "q2", "q3", "q5"])
    with pytest.raises(UserError, match="a: not all seeds have measured the query q4 of test"):
        over_seeds("a", seeds)


def test_files_hold_the_measures_of_a_ranking_with_all_digits(tmp_path: Path) -> None:
    row = [measurement([1 / 3, 1.0]), measurement([0.5, 0.0], measure="recall@10")]
    alone = measurement([0.25, 1e-7], alone=True)
    write_measurements(tmp_path, [*row, alone])
    assert per_query_path(tmp_path, "test", alone=False).read_text() == (
        "query\tmeasure\tvalue\nq1\tMRR\t0.3333333333333333\nq2\tMRR\t1.0\nq1\trecall@10\t0.5\nq2\trecall@10\t0.0\n"
    )
    written = [*read_measurements(tmp_path, "test", alone=False), *read_measurements(tmp_path, "test", alone=True)]
    assert [measurement.key for measurement in written] == [measurement.key for measurement in (*row, alone)]
    assert [measurement.per_query for measurement in written] == [
        measurement.per_query for measurement in (*row, alone)
    ]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_a_value_is_the_same_after_writing_and_reading(tmp_path: Path, values: list[float]) -> None:
    write_measurements(tmp_path, [measurement(values)])
    assert read_measurements(tmp_path, "test", alone=False)[0].mean == measurement(values).mean


def test_the_mean_over_seeds_is_written(tmp_path: Path) -> None:
    write_measurements(tmp_path, [measurement([0.25, 0.5], [0.75, 0.5])])
    assert read_measurements(tmp_path, "test", alone=False)[0].per_query == {"q1": 0.5, "q2": 0.5}


def test_a_quotation_mark_is_a_letter(tmp_path: Path) -> None:
    text = 'query\tmeasure\tvalue\n"q1\tMRR\t0.5\n"q2\tMRR\t1\n'
    assert read(tmp_path, text)[0].per_query == {'"q1': 0.5, '"q2': 1.0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no queries"),
        ("query\tmeasure\tvalue\n", "has no queries"),
        ("query\tvalue\nq1\t1\n", "is damaged"),
        ("query\tmeasure\tvalue\nq1\tMRR\tmuch\n", "is damaged"),
        ("query\tmeasure\tvalue\nq1\tMRR\n", "is damaged"),
    ],
)
def test_a_damaged_file_is_named(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"test\.tsv {reason}"):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no .*test\.alone\.tsv"):
        read_measurements(tmp_path, "test", alone=True)
