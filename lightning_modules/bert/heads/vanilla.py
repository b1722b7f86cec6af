"""Vanilla BERT: one linear layer over [CLS] (Nogueira and Cho, "Passage Re-ranking with BERT", 2019).

score = w . dropout(cls) + b
"""

from __future__ import annotations

from torch import Tensor, nn

from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.precision import float32_products


class VanillaHead(nn.Module):
    """Score of [CLS] alone.

    Args:
        width: of the contextual vectors.
    """

    all_layers = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.score = nn.Linear(width, 1)

    def forward(self, encoded: Encoded) -> Tensor:
        """(pairs,) float32"""
        with float32_products(encoded.cls.device):
            return self.score(self.dropout(encoded.cls.float())).squeeze(1)
