"""The head of a BERT ranker by its name."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from torch import nn

from lexical.errors import require
from lightning_modules.bert.heads.drmm import DRMMHead
from lightning_modules.bert.heads.knrm import KNRMHead
from lightning_modules.bert.heads.model1 import ALIKE, Model1Head
from lightning_modules.bert.heads.pacrr import PACRRHead
from lightning_modules.bert.heads.vanilla import VanillaHead

HeadName = Literal["vanilla", "knrm", "drmm", "pacrr", "model1"]
HEADS: dict[str, Any] = {
    "vanilla": VanillaHead, "knrm": KNRMHead, "drmm": DRMMHead, "pacrr": PACRRHead, "model1": Model1Head,
}  # fmt: skip


class Model1Settings(NamedTuple):
    """Of the Model 1 layer; see `Model1Head`."""

    projection: int
    hidden: tuple[int, ...]  # two widths
    dropout: float
    start: float | None  # T(q|d) of orthogonal vectors before training; weights start at random when None

    def check(self) -> Model1Settings:
        two = len(self.hidden) == 2 and min(self.hidden) >= 1
        require(self.projection >= 1, "--model.projection", self.projection, "1 or more")
        require(two, "--model.hidden", self.hidden, "two widths, such as [128, 64]")
        require(0 <= self.dropout < 1, "--model.dropout", self.dropout, "from 0 to less than 1")
        known = self.start is None or 0 < self.start < ALIKE
        require(known, "--model.start", self.start, f"between 0 and {ALIKE}")
        return self


def new_head(name: str, width: int, layers: int, query_pieces: int, model1: Model1Settings) -> nn.Module:
    """A head with random weights for vectors of this width, of so many layers of the encoder."""
    settings: dict[str, tuple[Any, ...]] = {
        "vanilla": (),
        "knrm": (layers,),
        "drmm": (layers,),
        "pacrr": (layers, query_pieces),
        "model1": (model1.projection, model1.hidden, model1.dropout),
    }
    head = HEADS[name](width, *settings[name])
    if isinstance(head, Model1Head) and model1.start is not None:
        head.start_as_similarity(model1.start)
    return head
