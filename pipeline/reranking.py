"""Re-ranking a query set with a ranker, alone and fused with the first stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import lightning as L
import numpy as np
from torch.utils.data import DataLoader

from datamodules.retrieval_data import RetrievalData
from lexical.ranking.fusion import fuse, learn_weights
from lexical.ranking.order import RankedTask, ranking_order
from lexical.ranking.trec_run import Run
from lightning_modules.ranker import Ranker
from pipeline.processes import process_count

TIMED_BATCHES = 1  # about a thousand queries
LONG = 5.0  # seconds of a pass that need not be repeated to be known


class Reranked(NamedTuple):
    """Scores of one query set's candidates."""

    query_set: str
    task: RankedTask
    alone: np.ndarray  # (pairs,) the ranker's own scores
    fused: np.ndarray | None  # (pairs,) with the first stage; None for a row that is no fusion
    seconds: float  # that the ranker itself took

    @property
    def row(self) -> np.ndarray:
        """The scores of the row of the results table."""
        return self.alone if self.fused is None else self.fused


def ranking_trainer(model: Ranker, trainer: Mapping[str, Any]) -> L.Trainer:
    """A trainer that scores: with a slow ranker on all the devices that `trainer` asks for, else in this process."""
    quiet = {"logger": False, "enable_model_summary": False, "enable_checkpointing": False}
    settings = {"accelerator": trainer["accelerator"], **model.ranking_settings(), **quiet}
    if model.slow:
        settings |= {key: trainer[key] for key in ("devices", "num_nodes", "precision", "strategy")}
        if settings["strategy"] == "auto":
            settings["strategy"] = model.strategy(process_count(settings))
    return L.Trainer(**settings)


def ranking_loader(model: Ranker, data: RetrievalData, query_set: str) -> DataLoader[Any]:
    """The batches that the ranker scores: of its field, or of several fields together."""
    if model.joint_fields:
        return data.joint_loader(query_set, model.joint_fields, model.rerank_depth)
    return data.ranking_loader(query_set, model.field, model.rerank_depth)


def score(trainer: L.Trainer, model: Ranker, data: RetrievalData, query_set: str) -> np.ndarray:
    """(pairs,) the ranker's scores of all candidates of the query set."""
    parts = trainer.predict(model, ranking_loader(model, data, query_set))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def rerank(
    trainer: L.Trainer, model: Ranker, data: RetrievalData, query_set: str, weights: Sequence[float] | None
) -> Reranked:
    model.seconds = 0.0
    alone = score(trainer, model, data, query_set)
    seconds = model.seconds
    task = data.ranked_task(query_set, model.rerank_depth)
    fused = None
    if weights is not None:
        fused = fuse(np.stack([data.first_stage_scores(query_set, model.rerank_depth), alone]), np.asarray(weights))
    return Reranked(query_set, task, alone, fused, seconds)


def learn_fusion(trainer: L.Trainer, model: Ranker, name: str, data: RetrievalData, query_set: str) -> dict[str, Any]:
    """Weights of (first stage, ranker) learned on `query_set`: the content of fusion.json."""
    task = data.ranked_task(query_set, model.rerank_depth)
    features = np.stack(
        [data.first_stage_scores(query_set, model.rerank_depth), score(trainer, model, data, query_set)]
    )
    return learn_weights(features, ["bm25_lemm", f"{name} (alone)"], task, query_set)


def as_run(data: RetrievalData, query_set: str, task: RankedTask, scores: np.ndarray) -> Run:
    """The ranking in the order of the tie rule."""
    order = ranking_order(task.candidates, scores, task.id_order)
    documents = data.prepared.collection.ids(task.candidates.values[order])
    return Run(data.query_set(query_set).ids, np.asarray(task.candidates.offsets), documents, scores[order])


class Speed(NamedTuple):
    """Milliseconds to score 1,000 candidates."""

    alone: float
    first_stage: float

    def of(self, fused: bool) -> float:
        """Every feature of the row included."""
        return self.alone + (self.first_stage if fused else 0.0)


def milliseconds_per_1k(model: Ranker, data: RetrievalData, ranked: Reranked, device: Any, repeats: int = 3) -> Speed:
    """The median of `repeats` passes over the first queries of the set; where the one pass over the whole set, which
    has been, took long, it is that one."""
    query_set = ranked.query_set
    batches = list(ranking_loader(model, data, query_set))[:TIMED_BATCHES]
    if not sum(len(batch.candidates.values) for batch in batches):
        return Speed(0.0, 0.0)
    model.to(device).eval()
    pairs = sum(len(batch.candidates.values) for batch in batches)

    def first_stage() -> None:
        scores = data.first_stage_scores(query_set, model.rerank_depth, len(batches))
        fuse(np.stack([scores, scores]), np.array([0.5, 0.5]))

    first = float(np.median(_seconds(first_stage, repeats))) * 1e6 / pairs
    if model.slow or ranked.seconds > LONG:
        return Speed(ranked.seconds * 1e6 / len(ranked.alone), first)
    alone = _seconds(lambda: [model.score(batch) for batch in batches], repeats)
    return Speed(float(np.median(alone)) * 1e6 / pairs, first)


def _seconds(work: Callable[[], Any], repeats: int) -> list[float]:
    """Of each repetition after a first one that warms up: kernels loaded, files mapped."""
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]
