"""BM25 over the forward index: scores of given candidates, and tuning of k1 and b.

    score(Q, D) = sum over q in Q of  idf(q) * tf / (tf + k1 * (1 - b + b * |D| / mean |D|))
    idf(q)      = ln(1 + (N - df + 0.5) / (df + 0.5))

as in Lucene (and ``bm25s`` with ``method="lucene"``). A repeated query token counts each time. For fusion the score is
divided by the sum of the idf values of the unique query tokens (section "Training Models" of the paper).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product, starmap
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from lexical.index.forward_index import ForwardIndex, find_token, token_counts
from lexical.index.ragged import Ragged
from lexical.ranking.order import RankedTask, mean_reciprocal_rank
from lexical.terminal import track


class BM25Parameters(NamedTuple):
    k1: float = 1.2
    b: float = 0.75


# The grid is searched coarse, then fine around the best point; see `tune`.
GRID_K1 = (0.1, 0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 2.6, 3.4)
GRID_B = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)


def search_space(k1: float | None, b: float | None) -> tuple[Sequence[float], Sequence[float]]:
    """Return the values of k1 and b to try: the given one, or the grid."""
    return GRID_K1 if k1 is None else (k1,), GRID_B if b is None else (b,)


class Trial(NamedTuple):
    parameters: BM25Parameters
    mrr: float


def bm25_scores(index: ForwardIndex, queries: Ragged, candidates: Ragged, parameters: BM25Parameters) -> np.ndarray:
    """Return (pairs,) float32 scores of the candidate documents; row i of `candidates` belongs to row i of `queries`.

    Query tokens below 0 are unknown words and add nothing. The result does not depend on the number of threads.
    """
    return _score_pairs(
        queries.offsets, queries.values, candidates.offsets, candidates.values,
        index.offsets, index.tokens, index.counts, index.lengths, index.idf,
        max(index.mean_length, 1e-9), parameters.k1, parameters.b,
    )  # fmt: skip


def normalised_bm25(index: ForwardIndex, queries: Ragged, candidates: Ragged, parameters: BM25Parameters) -> np.ndarray:
    """Return (pairs,) float32 BM25 scores for fusion: divided by the sum of idf over the query's unique known words.

    The scores of a query without known words are 0.
    """
    rows = (queries.row(i) for i in range(queries.rows))
    idf_sums = np.array([index.idf[np.unique(row[row >= 0])].sum() for row in rows])
    divisor = np.where(idf_sums > 0, idf_sums, 1.0)
    scores = bm25_scores(index, queries, candidates, parameters)
    return (scores / np.repeat(divisor, candidates.lengths())).astype(np.float32)


def scores_by_parameters(
    index: ForwardIndex, queries: Ragged, candidates: Ragged
) -> Callable[[BM25Parameters], np.ndarray]:
    """Return a function of k1 and b that returns `bm25_scores`; the index is read once, for all of them."""
    idf = np.append(index.idf, 0.0)[np.maximum(queries.values, -1)].astype(np.float32)  # -1 is the 0 at the end
    relative_lengths = (index.lengths[candidates.values] / max(index.mean_length, 1e-9)).astype(np.float32)
    matches = (queries.offsets, candidates.offsets, idf, *token_counts(index, queries, candidates), relative_lengths)
    return lambda parameters: _score_matches(*matches, *parameters)


def tune(
    index: ForwardIndex,
    queries: Ragged,
    task: RankedTask,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    k1_values: Sequence[float] = GRID_K1,
    b_values: Sequence[float] = GRID_B,
) -> BM25Parameters:
    """Return k1 and b with the highest MRR on `task`: the whole grid, then half-way points around the best one.

    The first of equally good settings wins, in the order of the grid, so the result is the same on every machine.
    """
    k1_values, b_values = [round(k1, 4) for k1 in k1_values], [round(b, 4) for b in b_values]
    trial_scores = scores_by_parameters(index, queries, task.candidates)

    def attempt(k1: float, b: float) -> Trial:
        parameters = BM25Parameters(round(k1, 4), round(b, 4))
        trial = Trial(parameters, mean_reciprocal_rank(task, trial_scores(parameters)))
        on_trial(trial)
        return trial

    grid = track(list(product(k1_values, b_values)), "tune k1 and b")
    best = max(starmap(attempt, grid), key=lambda trial: trial.mrr)
    k1_near, b_near = _half_way(k1_values, best.parameters.k1), _half_way(b_values, best.parameters.b)
    around = [attempt(k1, b) for k1 in k1_near for b in b_near if (k1, b) != best.parameters]
    return max([best, *around], key=lambda trial: trial.mrr).parameters


def _half_way(values: Sequence[float], centre: float) -> list[float]:
    """Return `centre` and the points half-way to its neighbours among `values`."""
    i = values.index(centre)
    below = [(values[i - 1] + centre) / 2] if i > 0 else []
    above = [(values[i + 1] + centre) / 2] if i + 1 < len(values) else []
    return [*below, centre, *above]


@njit(cache=True, nogil=True, parallel=True)
def _score_pairs(  # type: ignore[no-untyped-def]
    q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, lengths, idf, mean_length, k1, b
):
    scores = np.zeros(len(c_docs), np.float32)
    for q in prange(len(q_offsets) - 1):
        for pair in range(c_offsets[q], c_offsets[q + 1]):
            doc = c_docs[pair]
            norm = k1 * (1.0 - b + b * lengths[doc] / mean_length)
            total = 0.0
            for i in range(q_offsets[q], q_offsets[q + 1]):
                if q_tokens[i] >= 0:
                    posting = find_token(tokens, offsets[doc], offsets[doc + 1], q_tokens[i])
                    if posting >= 0:
                        total += idf[q_tokens[i]] * counts[posting] / (counts[posting] + norm)
            scores[pair] = total
    return scores


@njit(cache=True, nogil=True, parallel=True)
def _score_matches(q_offsets, c_offsets, idf, starts, tf, relative_length, k1, b):  # type: ignore[no-untyped-def]
    scores = np.empty(len(relative_length), np.float32)
    for q in prange(len(q_offsets) - 1):
        k = starts[q]
        for pair in range(c_offsets[q], c_offsets[q + 1]):
            norm = k1 * (1.0 - b + b * relative_length[pair])
            total = 0.0
            for i in range(q_offsets[q], q_offsets[q + 1]):
                if tf[k] > 0:
                    total += idf[i] * np.float32(tf[k]) / (np.float32(tf[k]) + norm)
                k += 1
            scores[pair] = total
    return scores
