"""Cross-fitted Model 1: a table for each fold of the training queries that has not seen them.

EM memorises its training queries: a ranker that is trained on top of such a table learns to trust it more than queries
it has never seen deserve. So the training queries are divided into folds, EM is run again without each of them, and a
training query is only ever scored with the table of its fold; development and test queries with the table of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lexical.batches import TrainingQueries
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.bitext import Bitext
from lexical.model1.em import Model1EM
from lexical.model1.scorer import model1_scores, per_query_token
from lexical.model1.table import Translations, TranslationTable, others_rescaled, with_self_translation
from lexical.model1.tuning import TableSettings

QUERIES_PER_BLOCK = 8192  # bounds the memory of scoring the candidates of all training queries


class CrossFitted(NamedTuple):
    """A prior for training."""

    whole: TranslationTable  # learned from all training queries
    without: list[TranslationTable]  # of each fold: learned from the queries of the other folds
    fold: np.ndarray  # (training queries,)
    negatives: Ragged  # (training queries) hard negatives, best first
    settings: TableSettings
    weight: float  # of Model 1 in the fusion with the first stage


def fold_of(queries: int, folds: int, seed: int) -> np.ndarray:
    """Return (queries,) the fold of each training query, drawn at random; folds are equally large to within one."""
    return np.random.default_rng(seed).permutation(queries) % folds


def learn_translations(blocks: Callable[[], Iterable[Bitext]], vocabulary_size: int, iterations: int) -> Translations:
    """Run EM; `blocks` returns the bitext, block by block, once for each iteration."""
    em = Model1EM(vocabulary_size)
    for _ in range(iterations):
        for block in blocks():
            em.accumulate(block)
        em.maximise()
    return Translations(em.pairs, em.translation)


def prepared_table(learned: Translations, settings: TableSettings) -> TranslationTable:
    """Return the final table: pruned, rescaled, with its self-translations."""
    return with_self_translation(others_rescaled(learned.pruned(settings.threshold)), settings.p_self)


def cross_fitted_scores(
    tables: Sequence[TranslationTable], fold: np.ndarray, training: TrainingQueries, smoothing: float,
    on_queries: Callable[[int], None] = lambda queries: None,
) -> np.ndarray:  # fmt: skip
    """Return (pairs,) float32 Model 1 log-scores per query token, each query scored by the table of its fold."""
    scores = np.zeros(len(training.candidates.values), np.float32)
    all_pairs = Ragged(training.candidates.offsets, np.arange(len(scores)))
    for number, table in enumerate(tables):
        members = np.flatnonzero(fold == number)
        for first in range(0, len(members), QUERIES_PER_BLOCK):
            rows = members[first : first + QUERIES_PER_BLOCK]
            queries, candidates = training.queries.take(rows), training.candidates.take(rows)
            alone = model1_scores(table, training.forward, queries, candidates, smoothing)
            scores[all_pairs.take(rows).values] = per_query_token(alone, queries, candidates)
            on_queries(len(rows))
    return scores


def hard_negatives(training: TrainingQueries, scores: np.ndarray, depth: int) -> Ragged:
    """Return for each query the non-relevant candidates among its `depth` best by `scores`, best first.

    Queries without a relevant candidate have none: there is nothing to rank above the others.
    """
    candidates = training.candidates
    rows = candidates.row_numbers()
    order = np.lexsort((-scores, rows))
    judged = np.bincount(rows, training.relevant, candidates.rows) > 0
    kept = (candidates.positions() < depth) & ~training.relevant[order] & judged[rows]
    return Ragged(offsets_of(np.bincount(rows[kept], minlength=candidates.rows)), candidates.values[order][kept])
