"""The paper's neural Model 1 layer on contextual vectors (section "Our Neural Model 1"). No [CLS].

    log P(Q|D) = sum over q in Q of log max(sum over all d_i in D of T(q|d_i) / |D|, floor)

T is the network of the context-free model. There is no self-translation: the vectors of one token differ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.neural_model1.network import TranslationNetwork
from lightning_modules.precision import float32_products

FLOOR = 1e-8
ALIKE = 0.9  # T(q|d) of equal vectors before training, where T starts as their similarity


class Model1Head(nn.Module):
    """Log-probability of the query, not normalised.

    Args:
        width: of the contextual vectors.
        projection: width of x_q and x_d.
        hidden: widths of F1 and F2.
        dropout: on tanh(layer_norm(e)), in training.
        start: make T(q|d) about this for orthogonal vectors, growing with their similarity to about `ALIKE`; the
            weights are random when not given.
    """

    all_layers = False

    def __init__(
        self, width: int, projection: int, hidden: tuple[int, int], dropout: float, start: float | None = None
    ) -> None:
        super().__init__()
        self.network = TranslationNetwork(width, projection, hidden, dropout)
        if start is not None:
            slope = (math.log(ALIKE / (1 - ALIKE)) - math.log(start / (1 - start))) / projection**0.5
            self.network.start_as_similarity(start, slope)

    def forward(self, encoded: Encoded) -> Tensor:
        """(pairs,) float32"""
        with float32_products(encoded.cls.device):
            return torch.log(self.probabilities(encoded).clamp(min=FLOOR)).mul(encoded.query_mask).sum(dim=1)

    def probabilities(self, encoded: Encoded) -> Tensor:
        """Return (pairs, q_len) P(q|D), 0 where masked."""
        q_mask, d_mask = encoded.query_mask, encoded.document_mask
        translation, pair, q, _ = self.translations(encoded)
        sums = translation.new_zeros(q_mask.numel()).index_add(0, pair * q_mask.shape[1] + q, translation)
        return sums.view(q_mask.shape) / d_mask.sum(dim=1, keepdim=True).clamp(min=1)

    def translations(self, encoded: Encoded) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (translations,) float32 T(q|d_i) of all real pieces; and of each its pair and positions q and i."""
        q_mask, d_mask = encoded.query_mask, encoded.document_mask
        x_q = self.network.query(encoded.query[-1].float()[q_mask])  # (query pieces of all pairs, projection)
        x_d = self.network.document(encoded.document[-1].float()[d_mask])
        pair, q, d = (q_mask[:, :, None] & d_mask[:, None, :]).nonzero(as_tuple=True)
        row_q, row_d = (mask.flatten().cumsum(0).view(mask.shape) - 1 for mask in (q_mask, d_mask))
        return self.network(x_q, x_d, row_q[pair, q], row_d[pair, d]), pair, q, d
