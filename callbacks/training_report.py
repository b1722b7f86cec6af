"""What a training reports: a progress bar and a line per epoch at the terminal, and metrics for the loggers."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from lexical.terminal import detail, progress_bar


class EpochReport(L.Callback):
    """Shows a bar while training; after each epoch, prints the mean loss and the validation MRR. Rank zero only.

    Args:
        title: of the bar.
        loss: the metric that is averaged over the epoch; None: a bar only.
        per: what the loss is the mean over, for the line.
    """

    def __init__(self, title: str = "train", loss: str | None = "train/loss", per: str = "pair") -> None:
        self.title, self.loss, self.per = title, loss, per
        self._bar = progress_bar()
        self._started, self._batches = 0.0, 0
        self._loss: Any = 0.0  # the epoch's mean so far, a tensor on the device: a GPU need not wait until it is read

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._bar, self._started = progress_bar(), time.perf_counter()  # a resumed epoch does not start again
        epochs = (trainer.max_epochs or 1) if self.loss else getattr(pl_module, "iterations", 1)
        total = epochs * int(trainer.num_training_batches)
        done = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        self._task = self._bar.add_task(self.title, total=total, completed=done)
        if total > 1:  # a ranker that learns in one step has bars of its own
            self._bar.start()

    def on_train_epoch_start(self, *_: Any) -> None:
        self._started, self._loss, self._batches = time.perf_counter(), 0.0, 0

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._batches += 1
        if self.loss is not None:
            self._loss = self._loss + (trainer.callback_metrics[self.loss] - self._loss) / self._batches
        self._bar.update(self._task, advance=1, description=f"{self.title}, epoch {trainer.current_epoch + 1}")

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.loss is None:
            return
        mrr = trainer.callback_metrics.get("val/mrr")
        prefix = "" if self.title == "train" else f"{self.title}: "
        validation = "" if mrr is None else f", validation MRR {float(mrr):.4f}"
        detail(
            f"{prefix}epoch {trainer.current_epoch + 1} of {trainer.max_epochs}: loss per {self.per} "
            f"{float(self._loss):.4f}{validation}, {time.perf_counter() - self._started:.0f} s"
        )

    def on_train_end(self, *_: Any) -> None:
        self._bar.stop()

    def on_exception(self, *_: Any) -> None:
        self._bar.stop()


class TrainingMonitor(L.Callback):
    """Logs gradients, speed and padding every `log_every_n_steps` optimiser steps; changes nothing.

    train/gradient_norm     of all weights, before the optimiser's step
    train/pairs_per_second  over all processes, since the last time
    train/padding           share of the encoder's positions that are padding (BERT rankers)
    """

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._since = (trainer.global_step, time.perf_counter())  # optimiser steps done, and when

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._since = (trainer.global_step, time.perf_counter())  # its time is not the training's

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        every = max(1, trainer.log_every_n_steps)  # type: ignore[attr-defined]
        if (trainer.global_step + 1) % every == 0:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            squared = [squared_norm(weight.grad) for weight in weights if weight.grad is not None]
            norm = torch.stack(squared).sum().sqrt()
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
                norm = norm / scaler.get_scale()  # this optimiser divides its gradients by the loss scale itself
            pl_module.log("train/gradient_norm", norm, on_step=True, on_epoch=False, batch_size=1)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, _outputs: Any, batch: Any, _batch_idx: int
    ) -> None:
        steps, then = self._since
        every = max(1, trainer.log_every_n_steps)  # type: ignore[attr-defined]
        if trainer.global_step == steps or trainer.global_step % every:
            return
        now = time.perf_counter()
        pairs = (trainer.global_step - steps) * getattr(pl_module, "batch_size", 1)
        self._since = (trainer.global_step, now)
        values = {"train/pairs_per_second": pairs / max(1e-9, now - then)}
        if (padding := getattr(batch, "padding", None)) is not None:
            values["train/padding"] = padding
        pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=1)


def squared_norm(gradient: Tensor) -> Tensor:
    """Return the sum of squares of a dense or sparse gradient."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return values.detach().double().square().sum()
