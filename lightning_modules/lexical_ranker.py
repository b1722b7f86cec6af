"""Base of the rankers that need no gradients: the trainer drives them, numba does the work."""

from __future__ import annotations

from typing import Any, ClassVar

import lightning as L
import numpy as np
import torch

from lexical.batches import RankingBatch
from user_error import UserError


class LexicalRanker(L.LightningModule):
    """A ranker over the forward index of one field.

    Args:
        field: word, lemm, word_all or bwps.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
    """

    random = False  # nothing is drawn: seeds are ignored, results live in seed-1
    trainer_settings: ClassVar[dict[str, Any]] = {  # one process: numba's threads use the whole machine
        "accelerator": "cpu",
        "devices": 1,
        "num_nodes": 1,
        "strategy": "auto",
        "max_epochs": 1,
        "fast_dev_run": False,
        "limit_train_batches": 1.0,
        "limit_predict_batches": 1.0,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
    }

    def __init__(self, field: str, fused: bool, rerank_depth: int) -> None:
        super().__init__()
        if rerank_depth < 1:
            raise UserError(f"--model.rerank_depth {rerank_depth}: must be 1 or more")
        self.automatic_optimization = False
        self.field, self.fused, self.rerank_depth = field, fused, rerank_depth

    def score(self, batch: RankingBatch) -> np.ndarray:
        """(pairs,) float32 scores of the batch's candidates, normalised for fusion."""
        raise NotImplementedError(f"{type(self).__name__} must define score()")

    def predict_step(self, batch: RankingBatch, batch_idx: int) -> np.ndarray:  # noqa: ARG002
        return self.score(batch)

    def configure_optimizers(self) -> None:
        """None: nothing is learned by gradients."""

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Batches hold memory-mapped arrays and stay where they are."""
        return batch
