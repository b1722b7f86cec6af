"""When the weights of a training are saved, and what a continued one must know."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

INTERVAL = timedelta(minutes=5)


class BestCheckpoint(ModelCheckpoint):
    """best.ckpt, found again when the outputs have been moved."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        moved = {**state_dict, "dirpath": self.dirpath}
        if state_dict["best_model_path"]:
            here = str(Path(str(self.dirpath)) / "best.ckpt")
            best = {here: state_dict["best_model_score"]}
            moved |= {"best_model_path": here, "kth_best_model_path": here, "best_k_models": best}
        super().load_state_dict(moved)


class StepCheckpoint(ModelCheckpoint):
    """last.ckpt between two epochs' ends: never between two parts of an optimiser step, whose gradients no checkpoint
    holds, and not at the last batch, after which a resumed training would not validate."""

    def on_train_batch_end(self, trainer: L.Trainer, *rest: Any) -> None:
        loop = trainer.fit_loop.epoch_loop
        if not loop._should_accumulate() and not loop.batch_progress.is_last_batch:
            super().on_train_batch_end(trainer, *rest)


class Patience(EarlyStopping):
    """A training that had stopped early, and was killed before it was saved, does not go on."""

    def on_fit_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True


def last_checkpoints(directory: Path, steps: int | None = None) -> list[L.Callback]:
    """last.ckpt after each epoch, and between every `steps` optimiser steps, or every five minutes."""
    between: dict[str, Any] = {"every_n_train_steps": steps} if steps else {"train_time_interval": INTERVAL}
    return [
        ModelCheckpoint(directory, "last", save_on_train_epoch_end=True, enable_version_counter=False),
        StepCheckpoint(directory, "last", **between, enable_version_counter=False),
    ]
