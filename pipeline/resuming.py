"""Checkpoints of trainings by gradients, and how an interrupted one goes on.

    checkpoints/best.ckpt   weights of the epoch with the best validation MRR
    checkpoints/last.ckpt   everything, after each epoch and every few minutes
    training.json           what the training was started with

`train.py` with the same settings continues where last.ckpt stands: on a CPU the weights end bit for bit as if nothing
had happened. Other settings, or a training that was complete, start anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch

from callbacks.checkpoints import BestCheckpoint, Patience, last_checkpoints
from callbacks.epoch_report import EpochReport
from callbacks.sparse_export import SparseExport
from callbacks.target_pretraining import EncoderPretraining
from callbacks.training_monitor import TrainingMonitor
from datamodules.batches.sentence_pairs import PretrainingTokens, SentencePairs
from datamodules.cached_step import fingerprint
from datamodules.retrieval_data import RetrievalData
from lexical.terminal import say
from lightning_modules.bert.ranker import BertRanker
from lightning_modules.neural_model1.export import ExportSettings
from lightning_modules.neural_model1.ranker import NNModel1
from lightning_modules.neural_ranker import NeuralRanker
from pipeline.configs import resolve
from pipeline.processes import leads
from pipeline.run_folder import RunFolder, read_json, write_json


def training_callbacks(
    model: NeuralRanker, folder: RunFolder, data: RetrievalData, data_name: str, trainer: dict[str, Any]
) -> list[L.Callback]:
    """`last` comes after `best`, so that it remembers which epoch was the best."""
    directory = folder.checkpoint.parent
    best = BestCheckpoint(
        directory, "best", monitor=model.monitor, mode="max", save_weights_only=True, enable_version_counter=False,
        auto_insert_metric_name=False,
    )  # fmt: skip
    last = last_checkpoints(directory, model.checkpoint_steps)
    stop = [] if model.patience is None else [Patience(model.monitor, mode="max", patience=model.patience)]
    exports = [_export(model, folder, data, data_name)] if type(model) is NNModel1 else []
    pretraining = [_pretraining(model, data, trainer)] if isinstance(model, BertRanker) and model.pretrain else []
    return [*pretraining, EpochReport(), TrainingMonitor(model.batch_size), *stop, *exports, best, *last]


def _pretraining(model: BertRanker, data: RetrievalData, trainer: dict[str, Any]) -> EncoderPretraining:
    assert model.pretrain is not None
    texts, settings = data.unexpanded, model.pretrain
    field = texts.field(model.field)
    tokens = PretrainingTokens.of(field.vocabulary())
    used = {key: trainer[key] for key in ("accelerator", "devices", "num_nodes", "strategy", "precision")}
    known_by = texts.field_folder(model.field).name

    def pairs() -> SentencePairs:
        return SentencePairs(field.sequences, tokens, settings.length, settings.seed)

    callback = EncoderPretraining(texts.folder, pairs, known_by, model.backbone, settings, used, model.checkpoint_steps)
    if leads():
        callback.wait()
    return callback


def _export(model: NNModel1, folder: RunFolder, data: RetrievalData, data_name: str) -> SparseExport:
    """What `nn_model1_exp` will rank with on this data."""
    exported = resolve(["--model", "nn_model1_exp", "--data", data_name]).model
    assert exported is not None
    settings = exported.settings
    field = data.prepared.field(model.field)
    export = ExportSettings(**{key: settings[key] for key in ExportSettings._fields if key in settings}).check()
    return SparseExport(folder.table, field.vocabulary(), field.forward.document_frequency > 0, export)


def resume_from(folder: RunFolder, config: dict[str, Any], model: NeuralRanker, data: RetrievalData) -> Path | None:
    """The checkpoint to go on from: an unfinished training of the same settings on the same data left it."""
    if folder.config.is_file() or not folder.checkpoint.is_file() or not folder.training.is_file():
        return None
    try:
        same = read_json(folder.training) == _started_with(config, model, data)
        torch.load(folder.checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # cut short, or no checkpoint at all
        say(f"{folder.checkpoint} is damaged and cannot be continued from ({' '.join(str(error).split())[:100]})")
        return None
    if not same:
        kept = folder.checkpoint.with_name("other-settings.ckpt")
        if leads():
            folder.checkpoint.replace(kept)
        say(f"an unfinished training with other settings is not continued; its checkpoint is kept as {kept}")
        return None
    say(f"an unfinished training is continued from {folder.checkpoint} (remove it to start anew)")
    return folder.checkpoint


def keep_metrics(folder: RunFolder) -> None:
    """Puts the metrics of the epochs before an interruption aside: the logger starts a new file."""
    metrics = folder.path / "metrics.csv"
    if metrics.is_file():
        metrics.rename(folder.path / f"metrics.before-{len(list(folder.path.glob('metrics.before-*'))) + 1}.csv")


def remember_training(folder: RunFolder, config: dict[str, Any], model: NeuralRanker, data: RetrievalData) -> None:
    write_json(folder.training, _started_with(config, model, data))


def _started_with(config: dict[str, Any], model: NeuralRanker, data: RetrievalData) -> dict[str, Any]:
    """What decides the weights. The number of processes does so through dropout alone."""
    trainer = {key: value for key, value in config["trainer"].items() if key not in ("num_nodes", "log_every_n_steps")}
    return {
        "settings": fingerprint([config["seed"], config["model"], trainer]),
        "data": data.fingerprint(),
        "field": data.prepared.field_folder(model.field).name,
    }
