"""Base of the rankers that need no gradients: the trainer drives them, numba does the work."""

from __future__ import annotations

from typing import Any

import torch

from lightning_modules.ranker import Ranker


class LexicalRanker(Ranker):
    """A ranker over the forward index of one field.

    Args:
        field: word, lemm, word_all or bwps.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
    """

    def __init__(self, field: str, fused: bool, rerank_depth: int) -> None:
        super().__init__(field, fused, rerank_depth)
        self.automatic_optimization = False

    def trainer_settings(self) -> dict[str, Any]:
        """One process: numba's threads use the whole machine."""
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

    def ranking_settings(self) -> dict[str, Any]:
        return LexicalRanker.trainer_settings(self)  # whatever a ranker changes for its training

    def configure_optimizers(self) -> None:
        """None: nothing is learned by gradients."""

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Batches hold memory-mapped arrays and stay where they are."""
        return batch
