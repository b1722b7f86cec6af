"""log P(Q|D) of the neural Model 1, its gradients, scores and exported rows against the formula, token by token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from callbacks.sparse_export import ExportSettings, export_table
from lexical.batches import RankingBatch
from lexical.index.ragged import Ragged, ragged
from lexical.model1.distinct_pairs import distinct_pairs
from lexical.model1.table_files import load_table
from lightning_modules import NeuralModel1, NeuralModel1Cosine
from lightning_modules.neural_model1.network import TranslationNetwork
from tests.fixtures.tiny_collections import TinyCollection, seeded_collection

WORDS = 30
CANDIDATES = ragged([[0, 1, 2], [], [3, 3], [4, 5], [6, 7, 0], [1], [2, 5]], np.int32)
KINDS: list[tuple[type[NeuralModel1], dict[str, Any]]] = [
    (NeuralModel1, {}), (NeuralModel1, {"hadamard": False}), (NeuralModel1, {"p_self": 0.0}),
    (NeuralModel1, {"p_self": None}), (NeuralModel1Cosine, {}), (NeuralModel1Cosine, {"p_self": None}),
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


def texts() -> TinyCollection:
    """Repeated and unknown words in queries, an empty query, an empty document."""
    collection = seeded_collection(documents=8, queries=0, vocabulary_size=WORDS)
    documents = [[], *collection.documents[1:]]
    queries = [[3, 1, 3], [2], [0, -1, 7], [29, 0, 0, 0], [5, 6], [], [-1]]
    return collection._replace(documents=documents, queries=queries)


def model_of(kind: type[NeuralModel1] = NeuralModel1, **changes: Any) -> NeuralModel1:
    settings = {"embedding": 8, "projection": 6, "hidden": [5, 4], "dropout": 0.0, "p_self": 0.05, "start": 0.1}
    model = kind(**(settings | changes))
    model.build_for([f"w{i}" for i in range(WORDS)])
    return model


def batch_of(collection: TinyCollection, candidates: Ragged = CANDIDATES) -> RankingBatch:
    return RankingBatch(collection.forward_index(), collection.query_tokens(), candidates)


def log_probabilities(model: NeuralModel1, batch: RankingBatch) -> Tensor:
    return model.log_probabilities(model.transfer_batch_to_device(distinct_pairs(batch), torch.device("cpu"), 0))


def formula(model: NeuralModel1, query: list[int], document: list[int]) -> Tensor:
    """log P(Q|D) by its definition, each T by the whole network; in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for q in query:
        p = torch.zeros((), dtype=torch.float64)
        for d in document if q >= 0 else []:
            if q == d and model.p_self is not None:
                p = p + model.p_self / len(document)
                continue
            e_q, e_d = model.embed_q.weight[q], model.embed_d.weight[d]
            if isinstance(model.network, TranslationNetwork):
                network = model.network
                x_q, x_d = network.query(e_q[None])[0], network.document(e_d[None])[0]
                hidden = torch.relu(network.f1(torch.cat([x_q, x_d, x_q * x_d] if network.hadamard else [x_q, x_d])))
                translation = torch.sigmoid(network.f3(torch.relu(network.f2(hidden))))[0]
            else:
                translation = 0.5 * (F.cosine_similarity(e_q, e_d, dim=0) + 1)
            p = p + (1 - (model.p_self or 0.0)) * translation.double() / len(document)
        total = total + torch.log(p if p > 1e-8 else torch.tensor(1e-8, dtype=torch.float64))
    return total


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_log_probabilities_and_all_gradients_equal_the_formula(
    kind: type[NeuralModel1], changes: dict[str, Any]
) -> None:
    model, collection = model_of(kind, **changes), texts()
    pairs = zip(CANDIDATES.row_numbers(), CANDIDATES.values, strict=True)
    expected = torch.stack([formula(model, collection.queries[q], collection.documents[d]) for q, d in pairs])
    values = log_probabilities(model, batch_of(collection))
    np.testing.assert_allclose(values.detach().numpy(), expected.detach().numpy(), rtol=1e-5)
    assert values[0].item() == pytest.approx(3 * math.log(1e-8))  # an empty document
    assert values[-3].item() == 0  # an empty query
    weights = torch.randn(len(values), generator=torch.Generator().manual_seed(0))
    parameters = list(model.parameters())
    expected_gradients = torch.autograd.grad(expected, parameters, weights.double())
    for gradient, other in zip(torch.autograd.grad(values, parameters, weights), expected_gradients, strict=True):
        assert other.abs().max() > 0
        assert (gradient - other).abs().max() <= 1e-4 * other.abs().max() + 1e-7


def test_sparse_gradients_of_the_embeddings_are_the_dense_ones() -> None:
    model, batch = model_of(), batch_of(texts())
    embeddings = [model.embed_q.weight, model.embed_d.weight]
    dense = torch.autograd.grad(log_probabilities(model, batch).sum(), embeddings)
    model.embed_q.sparse = model.embed_d.sparse = True
    sparse = torch.autograd.grad(log_probabilities(model, batch).sum(), embeddings)
    for gradient, other in zip(sparse, dense, strict=True):
        assert gradient.is_sparse and torch.equal(gradient.to_dense(), other)


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_scores_are_log_probabilities_per_query_token(kind: type[NeuralModel1], changes: dict[str, Any]) -> None:
    model, collection = model_of(kind, **changes).eval(), texts()
    lengths = np.array([len(query) for query in collection.queries])[CANDIDATES.row_numbers()]
    with torch.inference_mode():
        expected = log_probabilities(model, batch_of(collection)).numpy() / np.maximum(1, lengths)
    scores = model.score(batch_of(collection))
    assert scores.dtype == np.float32 and len(scores) == len(CANDIDATES.values)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_scores_under_autocast_are_nearly_the_same(kind: type[NeuralModel1], changes: dict[str, Any]) -> None:
    """Lightning validates under autocast when it trains with precision=bf16-mixed."""
    model, batch = model_of(kind, **changes).eval(), batch_of(texts())
    expected = model.score(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_allclose(model.score(batch), expected, rtol=0.02)


def test_an_untrained_network_starts_at_the_given_level() -> None:
    model = model_of()
    tokens = np.arange(WORDS)
    rows = np.stack([row.copy() for row in model.translation_rows(tokens, tokens)])
    np.testing.assert_array_equal(np.diag(rows), np.float32(0.05))
    others = rows[~np.eye(WORDS, dtype=bool)]
    assert 0.95 * 0.05 < others.min() < others.max() < 0.95 * 0.2  # start = 0.1, about


@pytest.mark.parametrize("changes", [{"hadamard": False}, {"p_self": 0.0}, {"p_self": None}])
def test_exported_rows_equal_the_formula(changes: dict[str, Any], tmp_path: Path) -> None:
    """Every T(q|d) of the table; where T(t|t) is 0 it is one of the values that are dropped."""
    model = model_of(**changes).eval()
    export_table(model, np.ones(WORDS, bool), ExportSettings(threshold=1e-6), tmp_path / "table")
    table = np.zeros((WORDS, WORDS), np.float32)
    rows, probabilities = load_table(tmp_path / "table").table
    table[rows.row_numbers(), rows.values] = probabilities
    with torch.inference_mode():
        for q in range(WORDS):  # a document of one token: P(q|D) = T(q|d)
            expected = [math.exp(formula(model, [q], [d])) for d in range(WORDS)]
            if model.p_self is not None:
                expected[q] = model.p_self
            np.testing.assert_allclose(table[q], expected, rtol=1e-5)


def test_weights_depend_on_the_seed_alone() -> None:
    models = [NeuralModel1(embedding=4, projection=3, hidden=[2, 2]) for _ in range(3)]
    models[2].seed = 2
    for model in models:
        torch.rand(1)  # whatever was drawn before
        model.build_for(["a", "b"])
    first, second, third = (model.fingerprint() for model in models)
    assert first == second != third


def test_a_compiled_network_computes_the_same() -> None:
    plain, compiled, batch = model_of(), model_of(compile_network=True), batch_of(texts())
    torch.testing.assert_close(log_probabilities(compiled, batch), log_probabilities(plain, batch))
    assert compiled.state_dict().keys() == plain.state_dict().keys()
