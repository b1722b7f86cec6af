"""Training pairs: each epoch, for every training query one of its relevant documents and some of its negatives.

The drawn documents are a pure function of seed, epoch and query; which process computes a pair, and in which part of an
optimiser step, is a pure function of the epoch's order: workers, processes and a resumed training see the same pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from datamodules.text.query_sets import SPLIT_SEED
from lexical.batches import PairOptions, RankingBatch
from lexical.errors import UserError
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, ragged
from lexical.terminal import say_once


@dataclass(eq=False)
class TrainingPairs:
    """The batches of one process."""

    forward: ForwardIndex  # of the ranker's field
    queries: Ragged  # token ids of the training queries
    relevant: Ragged  # their relevant documents
    negatives: np.ndarray  # (queries, negatives) document rows, -1 where a query has fewer
    options: PairOptions
    process: tuple[int, int] = (0, 1)  # rank, number of processes
    sequences: Ragged | None = None  # the documents' tokens in the order of the text

    def __post_init__(self) -> None:
        usable = (self.relevant.lengths() > 0) & (self.negatives >= 0).any(axis=1)
        self.usable = np.flatnonzero(usable)
        among_candidates = self.options.retrieved_only or self.options.mined is not None
        positive = "relevant candidate" if among_candidates else "relevant document"
        if left_out := len(usable) - len(self.usable):
            say_once(f"{left_out:,} training queries have no {positive} or no other candidate: they are left out")
        if not len(self.usable):
            raise UserError(f"no training query has a {positive} and another candidate: nothing can be learned")
        if self.options.queries is not None:
            drawn = np.random.default_rng(SPLIT_SEED).permutation(self.usable)[: self.options.queries]
            self.usable = np.sort(drawn)

    @property
    def pairs_per_step(self) -> int:
        return self.options.pairs_at_once * self.options.parts * self.process[1]

    def __len__(self) -> int:
        """Batches of an epoch: the same number for every process, the last ones perhaps small or empty."""
        return -(-len(self.usable) // self.pairs_per_step) * self.options.parts

    def batch(self, epoch: int, number: int) -> RankingBatch:
        """Return batch `number` of this process in the epoch."""
        step, part = divmod(number, self.options.parts)
        first = step * self.pairs_per_step + (self.process[0] * self.options.parts + part) * self.options.pairs_at_once
        members = self._order(epoch)[first : first + self.options.pairs_at_once].tolist()
        queries = ragged([self.queries.row(query) for query in members], np.int32)
        documents = ragged([self.draw(epoch, query) for query in members], np.int64)
        return RankingBatch(self.forward, queries, documents, self.sequences, np.array(members, np.int64))

    def draw(self, epoch: int, query: int) -> list[int]:
        """Return a relevant document of the query and `options.negatives` non-relevant ones, fewer if it has fewer."""
        rng = np.random.default_rng([self.options.seed, epoch, query])
        relevant, negatives = self.relevant.row(query), self.negatives[query]
        negatives = negatives[negatives >= 0]
        positive = int(relevant[rng.integers(len(relevant))])
        if self.options.negatives == 1:
            return [positive, int(negatives[rng.integers(len(negatives))])]
        return [positive, *rng.permutation(negatives)[: self.options.negatives].tolist()]

    @lru_cache(maxsize=1)  # noqa: B019 - one order is kept
    def _order(self, epoch: int) -> np.ndarray:
        """Return the usable queries in the order of an epoch."""
        return np.random.default_rng([self.options.seed, epoch]).permutation(self.usable)
