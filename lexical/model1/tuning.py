"""Choice of a table's pruning threshold, p_self and lambda on judged queries.

P(q|D) is linear in p_self and lambda, so one pass over the candidates serves all their values:

    P(q|D)     = (1 - lambda) * (p_self * exact + (1 - p_self) * translated) + lambda * P(q|C)
    exact      = tf(q, D) / |D|
    translated = sum over d in D, d != q, of T(q|d) * tf(d, D) / |D|    with the T(.|d) of others summing to 1

Where the row of the results table is a fusion, what counts is the MRR of the fusion, at the best of a few weights
(the final weights are learned later, on other queries).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numba import get_num_threads, njit, prange

from lexical.index.forward_index import ForwardIndex, find_token
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.scorer import (
    FLOOR,
    LANES,
    PARTS_PER_THREAD,
    UNSEEN,
    add_log,
    clear,
    collection_probability,
    lay_out,
    most_postings,
    roomy,
    translated,
    translating,
    unique_tokens,
)
from lexical.model1.table import Translations, TranslationTable, others_rescaled
from lexical.ranking.order import RankedTask

THRESHOLDS = (3e-3, 1e-3, 1e-4)
P_SELF = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
SMOOTHING = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
FUSION_WEIGHTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)  # of Model 1; the first stage has the rest


class TableSettings(NamedTuple):
    threshold: float  # smaller translation probabilities are dropped
    p_self: float
    smoothing: float  # lambda


class TableTrial(NamedTuple):
    settings: TableSettings
    mrr: float


class TableGrid(NamedTuple):
    """Values to try; one value each where the user has decided."""

    thresholds: Sequence[float] = THRESHOLDS
    p_self: Sequence[float] = P_SELF
    smoothing: Sequence[float] = SMOOTHING

    @property
    def size(self) -> int:
        return len(self.thresholds) * len(self.p_self) * len(self.smoothing)


WHOLE_GRID = TableGrid()


class JudgedQueries(NamedTuple):
    """What settings are tried on."""

    forward: ForwardIndex
    queries: Ragged
    task: RankedTask
    first_stage: np.ndarray | None  # (pairs,) normalised scores that Model 1 is fused with; None: Model 1 alone counts


class Evidence(NamedTuple):
    """Per candidate and distinct query token: how much of the document is the token itself, how much translates to it.

    The tokens of a query's candidates stand one behind the other: candidate 0's tokens, candidate 1's tokens, ...
    """

    starts: np.ndarray  # (queries + 1,) int64: where the values of a query begin
    tokens: Ragged  # (queries) rows of distinct query tokens
    repeats: np.ndarray  # (distinct query tokens,) how often the token comes in its query
    exact: np.ndarray  # (values,) float32
    translated: np.ndarray  # (values,) float32


def tune_table(
    learned: Translations,
    judged: JudgedQueries,
    grid: TableGrid = WHOLE_GRID,
    on_trial: Callable[[TableTrial], None] = lambda trial: None,
) -> TableTrial:
    """The settings with the highest MRR; the first of equally good ones, in the order of the grid."""
    return max(_trials(learned, judged, grid, on_trial), key=_merit)


def _trials(
    learned: Translations, judged: JudgedQueries, grid: TableGrid, on_trial: Callable[[TableTrial], None]
) -> Iterator[TableTrial]:
    for threshold in grid.thresholds:
        others = others_rescaled(learned.pruned(threshold))
        yield from _trials_of_table(others, threshold, grid.p_self, grid.smoothing, judged, on_trial)


def tune_smoothing(
    table: TranslationTable,
    judged: JudgedQueries,
    smoothing: Sequence[float] = SMOOTHING,
    on_trial: Callable[[TableTrial], None] = lambda trial: None,
) -> TableTrial:
    """The best lambda for a table that is final: threshold and p_self of its settings are NaN."""
    trials = list(_trials_of_table(table, math.nan, (0.0,), smoothing, judged, on_trial))
    best = max(trials, key=_merit)
    return TableTrial(best.settings._replace(p_self=math.nan), best.mrr)


def _trials_of_table(
    others: TranslationTable,
    threshold: float,
    p_self_values: Sequence[float],
    smoothing_values: Sequence[float],
    judged: JudgedQueries,
    on_trial: Callable[[TableTrial], None],
) -> Iterator[TableTrial]:
    background = collection_probability(judged.forward)
    evidence = gather_evidence(others, judged.forward, judged.queries, judged.task.candidates)
    for p_self in p_self_values:
        for smoothing in smoothing_values:
            scores = evidence_scores(evidence, judged.task.candidates, background, p_self, smoothing)
            trial = TableTrial(TableSettings(threshold, p_self, smoothing), _best_mrr(judged, scores))
            on_trial(trial)
            yield trial


def gather_evidence(others: TranslationTable, index: ForwardIndex, queries: Ragged, candidates: Ragged) -> Evidence:
    """One pass over the candidates with a table that has no self-translations."""
    tokens, repeats = _distinct(queries.offsets, queries.values)
    starts = offsets_of(tokens.lengths() * candidates.lengths())
    exact, translated = _gather(
        *tokens, *candidates, index.offsets, index.tokens, index.counts, index.lengths,
        *others.rows, others.probabilities, starts, PARTS_PER_THREAD * get_num_threads(),
    )  # fmt: skip
    return Evidence(starts, tokens, repeats, exact, translated)


def evidence_scores(
    evidence: Evidence, candidates: Ragged, background: np.ndarray, p_self: float, smoothing: float
) -> np.ndarray:
    """(pairs,) float32: Model 1 log-scores divided by the number of query tokens."""
    return _mix(
        evidence.starts, *evidence.tokens, evidence.repeats, evidence.exact, evidence.translated,
        candidates.offsets, background, p_self, smoothing,
    )  # fmt: skip


def _merit(trial: TableTrial) -> float:
    """MRR without the last digits, which differ by the order of summation: of equally good trials the first wins."""
    return round(trial.mrr, 12)


def _best_mrr(judged: JudgedQueries, scores: np.ndarray) -> float:
    """MRR of the scores, or of their fusion with the first stage at the best of a few weights."""
    task = judged.task
    if not task.candidates.rows:
        return 0.0
    alone = judged.first_stage is None
    if judged.first_stage is not None and len(judged.first_stage) != len(scores):
        raise ValueError(f"{len(judged.first_stage):,} scores of the first stage for {len(scores):,} candidates")
    first = np.zeros(len(scores), np.float32) if judged.first_stage is None else judged.first_stage
    weights = np.array((1.0,) if alone else FUSION_WEIGHTS, np.float32)
    values = _fused_reciprocal_ranks(*task.candidates, task.id_order, task.relevant, first, scores, weights)
    return float(values.mean(axis=0).max())


def _distinct(offsets: np.ndarray, tokens: np.ndarray) -> tuple[Ragged, np.ndarray]:
    lengths, unique, repeats = _distinct_rows(offsets, tokens)
    return Ragged(offsets_of(lengths), unique), repeats


@njit(cache=True, nogil=True)
def _distinct_rows(offsets, tokens):  # type: ignore[no-untyped-def]
    lengths = np.zeros(len(offsets) - 1, np.int64)
    unique, repeats = np.empty(len(tokens), np.int64), np.empty(len(tokens), np.int64)
    at = 0
    for row in range(len(lengths)):
        lengths[row] = unique_tokens(tokens[offsets[row] : offsets[row + 1]], unique[at:], repeats[at:])
        at += lengths[row]
    return lengths, unique[:at], repeats[:at]


@njit(cache=True, nogil=True, parallel=True)
def _gather(  # type: ignore[no-untyped-def]
    q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, lengths,
    t_offsets, t_tokens, t_values, starts, parts,
):  # fmt: skip
    queries = len(q_offsets) - 1
    exact, others = np.zeros(starts[-1], np.float32), np.zeros(starts[-1], np.float32)
    for part in prange(parts):
        _gather_part(
            queries * part // parts, queries * (part + 1) // parts,
            q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, lengths,
            t_offsets, t_tokens, t_values, starts, exact, others,
        )  # fmt: skip
    return exact, others


@njit(cache=True, nogil=True)
def _gather_part(  # type: ignore[no-untyped-def]
    first, last, q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, lengths,
    t_offsets, t_tokens, t_values, starts, exact, others,
):  # fmt: skip
    if starts[first] == starts[last]:
        return
    places, touched = np.zeros(len(t_offsets) - 1, np.int32), np.empty(len(t_offsets), np.int32)
    vectors = np.zeros(LANES, np.float32)
    room = most_postings(offsets, c_docs[c_offsets[first] : c_offsets[last]])
    found, tf = np.empty(room, np.int32), np.empty(room, np.float32)
    for q in range(first, last):
        n = q_offsets[q + 1] - q_offsets[q]
        for start in range(0, n, LANES):
            lanes = q_tokens[q_offsets[q] + start : q_offsets[q] + min(start + LANES, n)]
            vectors = roomy(vectors, lanes, t_offsets)
            used = lay_out(lanes, t_offsets, t_tokens, t_values, places, vectors, touched)
            for pair in range(c_offsets[q], c_offsets[q + 1]):
                doc = c_docs[pair]
                row = slice(offsets[doc], offsets[doc + 1])
                m = translating(tokens[row], counts[row], places, found, tf)
                sums = translated(found[:m], tf[:m], vectors)
                at = starts[q] + (pair - c_offsets[q]) * n + start
                for i in range(len(lanes)):
                    others[at + i] = sums[i] / max(1, lengths[doc])
                    where = find_token(tokens, offsets[doc], offsets[doc + 1], lanes[i])
                    if where >= 0:
                        exact[at + i] = counts[where] / lengths[doc]
            clear(places, vectors, touched, used, len(lanes))


@njit(cache=True, nogil=True, parallel=True)
def _mix(starts, q_offsets, q_tokens, repeats, exact, translated, c_offsets, background, p_self, smoothing):  # type: ignore[no-untyped-def]
    scores = np.zeros(c_offsets[-1], np.float32)
    least = FLOOR if smoothing == 0 else 0.0
    for q in prange(len(q_offsets) - 1):
        n = q_offsets[q + 1] - q_offsets[q]
        tokens, times = q_tokens[q_offsets[q] : q_offsets[q + 1]], repeats[q_offsets[q] : q_offsets[q + 1]]
        if n == 0:
            continue
        length = times.sum()
        at = starts[q]
        for pair in range(c_offsets[q], c_offsets[q + 1]):
            total, product = 0.0, 1.0
            for i in range(n):
                prior = background[tokens[i]] if 0 <= tokens[i] < len(background) else UNSEEN
                p = (1.0 - smoothing) * (p_self * exact[at + i] + (1.0 - p_self) * translated[at + i])
                total, product = add_log(p + smoothing * prior, times[i], least, total, product)
            scores[pair] = (total + np.log(product)) / length
            at += n
    return scores


@njit(cache=True, nogil=True, parallel=True)
def _fused_reciprocal_ranks(offsets, docs, id_order, relevant, first, own, weights):  # type: ignore[no-untyped-def]
    """(queries, weights) of first * (1 - weight) + own * weight; the tie rule of `lexical.ranking.order`."""
    best = np.zeros((len(offsets) - 1, len(weights)))
    for row in prange(len(offsets) - 1):
        for pair in range(offsets[row], offsets[row + 1]):
            if not relevant[pair]:
                continue
            for w in range(len(weights)):
                a, b = np.float32(1) - weights[w], weights[w]
                mine = a * first[pair] + b * own[pair]
                rank = 1
                for other in range(offsets[row], offsets[row + 1]):
                    theirs = a * first[other] + b * own[other]
                    if theirs > mine or (theirs == mine and id_order[docs[other]] < id_order[docs[pair]]):
                        rank += 1
                best[row, w] = max(best[row, w], 1.0 / rank)
    return best
