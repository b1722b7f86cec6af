"""Whole rows of T(.|.): one query token against many document tokens, for scoring and for the export.

`network_rows` works for any network. The cosine is a product of matrices. For exactly the paper's `TranslationNetwork`
there is a faster way to the same numbers (`benchmarks/nn_model1.py`): for one query token F1 is a single product,
(D + H diag(x_q)) x_d plus a vector, so nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_modules.neural_model1.network import CosineTranslation, TranslationNetwork

CACHE = {"cpu": 1 << 19}  # numbers in a block of document tokens and its hidden layers: they stay in the cache
CACHE_ELSEWHERE = 1 << 26
ROWS_TOGETHER = 64  # matrix products round rows in groups: blocks are made of whole groups
PAIRS_TOGETHER = 1 << 14


def whole_groups(tokens: np.ndarray) -> np.ndarray:
    """Repeat the last token to fill a group of `ROWS_TOGETHER`."""
    missing = -len(tokens) % ROWS_TOGETHER
    return np.concatenate([tokens, np.full(missing, tokens[-1] if len(tokens) else 0, tokens.dtype)])


def network_rows(network: Any, x_q: Tensor, x_d: Tensor) -> Iterator[Tensor]:
    """Return an iterator of (document tokens,) T(q|d), one for each row of x_q; the next row reuses its memory."""
    if isinstance(network, CosineTranslation):
        return chain.from_iterable(network.matrix(block, x_d) for block in x_q.split(ROWS_TOGETHER))
    fast = type(network) is TranslationNetwork and _computes_the_same(network, x_q[:1], x_d[:ROWS_TOGETHER])
    return fast_rows(network, x_q, x_d) if fast else plain_rows(network, x_q, x_d)


def _computes_the_same(network: TranslationNetwork, x_q: Tensor, x_d: Tensor) -> bool:
    """Return whether `fast_rows` computes what `forward` defines: whoever edits one need not know the other."""
    rows = zip(plain_rows(network, x_q, x_d), fast_rows(network, x_q, x_d), strict=True)
    return all(torch.allclose(plain, fast, rtol=1e-3, atol=1e-6) for plain, fast in rows)


def plain_rows(network: Any, x_q: Tensor, x_d: Tensor) -> Iterator[Tensor]:
    """Compute each pair with the network's own `forward`."""
    document_tokens = torch.arange(len(x_d), device=x_d.device)
    for row in range(len(x_q)):
        blocks = document_tokens.split(PAIRS_TOGETHER)
        yield torch.cat(
            [network(x_q, x_d, torch.full_like(block, row), block) for block in blocks] or [x_d.new_empty(0)]
        )


def fast_rows(network: TranslationNetwork, x_q: Tensor, x_d: Tensor) -> Iterator[Tensor]:
    """Compute the same for the paper's network, a row at a time."""
    w_q, w_d, w_h = network.f1_parts()
    w2, w3 = network.f2.weight.T.contiguous(), network.f3.weight[0]
    # relu(h + b) = max(h, -b) + b, and the b outside moves into the next layer's bias: one pass less over each layer
    b1 = F.linear(x_q, w_q, network.f1.bias)
    b2 = F.linear(b1, network.f2.weight, network.f2.bias)
    b3 = F.linear(b2, network.f3.weight, network.f3.bias)
    width = network.f2.in_features + network.f3.in_features + x_d.shape[1]
    fitting = CACHE.get(x_d.device.type, CACHE_ELSEWHERE) // width // ROWS_TOGETHER * ROWS_TOGETHER
    size = max(1, min(max(ROWS_TOGETHER, fitting), len(x_d)))
    hidden1, hidden2 = x_d.new_empty(size, network.f2.in_features), x_d.new_empty(size, network.f3.in_features)
    row, mixed = x_d.new_empty(len(x_d)), w_d.clone()
    for x, least1, least2, last in zip(x_q, -b1, -b2, b3, strict=True):
        if network.hadamard:
            torch.addcmul(w_d, w_h, x, out=mixed)  # D + H diag(x_q)
        for number, block in enumerate(x_d.split(size)):
            n, first = len(block), number * size
            h1, h2 = hidden1[:n], hidden2[:n]
            torch.maximum(torch.mm(block, mixed.T, out=h1), least1, out=h1)
            torch.maximum(torch.mm(h1, w2, out=h2), least2, out=h2)
            torch.mv(h2, w3, out=row[first : first + n])
        yield torch.sigmoid_(row.add_(last))
