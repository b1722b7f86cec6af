"""When the weights of a training are saved, and what a resumed training must know."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

INTERVAL = timedelta(minutes=5)
STEPS_BETWEEN_LOOKS = 20  # of several processes at the clock: they agree by a message that every GPU waits for


class BestCheckpoint(ModelCheckpoint):
    """best.ckpt: the weights of the epoch with the best validation MRR. Found again when the folder has been moved."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder, "best", monitor="val/mrr", mode="max", save_weights_only=True, enable_version_counter=False,
            auto_insert_metric_name=False,
        )  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        moved = {**state_dict, "dirpath": self.dirpath}
        if state_dict["best_model_path"]:
            path = str(Path(str(self.dirpath)) / "best.ckpt")
            best = {path: state_dict["best_model_score"]}
            moved |= {"best_model_path": path, "kth_best_model_path": path, "best_k_models": best}
        super().load_state_dict(moved)


class EpochCheckpoint(ModelCheckpoint):
    """last.ckpt after each epoch. A class of its own, so that Lightning replaces it when a trainer is used again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "last", save_on_train_epoch_end=True, enable_version_counter=False)


class StepCheckpoint(ModelCheckpoint):
    """last.ckpt between the ends of two epochs: every `steps` optimiser steps, or every five minutes.

    Never between two parts of an optimiser step, whose gradients no checkpoint holds, and not at the last batch, after
    which a resumed training would not validate.
    """

    def __init__(self, folder: Path, steps: int | None = None) -> None:
        interval: Any = {"every_n_train_steps": steps} if steps else {"train_time_interval": INTERVAL}
        super().__init__(folder, "last", **interval, enable_version_counter=False)

    def on_train_batch_end(self, trainer: L.Trainer, *rest: Any) -> None:
        loop = trainer.fit_loop.epoch_loop
        looks_at_clock = self._train_time_interval is not None and trainer.world_size > 1
        if looks_at_clock and trainer.global_step % STEPS_BETWEEN_LOOKS:
            return
        if not loop._should_accumulate() and not loop.batch_progress.is_last_batch:
            super().on_train_batch_end(trainer, *rest)


class Patience(EarlyStopping):
    """Early stopping that also holds for a training that had stopped early and was killed before it was saved."""

    def on_fit_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True


def last_checkpoints(folder: Path, steps: int | None = None) -> list[L.Callback]:
    """Return the callbacks that save last.ckpt after each epoch and, for long epochs, within them."""
    return [EpochCheckpoint(folder), StepCheckpoint(folder, steps)]
