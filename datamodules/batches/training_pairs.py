"""Training pairs: each epoch, for every training query one of its relevant documents and one of its sampled negatives.

What is drawn is a pure function of seed, epoch and query, and who computes it (which process, which part of an
optimiser step) a pure function of the epoch's order: workers, processes and a resumed training see the same pairs.
"""

from __future__ import annotations

import numpy as np

from datamodules.text.query_sets import SPLIT_SEED
from lexical.batches import PairOptions, RankingBatch
from lexical.errors import UserError
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, offsets_of
from lexical.terminal import say


class TrainingPairs:
    """The batches of one process. `process` = (rank, number of processes)."""

    def __init__(
        self,
        forward: ForwardIndex,
        queries: Ragged,
        relevant: Ragged,
        negatives: np.ndarray,
        options: PairOptions,
        process: tuple[int, int] = (0, 1),
        sequences: Ragged | None = None,
    ) -> None:
        self.forward, self.queries, self.relevant, self.negatives = forward, queries, relevant, negatives
        self.options, self.process, self.sequences = options, process, sequences
        self._order_of: tuple[int, np.ndarray] | None = None  # of the epoch that was asked for last
        usable = (relevant.lengths() > 0) & (negatives >= 0).any(axis=1)
        self.usable = np.flatnonzero(usable)
        which = "relevant candidate" if options.retrieved_only else "relevant document"
        if left_out := len(usable) - len(self.usable):
            say(f"{left_out:,} training queries have no {which} or no other candidate: they are left out")
        if not len(self.usable):
            raise UserError(f"no training query has a {which} and another candidate: nothing can be learned")
        if options.queries is not None:
            self.usable = np.sort(np.random.default_rng(SPLIT_SEED).permutation(self.usable)[: options.queries])

    @property
    def pairs_per_step(self) -> int:
        return self.options.pairs_at_once * self.options.parts * self.process[1]

    def __len__(self) -> int:
        """Batches of an epoch: the same for every process, the last ones perhaps small or empty."""
        return -(-len(self.usable) // self.pairs_per_step) * self.options.parts

    def batch(self, epoch: int, number: int) -> RankingBatch:
        """The batch `number` of this process in the epoch."""
        order = self._order(epoch)
        step, part = divmod(number, self.options.parts)
        first = step * self.pairs_per_step + (self.process[0] * self.options.parts + part) * self.options.pairs_at_once
        chosen = order[first : first + self.options.pairs_at_once]
        documents = [document for query in chosen for document in self.draw(epoch, int(query))]
        rows = [self.queries.row(query) for query in chosen]
        offsets = offsets_of(np.array([len(row) for row in rows], np.int64))
        tokens = np.concatenate(rows) if rows else np.zeros(0, np.int32)
        pairs = Ragged(np.arange(len(chosen) + 1, dtype=np.int64) * 2, np.array(documents, np.int64))
        return RankingBatch(self.forward, Ragged(offsets, tokens), pairs, self.sequences)

    def draw(self, epoch: int, query: int) -> tuple[int, int]:
        """(relevant, non-relevant) document of the query in this epoch."""
        rng = np.random.default_rng([self.options.seed, epoch, query])
        relevant = self.relevant.row(query)
        negatives = self.negatives[query]
        negatives = negatives[negatives >= 0]
        return int(relevant[rng.integers(len(relevant))]), int(negatives[rng.integers(len(negatives))])

    def _order(self, epoch: int) -> np.ndarray:
        if self._order_of is None or self._order_of[0] != epoch:
            self._order_of = (epoch, np.random.default_rng([self.options.seed, epoch]).permutation(self.usable))
        return self._order_of[1]
