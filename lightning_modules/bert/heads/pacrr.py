"""CEDR-PACRR: the best matching n-grams per query piece, and [CLS] (MacAvaney et al., "CEDR", 2019).

    m_n(q, d)  = max over 32 filters of relu(conv_n(cosines of all layers)(q, d))     n x n, n = 1, 2, 3
    top_n(q)   = the 2 largest m_n(q, d) over document pieces d
    score      = F3(relu(F2(relu(F1([top_n(q) of all q and n, cls])))))

A piece's n-gram is itself and what is right of and below it, with zeros behind the last piece. Pieces of a query or
document come first and padding behind them: then n-grams see zeros there, however much padding there is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.bert.heads.similarity import cosine_matrices

NGRAMS = (1, 2, 3)
FILTERS = 32
LARGEST = 2
HIDDEN = 32


class PACRRHead(nn.Module):
    """Scores from the strongest n-gram matches of each query piece, in the order of the query.

    Args:
        width: width of the contextual vectors.
        layers: how many layers `Encoded` holds.
        query_pieces: how many pieces of a query are looked at; shorter queries get zeros.
    """

    all_layers: bool = True

    def __init__(self, width: int, layers: int, query_pieces: int) -> None:
        super().__init__()
        self.query_pieces = query_pieces
        self.convolutions = nn.ModuleList(nn.Conv2d(layers, FILTERS, n) for n in NGRAMS)
        self.hidden1 = nn.Linear(query_pieces * len(NGRAMS) * LARGEST + width, HIDDEN)
        self.hidden2 = nn.Linear(HIDDEN, HIDDEN)
        self.score = nn.Linear(HIDDEN, 1)

    def forward(self, encoded: Encoded) -> Tensor:
        """(pairs,) float32"""
        with torch.autocast(encoded.cls.device.type, enabled=False):
            features = torch.cat([self._best_matches(encoded).flatten(1), encoded.cls.float()], dim=1)
            hidden = torch.relu(self.hidden2(torch.relu(self.hidden1(features))))
            return self.score(hidden).squeeze(1)

    def _best_matches(self, encoded: Encoded) -> Tensor:
        """(pairs, query_pieces, n-grams, LARGEST)"""
        query = [layer[:, : self.query_pieces] for layer in encoded.query]
        query_mask = encoded.query_mask[:, : self.query_pieces]
        cosines = cosine_matrices(encoded._replace(query=query, query_mask=query_mask))
        below, right = self.query_pieces - cosines.shape[2], max(0, LARGEST - cosines.shape[3])
        real = F.pad(query_mask[:, :, None] & encoded.document_mask[:, None, :], (0, right, 0, below))
        best = []
        for n, convolution in zip(NGRAMS, self.convolutions, strict=True):
            responses = convolution(F.pad(cosines, (0, right + n - 1, 0, below + n - 1)))
            # the relu of the largest is the largest relu, and the wide responses need not be kept for the backward pass
            matches = torch.relu(responses.max(dim=1).values)  # (pairs, query_pieces, at least d_len)
            # no match is below 0, so a masked 0 comes in only where there are too few real ones
            best.append(matches.masked_fill(~real, 0.0).topk(LARGEST, dim=2).values)
        return torch.stack(best, dim=2)
