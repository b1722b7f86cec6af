"""What a training tells the person at the terminal: a bar over the steps, and a line an epoch."""

from __future__ import annotations

import time
from typing import Any

import lightning as L

from lexical.terminal import progress_bar, say


class EpochReport(L.Callback):
    """A bar while it trains; after each epoch the mean loss and what the module monitors. Rank zero speaks.

    Args:
        title: of the bar.
        loss: the metric that is averaged over the epoch.
        of: what the loss belongs to, for the line.
    """

    def __init__(self, title: str = "train", loss: str = "train/loss", of: str = "a pair") -> None:
        self.title, self.loss, self.of = title, loss, of
        self._bar = progress_bar()
        self._started, self._loss, self._batches = 0.0, 0.0, 0

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._bar, self._started = progress_bar(), time.perf_counter()  # a resumed epoch is not started anew
        total = (trainer.max_epochs or 1) * int(trainer.num_training_batches)
        done = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        self._row = self._bar.add_task(self.title, total=total, completed=done)
        self._bar.start()

    def on_train_epoch_start(self, *_: Any) -> None:
        self._started, self._loss, self._batches = time.perf_counter(), 0.0, 0

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._loss += float(trainer.callback_metrics[self.loss])
        self._batches += 1
        self._bar.update(self._row, advance=1, description=f"{self.title}, epoch {trainer.current_epoch + 1}")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        measured = trainer.callback_metrics.get(getattr(pl_module, "monitor", ""))
        mrr = "" if measured is None else f", validation MRR {float(measured):.4f}"
        say(
            f"{'' if self.title == 'train' else f'{self.title}: '}"
            f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}: loss of {self.of} "
            f"{self._loss / max(1, self._batches):.4f}{mrr}, {time.perf_counter() - self._started:.0f} s"
        )

    def teardown(self, *_: Any, **__: Any) -> None:
        self._bar.stop()

    def on_exception(self, *_: Any) -> None:
        self._bar.stop()
