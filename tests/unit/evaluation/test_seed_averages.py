"""Averages over seeds, by hand; files that do not fit together are refused with the name of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.measures import MRR, NDCG, Measured, per_query_tsv
from evaluation.seed_averages import read_measured, seed_average
from lexical.errors import UserError

QUERIES = ["q1", "q2", "q3", "q4", "q5"]
RANKS = [[1.0, 0.5, 0.0, 0.2, 0.25], [0.5, 0.5, 0.0, 0.1, 0.5], [0.0, 0.5, 0.3, 0.6, 0.75]]
RECALL = [[1.0, 1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0, 1.0]]


def measured(values: list[float], measure: str = MRR, queries: list[str] = QUERIES) -> Measured:
    return Measured(measure, dict(zip(queries, values, strict=True)))


def files(folder: Path, seeds: list[list[Measured]]) -> list[Path]:
    """One per_query file a seed, as the project writes them."""
    paths = [folder / f"seed-{number}.tsv" for number in range(1, len(seeds) + 1)]
    for path, seed in zip(paths, seeds, strict=True):
        path.write_text(per_query_tsv(seed), encoding="utf-8")
    return paths


def test_three_seeds_by_hand(tmp_path: Path) -> None:
    seeds = [[measured(mrr), measured(recall, "recall@1000")] for mrr, recall in zip(RANKS, RECALL, strict=True)]
    mrr, recall = seed_average(files(tmp_path, seeds))
    assert (mrr.measure, recall.measure) == (MRR, "recall@1000")
    assert mrr.per_query == pytest.approx({"q1": 0.5, "q2": 0.5, "q3": 0.1, "q4": 0.3, "q5": 0.5})
    assert recall.per_query == pytest.approx({"q1": 2 / 3, "q2": 1.0, "q3": 1 / 3, "q4": 1.0, "q5": 1.0})
    assert list(mrr.per_query) == QUERIES
    assert mrr.mean == pytest.approx(0.38)


def test_seeds_may_list_their_queries_in_another_order(tmp_path: Path) -> None:
    turned = measured(RANKS[1][::-1], queries=QUERIES[::-1])
    (found,) = seed_average(files(tmp_path, [[measured(RANKS[0])], [turned]]))
    assert found.per_query == pytest.approx({"q1": 0.75, "q2": 0.5, "q3": 0.0, "q4": 0.15, "q5": 0.375})


def test_one_seed_is_its_own_average(tmp_path: Path) -> None:
    assert seed_average(files(tmp_path, [[measured(RANKS[0])]])) == [measured(RANKS[0])]


@pytest.mark.parametrize("short", [0, 1, 2])
def test_a_query_that_one_seed_does_not_have_is_named(short: int, tmp_path: Path) -> None:
    seeds = [[measured(values)] for values in RANKS]
    seeds[short] = [measured([1.0] * 4, queries=["q1", "q2", "q3", "q5"])]
    with pytest.raises(UserError, match=r"differ in the query q4\b"):
        seed_average(files(tmp_path, seeds))


def test_other_measures_are_refused(tmp_path: Path) -> None:
    paths = files(tmp_path, [[measured(RANKS[0])], [measured(RANKS[1], NDCG)]])
    with pytest.raises(UserError, match=r"seed-2\.tsv has other measures than .*seed-1\.tsv"):
        seed_average(paths)


MORE = [measured(RANKS[1]), measured(RECALL[1], "recall@1000")]


def test_fewer_measures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"seed-2\.tsv has other measures"):
        seed_average(files(tmp_path, [MORE, [measured(RANKS[0])]]))


def test_more_measures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"seed-2\.tsv has other measures"):
        seed_average(files(tmp_path, [[measured(RANKS[0])], MORE]))


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
    path = tmp_path / "seed-1.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=rf"seed-1\.tsv {reason}"):
        read_measured(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no .*seed-2\.tsv"):
        seed_average([*files(tmp_path, [[measured(RANKS[0])]]), tmp_path / "seed-2.tsv"])


def test_a_query_with_quotes_keeps_its_name(tmp_path: Path) -> None:
    one = measured([0.5], queries=['"q'])
    assert read_measured(files(tmp_path, [[one]])[0]) == [one]
