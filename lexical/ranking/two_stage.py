"""Two stages of ranking over ONE candidate list: the best of a first score are scored again, the others stay behind.

A document that the second ranker has not seen has no second score, and none is made up for it: it keeps its place of
the first stage, below every document that was scored again.
"""

from __future__ import annotations

import numpy as np

from lexical.index.ragged import Ragged
from lexical.ranking.order import ranking_order

STEP = 2.0**-12  # between two documents behind the others, for a score of about 1: far above float32's rounding


def places(candidates: Ragged, scores: np.ndarray, id_order: np.ndarray) -> np.ndarray:
    """(pairs,) place of each candidate in its query's ranking, from 0, by the tie rule."""
    order = ranking_order(candidates, scores, id_order)
    found = np.empty(len(order), np.int64)
    found[order] = candidates.positions()  # the order goes query by query: its positions are those of the rows
    return found


def best_of_each(candidates: Ragged, scores: np.ndarray, id_order: np.ndarray, depth: int) -> np.ndarray:
    """(pairs,) bool: the `depth` best candidates of each query."""
    return places(candidates, scores, id_order) < depth


def with_the_rest_behind(
    candidates: Ragged, first: np.ndarray, chosen: np.ndarray, second: np.ndarray, id_order: np.ndarray
) -> np.ndarray:
    """(pairs,) float32 scores: `second` for the candidates `chosen`, and for the others values that put them below.

    Args:
        candidates: one row a query.
        first: (pairs,) scores that the others are ordered by.
        chosen: (pairs,) bool, as `best_of_each` finds them.
        second: (chosen pairs,) scores.
        id_order: (documents,) the tie rule.
    """
    scores = np.empty(len(first), np.float32)
    scores[chosen] = second
    row = candidates.row_numbers()
    lowest = np.full(candidates.rows, np.inf)
    np.minimum.at(lowest, row[chosen], scores[chosen].astype(np.float64))
    lowest[np.isinf(lowest)] = 0.0  # nothing was chosen
    behind = ~chosen
    kept = candidates.select(behind)
    steps = 1 + places(kept, first[behind], id_order)
    base = lowest[row[behind]]
    scores[behind] = base - STEP * np.maximum(1.0, np.abs(base)) * steps
    return scores
