"""The bitext of the training queries and their relevant documents, computed block by block on each pass."""

from __future__ import annotations

import numpy as np
from torch.utils.data import Dataset

from datamodules.preparation import Preparation
from datamodules.text.query_sets import TRAIN_MODELING
from lexical.batches import BitextBatch
from lexical.model1.bitext import BitextOptions, kept_tokens, make_bitext, query_blocks


class BitextBlocks(Dataset[BitextBatch]):
    """Item i is a block of queries; rank r of n takes the queries r, r + n, ... of each block, so that all ranks have
    equally many; of these only the `chosen` ones where they are given.

    Nothing is stored: documents are memory-mapped, and cutting chunks takes less time than reading them would.
    """

    def __init__(
        self, prepared: Preparation, field: str, options: BitextOptions, process: tuple[int, int], largest: int,
        chosen: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.field, self.options, self.process, self.chosen = field, options, process, chosen
        tokens = prepared.field(field)
        self.documents, self.kept = tokens.sequences, kept_tokens(tokens.forward, options)
        self.queries = prepared.query_tokens(TRAIN_MODELING, field)
        self.relevant = prepared.query_sets[TRAIN_MODELING].relevant
        self.blocks = query_blocks(self.relevant, self.documents.offsets, largest)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, number: int) -> BitextBatch:
        first, end = self.blocks[number]
        rank, processes = self.process
        rows = np.arange(first + rank, end, processes)
        if self.chosen is not None:
            rows = rows[np.isin(rows, self.chosen)]
        bitext = make_bitext(self.queries, self.documents, self.relevant, self.kept, rows, self.options)
        return BitextBatch(self.field, len(self.kept), bitext)
