"""BM25 over any field, k1 and b tuned on the development queries (the formula is in `lexical.bm25`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lexical.batches import DevelopmentBatch, RankingBatch
from lexical.bm25 import BM25Parameters, Trial, normalised_bm25, search_space, tune
from lexical.errors import require
from lexical.evidence import Evidence, bm25_evidence
from lightning_modules.ranker import Ranker, require_settings


class BM25(Ranker):
    """BM25 of one field, divided by the sum of the query's idf values.

    Args:
        field: word, lemm, word_all or bwps.
        k1: saturation of the term frequency; tuned on development when not given.
        b: strength of the length normalisation; tuned on development when not given.
        fused: the row is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    explains = single_process = True

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
        require_settings("between 0 and 1", b=b)
        self.given = (k1, b)
        self.parameters_found = None if k1 is None or b is None else BM25Parameters(k1, b)

    @property
    def is_trained(self) -> bool:
        return self.parameters_found is not None

    def training_step(self, batch: DevelopmentBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Try a grid of settings and keep the best one."""
        trials: list[Trial] = []
        if None in self.given:
            grid = search_space(*self.given)
            self.parameters_found = tune(batch.forward, batch.queries, batch.task, trials.append, *grid)
        for step, trial in enumerate(trials):
            values = {"tune/k1": trial.parameters.k1, "tune/b": trial.parameters.b, "tune/mrr": trial.mrr}
            self.log_metrics(step, values)
        self.trainer.should_stop = True

    def score(self, batch: RankingBatch) -> np.ndarray:
        assert self.parameters_found is not None
        return normalised_bm25(*batch[:3], self.parameters_found)

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        assert self.parameters_found is not None
        return [bm25_evidence(batch.forward, *pair, self.parameters_found) for pair in batch.pairs()]

    def learned(self) -> dict[str, Any]:
        return {} if self.parameters_found is None else self.parameters_found._asdict()

    def load_learned(self, learned: dict[str, Any]) -> None:
        self.parameters_found = BM25Parameters(**learned) if learned else None

    def findings(self) -> dict[str, float]:
        return self.learned()
