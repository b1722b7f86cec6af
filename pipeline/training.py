"""Training of one ranker from a parsed command line: the body of train.py."""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from datamodules.candidates.samples import DEVELOPMENT_CPU, TRAIN_FUSION_CPU
from datamodules.retrieval_data import RetrievalData
from datamodules.text.query_sets import DEVELOPMENT, TRAIN_FUSION
from lexical.errors import UserError
from lexical.ranking.order import mean_reciprocal_rank
from lexical.terminal import be_silent, say
from lightning_modules.neural_ranker import NeuralRanker
from lightning_modules.ranker import Ranker
from pipeline.command_line import NamedConfigCLI
from pipeline.dependencies import MAKES, changed_part
from pipeline.loading import hand_over_sources
from pipeline.processes import leads, part, process_count
from pipeline.reranking import learn_fusion, ranking_trainer, rerank
from pipeline.resuming import keep_metrics, remember_training, resume_from, training_callbacks
from pipeline.run_folder import RunFolder, read_json, write_json, write_text
from pipeline.steps import what_is_learned
from pipeline.tracked_results import log_training
from pipeline.tracking import RunLabels, finish_run, never_fatal, start_run
from pipeline.watched_sample import evidence_monitor

_TRAINER_DEFAULTS = {
    "accelerator": "auto", "devices": 1, "fast_dev_run": False, "num_nodes": 1, "strategy": "auto",
    "check_val_every_n_epoch": 1, "overfit_batches": 0.0, "max_steps": -1,
    "accumulate_grad_batches": 1,
}  # fmt: skip


def train_ranker(cli: NamedConfigCLI) -> dict[str, float]:
    """Fits, learns the fusion weights, reports on development; everything goes to the run's folder.

    Of several processes all fit, and with a slow ranker all score; rank zero alone does the rest, the others return
    nothing.
    """
    assert cli.resolved.model is not None
    started, threads = time.perf_counter(), torch.get_num_threads()
    data, model, name = cli.datamodule, cli.model, cli.resolved.model.name
    config = cli.config_as_dict()
    seed = config["seed"] if model.random else 1
    folder = RunFolder.of(config["output_dir"], data.name, name, seed)
    leading = leads()
    if not leading:
        be_silent()
    if seed != config["seed"]:
        say(f"{name} draws nothing at random: --seed {config['seed']} is ignored, results go to seed-1")
        config["seed"] = seed
    model.seed = seed
    gpu = _has_gpu(config["trainer"]["accelerator"])
    model.choose_profile(gpu)
    if config["trainer"]["precision"] is None:
        config["trainer"]["precision"] = model.precision(gpu)
    model.use_precision(config["trainer"]["precision"])
    if "profile" in config["model"]:
        config["model"]["profile"] = getattr(model, "profile")  # noqa: B009 - what is saved is what ran
    processes = process_count(config["trainer"])
    model.share_work(processes)
    _settle_trainer(config, model, name)
    strategy = config["trainer"]["strategy"]
    if strategy == "auto":
        strategy = model.strategy(processes)
    skip = config.pop("skip_trained")
    if leading:
        print(yaml.safe_dump({"ranker": name, **_given(config)}, sort_keys=False), end="", flush=True)
    quiet_lightning()
    if model.made_from:
        hand_over_sources(model, name, folder, data)
    data.serve(model.needs())
    data.prepare_data()
    if skip and (metrics := _trained_already(folder, config, data)):
        say(f"{name}, seed {seed}: trained already with these settings, kept")
        return metrics if leading else {}
    model.read_inputs()
    vocabulary = data.prepared.field(model.field).vocabulary()
    model.use_vocabulary(vocabulary)
    model.start_weights(vocabulary)
    checkpoint = resume_from(folder, config, model, data) if isinstance(model, NeuralRanker) else None

    run = None
    loggers: list[Logger] = []
    if leading:
        folder.forget_results(keep_checkpoints=checkpoint is not None)
        if name in MAKES:  # a row of the old network must not stand beside the new one
            RunFolder.of(config["output_dir"], data.name, MAKES[name], seed).forget_results()
        if checkpoint is not None:
            keep_metrics(folder)
        run = start_run(RunLabels(name, data.name, seed, "train").init_arguments(config, folder.path))
        loggers.append(CSVLogger(folder.path, name="", version=""))
        if run is not None:
            for metric, kept in (("val/mrr", "max"), ("train/loss", "min"), ("train/pairs_per_second", "mean")):
                run.define_metric(metric, summary=kept)
            loggers.append(WandbLogger(experiment=run))
    settings = {**config["trainer"], "strategy": strategy}
    callbacks: list[L.Callback] = []
    if run is not None and model.explains:
        callbacks.append(evidence_monitor(model, name, data))
    if isinstance(model, NeuralRanker):
        callbacks += training_callbacks(model, folder, data, cli.resolved.data_name, settings)
    trainer = cli.instantiate_trainer(
        **settings, callbacks=callbacks, logger=loggers, default_root_dir=str(folder.path)
    )
    if leading and isinstance(model, NeuralRanker):
        remember_training(folder, config, model, data)
    torch.set_num_threads(threads)  # numba's kernels may have changed OpenMP's; it would change the rounding
    _fit(trainer, model, data, checkpoint)
    together = model.slow and trainer.world_size > 1
    if not together:
        part()
        if not leading:
            return {}
    if isinstance(model, NeuralRanker):
        model.use_best_weights()
    ranks = trainer if together else ranking_trainer(model, config["trainer"])
    learned_on, watched = (TRAIN_FUSION_CPU, DEVELOPMENT_CPU) if model.sampled else (TRAIN_FUSION, DEVELOPMENT)
    fusion = learn_fusion(ranks, model, name, data, learned_on) if model.fused else None
    ranked = rerank(ranks, model, data, watched, fusion["weights"] if fusion else None)
    part()
    if not leading:
        return {}
    metrics = {"development/mrr": mean_reciprocal_rank(ranked.task, ranked.row)}
    if model.fused:
        metrics["development/mrr_alone"] = mean_reciprocal_rank(ranked.task, ranked.alone)

    for logger in trainer.loggers:
        logger.log_metrics(metrics)
        logger.save()
    save_ranker(ranks, model, name, folder)
    if fusion:
        write_json(folder.fusion, fusion)
    seconds = time.perf_counter() - started
    measured = {**metrics, **model.findings(), "seconds": round(seconds, 1), "data": data.fingerprint()}
    write_json(folder.development, measured)
    write_text(folder.config, yaml.safe_dump(config, sort_keys=False))  # last: it says that training is complete
    with never_fatal():
        if run is not None:
            log_training(run, folder, name, data)
    with never_fatal():  # whatever became of the artifacts: the next training must not log into this run
        finish_run(run, metrics | model.findings())
    _report(name, metrics, model, fusion, folder)
    return metrics


def _trained_already(folder: RunFolder, config: dict[str, Any], data: RetrievalData) -> dict[str, float]:
    """What a complete training with these settings on this data has measured; empty when there is none."""
    if not folder.config.is_file() or changed_part(folder) is not None:
        return {}
    if what_is_learned(folder.load_config()) != what_is_learned(config):
        return {}
    measured = read_json(folder.development)
    if measured.get("data") != data.fingerprint():
        return {}
    return {key: value for key, value in measured.items() if key.startswith("development/mrr")}


def save_ranker(trainer: L.Trainer, model: Ranker, name: str, folder: RunFolder) -> None:
    """Checkpoint, further files and class of the ranker."""
    if not isinstance(model, NeuralRanker):  # its checkpoints are there already
        folder.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        trainer.save_checkpoint(folder.checkpoint)
    model.save_files(folder.path)
    write_json(folder.ranker, {"name": name, "class": f"{type(model).__module__}.{type(model).__qualname__}"})


def _fit(trainer: L.Trainer, model: Ranker, data: L.LightningDataModule, checkpoint: Path | None) -> None:
    try:
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as stopped:  # Lightning's answer to Ctrl-C
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        model.end_progress()


def _has_gpu(accelerator: str) -> bool:
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def _given(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without empty settings, to be read by a person; config.yaml has them all."""
    filled = {key: _given(value) if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in filled.items() if value is not None}


def _settle_trainer(config: dict[str, Any], model: Ranker, name: str) -> None:
    """Writes what the ranker fixes into the configuration: what is saved is what ran. Says what was overruled."""
    check_precision(config["trainer"]["precision"], model)
    for key, value in model.trainer_settings().items():
        asked = config["trainer"][key]
        if asked not in (value, None, _TRAINER_DEFAULTS.get(key)):
            say(f"{name} runs with --trainer.{key} {value}: {asked} is ignored")
        config["trainer"][key] = value
    for key in ("logger", "callbacks", "default_root_dir"):
        config["trainer"].pop(key, None)


def check_precision(precision: Any, model: Ranker) -> None:
    half = str(precision).endswith("-true") and not str(precision).startswith(("32", "64"))
    if half and isinstance(model, NeuralRanker):
        raise UserError(
            f"--trainer.precision {precision}: weights and scores stay float32; bf16-mixed is what you want"
        )


def quiet_lightning() -> None:
    """Lightning's advice on devices and loggers is for trainings with gradients."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def _report(
    name: str, metrics: dict[str, float], model: Ranker, fusion: dict[str, Any] | None, folder: RunFolder
) -> None:
    found = [f"{key} {value:g}" for key, value in model.findings().items() if "/" not in key]
    parameters = ", ".join([f"field {model.field}", *(["development_cpu"] if model.sampled else []), *found])
    alone = f", alone {metrics['development/mrr_alone']:.4f}" if "development/mrr_alone" in metrics else ""
    weights = ""
    if fusion:
        pairs = zip(fusion["features"], fusion["weights"], strict=True)
        weights = "; fusion weights " + ", ".join(f"{feature} {weight:.3f}" for feature, weight in pairs)
    print(f"{name}: development MRR {metrics['development/mrr']:.4f}{alone} ({parameters}{weights})")
    say(f"saved in {folder.path}")
