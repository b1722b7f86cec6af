"""Heads give the scores of formulas written with plain loops over pieces, whatever padding or neighbours a pair has."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_modules.bert.heads.drmm import DRMMHead, histograms
from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.bert.heads.knrm import KNRMHead
from lightning_modules.bert.heads.pacrr import PACRRHead
from lightning_modules.bert.heads.vanilla import VanillaHead

WIDTH, LAYERS, QUERY_PIECES = 6, 3, 4
LENGTHS = [(3, 7), (1, 1), (2, 2), (4, 1), (0, 5), (3, 0), (0, 0), (6, 9), (1, 2), (2, 1)]  # query, document pieces
GARBAGE = 1e6
Vectors = list[list[list[float]]]  # layer, piece, number


class Pair(NamedTuple):
    """One query and document, without padding."""

    cls: list[float]
    query: Vectors
    document: Vectors


def pair_of(q_len: int, d_len: int, seed: int) -> Pair:
    """Random vectors; in every layer some document pieces are multiples of query pieces, one is all zeros."""
    numbers = random.Random(seed)

    def vectors(length: int) -> list[list[float]]:
        return [[numbers.gauss(0, 1) for _ in range(WIDTH)] for _ in range(length)]

    query = [vectors(q_len) for _ in range(LAYERS)]
    document = [vectors(d_len) for _ in range(LAYERS)]
    for of_query, of_document in zip(query, document, strict=True):
        for position in range(d_len):
            if q_len and numbers.random() < 0.3:
                factor = numbers.choice([-2.0, 1.0, 0.5])
                of_document[position] = [factor * value for value in numbers.choice(of_query)]
        if d_len > 1:
            of_document[numbers.randrange(d_len)] = [0.0] * WIDTH
    pair = Pair(vectors(1)[0], query, document)
    cosines = [c for rows in plain_cosines(pair) for row in rows for c in row]
    # where rounding would decide: at an edge of the bins, or on the steep side of the kernel of exact matches
    edges = [2 * number / 11 - 1 for number in range(1, 11)]
    unclear = any(0.99 < c < 1 - 1e-9 or any(abs(c - edge) < 1e-5 for edge in edges) for c in cosines)
    return pair_of(q_len, d_len, seed + 1_000_000) if unclear else pair


def pairs_of(lengths: list[tuple[int, int]], seed: int = 0) -> list[Pair]:
    return [pair_of(q_len, d_len, seed + number) for number, (q_len, d_len) in enumerate(lengths)]


def encoded_of(pairs: list[Pair], more_q: int = 0, more_d: int = 0, garbage: float = GARBAGE) -> Encoded:
    """Padded to the longest and `more`, with random numbers as large as `garbage` in what is masked."""
    sides = []
    for more, side in ((more_q, [pair.query for pair in pairs]), (more_d, [pair.document for pair in pairs])):
        lengths = [len(vectors[0]) for vectors in side]
        longest = max(lengths, default=0) + more
        mask = torch.arange(longest) < torch.tensor(lengths, dtype=torch.long)[:, None]
        vectors = garbage * (2 * torch.rand(LAYERS, len(pairs), longest, WIDTH) - 1)
        for number, (layers, length) in enumerate(zip(side, lengths, strict=True)):
            vectors[:, number, :length] = torch.tensor(layers).reshape(LAYERS, length, WIDTH)
        sides.append((vectors, mask))
    (query, query_mask), (document, document_mask) = sides
    cls = torch.tensor([pair.cls for pair in pairs]).reshape(len(pairs), WIDTH)
    return Encoded(cls, query, document, query_mask, document_mask)


# ------------------------------------------------------------------------------------------------ plain loops


def plain_cosine(q: list[float], d: list[float]) -> float:
    norms = math.hypot(*q) * math.hypot(*d)
    return sum(a * b for a, b in zip(q, d, strict=True)) / norms if norms else 0.0


def plain_cosines(pair: Pair) -> Vectors:
    """[layer][query piece][document piece]"""
    return [
        [[plain_cosine(q, d) for d in document] for q in query]
        for query, document in zip(pair.query, pair.document, strict=True)
    ]


def plain_linear(layer: nn.Module, values: list[float]) -> list[float]:
    assert isinstance(layer, nn.Linear)
    rows, biases = layer.weight.tolist(), layer.bias.tolist()
    return [sum(w * x for w, x in zip(row, values, strict=True)) + b for row, b in zip(rows, biases, strict=True)]


def relu(values: list[float]) -> list[float]:
    return [max(0.0, value) for value in values]


def plain_vanilla(head: VanillaHead, pair: Pair) -> float:
    return plain_linear(head.score, pair.cls)[0]


def plain_knrm(head: KNRMHead, pair: Pair) -> float:
    features = []
    for rows in plain_cosines(pair):
        for mu, sigma in zip(head.mu.tolist(), head.sigma.tolist(), strict=True):
            sums = [sum(math.exp(-((c - mu) ** 2) / (2 * sigma**2)) for c in row) for row in rows]
            features.append(sum(math.log(total + 1e-6) for total in sums))
    return plain_linear(head.score, features + pair.cls)[0]


def plain_drmm(head: DRMMHead, pair: Pair) -> float:
    score = 0.0
    for rows in zip(*plain_cosines(pair), strict=True):  # of one query piece, in all layers
        features = []
        for row in rows:
            counts = [0] * 11
            for cosine in row:
                counts[min(10, max(0, math.floor((cosine + 1) / (2 / 11))))] += 1
            features += [math.log(count + 1e-5) for count in counts]
        score += plain_linear(head.score, relu(plain_linear(head.hidden, features + pair.cls)))[0]
    return score


def plain_pacrr(head: PACRRHead, pair: Pair) -> float:
    cosines = [rows[:QUERY_PIECES] for rows in plain_cosines(pair)]
    q_len, d_len = len(cosines[0]), len(pair.document[0])
    features = []
    for q in range(QUERY_PIECES):
        for n, convolution in enumerate(head.convolutions, start=1):
            assert isinstance(convolution, nn.Conv2d) and convolution.bias is not None
            weights, biases = convolution.weight.tolist(), convolution.bias.tolist()
            matches = [0.0, 0.0]
            for d in range(d_len if q < q_len else 0):
                inside = [(i, j) for i in range(n) for j in range(n) if q + i < q_len and d + j < d_len]
                responses = [
                    sum(weight[z][i][j] * cosines[z][q + i][d + j] for z in range(LAYERS) for i, j in inside) + bias
                    for weight, bias in zip(weights, biases, strict=True)
                ]
                matches.append(max(relu(responses)))
            features += sorted(matches, reverse=True)[:2]
    hidden = relu(plain_linear(head.hidden1, features + pair.cls))
    return plain_linear(head.score, relu(plain_linear(head.hidden2, hidden)))[0]


class Kind(NamedTuple):
    make: Callable[[], nn.Module]
    plain: Callable[..., float]


KINDS = {
    "vanilla": Kind(lambda: VanillaHead(WIDTH), plain_vanilla),
    "knrm": Kind(lambda: KNRMHead(WIDTH, LAYERS), plain_knrm),
    "drmm": Kind(lambda: DRMMHead(WIDTH, LAYERS), plain_drmm),
    "pacrr": Kind(lambda: PACRRHead(WIDTH, LAYERS, QUERY_PIECES), plain_pacrr),
}
every_head = pytest.mark.parametrize("kind", sorted(KINDS))


def head_of(kind: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return KINDS[kind].make().eval()


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------ values


@every_head
@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_plain_loops(kind: str, seed: int) -> None:
    head, pairs = head_of(kind, seed), pairs_of(LENGTHS, 100 * seed)
    scores = head(encoded_of(pairs))
    assert scores.dtype == torch.float32 and scores.shape == (len(pairs),) and scores.std() > 1e-3
    assert head.all_layers == (kind != "vanilla")
    assert_same(scores, torch.tensor([KINDS[kind].plain(head, pair) for pair in pairs]))


@every_head
def test_trained_parameters_equal_plain_loops(kind: str) -> None:
    """Away from where they start, the centres and widths of kernels too."""
    head, pairs = head_of(kind), pairs_of(LENGTHS)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
            if name.startswith("convolutions") and name.endswith("bias"):
                parameter.sub_(1)  # then no filter responds to some pieces
    assert_same(head(encoded_of(pairs)), torch.tensor([KINDS[kind].plain(head, pair) for pair in pairs]))


def test_cosines_of_a_small_example() -> None:
    query, document = torch.tensor([[3.0, 4], [0, 0]]), torch.tensor([[2.0, 0], [0, -1], [6, 8], [1, 1]])
    masks = torch.tensor([[True, True]]), torch.tensor([[True, True, True, False]])
    cosines = Encoded(torch.zeros(1, 2), query[None, None], document[None, None], *masks).cosines()
    torch.testing.assert_close(cosines, torch.tensor([[[[0.6, -0.8, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]]))


def test_masked_cosines_are_zero_and_all_in_float32() -> None:
    encoded = encoded_of(pairs_of(LENGTHS), more_q=2, more_d=3)
    cosines = encoded.cosines()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoded.cosines(), cosines)
    real = encoded.query_mask[:, None, :, None] & encoded.document_mask[:, None, None, :]
    assert cosines.dtype == torch.float32 and cosines.shape == (len(LENGTHS), LAYERS, 8, 12)
    assert not cosines.masked_select(~real).any() and cosines.masked_select(real).any()


def test_bins_are_equal_and_the_last_is_closed() -> None:
    cosines = torch.tensor([-1.0000001, -1.0, -0.82, -0.81, 0.0, 0.81, 0.82, 1.0, 1.0000001, 0.0])
    mask = torch.tensor([[True] * 9 + [False]])
    counts = histograms(cosines[None, None, None], mask)
    assert counts.tolist() == [[[[3, 1, 0, 0, 0, 1, 0, 0, 0, 1, 3]]]]


def test_dropout_of_a_tenth_in_training() -> None:
    head, pairs = VanillaHead(1).train(), 10_000
    nothing, mask = torch.zeros(1, pairs, 0, 1), torch.zeros(pairs, 0, dtype=torch.bool)
    scores = head(Encoded(torch.ones(pairs, 1), nothing, nothing, mask, mask))
    dropped = scores == head.score.bias
    assert abs(dropped.float().mean() - 0.1) < 0.02
    assert_same(scores[~dropped], (head.score.weight[0, 0] / 0.9 + head.score.bias).expand(int((~dropped).sum())))


# ------------------------------------------------------------------------------------------------ invariances


@every_head
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8)), min_size=1, max_size=5),
    more=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_padding_neighbours_and_order_change_no_score(
    kind: str, lengths: list[tuple[int, int]], more: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    head, pairs = head_of(kind), pairs_of(lengths, seed)
    alone = torch.cat([head(encoded_of([pair])) for pair in pairs])
    order = data.draw(st.permutations(range(len(pairs))))
    together = head(encoded_of([pairs[number] for number in order], *more))
    assert_same(together, alone[torch.tensor(order)])


@every_head
def test_no_pairs_no_scores(kind: str) -> None:
    for more in ((0, 0), (3, 0), (0, 3), (3, 5)):
        scores = head_of(kind)(encoded_of([], *more))
        assert scores.shape == (0,) and scores.dtype == torch.float32


@every_head
@pytest.mark.parametrize("q_len", [0, 1, 2])
@pytest.mark.parametrize("d_len", [0, 1, 2])
def test_short_texts(kind: str, q_len: int, d_len: int) -> None:
    """A whole batch of them, so that the tensors are this short."""
    head, pairs = head_of(kind), pairs_of([(q_len, d_len)] * 2)
    encoded = encoded_of(pairs)
    encoded.cls.requires_grad_()
    scores = head(encoded)
    assert_same(scores, torch.tensor([KINDS[kind].plain(head, pair) for pair in pairs]))
    scores.sum().backward()
    assert all(tensor.grad is None or tensor.grad.isfinite().all() for tensor in (*head.parameters(), encoded.cls))


# ------------------------------------------------------------------------------------------------ gradients


@every_head
@pytest.mark.parametrize("garbage", [1.0, 1e30, 3.4e38])
def test_gradients_are_finite_reach_all_parameters_and_nothing_masked(kind: str, garbage: float) -> None:
    head, encoded = head_of(kind), encoded_of(pairs_of(LENGTHS), 1, 1, garbage)
    for vectors in (encoded.cls, encoded.query, encoded.document):
        vectors.requires_grad_()
    head(encoded).square().sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
    assert encoded.cls.grad is not None and encoded.cls.grad.any()
    for vectors, mask in ((encoded.query, encoded.query_mask), (encoded.document, encoded.document_mask)):
        gradient = vectors.grad
        assert (gradient is not None) == (kind in ("knrm", "pacrr"))  # a histogram has no gradient
        if gradient is not None:
            assert gradient.isfinite().all() and gradient.any() and not gradient[:, ~mask].any()


def test_gradients_of_cosines_equal_those_of_torch() -> None:
    encoded = encoded_of([pair_of(3, 1, 0), pair_of(2, 1, 1)], more_d=2)
    query, document = (vectors.requires_grad_() for vectors in (encoded.query, encoded.document))
    real = encoded.query_mask[:, None, :, None] & encoded.document_mask[:, None, None, :]
    plain = nn.functional.cosine_similarity(query[:, :, :, None], document[:, :, None], dim=-1).transpose(0, 1) * real
    weights = torch.randn(plain.shape)
    expected = torch.autograd.grad((plain * weights).sum(), [query, document])
    gradients = torch.autograd.grad((encoded.cosines() * weights).sum(), [query, document])
    for gradient, reference in zip(gradients, expected, strict=True):
        assert_same(gradient, reference)


def test_a_kernel_of_no_width_is_a_narrow_one() -> None:
    head, encoded = head_of("knrm"), encoded_of(pairs_of(LENGTHS))
    with torch.no_grad():
        head.sigma[-1] = 0.0
    scores = head(encoded)
    scores.sum().backward()
    assert scores.isfinite().all() and all(weight.grad.isfinite().all() for weight in head.parameters())


# ------------------------------------------------------------------------------------------------ precision


@every_head
def test_autocast_changes_nothing_of_float32_vectors(kind: str) -> None:
    head, encoded = head_of(kind), encoded_of(pairs_of(LENGTHS))
    expected = head(encoded)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = head(encoded)
    assert scores.dtype == torch.float32 and torch.equal(scores, expected)


@every_head
def test_half_precision_vectors_are_scored_in_float32(kind: str) -> None:
    head, encoded = head_of(kind), encoded_of(pairs_of(LENGTHS))
    low = Encoded(*(tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in encoded))
    rounded = Encoded(*(tensor.float() if tensor.is_floating_point() else tensor for tensor in low))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = head(low)
    assert scores.dtype == torch.float32
    assert_same(scores, head(rounded))
    if kind in ("vanilla", "pacrr"):  # bins and the kernel of exact matches jump, these scores do not
        torch.testing.assert_close(scores, head(encoded), rtol=0.05, atol=0.05)
