"""Rankings of candidate lists: the one tie rule, reciprocal ranks, and two stages over one list.

The tie rule of the whole project: score down, then document id up (as text). Documents are numbered by their row in the
collection; `id_order` gives each row its position in the order of the ids, so ties are broken without comparing text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from lexical.index.ragged import Ragged

STEP = 2.0**-12  # between two documents below the re-ranked ones, for scores of about 1: far above float32's rounding


class RankedTask(NamedTuple):
    """Candidates of a query set with what is needed to judge a ranking of them."""

    candidates: Ragged  # rows = all queries of the set (some perhaps empty), values = document rows (int32)
    id_order: np.ndarray  # (documents,) position of each document's id in the sorted ids
    relevant: np.ndarray  # (pairs,) bool: the candidate is relevant to its query


def ranking_order(candidates: Ragged, scores: np.ndarray, id_order: np.ndarray) -> np.ndarray:
    """Return (pairs,) the permutation that sorts every row by score down, then document id up."""
    _check(candidates, scores)
    return np.lexsort((id_order[candidates.values], -scores.astype(np.float32), candidates.row_numbers()))


def reciprocal_ranks(task: RankedTask, scores: np.ndarray) -> np.ndarray:
    """Return (queries,) 1 / rank of the first relevant candidate, 0 where there is none."""
    return fused_reciprocal_ranks(task, scores, scores, (1.0,))[:, 0]


def fused_reciprocal_ranks(
    task: RankedTask, first: np.ndarray, second: np.ndarray, weights: Sequence[float]
) -> np.ndarray:
    """Return (queries, weights) reciprocal ranks by the float32 scores ``(1 - weight) * first + weight * second``."""
    for scores in (first, second, task.relevant):
        _check(task.candidates, scores)
    first, second = first.astype(np.float32), second.astype(np.float32)
    return _reciprocal_ranks(
        *task.candidates, task.id_order, task.relevant, first, second, np.array(weights, np.float32)
    )


def mean_reciprocal_rank(task: RankedTask, scores: np.ndarray) -> float:
    """Return the mean over all queries of the set; a query without a relevant candidate counts as 0."""
    return float(reciprocal_ranks(task, scores).mean()) if task.candidates.rows else 0.0


def top_candidates(candidates: Ragged, scores: np.ndarray, id_order: np.ndarray, depth: int) -> np.ndarray:
    """Return (pairs,) bool: the `depth` best candidates of each query."""
    return _ranks(candidates, scores, id_order) < depth


def two_stage_scores(
    candidates: Ragged, first: np.ndarray, reranked: np.ndarray, second: np.ndarray, id_order: np.ndarray
) -> np.ndarray:
    """Return (pairs,) float32 scores: `second` for the re-ranked candidates, lower values for the others.

    The second ranker has no score for a document that it has not seen, and none is made up: such a document keeps its
    rank of the first stage, below every document that was scored again.

    Args:
        candidates: one row per query.
        first: (pairs,) scores of the first stage.
        reranked: (pairs,) bool, as returned by `top_candidates`.
        second: (re-ranked pairs,) scores.
        id_order: (documents,) the tie rule.
    """
    scores = np.empty(len(first), np.float32)
    scores[reranked] = second
    row, others = candidates.row_numbers(), ~reranked
    lowest = np.full(candidates.rows, np.inf)
    np.minimum.at(lowest, row[reranked], scores[reranked].astype(np.float64))
    base = np.where(np.isinf(lowest), 0.0, lowest)[row[others]]  # 0 where nothing was re-ranked
    steps = 1 + _ranks(candidates.select(others), first[others], id_order)
    scores[others] = base - STEP * np.maximum(1.0, np.abs(base)) * steps
    return scores


def _ranks(candidates: Ragged, scores: np.ndarray, id_order: np.ndarray) -> np.ndarray:
    """Return (pairs,) the rank of each candidate of its query, from 0."""
    order = ranking_order(candidates, scores, id_order)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = candidates.positions()  # the order goes query by query: its positions are those of the rows
    return ranks


def _check(candidates: Ragged, scores: np.ndarray) -> None:
    if len(scores) != len(candidates.values):
        raise ValueError(f"{len(scores):,} scores for {len(candidates.values):,} candidates")
    if not np.isfinite(scores).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(scores)):,} scores are not finite: nothing can be ranked")


@njit(cache=True, nogil=True)
def _reciprocal_ranks(offsets, docs, id_order, relevant, first, second, weights):  # type: ignore[no-untyped-def]
    best = np.zeros((len(offsets) - 1, len(weights)))
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        for pair in range(start, end):
            if not relevant[pair]:
                continue
            for w in range(len(weights)):
                a, b = np.float32(1) - weights[w], weights[w]
                score = a * first[pair] + b * second[pair]
                rank, equal = np.int32(1), np.int32(0)
                for other in range(start, end):  # without branches: the processor compares several at once
                    rival = a * first[other] + b * second[other]
                    rank += np.int32(rival > score)
                    equal += np.int32(rival == score)
                for other in range(start, end if equal > 1 else start):
                    tied = a * first[other] + b * second[other] == score
                    rank += np.int32(tied and id_order[docs[other]] < id_order[docs[pair]])
                best[row, w] = max(best[row, w], 1.0 / rank)
    return best
