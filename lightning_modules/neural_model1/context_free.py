"""Base class of the context-free neural rankers: T(q|d) depends on two token ids only.

    log P(Q|D) = sum over q in Q of log P(q|D)
    P(q|D)     = (1 - lambda) * sum over unique d in D of T(q|d) tf(d, D) / |D|  +  lambda P(q|C),  at least `floor`

In training T is computed once for every distinct pair of a batch (`lexical.model1.distinct_pairs`); in scoring once for
every query token of a batch and document token of its candidates, and the CPU scorer of translation tables does the
rest. When training ends, the network is exported to a sparse table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from callbacks.sparse_export import ExportSettings, SparseExport
from lexical.batches import RankingBatch
from lexical.evidence import Evidence, model1_evidence
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.distinct_pairs import tokens_of
from lexical.model1.scorer import FLOOR, UNSEEN, collection_probability, model1_scores, per_query_token
from lexical.model1.table import TranslationTable
from lightning_modules.neural_ranker import NeuralRanker
from lightning_modules.precision import float32_products
from lightning_modules.ranker import require_settings


class ContextFreeRanker(NeuralRanker):
    """A neural Model 1 without context. A subclass defines `translation_rows` and what `NeuralRanker` requires.

    Args:
        field: word, lemm, word_all or bwps.
        export_threshold: when training ends, the network is exported to a sparse table without smaller T(q|d); no
            export when not given.
        export_top_k: the table keeps at most this many document tokens per query token; all when not given.
        export_whole_vocabulary: the table has document tokens that do not occur in the collection, too.
        training: further settings, those of `NeuralRanker`.
    """

    explains = True
    p_self: float | None = None  # T(t|t), where it is not learned
    smoothing = 0.0  # lambda
    floor = FLOOR  # smallest P(q|D), where lambda is 0

    def __init__(
        self,
        field: str = "bwps",
        export_threshold: float | None = 1e-4,
        export_top_k: int | None = None,
        export_whole_vocabulary: bool = False,
        **training: Any,
    ) -> None:
        super().__init__(field, **training)
        require_settings("1 or more", export_top_k=export_top_k)
        require_settings("from 0 to less than 1", export_threshold=export_threshold)
        self.export: ExportSettings | None = None
        if export_threshold is not None:
            self.export = ExportSettings(export_threshold, export_top_k, export_whole_vocabulary)
        self._background: tuple[ForwardIndex, np.ndarray] | None = None

    def translation_rows(self, query_tokens: np.ndarray, document_tokens: np.ndarray) -> Iterator[np.ndarray]:
        """Yield (document tokens,) float32 T(q|d) for each query token.

        Both arguments are ascending. The next row may use the memory of a row again.
        """
        raise NotImplementedError(f"{type(self).__name__} must define translation_rows()")

    def configure_callbacks(self) -> Sequence[L.Callback]:
        exports = [] if self.export is None else [SparseExport(self.export)]
        return [*super().configure_callbacks(), *exports]

    def translations(self, query_tokens: np.ndarray, document_tokens: np.ndarray) -> np.ndarray:
        """Return (query tokens, document tokens) T(q|d), float32 whatever the training's precision."""
        values = np.empty((len(query_tokens), len(document_tokens)), np.float32)
        with float32_products(self.device):
            for number, row in enumerate(self.translation_rows(query_tokens, document_tokens)):
                values[number] = row
        return values

    def score(self, batch: RankingBatch) -> np.ndarray:
        forward, queries, candidates = batch[:3]
        query_tokens = np.unique(queries.values[queries.values >= 0]).astype(np.int64)
        document_tokens = tokens_of(forward, candidates.values)
        values = self.translations(query_tokens, document_tokens)
        lengths = np.zeros(forward.vocabulary_size, np.int64)
        lengths[query_tokens] = len(document_tokens)
        rows = Ragged(offsets_of(lengths), np.tile(document_tokens.astype(np.int32), len(query_tokens)))
        table, background = TranslationTable(rows, values.ravel()), self.collection_probability(forward)
        scores = model1_scores(table, forward, queries, candidates, self.smoothing, background, self.floor)
        return per_query_token(scores, queries, candidates)

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        background, evidence = self.collection_probability(batch.forward), []
        for query, document in batch.pairs():
            query_tokens, q_row = np.unique(query[query >= 0].astype(np.int64), return_inverse=True)
            document_tokens, d_column = np.unique(document[document >= 0].astype(np.int64), return_inverse=True)
            translation = np.zeros((len(query), len(document)))
            known = self.translations(query_tokens, document_tokens)[q_row][:, d_column]
            translation[np.ix_(query >= 0, document >= 0)] = known
            prior = self.smoothing * np.where(query >= 0, background[query], UNSEEN)
            floor = 0.0 if self.smoothing else self.floor
            evidence.append(model1_evidence((1 - self.smoothing) * translation, prior, floor, len(query)))
        return evidence

    def collection_probability(self, forward: ForwardIndex) -> np.ndarray:
        """Return (vocabulary,) float64 P(q|C)."""
        if self._background is None or self._background[0] is not forward:
            self._background = (forward, collection_probability(forward))
        return self._background[1]


def token_probabilities(pairs: Any, translation: Tensor) -> Tensor:
    """Return (rows,) sums of T(q|d) tf(d, D) / |D| over the unique tokens d of D.

    Args:
        pairs: `DistinctPairs` of tensors.
        translation: (distinct pairs,) T(q|d).
    """
    summands = translation.index_select(0, pairs.entry_pair) * pairs.entry_weight
    return torch.zeros_like(pairs.row_repeats).index_add(0, pairs.entry_row, summands)


def log_probabilities(pairs: Any, probabilities: Tensor) -> Tensor:
    """Return (documents,) log P(Q|D) from the (rows,) P(q|D)."""
    logs = torch.log(probabilities) * pairs.row_repeats
    return torch.zeros(pairs.documents, device=logs.device).index_add(0, pairs.row_document, logs)
