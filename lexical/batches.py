"""What travels between the data and the lexical rankers: what a ranker asks for, and the batches that it gets."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from lexical.bitext import DEFAULT_OPTIONS, Bitext, BitextOptions
from lexical.forward_index import ForwardIndex
from lexical.ragged import Ragged
from lexical.ranking import RankedTask

Loader = Literal["pool", "development", "bitext"]


class Needs(NamedTuple):
    """What a ranker asks of the data before it is trained.

    pool: one `TuningBatch` a field, development queries with the candidates of an untuned first stage.
    development: one `TuningBatch` a field, development queries with the candidates that will be re-ranked.
    bitext: `BitextBatch`es of the training queries and their relevant documents, for each field.
    """

    fields: tuple[str, ...]
    train: Loader
    validation: Loader | None = None
    depth: int = 1000  # candidates of a development query
    bitext: BitextOptions = DEFAULT_OPTIONS


class RankingBatch(NamedTuple):
    """Queries whose candidates are to be scored; row i of `candidates` belongs to row i of `queries`."""

    forward: ForwardIndex  # of the ranker's field; memory-mapped, shared by all batches
    queries: Ragged  # token ids of the field, -1 for unknown words
    candidates: Ragged  # document rows


class TuningBatch(NamedTuple):
    """A judged query set to choose parameters on."""

    field: str
    vocabulary: list[str]  # token i of the field
    forward: ForwardIndex
    queries: Ragged
    task: RankedTask
    first_stage: np.ndarray  # (pairs,) BM25 of the first stage, normalised: what the ranker is fused with


class BitextBatch(NamedTuple):
    """A block of the bitext of one field."""

    field: str
    vocabulary_size: int
    bitext: Bitext
