"""Logits of T(q|d) for a list of token pairs.

    z = F3(relu(F2(relu(a_q + a_d + H (x_q o x_d)))))          a_q, a_d: the parts of F1 that depend on one token

A GPU gets these operations as they stand. On a CPU each of them would pass over tensors of (pairs, width) that no cache
holds, which takes longer than the arithmetic. There every thread takes its share of the pairs, block after block,
through all layers: torch multiplies the matrices, and all that lies between two products is one compiled pass
(`pair_kernels`). The backward pass looks at those pairs alone that have a gradient: where the margin is kept there is
none, which soon is most of a batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_modules.bert.thread_shares import in_shares
from lightning_modules.neural_model1 import pair_kernels

BLOCK = 4096  # pairs: 4,096 x 64 floats are 1 MB
LEAST = 1024  # fewer pairs are not worth a thread


class Layers(NamedTuple):
    """The weights behind the token vectors."""

    h: Tensor  # (hidden 1, projection) the third part of F1; (hidden 1, 0): the sides are a_q and a_d alone
    w2: Tensor  # (hidden 2, hidden 1)
    b2: Tensor  # (hidden 2,)
    w3: Tensor  # (hidden 2,)
    b3: Tensor  # ()


def pair_logits(of_q: Tensor, of_d: Tensor, layers: Layers, query: Tensor, document: Tensor) -> Tensor:
    """(pairs,) float32: the pairs (query[i], document[i]) of rows of of_q = [x_q, a_q] and of_d = [x_d, a_d]."""
    device = of_q.device.type
    if device == "cpu" and not torch.is_autocast_enabled(device):
        return _PairLogits.apply(of_q, of_d, *layers, query, document)
    return plain_logits(of_q, of_d, layers, query, document)


def plain_logits(of_q: Tensor, of_d: Tensor, layers: Layers, query: Tensor, document: Tensor) -> Tensor:
    """`pair_logits` on any device, in the type of autocast."""
    rows_q, rows_d = of_q.index_select(0, query), of_d.index_select(0, document)
    width = layers.h.shape[1]
    product = F.linear(rows_q[:, :width] * rows_d[:, :width], layers.h)
    hidden1 = torch.relu(rows_q[:, width:] + rows_d[:, width:] + product)
    hidden2 = torch.relu(F.linear(hidden1, layers.w2, layers.b2))
    return (hidden2 @ layers.w3).float() + layers.b3


class _PairLogits(torch.autograd.Function):
    """The same in float32 on a CPU."""

    @staticmethod
    def forward(
        ctx: Any, of_q: Tensor, of_d: Tensor, h: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor,
        query: Tensor, document: Tensor,
    ) -> Tensor:  # fmt: skip
        pairs, width = len(query), h.shape[1]
        h, w2 = h.contiguous(), w2.contiguous()
        logits, hidden1, hidden2 = (of_q.new_empty(pairs, *shape) for shape in ((), (len(h),), (len(w2),)))
        q, d, rows_q, rows_d = _arrays(query, document, of_q, of_d)
        bias2, weight3, last = b2.numpy(), w3.numpy(), np.float32(b3)

        def share(first: int, end: int) -> None:
            product = of_q.new_empty(min(BLOCK, end - first), width)
            for block in _blocks(first, end):
                one, two, rows = hidden1[block], hidden2[block], product[: block.stop - block.start]
                pair_kernels.products(rows_q, rows_d, q[block], d[block], rows.numpy())
                pair_kernels.add_relu(torch.mm(rows, h.T, out=one).numpy(), rows_q, rows_d, q[block], d[block], width)
                pair_kernels.relu_dot(torch.mm(one, w2.T, out=two).numpy(), bias2, weight3, last, logits[block].numpy())

        in_shares(share, pairs, LEAST)
        ctx.save_for_backward(of_q, of_d, h, w2, w3, query, document, hidden1, hidden2)
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_q, of_d, h, w2, w3, query, document, hidden1, hidden2 = ctx.saved_tensors
        rows_q, rows_d, weight3 = _arrays(of_q, of_d, w3)
        of_pairs, active = (query, document, grad, hidden1, hidden2), grad.nonzero().squeeze(1)
        everywhere = len(active) == len(grad)

        def share(first: int, end: int) -> list[Tensor]:
            sums = [torch.zeros_like(one) for one in (of_q, of_d, h, w2, w3, w3)]
            to_q, to_d, to_h, to_w2, to_b2, to_w3 = sums
            size = min(BLOCK, end - first)
            room = [of_q.new_empty(size, width) for width in (h.shape[1], len(w2), len(h), h.shape[1])]
            for block in _blocks(first, end):
                taken = [one[block] if everywhere else one.index_select(0, active[block]) for one in of_pairs]
                q, d, g, one, two = _arrays(*taken)
                product, g2, g1, g_product = (rows[: len(g)] for rows in room)
                pair_kernels.products(rows_q, rows_d, q, d, product.numpy())
                pair_kernels.back_relu_dot(two, g, weight3, g2.numpy(), to_b2.numpy(), to_w3.numpy())
                to_w2.addmm_(g2.T, taken[3])
                pair_kernels.back_relu(one, torch.mm(g2, w2, out=g1).numpy())
                to_h.addmm_(g1.T, product)
                torch.mm(g1, h, out=g_product)
                pair_kernels.back_products(g_product.numpy(), g1.numpy(), rows_q, rows_d, q, d, *_arrays(to_q, to_d))
            return sums

        parts = in_shares(share, len(active), LEAST)
        return *[sum(rest, start) for start, *rest in zip(*parts, strict=True)], grad.sum(), None, None


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    """The same memory as arrays."""
    return [one.detach().contiguous().numpy() for one in tensors]


def _blocks(first: int, end: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, end)) for start in range(first, end, BLOCK)]
