"""CEDR-DRMM: a histogram of cosines per query piece, layer by layer, and [CLS] (MacAvaney et al., "CEDR", 2019).

    h_b(q)  = log(number of document pieces d with cos(q, d) in bin b + 1e-5)     11 equal bins over [-1, 1]
    score   = sum over query pieces q of F2(relu(F1([h(q) of all layers, cls])))

A count has no gradient: the encoder learns through [CLS] only, and no cosines are kept for a backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.precision import float32_products

BINS = 11
HIDDEN = 5
EMPTY = 1e-5  # added to a count before the logarithm


class DRMMHead(nn.Module):
    """Score of the counts of matches at eleven levels of similarity.

    Args:
        width: of the contextual vectors.
        layers: number of layers in `Encoded`.
    """

    all_layers = True

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(layers * BINS + width, HIDDEN)
        self.score = nn.Linear(HIDDEN, 1)

    def forward(self, encoded: Encoded) -> Tensor:
        """(pairs,) float32"""
        with float32_products(encoded.cls.device):
            with torch.no_grad():
                logs = torch.log(histograms(encoded.cosines(), encoded.document_mask) + EMPTY)
            of_pieces = logs.transpose(1, 2).flatten(2)  # (pairs, q_len, layers x BINS)
            of_pairs = encoded.cls.float()[:, None].expand(-1, of_pieces.shape[1], -1)
            hidden = torch.relu(self.hidden(torch.cat([of_pieces, of_pairs], dim=2)))  # (pairs, q_len, HIDDEN)
            scores = self.score(hidden).squeeze(2)
            return scores.masked_fill(~encoded.query_mask, 0.0).sum(dim=1)


def histograms(cosines: Tensor, document_mask: Tensor) -> Tensor:
    """Return (pairs, layers, q_len, BINS) how many real document pieces fall into each bin; 1 is in the last bin."""
    bins = (cosines + 1).mul_(BINS / 2).long().clamp_(0, BINS - 1)  # rounding may put a cosine outside [-1, 1]
    real = document_mask.to(cosines.dtype)[:, None, None, :].expand_as(cosines)
    return cosines.new_zeros(*cosines.shape[:3], BINS).scatter_add_(3, bins, real)
