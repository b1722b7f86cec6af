"""Choice of a table's pruning threshold, p_self and lambda on judged queries.

P(q|D) is linear in p_self and lambda, so one pass over the candidates serves all their values:

    P(q|D)     = (1 - lambda) * (p_self * exact + (1 - p_self) * translated) + lambda * P(q|C)
    exact      = tf(q, D) / |D|
    translated = sum over d in D, d != q, of T(q|d) * tf(d, D) / |D|    with the T(.|d) of others summing to 1

Where the row of the results table is a fusion, the settings are chosen by the MRR of the fusion, at the best of a few
weights (the final weights are learned later, on other queries).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product, starmap
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from lexical.index.forward_index import ForwardIndex, token_counts
from lexical.index.ragged import Ragged
from lexical.model1.scorer import FLOOR, UNSEEN, add_log, collection_probability, distinct_tokens, translation_sums
from lexical.model1.table import Translations, TranslationTable, others_rescaled
from lexical.ranking.fusion import trial_reciprocal_ranks
from lexical.ranking.order import RankedTask
from lexical.terminal import track

THRESHOLDS = (3e-3, 1e-3, 1e-4)
P_SELF = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
SMOOTHING = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
SMOOTHING_OF_EXPORT = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, *SMOOTHING)  # 1e-6 is best on MedQuAD, 0.2 on docstrings


class TableSettings(NamedTuple):
    threshold: float  # smaller translation probabilities are dropped
    p_self: float
    smoothing: float  # lambda


class TableTrial(NamedTuple):
    settings: TableSettings
    mrr: float


class TableGrid(NamedTuple):
    """Values to try; a single value where the user has set one."""

    thresholds: Sequence[float] = THRESHOLDS
    p_self: Sequence[float] = P_SELF
    smoothing: Sequence[float] = SMOOTHING


WHOLE_GRID = TableGrid()


class JudgedQueries(NamedTuple):
    """The queries that settings are tried on."""

    forward: ForwardIndex
    queries: Ragged
    task: RankedTask
    first_stage: np.ndarray | None  # (pairs,) normalised scores that Model 1 is fused with; None: Model 1 alone


class ExactTerms(NamedTuple):
    """The distinct query tokens and their own share of each candidate; values as in `MixtureTerms`."""

    tokens: Ragged  # (queries) rows of distinct query tokens
    repeats: np.ndarray  # (distinct query tokens,) occurrences of the token in its query
    exact: np.ndarray  # (values,) float32
    lengths: np.ndarray  # (values,) |D|, at least 1


class MixtureTerms(NamedTuple):
    """The terms of P(q|D) that do not depend on p_self and lambda, per candidate and distinct query token.

    The values of a query are stored candidate by candidate, see `translation_sums`.
    """

    starts: np.ndarray  # (queries + 1,) int64 first value of each query
    tokens: Ragged  # (queries) rows of distinct query tokens
    repeats: np.ndarray  # (distinct query tokens,) occurrences of the token in its query
    exact: np.ndarray  # (values,) float32
    translated: np.ndarray  # (values,) float32


def tune_table(
    learned: Translations,
    judged: JudgedQueries,
    grid: TableGrid = WHOLE_GRID,
    on_trial: Callable[[TableTrial], None] = lambda trial: None,
) -> TableTrial:
    """Return the settings with the highest MRR; the first of equally good ones, in the order of the grid."""
    trials: list[TableTrial] = []
    exact = exact_terms(judged.forward, judged.queries, judged.task.candidates)
    for threshold in grid.thresholds:
        others = others_rescaled(learned.pruned(threshold))
        trials += _trials(others, exact, grid._replace(thresholds=(threshold,)), judged, on_trial)
    return max(trials, key=_rounded_mrr)


def tune_smoothing(
    table: TranslationTable,
    judged: JudgedQueries,
    smoothing: Sequence[float] = SMOOTHING,
    on_trial: Callable[[TableTrial], None] = lambda trial: None,
    floor: float = FLOOR,
) -> TableTrial:
    """Return the best lambda for a table that is final: threshold and p_self of its settings are NaN.

    `floor` is the smallest P(q|D) where lambda is 0.
    """
    grid = TableGrid((math.nan,), (0.0,), smoothing)
    exact = exact_terms(judged.forward, judged.queries, judged.task.candidates)
    best = max(_trials(table, exact, grid, judged, on_trial, floor), key=_rounded_mrr)
    return TableTrial(best.settings._replace(p_self=math.nan), best.mrr)


def _trials(
    others: TranslationTable,
    exact: ExactTerms,
    grid: TableGrid,
    judged: JudgedQueries,
    on_trial: Callable[[TableTrial], None],
    floor: float = FLOOR,
) -> Iterator[TableTrial]:
    """Try all settings of one table, pruned by the only threshold of `grid`."""
    background = collection_probability(judged.forward)
    terms = gather_terms(others, exact, judged.forward, judged.task.candidates)
    for settings in track(list(starmap(TableSettings, product(*grid))), "tune the table"):
        scores = mixture_scores(terms, judged.task.candidates, background, settings.p_self, settings.smoothing, floor)
        trial = TableTrial(settings, _best_mrr(judged, scores))
        on_trial(trial)
        yield trial


def exact_terms(index: ForwardIndex, queries: Ragged, candidates: Ragged) -> ExactTerms:
    """Return what does not depend on a table: all tables of a field are tried with the same."""
    tokens, repeats = distinct_tokens(queries)
    counts = token_counts(index, tokens, candidates)[1]
    query_lengths = np.repeat(tokens.lengths(), candidates.lengths())  # (pairs,)
    lengths = np.maximum(1, np.repeat(index.lengths[candidates.values], query_lengths))
    return ExactTerms(tokens, repeats, (counts / lengths).astype(np.float32), lengths)


def gather_terms(others: TranslationTable, exact: ExactTerms, index: ForwardIndex, candidates: Ragged) -> MixtureTerms:
    """Pass over the candidates with a table that has no self-translations."""
    starts, sums = translation_sums(others, index, exact.tokens, candidates)
    translated = (sums / exact.lengths).astype(np.float32)
    return MixtureTerms(starts, exact.tokens, exact.repeats, exact.exact, translated)


def mixture_scores(
    terms: MixtureTerms,
    candidates: Ragged,
    background: np.ndarray,
    p_self: float,
    smoothing: float,
    floor: float = FLOOR,
) -> np.ndarray:
    """Return (pairs,) float32 Model 1 log-scores divided by the number of query tokens."""
    return _mix(
        terms.starts, *terms.tokens, terms.repeats, terms.exact, terms.translated,
        candidates.offsets, background, p_self, smoothing, 0.0 if smoothing else float(floor),
    )  # fmt: skip


def _rounded_mrr(trial: TableTrial) -> float:
    """Round off the last digits, which depend on the order of summation, so that ties are ties."""
    return round(trial.mrr, 12)


def _best_mrr(judged: JudgedQueries, scores: np.ndarray) -> float:
    """Return the MRR of the scores, or of their fusion with the first stage at the best of a few weights."""
    if not judged.task.candidates.rows:
        return 0.0
    return float(trial_reciprocal_ranks(judged.task, judged.first_stage, scores).mean(axis=0).max())


@njit(cache=True, nogil=True, parallel=True)
def _mix(  # type: ignore[no-untyped-def]
    starts, q_offsets, q_tokens, repeats, exact, translated, c_offsets, background, p_self, smoothing, floor
):
    scores = np.zeros(c_offsets[-1], np.float32)
    for q in prange(len(q_offsets) - 1):
        n = q_offsets[q + 1] - q_offsets[q]
        tokens, times = q_tokens[q_offsets[q] : q_offsets[q + 1]], repeats[q_offsets[q] : q_offsets[q + 1]]
        if n == 0:
            continue
        length = times.sum()
        k = starts[q]
        for pair in range(c_offsets[q], c_offsets[q + 1]):
            total, product = 0.0, 1.0
            for i in range(n):
                prior = background[tokens[i]] if 0 <= tokens[i] < len(background) else UNSEEN
                p = (1.0 - smoothing) * (p_self * exact[k + i] + (1.0 - p_self) * translated[k + i])
                total, product = add_log(p + smoothing * prior, times[i], floor, total, product)
            scores[pair] = (total + np.log(product)) / length
            k += n
    return scores
