"""Re-ranking a query set with a ranker, alone and fused with the first stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import lightning as L
import numpy as np

from datamodules.retrieval_data import RetrievalData
from lexical.fusion import coordinate_ascent, fuse
from lexical.ranking import RankedTask, mean_reciprocal_rank, ranking_order
from lexical.trec_run import Run
from lightning_modules.lexical_ranker import LexicalRanker

TIMED_BATCHES = 4  # about a thousand queries


class Reranked(NamedTuple):
    """Scores of one query set's candidates."""

    query_set: str
    task: RankedTask
    alone: np.ndarray  # (pairs,) the ranker's own scores
    fused: np.ndarray | None  # (pairs,) with the first stage; None for a row that is no fusion

    @property
    def row(self) -> np.ndarray:
        """The scores of the row of the results table."""
        return self.alone if self.fused is None else self.fused


def ranking_trainer(model: LexicalRanker) -> L.Trainer:
    """A trainer that scores in this process alone, however many have trained."""
    settings = {**LexicalRanker.trainer_settings(model), "logger": False, "enable_model_summary": False}
    return L.Trainer(**settings)


def score(trainer: L.Trainer, model: LexicalRanker, data: RetrievalData, query_set: str) -> np.ndarray:
    """(pairs,) the ranker's scores of all candidates of the query set."""
    parts = trainer.predict(model, data.ranking_loader(query_set, model.field, model.rerank_depth))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def rerank(
    trainer: L.Trainer, model: LexicalRanker, data: RetrievalData, query_set: str, weights: Sequence[float] | None
) -> Reranked:
    alone = score(trainer, model, data, query_set)
    task = data.ranked_task(query_set, model.rerank_depth)
    fused = None
    if weights is not None:
        fused = fuse(np.stack([data.first_stage_scores(query_set, model.rerank_depth), alone]), np.asarray(weights))
    return Reranked(query_set, task, alone, fused)


def learn_fusion(
    trainer: L.Trainer, model: LexicalRanker, name: str, data: RetrievalData, query_set: str
) -> dict[str, Any]:
    """Weights of (first stage, ranker) learned on `query_set`: the content of fusion.json."""
    task = data.ranked_task(query_set, model.rerank_depth)
    features = np.stack(
        [data.first_stage_scores(query_set, model.rerank_depth), score(trainer, model, data, query_set)]
    )
    started = time.perf_counter()
    learned = coordinate_ascent(features, task)
    return {
        "features": ["bm25_lemm", f"{name} (alone)"],
        "weights": [float(weight) for weight in learned.weights],
        "learned_on": query_set,
        "mrr": learned.mrr,
        "mrr_of_each_feature": [mean_reciprocal_rank(task, feature) for feature in features],
        "queries": task.candidates.rows,
        "seconds": round(time.perf_counter() - started, 3),
    }


def as_run(data: RetrievalData, query_set: str, task: RankedTask, scores: np.ndarray) -> Run:
    """The ranking in the order of the tie rule."""
    order = ranking_order(task.candidates, scores, task.id_order)
    documents = data.prepared.collection.ids(task.candidates.values[order])
    return Run(data.query_set(query_set).ids, np.asarray(task.candidates.offsets), documents, scores[order])


def milliseconds_per_1k(
    model: LexicalRanker, data: RetrievalData, query_set: str, fused: bool, repeats: int = 3
) -> float:
    """Time to score 1,000 candidates, every feature of the row included.

    The median of `repeats` passes over the first queries of the set.
    """
    batches = list(data.ranking_loader(query_set, model.field, model.rerank_depth))[:TIMED_BATCHES]
    pairs = sum(len(batch.candidates.values) for batch in batches)
    if pairs == 0:
        return 0.0
    seconds = []
    for _ in range(repeats + 1):  # the first pass warms up: kernels loaded, files mapped
        started = time.perf_counter()
        alone = np.concatenate([model.score(batch) for batch in batches])
        if fused:
            first_stage = data.first_stage_scores(query_set, model.rerank_depth, TIMED_BATCHES)
            fuse(np.stack([first_stage, alone]), np.array([0.5, 0.5]))
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds[1:])) * 1e6 / pairs
