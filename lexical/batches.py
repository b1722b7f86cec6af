"""What travels from the data to the lexical rankers; a batch is the only thing that both sides know."""

from __future__ import annotations

from typing import NamedTuple

from lexical.forward_index import ForwardIndex
from lexical.ragged import Ragged
from lexical.ranking import RankedTask


class RankingBatch(NamedTuple):
    """Queries whose candidates are to be scored; row i of `candidates` belongs to row i of `queries`."""

    forward: ForwardIndex  # of the ranker's field; memory-mapped, shared by all batches
    queries: Ragged  # token ids of the field, -1 for unknown words
    candidates: Ragged  # document rows


class TuningBatch(NamedTuple):
    """A judged query set to choose parameters on."""

    forward: ForwardIndex
    queries: Ragged
    task: RankedTask
