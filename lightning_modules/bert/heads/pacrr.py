"""CEDR-PACRR: the best matching n-grams per query piece, and [CLS] (MacAvaney et al., "CEDR", 2019).

    m_n(q, d)  = max over 32 filters of relu(conv_n(cosines of all layers)(q, d))     n x n, n = 1, 2, 3
    top_n(q)   = the 2 largest m_n(q, d) over document pieces d
    score      = F3(relu(F2(relu(F1([top_n(q) of all q and n, cls])))))

The n-gram of a piece starts with it and extends to the right and downwards, with zeros behind the last piece. Padding
stands behind the pieces of a query or document, so n-grams see zeros there, however much padding there is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.precision import float32_products

NGRAMS = (1, 2, 3)
FILTERS = 32
LARGEST = 2
HIDDEN = 32


class PACRRHead(nn.Module):
    """Score of the strongest n-gram matches of each query piece, in the order of the query.

    Args:
        width: of the contextual vectors.
        layers: number of layers in `Encoded`.
        query_pieces: pieces of a query that are read; shorter queries are filled with zeros.
    """

    all_layers = True

    def __init__(self, width: int, layers: int, query_pieces: int) -> None:
        super().__init__()
        self.query_pieces = query_pieces
        self.convolutions = nn.ModuleList(nn.Conv2d(layers, FILTERS, n) for n in NGRAMS)
        self.hidden1 = nn.Linear(query_pieces * len(NGRAMS) * LARGEST + width, HIDDEN)
        self.hidden2 = nn.Linear(HIDDEN, HIDDEN)
        self.score = nn.Linear(HIDDEN, 1)

    def forward(self, encoded: Encoded) -> Tensor:
        """(pairs,) float32"""
        with float32_products(encoded.cls.device):
            features = torch.cat([self._best_matches(encoded).flatten(1), encoded.cls.float()], dim=1)
            hidden = torch.relu(self.hidden2(torch.relu(self.hidden1(features))))
            return self.score(hidden).squeeze(1)

    def _best_matches(self, encoded: Encoded) -> Tensor:
        """(pairs, query_pieces, n-grams, LARGEST)"""
        query = [layer[:, : self.query_pieces] for layer in encoded.query]
        query_mask = encoded.query_mask[:, : self.query_pieces]
        cosines = encoded._replace(query=query, query_mask=query_mask).cosines()
        below, right = self.query_pieces - cosines.shape[2], max(0, LARGEST - cosines.shape[3])
        real = F.pad(query_mask[:, :, None] & encoded.document_mask[:, None, :], (0, right, 0, below))
        best = []
        for n, convolution in zip(NGRAMS, self.convolutions, strict=True):
            responses = convolution(F.pad(cosines, (0, right + n - 1, 0, below + n - 1)))
            # relu commutes with max; this order does not keep the wide responses for the backward pass
            matches = torch.relu(responses.max(dim=1).values)  # (pairs, query_pieces, at least d_len)
            # no match is below 0, so a masked 0 is taken only where real ones are too few
            best.append(matches.masked_fill(~real, 0.0).topk(LARGEST, dim=2).values)
        return torch.stack(best, dim=2)
