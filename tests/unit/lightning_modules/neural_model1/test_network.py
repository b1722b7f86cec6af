"""T(q|d) and its shortcuts give the values and gradients of the paper's formula, written out pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_modules.neural_model1 import rows as translation_rows
from lightning_modules.neural_model1.network import CosineTranslation, TokenVectors, TranslationNetwork
from lightning_modules.neural_model1.rows import network_rows, plain_rows

SIZES = [(1, 1, 1), (4, 4, 8), (5, 30, 150)]  # query tokens, document tokens, pairs

pytestmark = pytest.mark.usefixtures("one_thread")


def network_of(seed: int = 0, hadamard: bool = True) -> TranslationNetwork:
    torch.manual_seed(seed)
    return TranslationNetwork(embedding=8, projection=6, hidden=(5, 4), dropout=0.0, hadamard=hadamard)


def inputs_of(queries: int, documents: int, pairs: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x_q, x_d and the pairs, in random order, some of them twice."""
    generator = torch.Generator().manual_seed(seed)
    x_q, x_d = (torch.randn(n, 6, generator=generator).requires_grad_() for n in (queries, documents))
    pair_query = torch.randint(queries, (pairs,), generator=generator)
    return x_q, x_d, pair_query, torch.randint(documents, (pairs,), generator=generator)


def formula(network: TranslationNetwork, q: Tensor, d: Tensor) -> Tensor:
    """T of one pair of vectors."""
    hidden = torch.relu(network.f1(torch.cat([q, d, q * d] if network.hadamard else [q, d])))
    return torch.sigmoid(network.f3(torch.relu(network.f2(hidden))))[0]


def formula_of_all(network: TranslationNetwork, x_q: Tensor, x_d: Tensor, query: Tensor, document: Tensor) -> Tensor:
    pairs = zip(query.tolist(), document.tolist(), strict=True)
    return torch.stack([formula(network, x_q[q], x_d[d]) for q, d in pairs])


@pytest.mark.parametrize("hadamard", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients_equal_the_formula(sizes: tuple[int, int, int], hadamard: bool) -> None:
    network, inputs = network_of(hadamard=hadamard), inputs_of(*sizes)
    torch.nn.init.normal_(network.f3.weight)  # so that not all gradients are small
    values, expected = network(*inputs), formula_of_all(network, *inputs)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)
    layers = [weight for layer in (network.f1, network.f2, network.f3) for weight in layer.parameters()]
    weights = torch.randn(sizes[2], generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad(values, [*inputs[:2], *layers], weights)
    for gradient, other in zip(gradients, torch.autograd.grad(expected, [*inputs[:2], *layers], weights), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


def test_there_may_be_no_pair_at_all() -> None:
    network = network_of()
    values = network(*inputs_of(2, 3, 0))
    assert values.shape == (0,) and values.dtype == torch.float32
    assert all(gradient.eq(0).all() for gradient in torch.autograd.grad(values.sum(), list(network.f1.parameters())))


def test_token_vectors_equal_the_formula() -> None:
    """P(tanh(layer_norm(e))); with dropout, training gives other values and evaluation these."""
    torch.manual_seed(0)
    vectors = TokenVectors(embedding=8, projection=6, dropout=0.5)
    e = torch.randn(9, 8)
    normed = (e - e.mean(1, keepdim=True)) / (e.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    expected = torch.tanh(normed) @ vectors.project.weight.T + vectors.project.bias
    assert not torch.allclose(vectors(e), expected, atol=0.05)
    torch.testing.assert_close(vectors.eval()(e), expected, rtol=1e-5, atol=1e-6)


def test_a_start_without_the_product_is_the_same_everywhere_and_no_unit_is_dead() -> None:
    network = network_of(hadamard=False)
    network.start_as_similarity(0.1)
    values = network(*inputs_of(5, 30, 150))
    assert 0.05 < values.min() < values.max() < 0.2
    assert (network.f1.weight.abs().sum(dim=1) > 0).all() and (network.f2.weight.abs().sum(dim=0) > 0).all()


# --- whole rows


@pytest.mark.parametrize("hadamard", [True, False])
@pytest.mark.parametrize("documents", [1, 64, 150])
def test_rows_equal_the_pairs(documents: int, hadamard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 64 document tokens, the last one partial, and in one block."""
    network = network_of(hadamard=hadamard)
    x_q, x_d, _, _ = inputs_of(5, documents, 1)
    with torch.inference_mode():
        expected = torch.stack(list(plain_rows(network, x_q, x_d)))
        pairs = torch.cartesian_prod(torch.arange(5), torch.arange(documents)).T
        torch.testing.assert_close(expected, network(x_q, x_d, pairs[0], pairs[1]).view(5, documents))
        for cache in (1, 1 << 19):
            monkeypatch.setattr(translation_rows, "CACHE", {"cpu": cache})
            rows = torch.stack([row.clone() for row in network_rows(network, x_q, x_d)])
            torch.testing.assert_close(rows, expected, rtol=1e-6, atol=1e-6)


def test_rows_without_document_tokens_are_empty() -> None:
    with torch.inference_mode():
        rows = [row.clone() for row in network_rows(network_of(), torch.randn(2, 6), torch.zeros(0, 6))]
    assert [row.shape for row in rows] == [(0,), (0,)]


def test_an_edited_forward_is_not_overruled_by_the_fast_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever edits T(q|d) in network.py gets rows of the edited form."""

    def forward(_: TranslationNetwork, x_q: Tensor, x_d: Tensor, query: Tensor, document: Tensor) -> Tensor:
        return torch.sigmoid((x_q[query] * x_d[document]).sum(dim=1))

    monkeypatch.setattr(TranslationNetwork, "forward", forward)
    x_q, x_d, _, _ = inputs_of(3, 7, 1)
    with torch.inference_mode():
        rows = torch.stack([row.clone() for row in network_rows(network_of(), x_q, x_d)])
        torch.testing.assert_close(rows, torch.sigmoid(x_q @ x_d.T))


# --- the cosine


@pytest.mark.parametrize("sizes", SIZES)
def test_the_cosine_equals_that_of_torch(sizes: tuple[int, int, int]) -> None:
    """Of the embeddings themselves: the paper has no layers before or behind it."""
    network = CosineTranslation()
    e_q, e_d, query, document = inputs_of(*sizes)
    expected = 0.5 * (F.cosine_similarity(e_q[query], e_d[document]) + 1)
    values = network(network.query(e_q), network.document(e_d), query, document)
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)
    weights = torch.randn(sizes[2], generator=torch.Generator().manual_seed(3))
    pairs = zip(
        torch.autograd.grad(values, [e_q, e_d], weights),
        torch.autograd.grad(expected, [e_q, e_d], weights),
        strict=True,
    )
    for gradient, other in pairs:
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)
    assert not list(network.parameters())


@pytest.mark.parametrize("documents", [0, 1, 150])
def test_rows_of_the_cosine_equal_its_pairs(documents: int) -> None:
    network = CosineTranslation()
    e_q, e_d, _, _ = inputs_of(70, documents or 1, 1)
    x_q, x_d = network.query(e_q), network.document(e_d[:documents])
    rows = torch.stack(list(network_rows(network, x_q, x_d)))
    torch.testing.assert_close(rows, torch.stack(list(plain_rows(network, x_q, x_d))), rtol=1e-6, atol=1e-6)
    assert rows.shape == (70, documents)


def test_the_cosine_by_hand() -> None:
    """The same direction, a right angle, the opposite direction, whatever the lengths."""
    network = CosineTranslation()
    e_q, e_d = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.5, 0.0], [0.0, 9.0], [-2.0, 0.0]])
    values = network(network.query(e_q), network.document(e_d), torch.zeros(3, dtype=torch.int64), torch.arange(3))
    assert values.tolist() == [1.0, 0.5, 0.0]


# --- half precision


@pytest.mark.parametrize("hadamard", [True, False])
def test_autocast_gives_float32_probabilities_and_gradients(hadamard: bool) -> None:
    network = network_of(seed=1, hadamard=hadamard)  # with some seeds a relu is active in one precision only
    generator = torch.Generator().manual_seed(0)
    tokens_q, tokens_d = (torch.randn(n, 8, generator=generator).requires_grad_() for n in (5, 30))
    _, _, query, document = inputs_of(5, 30, 150)

    def probabilities() -> Tensor:
        return network(network.query(tokens_q), network.document(tokens_d), query, document)

    sources = [tokens_q, tokens_d, *network.parameters()]
    exact = probabilities()
    expected = torch.autograd.grad(exact.sum(), sources)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = probabilities()
        assert network.query(tokens_q).dtype == torch.bfloat16  # otherwise this test would test nothing
    assert values.dtype == torch.float32
    assert (values - exact).abs().max() <= 0.02
    assert not torch.equal(values, exact)
    for gradient, other in zip(torch.autograd.grad(values.sum(), sources), expected, strict=True):
        assert gradient.dtype == torch.float32 and gradient.isfinite().all()
        assert (gradient - other).abs().max() <= 0.1 * other.abs().max() + 1e-4
