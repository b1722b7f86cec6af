"""Checkpoints of trainings by gradients, and how an interrupted one goes on.

    checkpoints/best.ckpt   weights of the epoch with the best validation MRR
    checkpoints/last.ckpt   everything, after each epoch and every few minutes
    training.json           what the training was started with

`train.py` with the same settings continues where last.ckpt stands: the weights end bit for bit as if nothing had
happened. Other settings, or a training that was complete, start anew.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from callbacks.epoch_report import EpochReport
from callbacks.sparse_export import SparseExport
from datamodules.cached_step import fingerprint
from datamodules.retrieval_data import RetrievalData
from experiment.folders import RunFolder, read_json, write_json
from experiment.named_configs import resolve
from lightning_modules.neural_ranker import NeuralRanker
from lightning_modules.nn_model1 import NNModel1
from lightning_modules.table_export import ExportSettings
from terminal import say
from user_error import UserError

CHECKPOINT_INTERVAL = timedelta(minutes=5)


def training_callbacks(model: NeuralRanker, folder: RunFolder, data: RetrievalData, data_name: str) -> list[L.Callback]:
    """`last` comes after `best`, so that it remembers which epoch was the best."""
    directory = folder.checkpoint.parent
    best = ModelCheckpoint(
        directory, "best", monitor=model.monitor, mode="max", save_weights_only=True, enable_version_counter=False,
        auto_insert_metric_name=False,
    )  # fmt: skip
    steps = model.checkpoint_steps
    between: dict[str, Any] = {"every_n_train_steps": steps} if steps else {"train_time_interval": CHECKPOINT_INTERVAL}
    last = [
        ModelCheckpoint(directory, "last", save_on_train_epoch_end=True, enable_version_counter=False),
        ModelCheckpoint(directory, "last", **between, enable_version_counter=False),
    ]
    stop = [] if model.patience is None else [EarlyStopping(model.monitor, mode="max", patience=model.patience)]
    exports = [_export(model, folder, data, data_name)] if type(model) is NNModel1 else []
    return [EpochReport(), *stop, *exports, best, *last]


def _export(model: NNModel1, folder: RunFolder, data: RetrievalData, data_name: str) -> SparseExport:
    """What `nn_model1_exp` will rank with on this data."""
    exported = resolve(["--model", "nn_model1_exp", "--data", data_name]).model
    assert exported is not None
    settings = exported.settings
    field = data.prepared.field(model.field)
    export = ExportSettings(**{key: settings[key] for key in ExportSettings._fields if key in settings}).check()
    return SparseExport(folder.table, field.vocabulary(), field.forward.document_frequency > 0, export)


def resume_from(folder: RunFolder, config: dict[str, Any], data: str) -> Path | None:
    """The checkpoint to go on from: an unfinished training of the same settings on the same data left it."""
    if folder.config.is_file() or not folder.checkpoint.is_file() or not folder.training.is_file():
        return None
    try:
        same = read_json(folder.training) == _started_with(config, data)
    except UserError:
        same = False
    if not same:
        say(f"{folder.path} has an unfinished training with other settings: it is not continued")
        return None
    say(f"an unfinished training is continued from {folder.checkpoint} (remove it to start anew)")
    return folder.checkpoint


def remember_training(folder: RunFolder, config: dict[str, Any], data: str) -> None:
    write_json(folder.training, _started_with(config, data))


def _started_with(config: dict[str, Any], data: str) -> dict[str, Any]:
    """What decides the weights. How many processes share the work does not, but for rounding."""
    trainer = {key: value for key, value in config["trainer"].items() if key not in ("devices", "num_nodes")}
    return {"settings": fingerprint([config["seed"], config["model"], trainer]), "data": data}
