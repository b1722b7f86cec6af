"""Base class of all rankers: what a ranker requires of the data, how it scores, how it is fused with BM25 and measured.

    data, model = PyDocs(), BM25()
    trainer = L.Trainer()
    trainer.fit(model, data)         # trains; then learns the fusion with BM25 and measures `development`
    trainer.validate(model, data)    # val/mrr, on development queries
    trainer.test(model, data)        # test/mrr, test/recall@100, ...: the row of the results table
    trainer.predict(model, data)     # scores of the candidates of the test queries

A checkpoint holds everything that was learned, the fusion weights included.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from evaluation.evaluated_set import EvaluatedSet
from lexical.batches import DataNeeds, EvaluationBatch, EvaluationSet, RankerData, RankingBatch
from lexical.errors import UserError, require
from lexical.evidence import Evidence
from lexical.ranking.fusion import fuse, learn_weights, trial_reciprocal_ranks
from lexical.ranking.order import mean_reciprocal_rank
from lightning_modules.precision import allow_tf32

TRAIN_FUSION, DEVELOPMENT = "train_fusion", "development"
FIRST_STAGE = "bm25_lemm"
LIMITS = {
    "1 or more": lambda value: value >= 1,
    "0 or more": lambda value: value >= 0,
    "more than 0": lambda value: value > 0,
    "between 0 and 1": lambda value: 0 <= value <= 1,
    "from 0 to less than 1": lambda value: 0 <= value < 1,
}


def require_settings(expected: str, **settings: float | None) -> None:
    """Raise a `UserError` unless each setting is not given or `expected`, one of `LIMITS`."""
    for name, value in settings.items():
        require(value is None or LIMITS[expected](value), f"--model.{name}", value, expected)


class Ranker(L.LightningModule):
    """A ranker that re-ranks the candidates of a first stage.

    A subclass defines `score`; if it is trained, also `needs`, `training_step`, and `learned` with `load_learned` for
    what is learned apart from parameters and buffers. Rankers trained by gradients build on `NeuralRanker`.

    Args:
        field: tokens that it reads: word, lemm, word_all or bwps.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
    """

    has_seeds = False  # something is drawn at random in training
    single_process = False  # more processes would only repeat the work
    slow = False  # all devices share the scoring
    sampled = False  # too slow for whole query sets: measured on fixed samples of them
    reads_texts = False  # scores tokens in the order of the text, not bags of words
    explains = False  # `evidence` decomposes its scores

    def __init__(self, field: str, fused: bool, rerank_depth: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        require_settings("1 or more", rerank_depth=rerank_depth)
        self.field, self.fused, self.rerank_depth = field, fused, rerank_depth
        self.fusion: dict[str, Any] | None = None  # weights of (first stage, ranker) and how they were learned
        self.development: dict[str, float] = {}  # MRR on development, measured when training ends
        self.evaluated: dict[str, EvaluatedSet] = {}  # query sets of the last `trainer.test`
        self._scored: list[tuple[np.ndarray, np.ndarray, float]] = []

    # --- what a ranker defines

    def needs(self) -> DataNeeds:
        """Return what the data module must prepare for this ranker."""
        return DataNeeds((self.field,), train="candidates", depth=self.rerank_depth)

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        """Learn nothing."""
        self.trainer.should_stop = True

    def score(self, batch: RankingBatch) -> np.ndarray:
        """Return (pairs,) float32 scores of the batch's candidates, normalised for fusion."""
        raise NotImplementedError(f"{type(self).__name__} must define score()")

    def score_together(self, batch: Any) -> np.ndarray:
        """Score with all processes of the trainer; every process calls it and gets all scores."""
        return self.score(batch)

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        """Decompose the score of each candidate."""
        raise NotImplementedError(f"the scores of {type(self).__name__} cannot be decomposed")

    def learned(self) -> dict[str, Any]:
        """Return what was learned apart from parameters and buffers, in plain types and tensors."""
        return {}

    def load_learned(self, learned: dict[str, Any]) -> None:
        """Restore what `learned` returned."""

    @property
    def is_trained(self) -> bool:
        """Whether it can score."""
        return True

    def check_vocabulary(self, vocabulary: list[str]) -> None:
        """Raise a `UserError` if the ranker was trained for other tokens than the field has."""

    def check_inputs(self) -> None:
        """Raise a `UserError` if files that the settings name are missing or damaged."""

    def findings(self) -> dict[str, float]:
        """Return scalars that training has found, such as tuned parameters."""
        return {}

    def save_artifacts(self, folder: Path) -> None:
        """Write files for users of the trained ranker, such as a translation table, into the run's folder."""

    def default_strategy(self, processes: int) -> Any:  # noqa: ARG002
        """Return the trainer's strategy for so many processes."""
        return "auto"

    def default_precision(self, gpu: bool) -> str | None:  # noqa: ARG002
        """Return the trainer's precision where none is given; None: Lightning's own default."""
        return None

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Trained rankers that this one is made from: names of rows, or folders of runs."""
        return ()

    def use_precision(self, precision: str | None) -> None:
        """Score in this precision, by Lightning's name; rankers without an encoder always score in float32."""

    # --- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ranker"] = f"{type(self).__module__}.{type(self).__qualname__}"

    def get_extra_state(self) -> dict[str, Any]:
        return {"fusion": self.fusion, **self.learned()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.fusion = state.pop("fusion")
        self.load_learned(state)

    # --- Lightning's hooks

    @property
    def data(self) -> RankerData:
        """The data module that the trainer was given."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise UserError("rankers are trained on a data module: trainer.fit(model, datamodule=PyDocs())")
        return data

    def setup(self, stage: str) -> None:
        allow_tf32(self.trainer.strategy.root_device)
        if stage == "fit":
            if self.single_process and self.trainer.world_size > 1:
                raise UserError(f"{type(self).__name__} is trained in one process: --trainer.devices 1")
            self.check_inputs()
            assert self.data is not None  # raises where there is none
        elif not self.is_trained:
            raise UserError(
                f"this {type(self).__name__} is not trained yet: call trainer.fit first, or load a checkpoint"
            )
        if self.is_trained and getattr(self.trainer, "datamodule", None) is not None:
            self.check_vocabulary(self.data.vocabulary(self.field))

    def configure_optimizers(self) -> Any:
        """Return None: nothing is learned by gradients."""

    def on_train_end(self) -> None:
        """Learn the weights of the fusion, measure MRR on development."""
        training = self.training
        self.eval()
        with torch.no_grad():
            if self.fused:
                query_set, features = self._score_all(TRAIN_FUSION)
                self.fusion = learn_weights(features, [FIRST_STAGE, "ranker alone"], query_set.task, query_set.name)
            query_set, features = self._score_all(DEVELOPMENT)
        self.train(training)
        alone = mean_reciprocal_rank(query_set.task, features[1])
        self.development = {"development/mrr": alone}
        if self.fused:
            fused = mean_reciprocal_rank(query_set.task, self.fuse(*features))
            self.development = {"development/mrr": fused, "development/mrr_alone": alone}

    def _score_all(self, name: str) -> tuple[EvaluationSet, np.ndarray]:
        """Return a query set and (2, pairs) scores of the first stage and of the ranker."""
        batches = self.data.evaluation_batches(name, self.needs())
        first_stage = np.concatenate([batch.first_stage for batch in batches])
        alone = self.known_scores(name)
        if alone is None:
            alone = np.concatenate([self.score_together(batch.ranking) for batch in batches])
        return batches[0].query_set, np.stack([first_stage, alone])

    def known_scores(self, query_set: str) -> np.ndarray | None:  # noqa: ARG002
        """Return (pairs,) scores of the query set by the trained ranker, if training has computed them."""
        return None

    def validation_step(self, batch: EvaluationBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Log val/mrr: of the row; a fusion's at the best of a few weights, as epochs and settings are chosen."""
        if self.is_trained:
            self._scored.append((batch.first_stage, self.score_together(batch.ranking), 0.0))
            if batch.last:
                first_stage, alone, _ = self._take_scores()
                ranks = trial_reciprocal_ranks(batch.query_set.task, first_stage if self.fused else None, alone)
                self.log("val/mrr", float(ranks.mean(axis=0).max()), batch_size=1)

    def on_test_start(self) -> None:
        self.evaluated, self._scored = {}, []

    def test_step(self, batch: EvaluationBatch, batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ARG002
        started = time.perf_counter()
        alone = self.score_together(batch.ranking)
        self._scored.append((batch.first_stage, alone, time.perf_counter() - started))
        if batch.last:
            first_stage, alone, seconds = self._take_scores()
            fused = self.fuse(first_stage, alone) if self.fused else None
            result = EvaluatedSet(batch.query_set, alone, fused, seconds)
            self.evaluated[batch.query_set.name] = result
            if self.trainer.is_global_zero:  # the values are the same in all processes
                self.log_dict(result.logged(), batch_size=1, add_dataloader_idx=False, rank_zero_only=True)

    def predict_step(self, batch: EvaluationBatch, batch_idx: int, dataloader_idx: int = 0) -> np.ndarray:  # noqa: ARG002
        """Return (pairs,) scores of the row: fused where the row is a fusion."""
        alone = self.score_together(batch.ranking)
        return self.fuse(batch.first_stage, alone) if self.fused else alone

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Leave batches where they are: they hold memory-mapped arrays."""
        return batch

    # --- fusion with the first stage

    @property
    def fusion_weights(self) -> np.ndarray:
        """(2,) weights of the first stage and of the ranker."""
        if self.fusion is None:
            raise UserError("this ranker has no weights for its fusion with BM25: train it first")
        return np.array(self.fusion["weights"])

    def fuse(self, first_stage: np.ndarray, alone: np.ndarray) -> np.ndarray:
        """Return (pairs,) float32 fused scores."""
        return fuse(np.stack([first_stage, alone]), self.fusion_weights)

    def _take_scores(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return (first-stage scores, own scores, seconds) of the batches scored so far, and forget them.

        The seconds are those of the median batch for a pair, times the pairs: the first batch loads kernels.
        """
        first_stage, alone, seconds = zip(*self._scored, strict=True)
        self._scored = []
        of_a_pair = np.median([time / max(1, len(scores)) for time, scores in zip(seconds, alone, strict=True)])
        scores = np.concatenate(alone)
        return np.concatenate(first_stage), scores, float(of_a_pair) * len(scores)

    def log_metrics(self, step: int, values: dict[str, float]) -> None:
        """Send values to all loggers; they write on rank zero only."""
        for logger in self.loggers:
            logger.log_metrics(values, step=step)
