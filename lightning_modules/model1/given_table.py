"""Model 1 with a table that was made elsewhere: imported from MGIZA, exported from a network, or edited by hand.

A table on disk is final, so only lambda is tuned; the one that its meta.json records is tried, too. Its tokens are
matched by their text with those of the field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lexical.batches import DevelopmentBatch
from lexical.errors import UserError
from lexical.model1.scorer import FLOOR
from lexical.model1.table import renumbered
from lexical.model1.table_files import SavedTable, load_table, scored_with
from lexical.terminal import say
from lightning_modules.model1.translation_ranker import TranslationRanker


class Model1Table(TranslationRanker):
    """Model 1 with a given table.

    Args:
        table: folder of the table (table.safetensors, vocab.txt, meta.json).
        field: word, lemm, word_all or bwps.
        smoothing: lambda, the weight of P(q|C); tuned on development when not given.
        fused: the row of the results table is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    def __init__(
        self,
        table: str | None = None,
        field: str = "word",
        smoothing: float | None = None,
        fused: bool = True,
        rerank_depth: int = 1000,
    ) -> None:
        super().__init__(field, None, None, smoothing, fused, rerank_depth)
        if table is None:
            raise UserError("say which table: --model.table FOLDER")
        self.table = table
        self.given_table: SavedTable | None = None

    def check_inputs(self) -> None:
        self.given_table = self.given_table or load_table(Path(self.table).expanduser())

    def training_step(self, batch: DevelopmentBatch, batch_idx: int) -> None:  # noqa: ARG002
        saved = self.given_table
        assert saved is not None
        table, known = renumbered(saved.table, saved.vocabulary, batch.vocabulary)
        if not known:
            raise UserError(f"{self.table} has no token of the field {batch.field}: choose another --model.field")
        say(f"{known:,} of the table's {len(saved.vocabulary):,} tokens are in the field {batch.field}")
        recorded = scored_with(saved.meta)
        self.floor = recorded.get("floor", FLOOR)
        self.use(self.choose_smoothing(table, batch, recorded.get("smoothing")))
        self.trainer.should_stop = True

    def source(self) -> dict[str, Any]:
        assert self.given_table is not None
        meta = self.given_table.meta
        return {"ranker": "a given table", "table": {key: meta.get(key) for key in ("source", "parameters")}}
