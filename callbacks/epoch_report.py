"""What a training reports at the terminal: a progress bar, and a line per epoch."""

from __future__ import annotations

import time
from typing import Any

import lightning as L

from lexical.terminal import progress_bar, say


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
        self._started, self._loss, self._batches = 0.0, 0.0, 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._bar, self._started = progress_bar(), time.perf_counter()  # a resumed epoch does not start again
        epochs = getattr(pl_module, "iterations", None) or trainer.max_epochs or 1
        total = epochs * int(trainer.num_training_batches)
        done = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        self._task = self._bar.add_task(self.title, total=total, completed=done)
        self._bar.start()

    def on_train_epoch_start(self, *_: Any) -> None:
        self._started, self._loss, self._batches = time.perf_counter(), 0.0, 0

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.loss is not None:
            self._loss += float(trainer.callback_metrics[self.loss])
        self._batches += 1
        self._bar.update(self._task, advance=1, description=f"{self.title}, epoch {trainer.current_epoch + 1}")

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.loss is None:
            return
        mrr = trainer.callback_metrics.get("val/mrr")
        prefix = "" if self.title == "train" else f"{self.title}: "
        validation = "" if mrr is None else f", validation MRR {float(mrr):.4f}"
        say(
            f"{prefix}epoch {trainer.current_epoch + 1} of {trainer.max_epochs}: loss per {self.per} "
            f"{self._loss / max(1, self._batches):.4f}{validation}, {time.perf_counter() - self._started:.0f} s"
        )

    def on_train_end(self, *_: Any) -> None:
        self._bar.stop()

    def on_exception(self, *_: Any) -> None:
        self._bar.stop()

    def teardown(self, *_: Any, **__: Any) -> None:
        self._bar.stop()
