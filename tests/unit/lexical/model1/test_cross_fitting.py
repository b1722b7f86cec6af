"""Cross-fitting: no training query is scored by a table that has seen it; hard negatives by a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from lexical.batches import TrainingQueries
from lexical.index.ragged import Ragged, ragged
from lexical.model1.bitext import BitextOptions, kept_tokens, make_bitext
from lexical.model1.cross_fitting import (
    cross_fitted_scores,
    fold_of,
    hard_negatives,
    learn_translations,
    prepared_table,
)
from lexical.model1.scorer import model1_scores, per_query_token
from lexical.model1.table import TranslationTable
from lexical.model1.tuning import TableSettings
from tests.fixtures.tiny_collections import TinyCollection, seeded_collection

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = TableSettings(threshold=1e-3, p_self=0.3, smoothing=0.1)
FOLDS = 3


@pytest.fixture(scope="module")
def collection() -> TinyCollection:
    return seeded_collection(documents=60, queries=30)


@pytest.fixture(scope="module")
def relevant(collection: TinyCollection) -> Ragged:
    """Query i has the document i, and every third query another one."""
    rows = [[i, i + 30] if i % 3 == 0 else [i] for i in range(len(collection.queries))]
    return ragged(rows, np.int32)


@pytest.fixture(scope="module")
def training(collection: TinyCollection, relevant: Ragged) -> TrainingQueries:
    candidates = collection.all_pairs()
    judged = np.concatenate([np.isin(candidates.row(i), relevant.row(i)) for i in range(candidates.rows)])
    first_stage = np.random.default_rng(0).random(len(judged)).astype(np.float32)
    return TrainingQueries(collection.forward_index(), collection.query_tokens(), candidates, first_stage, judged)


def table_of(collection: TinyCollection, relevant: Ragged, rows: np.ndarray) -> TranslationTable:
    """EM on the queries `rows` only."""
    options, forward = BitextOptions(min_documents=1), collection.forward_index()
    documents = ragged(collection.documents, np.int32)
    bitext = make_bitext(collection.query_tokens(), documents, relevant, kept_tokens(forward, options), rows, options)
    return prepared_table(learn_translations(lambda: [bitext], collection.vocabulary_size, 3), SETTINGS)


def test_folds_are_a_partition_into_nearly_equal_parts_that_depend_on_the_seed() -> None:
    fold = fold_of(10, 4, seed=1)
    assert sorted(np.bincount(fold)) == [2, 2, 3, 3]
    assert np.array_equal(fold, fold_of(10, 4, seed=1))
    assert not np.array_equal(fold_of(1000, 4, seed=1), fold_of(1000, 4, seed=2))


def test_a_query_s_score_does_not_change_with_what_it_would_teach(
    collection: TinyCollection, relevant: Ragged, training: TrainingQueries
) -> None:
    """Another relevant document of query 0, which its own fold learns from, leaves its scores alone."""
    fold = fold_of(len(collection.queries), FOLDS, seed=1)
    rows = [relevant.row(i).tolist() for i in range(relevant.rows)]
    other = ragged([[59 - document for document in rows[0]], *rows[1:]], np.int32)
    scores = []
    for judged in (relevant, other):
        tables = [table_of(collection, judged, np.flatnonzero(fold != number)) for number in range(FOLDS)]
        scores.append(cross_fitted_scores(tables, fold, training, SETTINGS.smoothing))
    own = training.candidates.row_numbers() == 0
    assert np.array_equal(scores[0][own], scores[1][own])
    assert not np.array_equal(scores[0], scores[1]), "it has taught the tables of other folds"


def test_each_query_is_scored_by_the_table_of_its_fold(
    collection: TinyCollection, relevant: Ragged, training: TrainingQueries
) -> None:
    fold = fold_of(len(collection.queries), FOLDS, seed=1)
    tables = [table_of(collection, relevant, np.flatnonzero(fold != number)) for number in range(FOLDS)]
    scores = cross_fitted_scores(tables, fold, training, SETTINGS.smoothing)
    forward, queries, candidates = training[:3]
    for number, table in enumerate(tables):
        of_all = per_query_token(
            model1_scores(table, forward, queries, candidates, SETTINGS.smoothing), queries, candidates
        )
        own = (fold == number)[candidates.row_numbers()]
        np.testing.assert_allclose(scores[own], of_all[own], rtol=1e-6)


def test_hard_negatives_equal_a_plain_loop(training: TrainingQueries) -> None:
    scores = np.random.default_rng(1).random(len(training.relevant))
    negatives = hard_negatives(training, scores, depth=7)
    for row in range(training.candidates.rows):
        pairs = slice(training.candidates.offsets[row], training.candidates.offsets[row + 1])
        documents, relevant = training.candidates.row(row), training.relevant[pairs]
        best = np.argsort(-scores[pairs])[:7]
        assert negatives.row(row).tolist() == [documents[i] for i in best if not relevant[i]]


def test_a_query_without_a_relevant_candidate_has_no_negatives(training: TrainingQueries) -> None:
    judged = training.relevant & (training.candidates.row_numbers() != 4)
    negatives = hard_negatives(training._replace(relevant=judged), training.first_stage, depth=5)
    assert not len(negatives.row(4))
    assert len(negatives.row(5))
