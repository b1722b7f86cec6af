"""The blocks and shortcuts of T(q|d) give the values and gradients of the paper's formula, written out pair by pair."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lexical.batches import RankingBatch
from lexical.index.ragged import Ragged, ragged
from lexical.model1.distinct_pairs import distinct_pairs
from lexical.model1.table_files import load_table
from lightning_modules.neural_model1 import network as translation_network
from lightning_modules.neural_model1 import pair_logits
from lightning_modules.neural_model1.export import ExportSettings, export_table
from lightning_modules.neural_model1.network import CosineTranslation, TranslationNetwork, start_as_similarity
from lightning_modules.neural_model1.ranker import NNModel1, NNModel1Cosine
from tests.fixtures.tiny_collections import TinyCollection, seeded_collection

SIZES = [(1, 1, 1), (3, 5, 7), (4, 4, 8), (4, 9, 9), (6, 11, 40), (5, 30, 150)]  # query tokens, document tokens, pairs

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pairs a block: with some of SIZES one block, a full one, several and a partial one at the end."""
    monkeypatch.setattr(pair_logits, "BLOCK", 8)


def network_of(seed: int = 0, hadamard: bool = True) -> TranslationNetwork:
    torch.manual_seed(seed)
    return TranslationNetwork(embedding=8, projection=6, hidden=(5, 4), dropout=0.0, hadamard=hadamard)


def inputs_of(queries: int, documents: int, pairs: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_q, x_d and the pairs; in no order, some of them twice."""
    generator = torch.Generator().manual_seed(seed)
    x_q, x_d = (torch.randn(n, 6, generator=generator).requires_grad_() for n in (queries, documents))
    pair_query = torch.randint(queries, (pairs,), generator=generator)
    return x_q, x_d, pair_query, torch.randint(documents, (pairs,), generator=generator)


def plain_translation(network: TranslationNetwork, q: Tensor, d: Tensor) -> Tensor:
    """T of one pair of vectors."""
    hidden = torch.relu(network.f1(torch.cat([q, d, q * d] if network.hadamard else [q, d])))
    return torch.sigmoid(network.f3(torch.relu(network.f2(hidden))))[0]


def all_plain(network: TranslationNetwork, x_q: Tensor, x_d: Tensor, query: Tensor, document: Tensor) -> Tensor:
    pairs = zip(query.tolist(), document.tolist(), strict=True)
    return torch.stack([plain_translation(network, x_q[q], x_d[d]) for q, d in pairs])


def behind(network: TranslationNetwork) -> list[Tensor]:
    """The parameters behind the token vectors."""
    return [one for layer in (network.f1, network.f2, network.f3) for one in layer.parameters()]


def assert_same_gradients(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """To 1e-4 of the largest of a tensor; a sum over pairs that cancels out is no better than its summands are."""
    assert any(one.abs().max() > 1e-3 for one in expected)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-4 * other.abs().max() + 1e-7


# ------------------------------------------------------------------------------------------------ the network


@pytest.mark.parametrize("hadamard", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_probabilities_equal_the_formula(small_blocks: None, sizes: tuple[int, int, int], hadamard: bool) -> None:
    network, inputs = network_of(hadamard=hadamard), inputs_of(*sizes)
    found = network(*inputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, all_plain(network, *inputs), rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SIZES), st.sampled_from([0.0, 0.5, 0.9]), st.integers(0, 99), st.booleans())
def test_gradients_equal_plain_autograd(sizes: tuple[int, int, int], zeros: float, seed: int, hadamard: bool) -> None:
    """Most gradients may be zero: the backward pass leaves their pairs out."""
    network, inputs = network_of(seed, hadamard), inputs_of(*sizes, seed)
    torch.nn.init.normal_(network.f3.weight)  # so that the gradients that come back are not all small
    grad = torch.randn(sizes[2]) * (torch.rand(sizes[2]) >= zeros)
    grad[0] = 1.0
    wanted = [*inputs[:2], *behind(network)]
    expected = torch.autograd.grad(all_plain(network, *inputs), wanted, grad)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_logits, "BLOCK", 8)
        assert_same_gradients(torch.autograd.grad(network(*inputs), wanted, grad), expected)


@pytest.mark.parametrize("hadamard", [True, False])
def test_the_operations_of_a_gpu_give_the_values_and_gradients_of_the_kernels(
    hadamard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, inputs = network_of(hadamard=hadamard), inputs_of(5, 30, 150)
    weights = torch.randn(150, generator=torch.Generator().manual_seed(1)) * (torch.arange(150) % 3 > 0)
    found = []
    for logits in (pair_logits.pair_logits, pair_logits.plain_logits):
        monkeypatch.setattr(translation_network, "pair_logits", logits)
        values = network(*inputs)
        found.append((values, torch.autograd.grad((values * weights).sum(), [*inputs[:2], *behind(network)])))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert_same_gradients(found[0][1], found[1][1])


@pytest.mark.usefixtures("torch_threads")
def test_several_threads_compute_what_one_does(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_logits, "LEAST", 16)
    network, inputs = network_of(), inputs_of(5, 30, 150)
    found = []
    for threads in (1, 3, 3):
        torch.set_num_threads(threads)
        values = network(*inputs)
        found.append((values, torch.autograd.grad(values.sum(), [*inputs[:2], *behind(network)])))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert_same_gradients(found[0][1], found[1][1])
    for one, other in zip(found[1][1], found[2][1], strict=True):
        assert torch.equal(one, other)  # with the same number of threads to the last bit


def test_where_no_pair_has_a_gradient_nothing_is_added(small_blocks: None) -> None:
    network, inputs = network_of(), inputs_of(5, 30, 150)
    wanted = [*inputs[:2], *behind(network)]
    found = torch.autograd.grad(network(*inputs), wanted, torch.zeros(150))
    assert [one.shape for one in found] == [one.shape for one in wanted]
    assert all(one.eq(0).all() for one in found)


def test_there_may_be_no_pair_at_all() -> None:
    network = network_of()
    x_q, x_d, query, document = inputs_of(2, 3, 0)
    found = network(x_q, x_d, query, document)
    assert found.shape == (0,) and found.dtype == torch.float32
    assert all(one.eq(0).all() for one in torch.autograd.grad(found.sum(), [x_q, x_d, *behind(network)]))


def test_the_size_of_the_blocks_changes_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = network_of(), inputs_of(5, 30, 150)
    whole = network(*inputs)
    for size in (1, 7, 150, 151):
        monkeypatch.setattr(pair_logits, "BLOCK", size)
        torch.testing.assert_close(network(*inputs), whole, rtol=1e-6, atol=1e-6)


def test_one_block_after_the_other_does_not_disturb_a_later_backward_pass(small_blocks: None) -> None:
    """Two forward passes, then both backward passes: each must see its own layers."""
    network, first, second = network_of(), inputs_of(5, 30, 150, seed=1), inputs_of(5, 30, 150, seed=2)
    alone = [torch.autograd.grad(network(*one).sum(), [*one[:2], *behind(network)]) for one in (first, second)]
    sums = [network(*one).sum() for one in (first, second)]
    for inputs, total, expected in zip((first, second), sums, alone, strict=True):
        for one, other in zip(torch.autograd.grad(total, [*inputs[:2], *behind(network)]), expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("hadamard", [True, False])
@pytest.mark.parametrize("documents", [1, 8, 11, 16])
def test_rows_equal_the_pairs(documents: int, hadamard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of eight document tokens, the last one partial, and in one."""
    network = network_of(hadamard=hadamard)
    x_q, x_d, _, _ = inputs_of(5, documents, 1)
    everything = torch.cartesian_prod(torch.arange(5), torch.arange(documents)).T
    with torch.inference_mode():
        expected = network(x_q, x_d, everything[0], everything[1]).view(5, documents)
        for size in (8, 1024):
            wide = network.query.project.out_features + network.f2.in_features + network.f3.in_features
            monkeypatch.setattr(translation_network, "CACHE", {"cpu": size * wide})
            found = torch.stack([row.clone() for row in network.rows(x_q, x_d)])
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_rows_without_document_tokens_are_empty() -> None:
    with torch.inference_mode():
        rows = [row.clone() for row in network_of().rows(torch.randn(2, 6), torch.zeros(0, 6))]
    assert [row.shape for row in rows] == [(0,), (0,)]


def test_token_vectors_equal_the_formula() -> None:
    """P(tanh(layer_norm(e))); with dropout, other values in training and these in evaluation."""
    torch.manual_seed(0)
    vectors = translation_network.TokenVectors(embedding=8, projection=6, dropout=0.5)
    e = torch.randn(9, 8)
    normed = (e - e.mean(1, keepdim=True)) / (e.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    expected = torch.tanh(normed) @ vectors.project.weight.T + vectors.project.bias
    assert not torch.allclose(vectors(e), expected, atol=0.05)
    torch.testing.assert_close(vectors.eval()(e), expected, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------ the cosine


@pytest.mark.parametrize("sizes", SIZES)
def test_the_cosine_equals_that_of_torch(sizes: tuple[int, int, int]) -> None:
    network = CosineTranslation(embedding=8, projection=6, dropout=0.0)
    x_q, x_d, query, document = inputs_of(*sizes)
    expected = 0.5 * (F.cosine_similarity(x_q[query], x_d[document]) + 1)
    found = network(x_q, x_d, query, document)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    grad = torch.randn(sizes[2], generator=torch.Generator().manual_seed(3))
    assert_same_gradients(torch.autograd.grad(found, [x_q, x_d], grad), torch.autograd.grad(expected, [x_q, x_d], grad))


def test_rows_of_the_cosine_equal_the_pairs() -> None:
    network = CosineTranslation(embedding=8, projection=6, dropout=0.0)
    x_q, x_d, _, _ = inputs_of(5, 30, 1)
    everything = torch.cartesian_prod(torch.arange(5), torch.arange(30)).T
    with torch.inference_mode():
        expected = network(x_q, x_d, everything[0], everything[1]).view(5, 30)
        torch.testing.assert_close(torch.stack(list(network.rows(x_q, x_d))), expected, rtol=1e-6, atol=1e-6)


def test_the_cosine_by_hand() -> None:
    """The same direction, a right angle, the opposite direction: whatever the lengths are."""
    network = CosineTranslation(embedding=1, projection=2, dropout=0.0)
    x_q, x_d = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.5, 0.0], [0.0, 9.0], [-2.0, 0.0]])
    found = network(x_q, x_d, torch.zeros(3, dtype=torch.int64), torch.arange(3))
    assert found.tolist() == [1.0, 0.5, 0.0]


# ------------------------------------------------------------------------------------------------ half precision


@pytest.mark.parametrize("kind", ["network", "no_hadamard", "cosine"])
def test_autocast_gives_float32_probabilities_and_gradients(small_blocks: None, kind: str) -> None:
    seed = 1  # with some seeds a relu is on in one precision and off in the other
    network = CosineTranslation(8, 6, 0.0) if kind == "cosine" else network_of(seed, hadamard=kind == "network")
    generator = torch.Generator().manual_seed(0)
    tokens_q, tokens_d = (torch.randn(n, 8, generator=generator).requires_grad_() for n in (5, 30))
    _, _, query, document = inputs_of(5, 30, 150)

    def probabilities() -> Tensor:
        return network(network.query(tokens_q), network.document(tokens_d), query, document)

    wanted = [tokens_q, tokens_d, *network.parameters()]
    exact = probabilities()
    expected = torch.autograd.grad(exact.sum(), wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = probabilities()
        assert network.query(tokens_q).dtype == torch.bfloat16  # else this test would test nothing
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() <= 0.02
    assert not torch.equal(found, exact)
    for one, other in zip(torch.autograd.grad(found.sum(), wanted), expected, strict=True):
        assert one.dtype == torch.float32 and one.isfinite().all()
        assert (one - other).abs().max() <= 0.1 * other.abs().max() + 1e-4


# ------------------------------------------------------------------------------------------------ P(Q|D)

WORDS = 30
CANDIDATES = ragged([[0, 1, 2], [], [3, 3], [4, 5], [6, 7, 0], [1], [2, 5]], np.int32)


def texts() -> TinyCollection:
    """With repeated and unknown words in queries, an empty query, an empty document."""
    collection = seeded_collection(documents=8, queries=0, vocabulary_size=WORDS)
    documents = [[], *collection.documents[1:]]
    queries = [[3, 1, 3], [2], [0, -1, 7], [29, 0, 0, 0], [5, 6], [], [-1]]
    return collection._replace(documents=documents, queries=queries)


KINDS: list[tuple[type[NNModel1], dict[str, Any]]] = [
    (NNModel1, {}), (NNModel1, {"hadamard": False}), (NNModel1, {"p_self": 0.0}), (NNModel1Cosine, {}),
]  # fmt: skip


def model_of(kind: type[NNModel1] = NNModel1, **changes: Any) -> NNModel1:
    settings = {"embedding": 8, "projection": 6, "hidden": [5, 4], "dropout": 0.0, "p_self": 0.05, "start": 0.1}
    model = kind(**(settings | changes))
    model.use_vocabulary([f"w{i}" for i in range(WORDS)])
    return model


def batch_of(collection: TinyCollection, candidates: Ragged = CANDIDATES) -> RankingBatch:
    return RankingBatch(collection.forward_index(), collection.query_tokens(), candidates)


def log_probabilities(model: NNModel1, batch: RankingBatch) -> Tensor:
    return model.log_probabilities(model.transfer_batch_to_device(distinct_pairs(batch), torch.device("cpu"), 0))


def plain_log_probability(model: NNModel1, query: list[int], document: list[int]) -> Tensor:
    """Token by token of query and document, each T by the whole network; in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for q in query:
        p = torch.zeros((), dtype=torch.float64)
        for d in document if q >= 0 else []:
            if q == d:
                p = p + model.p_self / len(document)
                continue
            x_q = model.network.query(model.embed_q.weight[q : q + 1])[0]
            x_d = model.network.document(model.embed_d.weight[d : d + 1])[0]
            if isinstance(model.network, TranslationNetwork):
                translation = plain_translation(model.network, x_q, x_d)
            else:
                translation = 0.5 * (F.cosine_similarity(x_q, x_d, dim=0) + 1)
            p = p + (1 - model.p_self) * translation.double() / len(document)
        total = total + torch.log(p if p > 1e-8 else torch.tensor(1e-8, dtype=torch.float64))
    return total


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_log_probabilities_and_all_gradients_equal_the_formula(kind: type[NNModel1], changes: dict[str, Any]) -> None:
    model, collection = model_of(kind, **changes), texts()
    pairs = zip(CANDIDATES.row_numbers(), CANDIDATES.values, strict=True)
    expected = torch.stack(
        [plain_log_probability(model, collection.queries[q], collection.documents[d]) for q, d in pairs]
    )
    found = log_probabilities(model, batch_of(collection))
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-5)
    assert found[0].item() == pytest.approx(3 * math.log(1e-8))  # an empty document
    assert found[-3].item() == 0  # an empty query
    weights = torch.randn(len(found), generator=torch.Generator().manual_seed(0))
    wanted = list(model.parameters())
    expected_grads = torch.autograd.grad(expected, wanted, weights.double())
    assert all(one.abs().max() > 0 for one in expected_grads)
    assert_same_gradients(torch.autograd.grad(found, wanted, weights), expected_grads)


def test_sparse_gradients_of_the_embeddings_are_the_dense_ones() -> None:
    model, batch = model_of(), batch_of(texts())
    embeddings = [model.embed_q.weight, model.embed_d.weight]
    dense = torch.autograd.grad(log_probabilities(model, batch).sum(), embeddings)
    model.embed_q.sparse = model.embed_d.sparse = True
    sparse = torch.autograd.grad(log_probabilities(model, batch).sum(), embeddings)
    for one, other in zip(sparse, dense, strict=True):
        assert one.is_sparse and torch.equal(one.to_dense(), other)


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_scores_are_log_probabilities_per_query_token(kind: type[NNModel1], changes: dict[str, Any]) -> None:
    model, collection = model_of(kind, **changes).eval(), texts()
    lengths = np.array([len(query) for query in collection.queries])[CANDIDATES.row_numbers()]
    with torch.inference_mode():
        expected = log_probabilities(model, batch_of(collection)).numpy() / np.maximum(1, lengths)
    found = model.score(batch_of(collection))
    assert found.dtype == np.float32 and len(found) == len(CANDIDATES.values)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_scores_under_autocast_are_nearly_the_same(kind: type[NNModel1], changes: dict[str, Any]) -> None:
    """Lightning validates under autocast when it trains with precision=bf16-mixed."""
    model, batch = model_of(kind, **changes).eval(), batch_of(texts())
    expected = model.score(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_allclose(model.score(batch), expected, rtol=0.02)


def test_an_untrained_network_starts_where_it_is_told() -> None:
    model = model_of()
    tokens = np.arange(WORDS)
    rows = np.stack([row.copy() for row in model.translation_rows(tokens, tokens)])
    np.testing.assert_array_equal(np.diag(rows), np.float32(0.05))
    others = rows[~np.eye(WORDS, dtype=bool)]
    assert 0.95 * 0.05 < others.min() < others.max() < 0.95 * 0.2  # start = 0.1, about


@pytest.mark.parametrize("changes", [{"hadamard": False}, {"p_self": 0.0}])
def test_exported_rows_equal_the_formula(changes: dict[str, Any], tmp_path: Path) -> None:
    """Every T(q|d) of the table; where T(t|t) is 0 it is one of the values that are dropped."""
    model = model_of(**changes).eval()
    tokens = [f"w{i}" for i in range(WORDS)]
    export_table(model, tokens, np.ones(WORDS, bool), ExportSettings(threshold=1e-6), tmp_path / "table", {})
    found = np.zeros((WORDS, WORDS), np.float32)
    rows, probabilities = load_table(tmp_path / "table").table
    found[rows.row_numbers(), rows.values] = probabilities
    with torch.inference_mode():
        for q in range(WORDS):  # a document of one token: P(q|D) = T(q|d)
            expected = [math.exp(plain_log_probability(model, [q], [d])) for d in range(WORDS)]
            expected[q] = model.p_self
            np.testing.assert_allclose(found[q], expected, rtol=1e-5)


def test_a_start_without_the_product_is_the_same_everywhere_and_no_unit_is_dead() -> None:
    network = network_of(hadamard=False)
    start_as_similarity(network, 0.1)
    x_q, x_d, query, document = inputs_of(5, 30, 150)
    assert 0.05 < network(x_q, x_d, query, document).min() < network(x_q, x_d, query, document).max() < 0.2
    assert (network.f1.weight.abs().sum(dim=1) > 0).all() and (network.f2.weight.abs().sum(dim=0) > 0).all()


def test_weights_depend_on_the_seed_alone() -> None:
    first, second, third = (NNModel1(embedding=4, projection=3, hidden=[2, 2]) for _ in range(3))
    third.seed = 2
    for model in (first, second, third):
        torch.rand(1)  # whatever was drawn before
        model.use_vocabulary(["a", "b"])
    assert first.fingerprint() == second.fingerprint() != third.fingerprint()
