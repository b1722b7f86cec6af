"""The interface between data modules and rankers: what a ranker requires of the data, and the batches it receives.

Data modules and rankers import this file and not each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged
from lexical.model1.bitext import DEFAULT_OPTIONS, Bitext, BitextOptions
from lexical.ranking.order import RankedTask

NOT_HIDDEN = -100  # torch's cross entropy skips this label
TrainingData = Literal["bitext", "candidates", "development", "fusion", "pairs"]


class PairOptions(NamedTuple):
    """How training pairs are drawn: queries, each with a relevant and some non-relevant documents."""

    seed: int  # decides which pairs are drawn, and their order
    pairs_at_once: int  # pairs of a batch
    parts: int  # batches of an optimiser step that one process computes one after the other
    collate: Callable[[RankingBatch], Any]  # converts a batch for the ranker; runs ahead in a thread
    queries: int | None = None  # training queries of an epoch, a fixed sample; None: all
    negatives: int = 1  # non-relevant documents of a query and epoch
    negatives_from: int = 500  # the 20 negatives of a query are drawn from its best candidates, up to this rank
    retrieved_only: bool = False  # use only positives that are among those candidates
    mined: Ragged | None = None  # (training queries) negatives to draw from instead, with relevant candidates only
    first_stage: bool = False  # batches have the normalised BM25 of their documents


class ValidationSample(NamedTuple):
    """The development queries that are scored after each epoch."""

    queries: int | None = 500  # a fixed sample; None: all
    depth: int = 100  # candidates of each query


class DataNeeds(NamedTuple):
    """What a ranker requires of the data.

    train: what `train_dataloader` yields:
        bitext       `BitextBatch`es of the training queries and their relevant documents, field by field
        candidates   a `DevelopmentBatch` for each field, with the candidates of an untuned first stage
        development  a `DevelopmentBatch` for each field, with the candidates that will be re-ranked
        fusion       a `FusionBatch`; with `sampled` a second one, of a small sample
        pairs        what `pairs.collate` returns for `RankingBatch`es of one positive and some negatives a query
    """

    fields: tuple[str, ...]  # to be scored: one, or several with `joint`
    train: TrainingData
    depth: int = 1000  # candidates of a query
    train_fields: tuple[str, ...] = ()  # to be trained on, if not `fields`
    training_depth: int | None = None  # candidates of each training query, for `RankerData.training_queries`
    joint: bool = False  # batches hold all fields side by side (`JointBatch`)
    sampled: bool = False  # too slow for whole query sets: evaluate on fixed samples of them
    bitext: BitextOptions = DEFAULT_OPTIONS
    pairs: PairOptions | None = None
    validation: ValidationSample | None = None  # of a training by gradients; None: `EvaluationBatch`es of all


class RankerData(Protocol):
    """What rankers use of `trainer.datamodule` besides the dataloaders."""

    def vocabulary(self, field: str) -> list[str]: ...

    def tokens_in_collection(self, field: str) -> np.ndarray:
        """Return (vocabulary,) bool: the tokens that occur in the collection."""
        ...

    def sequences(self, field: str) -> Ragged:
        """Return the tokens of each document in the order of the text."""
        ...

    def sequences_folder(self, field: str) -> Path:
        """Return the prepared folder of `sequences`; its name changes with them, and results are cached beside it."""
        ...

    def development_batches(self, fields: Sequence[str], depth: int) -> list[DevelopmentBatch]: ...

    def evaluation_batches(self, query_set: str, needs: DataNeeds) -> list[EvaluationBatch]: ...

    def training_queries(self, field: str, depth: int) -> TrainingQueries:
        """Return all training queries with the `depth` best candidates of the first stage."""
        ...

    def bitext(self, field: str, options: BitextOptions, queries: np.ndarray | None = None) -> Sequence[BitextBatch]:
        """Return the bitext of the training queries (of these rows only), block by block."""
        ...

    def fingerprint(self) -> str:
        """Return a hash that is equal for equal queries, documents and candidates."""
        ...


class RankingBatch(NamedTuple):
    """Queries whose candidates are to be scored; row i of `candidates` belongs to row i of `queries`."""

    forward: ForwardIndex  # of the ranker's field; memory-mapped, shared by all batches
    queries: Ragged  # token ids of the field, -1 for unknown words
    candidates: Ragged  # document rows
    sequences: Ragged | None = None  # the documents' tokens in the order of the text, -1 for rare words
    rows: np.ndarray | None = None  # (queries,) row of each query in its query set, in training batches
    first_stage: np.ndarray | None = None  # (pairs,) normalised BM25 of the first stage, in training batches

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (query tokens, document tokens), both in the order of the text, for every candidate."""
        assert self.sequences is not None
        for row in range(self.queries.rows):
            for document in self.candidates.row(row):
                yield self.queries.row(row), self.sequences.row(document)


class JointBatch(NamedTuple):
    """The same queries and candidates in several fields."""

    fields: dict[str, RankingBatch]
    id_order: np.ndarray  # (documents,) rank of a document's id among the sorted ids: the tie rule

    @property
    def candidates(self) -> Ragged:
        return next(iter(self.fields.values())).candidates


class TrainingQueries(NamedTuple):
    """The training queries with the candidates of the first stage."""

    forward: ForwardIndex
    queries: Ragged  # token ids, -1 for unknown words
    candidates: Ragged  # document rows, best first
    first_stage: np.ndarray  # (pairs,) float32 normalised BM25
    relevant: np.ndarray  # (pairs,) bool: the candidate is relevant to its query


class EvaluationSet(NamedTuple):
    """A judged query set with the candidates that are ranked."""

    name: str
    query_ids: Sequence[str]
    qrels: Sequence[tuple[str, str, int]]  # (query id, document id, grade)
    graded: bool  # grades above 1: measured by nDCG@10 instead of MRR
    relevant_from: int  # the lowest grade of a relevant document, for recall and MRR
    task: RankedTask
    document_ids: Callable[[np.ndarray], Any]  # document rows -> Arrow array of ids
    depth: int  # candidates of a query, at most


class EvaluationBatch(NamedTuple):
    """Some queries of an evaluation set, in its order."""

    query_set: EvaluationSet
    ranking: RankingBatch | JointBatch
    first_stage: np.ndarray  # (pairs,) normalised BM25 of the first stage
    last: bool  # no batch of this query set follows


class FusionBatch(NamedTuple):
    """A judged query set to learn fusion weights on."""

    query_set: str
    batches: list[JointBatch]
    task: RankedTask  # of all batches together


class DevelopmentBatch(NamedTuple):
    """All development queries in one field, to choose parameters on."""

    field: str
    vocabulary: list[str]
    forward: ForwardIndex
    queries: Ragged
    task: RankedTask
    first_stage: np.ndarray  # (pairs,) normalised BM25 of the first stage


class BitextBatch(NamedTuple):
    """A block of the bitext of one field."""

    field: str
    vocabulary_size: int
    bitext: Bitext


class ValidationBatch(NamedTuple):
    """Judged queries of this process to measure on while training."""

    ranking: RankingBatch
    task: RankedTask
    first_stage: np.ndarray  # (pairs,) normalised BM25 of the first stage


class SentenceBatch(NamedTuple):
    """Padded sequences [CLS] A [SEP] B [SEP] for the pretraining of an encoder."""

    tokens: np.ndarray  # (sequences, longest) int64
    types: np.ndarray  # (sequences, longest) int64: 1 in B
    mask: np.ndarray  # (sequences, longest) int64: 0 in the padding
    labels: np.ndarray  # (sequences, longest) int64: the hidden pieces, NOT_HIDDEN elsewhere
    hidden_at: np.ndarray  # (hidden pieces,) int64: where they stand in the flattened labels
    follows: np.ndarray  # (sequences,) int64: 0 where B follows A, 1 where it does not, as in BERT
