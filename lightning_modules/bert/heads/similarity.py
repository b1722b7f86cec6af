"""Cosines of query and document pieces, layer by layer: what the CEDR heads look at.

    cos(q, d) = (q / |q|) . d / |d|

The vectors of documents are many and wide, so they are not copied: the product is divided by |d| instead.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_modules.bert.heads.encoded import Encoded

LEAST_NORM = 1e-12  # a vector shorter than this has no direction: its cosines and their gradients are 0


def cosine_matrices(encoded: Encoded) -> Tensor:
    """(pairs, layers, q_len, d_len) float32, 0 where either piece is masked or all zeros."""
    products, inverses = [], []
    with torch.autocast(encoded.cls.device.type, enabled=False):
        for one_query, one_document in zip(encoded.query, encoded.document, strict=True):
            query, document = one_query.float(), one_document.float()  # (pairs, q_len, width), (pairs, d_len, width)
            directions = query * _inverse_norms(query, encoded.query_mask)[:, :, None]
            products.append(torch.bmm(directions, document.transpose(1, 2)))
            inverses.append(_inverse_norms(document, encoded.document_mask))
        cosines = torch.stack(products, dim=1)  # (pairs, layers, q_len, d_len)
        # not left to the factor 0 of masked pieces alone: a product with what they hold may be infinite
        cosines.masked_fill_(~encoded.document_mask[:, None, None, :], 0.0)
        return cosines * torch.stack(inverses, dim=1)[:, :, None, :]


def _inverse_norms(vectors: Tensor, mask: Tensor) -> Tensor:
    """(pairs, length) 1 / |vector|; 0, with gradient 0, for masked vectors and those without a direction."""
    norms = torch.linalg.vector_norm(vectors, dim=-1)
    return norms.masked_fill(~mask | (norms < LEAST_NORM), math.inf).reciprocal()
