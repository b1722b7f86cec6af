"""The bitext of the training queries and their relevant documents, made block by block whenever it is walked."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from torch.utils.data import Dataset

from datamodules.preparation import Preparation
from datamodules.text.query_sets import TRAIN_MODELING
from lexical.batches import BitextBatch
from lexical.model1.bitext import BitextOptions, kept_tokens, make_bitext, query_blocks


class BitextBlocks(Dataset[BitextBatch]):
    """Item i is a block of queries; of each block a rank takes every n-th query, so all ranks have equally many.

    Nothing is stored: documents are memory-mapped and chunks are cut in less time than they would take to be read.
    """

    def __init__(self, prepared: Preparation, field: str, options: BitextOptions, share: tuple[int, int]) -> None:
        self.prepared, self.field, self.options, self.share = prepared, field, options, share
        self.relevant = prepared.query_sets[TRAIN_MODELING].relevant
        self.blocks = query_blocks(self.relevant, prepared.field(field).sequences.offsets)

    @cached_property
    def _kept(self) -> np.ndarray:
        return kept_tokens(self.prepared.field(self.field).forward, self.options)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, number: int) -> BitextBatch:
        first, last = self.blocks[number]
        rank, ranks = self.share
        queries = self.prepared.query_tokens(TRAIN_MODELING, self.field)
        documents = self.prepared.field(self.field).sequences
        rows = np.arange(first + rank, last, ranks)
        bitext = make_bitext(queries, documents, self.relevant, self._kept, rows, self.options)
        return BitextBatch(self.field, len(self._kept), bitext)
