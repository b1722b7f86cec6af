"""Rankings of candidate lists: the one tie rule, and the reciprocal rank that tuning maximises.

The tie rule of the whole project: score down, then document id up (as text). Documents are numbered by their row in the
collection; `id_order` gives each row its place in the order of the ids, so ties are broken without comparing text.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lexical.index.ragged import Ragged


class RankedTask(NamedTuple):
    """Candidates of a query set with what is needed to judge a ranking of them."""

    candidates: Ragged  # rows = all queries of the set (some perhaps empty), values = document rows (int32)
    id_order: np.ndarray  # (documents,) place of each document's id in the sorted ids
    relevant: np.ndarray  # (pairs,) bool: is this candidate relevant to its query?


def ranking_order(candidates: Ragged, scores: np.ndarray, id_order: np.ndarray) -> np.ndarray:
    """(pairs,) permutation that sorts every row by score down, then document id up."""
    _check(candidates, scores)
    return np.lexsort((id_order[candidates.values], -scores.astype(np.float32), candidates.row_numbers()))


def reciprocal_ranks(task: RankedTask, scores: np.ndarray) -> np.ndarray:
    """(queries,) 1 / rank of the first relevant candidate, 0 where there is none."""
    _check(task.candidates, scores)
    if len(task.relevant) != len(scores):
        raise ValueError(f"{len(task.relevant):,} judgements for {len(scores):,} scores")
    return _reciprocal_ranks(
        task.candidates.offsets, task.candidates.values, task.id_order, task.relevant, scores.astype(np.float32)
    )


def mean_reciprocal_rank(task: RankedTask, scores: np.ndarray) -> float:
    """MRR over all queries of the set: a query whose relevant documents are not among its candidates counts as 0."""
    return float(reciprocal_ranks(task, scores).mean()) if task.candidates.rows else 0.0


def _check(candidates: Ragged, scores: np.ndarray) -> None:
    if len(scores) != len(candidates.values):
        raise ValueError(f"{len(scores):,} scores for {len(candidates.values):,} candidates")
    if not np.isfinite(scores).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(scores)):,} scores are not finite: nothing can be ranked")


@njit(cache=True, nogil=True)
def _reciprocal_ranks(
    offsets: np.ndarray, docs: np.ndarray, id_order: np.ndarray, relevant: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    best = np.zeros(len(offsets) - 1)
    for row in range(len(offsets) - 1):
        for pair in range(offsets[row], offsets[row + 1]):
            if relevant[pair]:
                rank = 1
                for other in range(offsets[row], offsets[row + 1]):
                    if scores[other] > scores[pair] or (
                        scores[other] == scores[pair] and id_order[docs[other]] < id_order[docs[pair]]
                    ):
                        rank += 1
                best[row] = max(best[row], 1.0 / rank)
    return best
