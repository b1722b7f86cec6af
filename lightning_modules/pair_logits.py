"""Logits of T(q|d) for a list of token pairs, block after block in the processor's cache.

    z = F3(relu(F2(relu(a_q + a_d + H (x_q o x_d)))))          a_q, a_d: the parts of F1 that depend on one token

Written with plain operations, each layer reads and writes tensors of (pairs, width) that no cache holds, and autograd
keeps them all: on a CPU that takes longer than the arithmetic. Here a block of pairs goes through all layers at once,
nothing but the logits is kept, and the backward pass computes a block's layers again, for those pairs alone that have
a gradient: where the margin is kept there is none, which soon is most of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLOCK = {"cpu": 4096}  # pairs: 4,096 x 64 floats are 1 MB
BLOCK_ELSEWHERE = 1 << 18


class Layers(NamedTuple):
    """The weights behind the token vectors."""

    h: Tensor  # (hidden 1, projection) the third part of F1
    w2: Tensor  # (hidden 2, hidden 1)
    b2: Tensor  # (hidden 2,)
    w3: Tensor  # (hidden 2,)
    b3: Tensor  # ()


def pair_logits(of_q: Tensor, of_d: Tensor, layers: Layers, query: Tensor, document: Tensor) -> Tensor:
    """(pairs,) float32 logits of the pairs (query[i], document[i]) of rows of of_q = [x_q, a_q] and of_d = [x_d, a_d].

    Under autocast the products are computed in its type, everything that is summed over pairs in float32.
    """
    device = of_q.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    inputs = [one.to(dtype) for one in (of_q, of_d, *layers)]
    with torch.autocast(device, enabled=False):
        return _PairLogits.apply(*inputs, query, document)


class _PairLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of_q: Tensor, of_d: Tensor, h: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor,
        query: Tensor, document: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(of_q, of_d, h, w2, b2, w3, query, document)
        logits = torch.empty(len(query), device=of_q.device)
        room = _Room(of_q, of_d, h, w2, b2)
        for block, q, d in _blocks(query, document):
            hidden2 = room.layers(q, d)[-1]
            logits[block] = torch.addmv(b3, hidden2, w3)
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_q, of_d, h, w2, b2, w3, query, document = ctx.saved_tensors
        sums = [torch.zeros_like(one, dtype=torch.float32) for one in (of_q, of_d, h, w2, b2, w3)]
        g_q, g_d, g_h, g_w2, g_b2, g_w3 = sums
        active = grad.nonzero().squeeze(1)
        room, back = _Room(of_q, of_d, h, w2, b2), _Room(of_q, of_d, h, w2, b2)
        width = h.shape[1]
        for block, q, d in _blocks(query.index_select(0, active), document.index_select(0, active)):
            rows_q, rows_d, product, hidden1, hidden2 = room.layers(q, d)
            n, g = len(q), grad.index_select(0, active[block]).to(h.dtype)
            g_w3 += (hidden2.T @ g).float()
            g2 = torch.mul(g.unsqueeze(1), w3, out=back.hidden2[:n])
            torch.ops.aten.threshold_backward.grad_input(g2, hidden2, 0, grad_input=g2)
            g_b2 += g2.sum(0).float()
            g_w2 += (g2.T @ hidden1).float()
            g1 = torch.mm(g2, w2, out=back.hidden1[:n])
            torch.ops.aten.threshold_backward.grad_input(g1, hidden1, 0, grad_input=g1)
            g_h += (g1.T @ product).float()
            g_product = torch.mm(g1, h, out=back.product[:n])
            to_q, to_d = back.rows_q[:n], back.rows_d[:n]
            torch.mul(g_product, rows_d[:, :width], out=to_q[:, :width])
            torch.mul(g_product, rows_q[:, :width], out=to_d[:, :width])
            to_q[:, width:] = g1
            to_d[:, width:] = g1
            g_q.index_add_(0, q, to_q.float())
            g_d.index_add_(0, d, to_d.float())
        return *sums, grad.sum(), None, None


class _Room:
    """Memory for the layers of one block, used again for each."""

    def __init__(self, of_q: Tensor, of_d: Tensor, h: Tensor, w2: Tensor, b2: Tensor) -> None:
        self.of_q, self.of_d, self.h, self.w2, self.b2 = of_q, of_d, h, w2, b2
        size = BLOCK.get(of_q.device.type, BLOCK_ELSEWHERE)
        self.rows_q, self.rows_d = of_q.new_empty(size, of_q.shape[1]), of_q.new_empty(size, of_q.shape[1])
        self.product = of_q.new_empty(size, h.shape[1])
        self.hidden1, self.hidden2 = of_q.new_empty(size, h.shape[0]), of_q.new_empty(size, w2.shape[0])

    def layers(self, q: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """[x_q, a_q], [x_d, a_d], x_q o x_d and the two hidden layers of the pairs (q, d)."""
        n, width = len(q), self.h.shape[1]
        rows_q = torch.index_select(self.of_q, 0, q, out=self.rows_q[:n])
        rows_d = torch.index_select(self.of_d, 0, d, out=self.rows_d[:n])
        product = torch.mul(rows_q[:, :width], rows_d[:, :width], out=self.product[:n])
        hidden1 = torch.add(rows_q[:, width:], rows_d[:, width:], out=self.hidden1[:n])
        hidden1.addmm_(product, self.h.T).relu_()
        hidden2 = torch.addmm(self.b2, hidden1, self.w2.T, out=self.hidden2[:n]).relu_()
        return rows_q, rows_d, product, hidden1, hidden2


def _blocks(query: Tensor, document: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    size = BLOCK.get(query.device.type, BLOCK_ELSEWHERE)
    blocks = (slice(start, start + size) for start in range(0, len(query), size))
    return ((block, query[block], document[block]) for block in blocks)
