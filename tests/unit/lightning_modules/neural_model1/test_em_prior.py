"""The correction of EM's table: loss, gradients, scores and exported rows against the formula, token by token."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from callbacks.sparse_export import ExportSettings, export_table
from lexical.batches import RankingBatch
from lexical.index.ragged import ragged
from lexical.model1.cross_fitting import CrossFitted
from lexical.model1.scorer import UNSEEN
from lexical.model1.table import TranslationTable, rows_of_entries
from lexical.model1.table_files import load_table
from lexical.model1.tuning import TableSettings
from lightning_modules import NeuralModel1EM
from lightning_modules.neural_model1.em_prior import PRIOR_FLOOR
from tests.fixtures.tiny_collections import TinyCollection, seeded_collection

WORDS, FOLDS, SMOOTHING = 20, 2, 0.1
ROWS = np.array([5, 2, 4])  # of the queries in the training set
FOLD = np.array([0, 1, 1, 0, 0, 1])  # of each training query
LISTS = ragged([[0, 1, 2], [3, 4], [5, 1, 0]], np.int64)  # the first document of each is relevant

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def collection() -> TinyCollection:
    """Repeated and unknown words in queries."""
    collection = seeded_collection(documents=6, queries=0, vocabulary_size=WORDS, seed=3)
    documents = [document or [1, 2] for document in collection.documents]
    return collection._replace(documents=documents, queries=[[3, 1, 3], [0, -1, 7], [2, 0]])


def random_table(seed: int) -> TranslationTable:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((WORDS, WORDS)) < 0.4, rng.random((WORDS, WORDS)) * 0.3, 0).astype(np.float32)
    q, d = np.nonzero(dense)
    return TranslationTable(*rows_of_entries(q, d, dense[q, d], WORDS))


@pytest.fixture
def ranker() -> NeuralModel1EM:
    ranker = NeuralModel1EM(dimensions=4, negatives=2)
    ranker.build_for([f"w{i}" for i in range(WORDS)])
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in ranker.correction.parameters():
            parameter.normal_(generator=generator).mul_(0.5)
    tables = [random_table(seed) for seed in range(FOLDS + 1)]
    negatives = ragged([[]] * len(FOLD), np.int32)
    settings = TableSettings(threshold=1e-3, p_self=0.3, smoothing=SMOOTHING)
    ranker.use_prior(CrossFitted(tables[0], tables[1:], FOLD, negatives, settings, 0.4))
    ranker.start_weights([])
    return ranker


def dense(table: TranslationTable) -> np.ndarray:
    values = np.zeros((WORDS, WORDS))
    values[table.rows.row_numbers(), table.rows.values] = table.probabilities
    return values


def translation(ranker: NeuralModel1EM, table: TranslationTable, q: int, d: int) -> float:
    """T(q|d) by its definition, in float64."""
    f = ranker.correction
    weights = {name: getattr(f, name).weight.detach().double().numpy() for name in ("a", "b", "s", "x_q", "x_d")}
    correction = weights["a"][q, 0] + weights["b"][d, 0] + weights["x_q"][q] @ weights["x_d"][d]
    if q == d:
        correction += weights["s"][q, 0]
    prior = max(dense(table)[q, d], PRIOR_FLOOR)
    return 1 / (1 + math.exp(-(math.log(prior / (1 - prior)) + correction)))


def log_probability(
    ranker: NeuralModel1EM, table: TranslationTable, collection: TinyCollection, query: list[int], document: list[int]
) -> float:
    """log P(Q|D) by its definition, in float64."""
    frequency = np.bincount(np.concatenate(collection.documents), minlength=WORDS)
    total = 0.0
    for q in query:
        background = frequency[q] / frequency.sum() if q >= 0 and frequency[q] else UNSEEN
        translated = sum(translation(ranker, table, q, d) for d in document) / len(document) if q >= 0 else 0.0
        total += math.log((1 - SMOOTHING) * translated + SMOOTHING * background)
    return total


def batch_of(collection: TinyCollection) -> RankingBatch:
    first_stage = np.linspace(0.1, 0.9, len(LISTS.values)).astype(np.float32)
    return RankingBatch(collection.forward_index(), collection.query_tokens(), LISTS, None, ROWS, first_stage)


def weighted_loss(ranker: NeuralModel1EM, collection: TinyCollection) -> tuple[list[float], float]:
    """The cross entropies, and their sum with the weights p ** focus, by the formula."""
    batch, losses = batch_of(collection), []
    assert batch.first_stage is not None
    tau, w = ranker.log_tau.exp().item(), ranker.log_w.exp().item()
    for i, query in enumerate(collection.queries):
        table = random_table(1 + FOLD[ROWS[i]])
        scores = []
        for position, document in enumerate(LISTS.row(i)):
            log_p = log_probability(ranker, table, collection, query, collection.documents[document])
            first = float(batch.first_stage[LISTS.offsets[i] + position])
            scores.append(tau * (first + w * log_p / len(query)))
        losses.append(math.log(sum(map(math.exp, scores))) - scores[0])
    return losses, sum(math.exp(-ranker.focus * loss) * loss for loss in losses)


def test_the_loss_is_the_formula_with_the_table_of_each_query_s_fold(
    ranker: NeuralModel1EM, collection: TinyCollection
) -> None:
    lists = ranker.transfer_batch_to_device(ranker.collate(batch_of(collection)), torch.device("cpu"), 0)
    losses, weighted = ranker.losses(lists)
    expected = weighted_loss(ranker, collection)
    np.testing.assert_allclose(losses.numpy(), expected[0], rtol=1e-4)
    assert weighted.item() == pytest.approx(expected[1], rel=1e-4)


def test_gradients_are_those_of_the_weighted_loss_with_constant_weights(
    ranker: NeuralModel1EM, collection: TinyCollection
) -> None:
    """Central differences of sum of p_0 ** focus * loss, p_0 fixed, in some weights of each kind."""
    lists = ranker.transfer_batch_to_device(ranker.collate(batch_of(collection)), torch.device("cpu"), 0)
    ranker.losses(lists)[1].backward()
    constant = [math.exp(-ranker.focus * loss) for loss in weighted_loss(ranker, collection)[0]]
    f = ranker.correction
    checked = {
        "a": (f.a.weight, (3, 0)), "b": (f.b.weight, (1, 0)), "s": (f.s.weight, (0, 0)),
        "x_q": (f.x_q.weight, (3, 2)), "x_d": (f.x_d.weight, (2, 1)), "tau": (ranker.log_tau, ()),
        "w": (ranker.log_w, ()),
    }  # fmt: skip
    for name, (weight, cell) in checked.items():
        values, step, start = [], 1e-3, weight.data[cell].item()
        for change in (step, -step):
            weight.data[cell] = start + change
            losses = weighted_loss(ranker, collection)[0]
            values.append(sum(factor * loss for factor, loss in zip(constant, losses, strict=True)))
        weight.data[cell] = start
        assert weight.grad is not None
        assert weight.grad[cell].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-3, abs=1e-5), name


def test_scores_and_evidence_use_the_table_of_all_training_queries(
    ranker: NeuralModel1EM, collection: TinyCollection
) -> None:
    ranker.eval()
    documents = ragged(collection.documents, np.int32)
    batch = batch_of(collection)._replace(sequences=documents)
    expected = [
        log_probability(ranker, random_table(0), collection, query, collection.documents[document]) / len(query)
        for i, query in enumerate(collection.queries)
        for document in LISTS.row(i)
    ]
    np.testing.assert_allclose(ranker.score(batch), expected, rtol=1e-4)
    np.testing.assert_allclose([item.score for item in ranker.evidence(batch)], expected, rtol=1e-4)


def test_exported_rows_are_t(ranker: NeuralModel1EM, tmp_path: Path) -> None:
    export_table(ranker, np.ones(WORDS, bool), ExportSettings(threshold=1e-3), tmp_path / "table")
    saved = load_table(tmp_path / "table")
    assert saved.meta["scored_with"]["smoothing"] == SMOOTHING
    expected = np.array([[translation(ranker, random_table(0), q, d) for d in range(WORDS)] for q in range(WORDS)])
    expected[expected < 1e-3] = 0
    np.testing.assert_allclose(dense(saved.table), expected, rtol=1e-4, atol=1e-6)


def test_a_network_that_corrects_nothing_has_the_prior(ranker: NeuralModel1EM) -> None:
    with torch.no_grad():
        for parameter in ranker.correction.parameters():
            parameter.zero_()
    prior = np.maximum(dense(random_table(0)), PRIOR_FLOOR)
    np.testing.assert_allclose(ranker.translations(np.arange(WORDS), np.arange(WORDS)), prior, rtol=1e-5)
