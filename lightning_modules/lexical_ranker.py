"""Base of the rankers that need no gradients: the trainer drives them, numba does the work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from lexical.batches import Needs, RankingBatch
from user_error import require


class LexicalRanker(L.LightningModule):
    """A ranker over the forward index of one field.

    Args:
        field: word, lemm, word_all or bwps.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
    """

    random = False  # nothing is drawn: seeds are ignored, results live in seed-1

    def __init__(self, field: str, fused: bool, rerank_depth: int) -> None:
        super().__init__()
        require(rerank_depth >= 1, "--model.rerank_depth", rerank_depth, "1 or more")
        self.automatic_optimization = False
        self.field, self.fused, self.rerank_depth = field, fused, rerank_depth

    def needs(self) -> Needs:
        """What the data must have ready for the training of this ranker."""
        raise NotImplementedError(f"{type(self).__name__} must define needs()")

    def trainer_settings(self) -> dict[str, Any]:
        """What the ranker fixes of the trainer's settings: one process, numba's threads use the whole machine."""
        return {
            "accelerator": "cpu",
            "devices": 1,
            "num_nodes": 1,
            "strategy": "auto",
            "max_epochs": 1,
            "fast_dev_run": False,
            "limit_train_batches": 1.0,
            "limit_val_batches": 1.0,
            "limit_predict_batches": 1.0,
            "overfit_batches": 0.0,
            "max_steps": -1,
            "max_time": None,
            "val_check_interval": None,
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "log_every_n_steps": 1,
        }

    def strategy(self, processes: int) -> Any:  # noqa: ARG002
        """How so many processes train it; the trainer's `strategy`."""
        return "auto"

    def score(self, batch: RankingBatch) -> np.ndarray:
        """(pairs,) float32 scores of the batch's candidates, normalised for fusion."""
        raise NotImplementedError(f"{type(self).__name__} must define score()")

    def read_inputs(self) -> None:
        """Reads what the user has named (a table, vectors); called before older results are removed."""

    def end_progress(self) -> None:
        """Called when fitting has ended, whatever ended it: a bar must not outlive it."""

    def save_files(self, folder: Path) -> None:
        """Writes what the checkpoint does not hold (a translation table) into the run's folder."""

    def load_files(self, folder: Path) -> None:
        """Reads it back."""

    def check_vocabulary(self, vocabulary: list[str]) -> None:
        """Raises a `UserError` when the ranker was trained for a field with other tokens."""

    def findings(self) -> dict[str, float]:
        """What training has found: the scalar buffers (tuned parameters) that are set, and what a ranker adds."""
        return finite({name: float(value) for name, value in self.named_buffers() if value.ndim == 0})

    def record(self, step: int, values: dict[str, float]) -> None:
        """To all loggers; they write on rank zero alone."""
        for logger in self.loggers:
            logger.log_metrics(values, step=step)

    def predict_step(self, batch: RankingBatch, batch_idx: int) -> np.ndarray:  # noqa: ARG002
        return self.score(batch)

    def configure_optimizers(self) -> None:
        """None: nothing is learned by gradients."""

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Batches hold memory-mapped arrays and stay where they are."""
        return batch


def finite(values: dict[str, float]) -> dict[str, float]:
    """Without the settings that a ranker does not have (NaN)."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
