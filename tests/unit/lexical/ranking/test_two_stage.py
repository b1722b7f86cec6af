"""The best of a first score are scored again, the others stay behind them in their order: as a plain loop does it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.index.ragged import Ragged, ragged
from lexical.ranking.order import ranking_order, top_candidates, two_stage_scores

DOCUMENTS = 8


@st.composite
def made(draw: st.DrawFn) -> tuple[Ragged, np.ndarray, np.ndarray, np.ndarray, int]:
    """Few distinct scores, so that many tie; empty rows; first scores that differ by their last bit."""
    rows = draw(st.lists(st.permutations(range(DOCUMENTS)).flatmap(lambda p: st.integers(0, 8).map(lambda n: p[:n]))))
    candidates = ragged(rows, np.int32)
    near = [0.0, -1.5, 1.0, float(np.nextafter(np.float32(1), np.float32(2))), 3e4]
    values = st.lists(st.sampled_from(near), min_size=len(candidates.values), max_size=len(candidates.values))
    again = st.sampled_from([0.0, -7.25, 2.5, 1e7, -1e7])
    second = draw(st.lists(again, min_size=len(candidates.values), max_size=len(candidates.values)))
    order = np.array(draw(st.permutations(range(DOCUMENTS))), np.int32)
    return candidates, np.array(draw(values), np.float32), np.array(second, np.float32), order, draw(st.integers(1, 9))


def plain_ranking(documents: list[int], first: list[float], second: list[float], ids: list[int], depth: int) -> list:
    """Sorted twice, as one would by hand."""
    by_first = sorted(range(len(documents)), key=lambda i: (-first[i], ids[documents[i]]))
    again = sorted(by_first[:depth], key=lambda i: (-second[i], ids[documents[i]]))
    return [documents[i] for i in again + by_first[depth:]]


@settings(deadline=None, max_examples=300)
@given(made())
def test_the_ranking_is_that_of_a_plain_loop(case: tuple[Ragged, np.ndarray, np.ndarray, np.ndarray, int]) -> None:
    candidates, first, second, id_order, depth = case
    chosen = top_candidates(candidates, first, id_order, depth)
    scores = two_stage_scores(candidates, first, chosen, second[chosen], id_order)
    assert scores.dtype == np.float32 and np.array_equal(scores[chosen], second[chosen])
    ranked = candidates.values[ranking_order(candidates, scores, id_order)]
    for row in range(candidates.rows):
        in_row = slice(candidates.offsets[row], candidates.offsets[row + 1])
        arguments = (values.tolist() for values in (candidates.row(row), first[in_row], second[in_row], id_order))
        assert ranked[in_row].tolist() == plain_ranking(*arguments, depth)


def test_by_hand_with_log_probabilities() -> None:
    """Both second scores are below all first ones; a made-up 0 would put the third document on top."""
    candidates, ids = ragged([[0, 1, 2]], np.int32), np.arange(3, dtype=np.int32)
    first = np.array([-1.0, -3.0, -2.0], np.float32)
    chosen = top_candidates(candidates, first, ids, 2)
    assert chosen.tolist() == [True, False, True]
    scores = two_stage_scores(candidates, first, chosen, np.array([-9.0, -8.0], np.float32), ids)
    assert scores[[0, 2]].tolist() == [-9.0, -8.0] and -9.01 < scores[1] < -9.0


def test_thousands_behind_keep_their_order_without_a_tie() -> None:
    count = 5000
    candidates, ids = ragged([list(range(count))], np.int32), np.arange(count, dtype=np.int32)
    first = np.linspace(1, 1 + 1e-6, count).astype(np.float32)  # a handful of distinct values
    chosen = top_candidates(candidates, first, ids, 100)
    for again in (0.0, -3e5):
        scores = two_stage_scores(candidates, first, chosen, np.full(100, again, np.float32), ids)
        assert len(set(scores[~chosen].tolist())) == count - 100 and scores[~chosen].max() < again
        expected = ranking_order(candidates, first, ids)[100:]
        assert np.array_equal(ranking_order(candidates, scores, ids)[100:], expected)
