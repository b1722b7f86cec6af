"""What travels between the data and the rankers: what a ranker asks for, and the batches that it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged
from lexical.model1.bitext import DEFAULT_OPTIONS, Bitext, BitextOptions
from lexical.ranking.order import RankedTask

NOT_HIDDEN = -100  # the label that torch's cross entropy passes over
Loader = Literal["pool", "development", "bitext", "pairs", "sample", "fusion"]


class PairOptions(NamedTuple):
    """How training pairs come: queries, each with a relevant and a non-relevant document."""

    seed: int  # which pairs are drawn, and in which order
    at_once: int  # pairs of a batch
    parts: int  # batches of an optimiser step that one process computes one after the other
    collate: Callable[[RankingBatch], Any]  # makes of a batch what the ranker computes with; runs in a thread, ahead
    queries: int | None = None  # training queries of an epoch, a fixed sample; all when None
    negatives_from: int = 500  # first-stage candidates of a query that its 20 non-relevant documents are drawn from
    found_only: bool = False  # relevant documents that are not among those candidates are no examples


class QuerySample(NamedTuple):
    """The development queries that a training is watched on."""

    queries: int = 500
    depth: int = 100  # candidates of each


class Needs(NamedTuple):
    """What a ranker asks of the data before it is trained.

    pool: one `TuningBatch` a field, development queries with the candidates of an untuned first stage.
    development: one `TuningBatch` a field, development queries with the candidates that will be re-ranked.
    bitext: `BitextBatch`es of the training queries and their relevant documents, for each field.
    pairs: what `pairs.collate` makes of `RankingBatch`es; the candidates are a relevant and a non-relevant document.
    sample: one `ValidationBatch` for each process, of a fixed sample of the development queries.
    fusion: a `FusionBatch` of the queries that fusion weights are learned on; with `sampled` a second one, of a small
        sample of them.
    """

    fields: tuple[str, ...]
    train: Loader
    validation: Loader | None = None
    depth: int = 1000  # candidates of a development query
    bitext: BitextOptions = DEFAULT_OPTIONS
    pairs: PairOptions | None = None
    sample: QuerySample = QuerySample()
    sampled: bool = False  # also a sample that a slow ranker can score


class RankingBatch(NamedTuple):
    """Queries whose candidates are to be scored; row i of `candidates` belongs to row i of `queries`."""

    forward: ForwardIndex  # of the ranker's field; memory-mapped, shared by all batches
    queries: Ragged  # token ids of the field, -1 for unknown words
    candidates: Ragged  # document rows
    sequences: Ragged | None = None  # the documents' tokens in the order of the text; for rankers that read them

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(query tokens, document tokens), both in the order of the text, of every candidate."""
        assert self.sequences is not None
        for row in range(self.queries.rows):
            for document in self.candidates.row(row):
                yield self.queries.row(row), self.sequences.row(document)


class JointBatch(NamedTuple):
    """The same queries and candidates in several fields."""

    fields: dict[str, RankingBatch]
    id_order: np.ndarray  # (documents,) place of a document in the order of ids: the tie rule

    @property
    def candidates(self) -> Ragged:
        return next(iter(self.fields.values())).candidates


class FusionBatch(NamedTuple):
    """A judged query set to learn fusion weights on."""

    query_set: str
    batches: list[JointBatch]
    task: RankedTask  # of all batches together


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


class ValidationBatch(NamedTuple):
    """Judged queries to measure on while training."""

    ranking: RankingBatch
    numbers: np.ndarray  # (queries,) the number of a query in its set
    relevant: np.ndarray  # (pairs,) bool
    id_order: np.ndarray  # (documents,) place of a document in the order of ids: the tie rule


class SentenceBatch(NamedTuple):
    """Sequences [CLS] A [SEP] B [SEP] for the pretraining of an encoder, padded."""

    tokens: np.ndarray  # (sequences, longest) int64
    types: np.ndarray  # (sequences, longest) int64: 1 in B
    mask: np.ndarray  # (sequences, longest) int64: 0 in the padding
    labels: np.ndarray  # (sequences, longest) int64: the hidden pieces, elsewhere NOT_HIDDEN
    follows: np.ndarray  # (sequences,) int64: 0 where B follows A, 1 where it does not, as in BERT
