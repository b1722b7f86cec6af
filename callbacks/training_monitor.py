"""Logs gradient norm, throughput and padding of a training, every `log_every_n_steps` optimiser steps:

train/gradient_norm     of all weights, before the optimiser's step
train/pairs_per_second  over all processes, since the last time
train/padding           share of the encoder's positions that are padding (BERT rankers)

Learning rates are logged by Lightning's `LearningRateMonitor`.
"""

from __future__ import annotations

import math
import time
from typing import Any

import lightning as L
from torch import Tensor
from torch.optim import Optimizer


class TrainingMonitor(L.Callback):
    """Reads gradients, clock and batches; changes nothing."""

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None  # optimiser steps done, and when

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._since = (trainer.global_step, time.perf_counter())

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._since = (trainer.global_step, time.perf_counter())  # its time is not the training's

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if (trainer.global_step + 1) % _log_interval(trainer) == 0:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            norm = math.sqrt(sum(squared_norm(weight.grad) for weight in weights if weight.grad is not None))
            pl_module.log("train/gradient_norm", norm, on_step=True, on_epoch=False, batch_size=1)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ARG002
        batch: Any,
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        steps, then = self._since or (0, 0.0)
        if trainer.global_step == steps or trainer.global_step % _log_interval(trainer):
            return
        now = time.perf_counter()
        pairs = (trainer.global_step - steps) * getattr(pl_module, "batch_size", 1)
        self._since = (trainer.global_step, now)
        values = {"train/pairs_per_second": pairs / max(1e-9, now - then)}
        if (padding := getattr(batch, "padding", None)) is not None:
            values["train/padding"] = padding
        pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=1)


def _log_interval(trainer: L.Trainer) -> int:
    return max(1, int(getattr(trainer, "log_every_n_steps", 1)))


def squared_norm(gradient: Tensor) -> float:
    """Return the sum of squares of a dense or sparse gradient."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(values.detach().double().square().sum())
