"""The input of a head: contextual vectors of query and document pieces, and their cosines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_modules.precision import float32_products

LEAST_NORM = 1e-12  # a shorter vector has no direction: its cosines and their gradients are 0


class Encoded(NamedTuple):
    """Contextual vectors of (query, document) pairs, padded. Masked positions may hold anything finite.

    `query` and `document` have one tensor for each layer: the last layer alone, or, for heads with `all_layers`, the
    embeddings and all hidden layers from the first to the last.
    """

    cls: Tensor  # (pairs, width) last-layer [CLS], averaged over the chunks of the document
    query: Sequence[Tensor]  # of each layer (pairs, q_len, width) of the document's first chunk
    document: Sequence[Tensor]  # of each layer (pairs, d_len, width) of all its chunks, one behind the other
    query_mask: Tensor  # (pairs, q_len) bool: true where there is a query piece
    document_mask: Tensor  # (pairs, d_len) bool

    def pairs(self) -> Iterator[Encoded]:
        """Yield each pair by itself, without the padding that its neighbours need."""
        sizes = (mask.sum(dim=1).tolist() for mask in (self.query_mask, self.document_mask))
        for i, (q, d) in enumerate(zip(*sizes, strict=True)):
            row = slice(i, i + 1)
            yield Encoded(
                self.cls[row], [layer[row, :q] for layer in self.query], [layer[row, :d] for layer in self.document],
                self.query_mask[row, :q], self.document_mask[row, :d],
            )  # fmt: skip

    def cosines(self) -> Tensor:
        """Return (pairs, layers, q_len, d_len) float32 (q / |q|) . d / |d|; 0 where either piece is masked or zero.

        The document vectors are many and wide, so they are not copied: the product is divided by |d| instead.
        """
        products, inverses = [], []
        with float32_products(self.cls.device):
            for query, document in zip(self.query, self.document, strict=True):
                query, document = query.float(), document.float()  # (pairs, q_len, width), (pairs, d_len, width)
                directions = query * _inverse_norms(query, self.query_mask)[:, :, None]
                products.append(torch.bmm(directions, document.transpose(1, 2)))
                inverses.append(_inverse_norms(document, self.document_mask))
            cosines = torch.stack(products, dim=1)  # (pairs, layers, q_len, d_len)
            # the factor 0 of masked pieces is not enough: a product with what they hold may be infinite
            cosines.masked_fill_(~self.document_mask[:, None, None, :], 0.0)
            return cosines * torch.stack(inverses, dim=1)[:, :, None, :]


def _inverse_norms(vectors: Tensor, mask: Tensor) -> Tensor:
    """Return (pairs, length) 1 / |vector|; 0, with gradient 0, for masked vectors and those without a direction."""
    norms = torch.linalg.vector_norm(vectors, dim=-1)
    return norms.masked_fill(~mask | (norms < LEAST_NORM), math.inf).reciprocal()
