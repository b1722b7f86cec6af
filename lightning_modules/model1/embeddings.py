"""The untrained baseline: Model 1 whose T(q|d) are cosines of token embeddings (Zuccon et al., the paper's related
work). Only p_self and lambda are tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lexical.batches import DevelopmentBatch
from lexical.encoders import PACKAGED
from lexical.errors import UserError
from lexical.model1.embedding_table import TokenVectors, encoder_vectors, file_vectors, nearest_translations
from lexical.terminal import detail, progress_bar
from lightning_modules.model1.translation_ranker import TranslationRanker
from lightning_modules.ranker import require_settings


class Model1Embed(TranslationRanker):
    """Model 1 with translations from embeddings.

    Args:
        field: word, lemm, word_all or bwps.
        vectors: "packaged" (input embeddings of the packaged encoder), the folder of another encoder,
            or a text file of word vectors.
        neighbours: nearest tokens that a document token translates to.
        p_self: T(t|t); tuned on development when not given.
        smoothing: lambda, the weight of P(q|C); tuned on development when not given.
        fused: the row of the results table is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    def __init__(
        self,
        field: str = "bwps",
        vectors: str = PACKAGED,
        neighbours: int = 10,
        p_self: float | None = None,
        smoothing: float | None = None,
        fused: bool = True,
        rerank_depth: int = 1000,
    ) -> None:
        super().__init__(field, 0.0, p_self, smoothing, fused, rerank_depth)
        require_settings("1 or more", neighbours=neighbours)
        self.vectors, self.neighbours = vectors, neighbours

    def check_inputs(self) -> None:
        check_vectors(self.vectors)

    def training_step(self, batch: DevelopmentBatch, batch_idx: int) -> None:  # noqa: ARG002
        vectors = read_vectors(self.vectors, batch.vocabulary)
        detail(f"{len(vectors.tokens):,} of {len(batch.vocabulary):,} tokens of the field {batch.field} have a vector")
        sources = batch.forward.collection_frequency > 0
        with progress_bar() as bar:
            task = bar.add_task("nearest tokens", total=int(sources[vectors.tokens].sum()))
            learned = nearest_translations(vectors, sources, self.neighbours, lambda done: bar.advance(task, done))
        self.use(self.choose_table(learned, batch, thresholds=(0.0,)))
        self.trainer.should_stop = True

    def source(self) -> dict[str, Any]:
        return {"ranker": "cosine of embeddings", "vectors": self.vectors, "neighbours": self.neighbours}


def check_vectors(vectors: str) -> None:
    if vectors != PACKAGED and not Path(vectors).expanduser().exists():
        raise UserError(f"--model.vectors: there is no file or folder {vectors}")


def read_vectors(vectors: str, vocabulary: list[str]) -> TokenVectors:
    """Read what `--model.vectors` names: "packaged" (input embeddings of the packaged encoder), the folder of another
    encoder, or a text file of vectors."""
    if vectors == PACKAGED or Path(vectors).expanduser().is_dir():
        return encoder_vectors(vectors, vocabulary)
    return file_vectors(Path(vectors).expanduser(), vocabulary)
