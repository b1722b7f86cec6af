"""What a training by gradients logs of itself, every `log_every_n_steps` optimiser steps:

train/gradient_norm          of all weights, before the optimiser's step
train/pairs_per_second       over all processes, since the last time
train/padding                share of the encoder's positions that are padding (BERT rankers)
train/learning_rate_<group>  where the optimiser has several groups
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

    def __init__(self, pairs_per_step: int) -> None:
        self.pairs_per_step = pairs_per_step
        self._since: tuple[int, float] | None = None  # optimiser steps done, and when

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._since = (trainer.global_step, time.perf_counter())

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._since = (trainer.global_step, time.perf_counter())  # its time is not the training's

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if not self._is_due(trainer):
            return
        weights = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        values = {"train/gradient_norm": math.sqrt(sum(_squares(one.grad) for one in weights))}
        groups = [(group.get("name"), float(group["lr"])) for group in optimizer.param_groups]
        values |= {f"train/learning_rate_{name}": rate for name, rate in groups if name and len(groups) > 1}
        pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=1)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ARG002
        batch: Any,
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        steps, then = self._since or (0, 0.0)
        if trainer.global_step == steps or trainer.global_step % _every(trainer):
            return
        now = time.perf_counter()
        rate = (trainer.global_step - steps) * self.pairs_per_step / max(1e-9, now - then)
        self._since = (trainer.global_step, now)
        values = {"train/pairs_per_second": rate}
        if (padding := getattr(batch, "padding", None)) is not None:
            values["train/padding"] = padding
        pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=1)

    def _is_due(self, trainer: L.Trainer) -> bool:
        return (trainer.global_step + 1) % _every(trainer) == 0


def _every(trainer: L.Trainer) -> int:
    return max(1, int(getattr(trainer, "log_every_n_steps", 1)))


def _squares(gradient: Tensor) -> float:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(values.detach().double().square().sum())
