"""Fusion of ranking features by learned weights, and of candidate lists by reciprocal ranks.

A document's fused score is ``sum over features f of weight[f] * feature[f]``, over ONE candidate list: every feature
has a value for every candidate, so no document gets a made-up 0 (which would be the best log-probability there is).

The weights are learned by coordinate ascent on MRR (Metzler & Croft 2007, as in RankLib): start uniform; go through the
features in a shuffled order; for each try steps of 0.001, 0.002, 0.004, ... up and down and the weight 0, keep the
best, rescale the weights to sum |w| = 1; stop when a round over all features gains less than the tolerance; restart
with another order; the best restart wins. Ties go to the smaller weight. With more than two features it also starts
from each feature alone: the fusion is never worse than its best feature.

Speed: the rank of a relevant document is 1 + the number of candidates that beat it. Candidates are kept as feature
DIFFERENCES to the relevant document, so a weight trial is one multiply-add and a comparison with zero per candidate,
and all steps of one line search run over a query's candidates while they are in the processor's cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from lexical.index.ragged import Ragged, concatenated, offsets_of
from lexical.ranking.order import RankedTask, fused_reciprocal_ranks, mean_reciprocal_rank

RESTARTS = 10
ITERATIONS = 50
TOLERANCE = 0.001
STEPS = 0.001 * 2.0 ** np.arange(20)  # the last one is 524: past that a single feature decides the ranking
TRIAL_WEIGHTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)  # of a ranker; the first stage has the rest
RANK_CONSTANT = 60.0  # of reciprocal rank fusion
QUERIES_PER_BLOCK = 4096  # bounds the memory of reciprocal rank fusion


class FusionWeights(NamedTuple):
    weights: np.ndarray  # (features,) float64, sum of absolute values 1
    mrr: float  # on the query set that they were learned on


class _Differences(NamedTuple):
    """For each relevant candidate: the features of its rivals, the other candidates of the query, minus its own."""

    features: np.ndarray  # (features, rivals) float32
    offsets: np.ndarray  # (blocks + 1,) int64; block = relevant candidate
    wins_ties: np.ndarray  # (blocks,) int64: number of the first rivals of a block that have smaller ids, and win ties
    query: np.ndarray  # (blocks,) int64 query row of the block, ascending
    queries: int


def fuse(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return (pairs,) float32 fused scores of `features` (features, pairs)."""
    fused = np.zeros(features.shape[1])
    for weight, feature in zip(weights, features, strict=True):  # no BLAS: it rounds by the position of a pair
        fused += weight * feature.astype(np.float64)
    return fused.astype(np.float32)


def coordinate_ascent(features: np.ndarray, task: RankedTask, seed: int = 0) -> FusionWeights:
    """Return the weights of `features` (features, pairs) that maximise MRR on `task`."""
    if not np.isfinite(features).all():
        raise ValueError("a feature has values that are not finite: fusion weights cannot be learned")
    count = len(features)
    differences = _differences(features.astype(np.float32), task)

    def judged(weights: np.ndarray) -> FusionWeights:
        return FusionWeights(weights, mean_reciprocal_rank(task, fuse(features, weights)))

    uniform = np.full(count, 1.0 / count)
    best = judged(uniform)
    for alone in np.eye(count) if count > 2 else ():
        ascended = judged(_ascend(differences, alone, np.arange(count))[0])
        best = max(best, judged(alone), ascended, key=lambda candidate: candidate.mrr)
    for order in _orders(count, seed):
        best = max(best, judged(_ascend(differences, uniform, order)[0]), key=lambda candidate: candidate.mrr)
    return best


def _orders(features: int, seed: int) -> list[np.ndarray]:
    """Return the distinct orders of `RESTARTS` shuffles: two features have only two."""
    shuffled = [np.random.default_rng([seed, restart]).permutation(features) for restart in range(RESTARTS)]
    return [np.array(order) for order in dict.fromkeys(tuple(order) for order in shuffled)]


def trial_reciprocal_ranks(task: RankedTask, first_stage: np.ndarray | None, scores: np.ndarray) -> np.ndarray:
    """Return (queries, weights) reciprocal ranks of the fusions of a ranker with the first stage.

    The best column mean is the MRR by which settings and epochs are chosen on development; the final weights are
    learned later, on other queries. With `first_stage` None the ranker stands alone: one column.
    """
    if first_stage is None:
        return fused_reciprocal_ranks(task, scores, scores, (1.0,))
    return fused_reciprocal_ranks(task, first_stage, scores, TRIAL_WEIGHTS)


def learn_weights(features: np.ndarray, names: Sequence[str], task: RankedTask, learned_on: str) -> dict[str, Any]:
    """Return as plain JSON: the weights of the named `features` (features, pairs), MRR together and of each alone."""
    started = time.perf_counter()
    learned = coordinate_ascent(features, task)
    return {
        "features": list(names),
        "weights": [float(weight) for weight in learned.weights],
        "learned_on": learned_on,
        "mrr": learned.mrr,
        "mrr_of_each_feature": [mean_reciprocal_rank(task, feature) for feature in features],
        "queries": task.candidates.rows,
        "seconds": round(time.perf_counter() - started, 3),
    }


def reciprocal_rank_fusion(
    lists: list[Ragged], depth: int, documents: int, id_order: np.ndarray
) -> tuple[Ragged, np.ndarray]:
    """Join candidate lists whose scores cannot be compared (Cormack et al. 2009); return (candidates, scores).

        score(d) = sum over the lists that have d of 1 / (60 + rank of d)

    Args:
        lists: candidates of the same queries, best first.
        depth: documents kept for a query, best first.
        documents: size of the collection.
        id_order: (documents,) position of each document's id in the sorted ids: the tie rule.
    """
    blocks = [
        _joined([ranked.rows_between(first, first + QUERIES_PER_BLOCK) for ranked in lists], depth, documents, id_order)
        for first in range(0, lists[0].rows, QUERIES_PER_BLOCK)
    ]
    if not blocks:
        return lists[0], np.zeros(0, np.float32)
    return concatenated([candidates for candidates, _ in blocks]), np.concatenate([scores for _, scores in blocks])


def _joined(lists: list[Ragged], depth: int, documents: int, id_order: np.ndarray) -> tuple[Ragged, np.ndarray]:
    keys = np.concatenate([ranked.row_numbers() * documents + ranked.values for ranked in lists])
    values = np.concatenate([1.0 / (RANK_CONSTANT + 1 + ranked.positions()) for ranked in lists])
    distinct, occurrence = np.unique(keys, return_inverse=True)
    scores = np.bincount(occurrence, values, len(distinct)).astype(np.float32)
    rows, docs = distinct // documents, distinct % documents
    best = np.lexsort((id_order[docs], -scores, rows))
    joined = Ragged(offsets_of(np.bincount(rows, minlength=lists[0].rows)), docs[best].astype(np.int32))
    kept = joined.positions() < depth
    return joined.select(kept), scores[best][kept]


def _ascend(differences: _Differences, weights: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the weights where coordinate ascent ends, and their MRR."""
    value = _line_search(*differences, weights, 0, weights[:1])[0]
    for _ in range(ITERATIONS):
        before = value
        for feature in order:
            trials = np.concatenate([[0.0], weights[feature] + STEPS, weights[feature] - STEPS])
            if not np.delete(weights, feature).any():
                trials = trials[1:]  # not all weights may be 0
            values = _line_search(*differences, weights, feature, trials)
            best = np.flatnonzero(values == values.max())
            winner = best[np.argmin(np.abs(trials[best]))]  # ties go to the smaller weight
            if values[winner] > value:
                value = values[winner]
                weights = weights.copy()
                weights[feature] = trials[winner]
                total = np.abs(weights).sum()
                weights /= total if total > 0 else 1.0
        if value - before < TOLERANCE:
            break
    return weights, value


def _differences(features: np.ndarray, task: RankedTask) -> _Differences:
    offsets, docs = task.candidates
    relevant = np.flatnonzero(task.relevant)
    query = task.candidates.row_numbers()[relevant]
    rivals = Ragged(offsets, np.arange(len(docs))).take(query)  # (blocks) rows of candidates
    own = np.repeat(relevant, rivals.lengths())
    others = rivals.values != own
    rivals, own = rivals.select(others), own[others]
    wins_ties = task.id_order[docs[rivals.values]] < task.id_order[docs[own]]
    order = np.lexsort((~wins_ties, rivals.row_numbers()))
    differences = np.ascontiguousarray(features[:, rivals.values[order]] - features[:, own])
    winning = np.bincount(rivals.row_numbers()[wins_ties], minlength=rivals.rows)
    return _Differences(differences, rivals.offsets, winning, query, task.candidates.rows)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _line_search(
    features: np.ndarray, offsets: np.ndarray, wins_ties: np.ndarray, query: np.ndarray, queries: int,
    weights: np.ndarray, feature: int, trials: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return (trials,) the MRR with ``weights[feature]`` replaced by each trial value."""
    values = np.zeros(len(trials))
    best = np.zeros(len(trials))
    for block in range(len(query)):
        start, size = offsets[block], offsets[block + 1] - offsets[block]
        base = np.zeros(size, np.float32)  # without the feature
        for f in range(len(weights)):
            if f != feature and weights[f] != 0:
                weight = np.float32(weights[f])
                for i in range(size):
                    base[i] += weight * features[f, start + i]
        line = features[feature, start : start + size]
        for t in range(len(trials)):
            weight = np.float32(trials[t])
            rank = np.int32(1)
            for i in range(wins_ties[block]):
                rank += np.int32(base[i] + weight * line[i] >= 0)
            for i in range(wins_ties[block], size):
                rank += np.int32(base[i] + weight * line[i] > 0)
            best[t] = max(best[t], 1.0 / rank)
        if block + 1 == len(query) or query[block + 1] != query[block]:
            values += best
            best[:] = 0
    return values / max(1, queries)
