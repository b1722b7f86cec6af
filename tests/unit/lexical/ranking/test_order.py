"""One tie rule (score down, then document id up), and no prize for scorers that do not score."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lexical.index.ragged import ragged
from lexical.ranking.order import (
    RankedTask,
    fused_reciprocal_ranks,
    mean_reciprocal_rank,
    ranking_order,
    reciprocal_ranks,
)
from tests.fixtures.plain_reference import plain_reciprocal_rank

pytestmark = pytest.mark.usefixtures("one_thread")


class Listed(NamedTuple):
    """Queries as lists of (document row, score, relevant), and the documents' ids."""

    ids: list[str]
    rows: list[list[tuple[int, float, bool]]]

    def task(self) -> RankedTask:
        candidates = ragged([[doc for doc, _, _ in row] for row in self.rows], np.int32)
        rank = {document: number for number, document in enumerate(sorted(self.ids))}
        id_order = np.array([rank[document] for document in self.ids], np.int32)
        return RankedTask(candidates, id_order, np.array([good for row in self.rows for _, _, good in row], bool))

    def scores(self) -> np.ndarray:
        return np.array([score for row in self.rows for _, score, _ in row], np.float32)


@st.composite
def listed_queries(draw: st.DrawFn) -> Listed:
    """Scores from three values, so that most candidates tie; ids whose order is not that of the rows."""
    ids = draw(st.lists(st.text("ab01", min_size=1, max_size=3), min_size=1, max_size=8, unique=True))
    pair = st.tuples(st.integers(0, len(ids) - 1), st.sampled_from([-1.5, 0.0, 2.0]), st.booleans())
    return Listed(ids, draw(st.lists(st.lists(pair, max_size=8, unique_by=lambda entry: entry[0]), max_size=5)))


def test_ranks_by_hand() -> None:
    rows = [
        [(0, 1.0, False), (1, 3.0, False), (2, 2.0, True)],  # d1 d2 d0: second
        [(0, 1.0, False), (1, 1.0, True), (2, 1.0, True)],  # a tie, by id d0 d1 d2: second
        [(2, 5.0, False), (0, 4.0, True), (1, 3.0, True)],  # two relevant, the first counts: second
        [(0, 1.0, False)],  # no relevant candidate
        [],
    ]
    listed = Listed(["d0", "d1", "d2"], rows)
    assert reciprocal_ranks(listed.task(), listed.scores()).tolist() == [0.5, 0.5, 0.5, 0.0, 0.0]
    assert mean_reciprocal_rank(listed.task(), listed.scores()) == pytest.approx(1.5 / 5)
    assert ranking_order(listed.task().candidates, listed.scores(), listed.task().id_order).tolist() == [
        1, 2, 0,
        3, 4, 5,
        6, 7, 8,
        9,
    ]  # fmt: skip


def test_ids_are_compared_as_text() -> None:
    listed = Listed(["9", "10"], [[(0, 1.0, True), (1, 1.0, False)]])  # "10" < "9"
    assert reciprocal_ranks(listed.task(), listed.scores()).tolist() == [0.5]


@settings(deadline=None, max_examples=200)
@given(listed=listed_queries())
def test_reciprocal_ranks_equal_those_of_a_plain_sort(listed: Listed) -> None:
    expected = [
        plain_reciprocal_rank([listed.ids[d] for d, _, _ in row], [s for _, s, _ in row], [good for _, _, good in row])
        for row in listed.rows
    ]
    assert reciprocal_ranks(listed.task(), listed.scores()).tolist() == expected
    mean = sum(expected) / len(expected) if expected else 0.0
    assert mean_reciprocal_rank(listed.task(), listed.scores()) == pytest.approx(mean)


@st.composite
def judged_scores(draw: st.DrawFn) -> tuple[RankedTask, np.ndarray, np.ndarray]:
    """Few values, so that scores are often equal; queries without candidates, with no or several relevant ones."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    documents = draw(st.permutations(range(8)))
    pairs = sum(lengths)
    scores = st.sampled_from([-2.0, -1.0, 0.0, 0.25, 1.0])
    first, own = (draw(arrays(np.float32, pairs, elements=scores, fill=st.nothing())) for _ in range(2))
    relevant = draw(arrays(bool, pairs, elements=st.booleans(), fill=st.nothing()))
    rows = [draw(st.permutations(range(8)))[:length] for length in lengths]
    return RankedTask(ragged(rows, np.int32), np.array(documents, np.int32), relevant), first, own


@settings(deadline=None, max_examples=200)
@given(
    drawn=judged_scores(), weights=st.lists(st.sampled_from([0.0, 0.02, 0.25, 0.5, 0.7, 1.0]), min_size=1, max_size=4)
)
def test_fused_reciprocal_ranks_are_those_of_the_fused_scores(
    drawn: tuple[RankedTask, np.ndarray, np.ndarray], weights: list[float]
) -> None:
    """Ties included: score down, then document id up."""
    task, first, own = drawn
    ranks = fused_reciprocal_ranks(task, first, own, weights)
    assert ranks.shape == (task.candidates.rows, len(weights))
    for column, weight in zip(ranks.T, np.array(weights, np.float32), strict=True):
        fused = (np.float32(1) - weight) * first + weight * own
        assert column.tolist() == reciprocal_ranks(task, fused).tolist()


@settings(deadline=None, max_examples=200)
@given(listed=listed_queries())
def test_ranking_order_equals_a_plain_sort(listed: Listed) -> None:
    task = listed.task()
    order = ranking_order(task.candidates, listed.scores(), task.id_order)
    expected = [
        d for row in listed.rows for d, _, _ in sorted(row, key=lambda entry: (-entry[1], listed.ids[entry[0]]))
    ]
    assert task.candidates.values[order].tolist() == expected


def test_scores_that_differ_only_beyond_float32_tie() -> None:
    listed = Listed(["a", "b"], [[(0, 0.0, False), (1, 0.0, True)]])
    scores = np.array([1.0, 1.0 + 1e-12])
    assert reciprocal_ranks(listed.task(), scores).tolist() == [0.5]
    assert ranking_order(listed.task().candidates, scores, listed.task().id_order).tolist() == [0, 1]


def test_a_constant_scorer_earns_what_the_order_of_ids_earns_and_no_more() -> None:
    rng = np.random.default_rng(0)
    ids = [f"d{number}" for number in rng.permutation(500)]
    # The relevant document stands first in the candidate list: a scorer that "keeps the order" would get MRR 1.
    rows = [[(int(doc), 0.7, at == 0) for at, doc in enumerate(rng.choice(500, 50, False))] for _ in range(200)]
    listed = Listed(ids, rows)
    by_id = [1 / (1 + sorted(ids[d] for d, _, _ in row).index(ids[row[0][0]])) for row in rows]
    mrr = mean_reciprocal_rank(listed.task(), listed.scores())
    assert mrr == pytest.approx(np.mean(by_id))
    assert mrr < 0.15  # chance is (1 + 1/2 + ... + 1/50) / 50 = 0.09


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_cannot_be_ranked(bad: float) -> None:
    task = Listed(["a", "b", "c"], [[(0, 0.0, True), (1, 0.0, False), (2, 0.0, False)]]).task()
    with pytest.raises(ValueError, match="2 scores are not finite"):
        ranking_order(task.candidates, np.array([bad, 1.0, bad]), task.id_order)


def test_a_scorer_of_nan_gets_no_reciprocal_rank() -> None:
    """No score is above NaN and none below it: counted naively, every relevant document would be first."""
    task = Listed(["a", "b", "c"], [[(0, 0.0, False), (1, 0.0, False), (2, 0.0, True)]]).task()
    with pytest.raises(ValueError, match="not finite"):
        mean_reciprocal_rank(task, np.full(3, np.nan))


def test_a_set_without_queries_has_mrr_0() -> None:
    task = RankedTask(ragged([], np.int32), np.zeros(0, np.int32), np.zeros(0, bool))
    assert mean_reciprocal_rank(task, np.zeros(0, np.float32)) == 0.0
