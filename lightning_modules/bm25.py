"""BM25 over any field, k1 and b tuned on the development queries (the formula is in `lexical.bm25`)."""

from __future__ import annotations

import math

import numpy as np
import torch

from lexical.batches import Needs, RankingBatch, TuningBatch
from lexical.bm25 import BM25Parameters, Trial, normalised_bm25, search_space, tune
from lexical.errors import require
from lexical.evidence import Evidence, bm25_evidence
from lightning_modules.lexical_ranker import LexicalRanker


class BM25(LexicalRanker):
    """BM25 of one field, divided by the sum of the query's idf values.

    Args:
        field: word, lemm, word_all or bwps.
        k1: saturation of the term frequency; tuned on development when not given.
        b: strength of the length normalisation; tuned on development when not given.
        fused: the row is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    explains = True
    k1: torch.Tensor
    b: torch.Tensor

    def __init__(
        self,
        field: str = "lemm",
        k1: float | None = None,
        b: float | None = None,
        fused: bool = False,
        rerank_depth: int = 1000,
    ) -> None:
        super().__init__(field, fused, rerank_depth)
        require(k1 is None or 0 <= k1 < math.inf, "--model.k1", k1, "0 or more")
        require(b is None or 0 <= b <= 1, "--model.b", b, "between 0 and 1")
        self.given = (k1, b)
        self.register_buffer("k1", torch.tensor(math.nan if k1 is None else k1, dtype=torch.float64))
        self.register_buffer("b", torch.tensor(math.nan if b is None else b, dtype=torch.float64))

    def needs(self) -> Needs:
        return Needs((self.field,), train="pool")

    @property
    def parameters_found(self) -> BM25Parameters:
        found = BM25Parameters(float(self.k1), float(self.b))
        if math.isnan(found.k1) or math.isnan(found.b):
            raise ValueError("k1 and b have not been tuned yet: train this ranker first")
        return found

    def training_step(self, batch: TuningBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Tries the grid of settings and keeps the best."""
        k1, b = self.given
        trials: list[Trial] = []
        if k1 is None or b is None:
            best = tune(batch.forward, batch.queries, batch.task, trials.append, *search_space(k1, b))
            self.k1.fill_(best.k1)
            self.b.fill_(best.b)
        for step, trial in enumerate(trials):
            values = {"tune/k1": trial.parameters.k1, "tune/b": trial.parameters.b, "tune/mrr": trial.mrr}
            self.record(step, values)

    def score(self, batch: RankingBatch) -> np.ndarray:
        return normalised_bm25(*batch[:3], self.parameters_found)

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        return [bm25_evidence(batch.forward, *pair, self.parameters_found) for pair in batch.pairs()]
