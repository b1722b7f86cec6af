"""Training of one ranker from a parsed command line: the body of train.py.

    checkpoints/last.ckpt    everything, after each epoch and every few minutes, of a training that is running
    checkpoints/best.ckpt    weights of the epoch with the best validation MRR, likewise
    training.json            what the training was started with
    checkpoints/ranker.ckpt  the trained ranker; config.yaml, written last, marks the training as complete

The same command resumes an interrupted training: on a CPU the weights end bit for bit as if nothing had happened. What
an earlier training left stays until the new one is complete.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from callbacks.checkpoints import BestCheckpoint
from callbacks.explanations import Explanations
from callbacks.training_report import EpochReport, TrainingMonitor
from datamodules.cached_step import fingerprint, seconds_of_steps
from datamodules.retrieval_data import RetrievalData
from lexical.errors import UserError
from lexical.small_files import read_json, write_json, write_text
from lexical.terminal import be_silent, detail, say
from lightning_modules.neural_ranker import NeuralRanker
from lightning_modules.ranker import Ranker
from pipeline.command_line import RankerCLI
from pipeline.dependencies import changed_dependency, check_dependencies, write_dependencies
from pipeline.processes import is_rank_zero, leave_process_group, process_count
from pipeline.run_folder import RunFolder, settings_that_matter
from pipeline.tracking import finish_failed_run, start_run, track_training

LOGGED_METRICS = {"val/mrr": "max", "train/loss": "min", "train/pairs_per_second": "mean"}  # what W&B's summary keeps


def train_ranker(cli: RankerCLI) -> dict[str, float]:
    """Fit a ranker on all processes; on rank zero, save it and return its MRR on development."""
    started, of_data, threads = time.perf_counter(), seconds_of_steps(), torch.get_num_threads()
    data, model, name = cli.datamodule, cli.model, cli.name
    if not is_rank_zero():
        be_silent()
    config = cli.config_as_dict()
    skip_trained = config.pop("skip_trained")
    strategy = _settle(config, model, name)
    folder = RunFolder.of(config["output_dir"], data.name, name, config["seed"])
    detail(f"{name} on {data.name}, seed {folder.seed}: results go to {folder.path}")
    quiet_lightning()
    check_dependencies(model, name, folder, data.fingerprint)
    if skip_trained and (metrics := _trained_already(folder, config, data)):
        say(f"{name}, seed {folder.seed}: already trained with these settings, kept")
        return metrics if is_rank_zero() else {}
    model.check_inputs()
    checkpoint = checkpoint_to_resume(folder, config, data) if isinstance(model, NeuralRanker) else None
    run, loggers = _start_logging(folder, config, data, resumed=checkpoint is not None)
    surroundings = {"callbacks": _callbacks(model, folder, run), "logger": loggers, "default_root_dir": folder.path}
    trainer = cli.instantiate_trainer(**config["trainer"] | surroundings | {"strategy": strategy})
    torch.set_num_threads(threads)  # numba's kernels may have changed OpenMP's; it would change the rounding
    try:
        _fit(trainer, model, data, checkpoint)
    except BaseException:  # Ctrl-C, too: the next ranker of this process must not log into this run
        finish_failed_run(run)
        raise
    leave_process_group()
    if not is_rank_zero():
        return {}
    metrics = model.development
    if config["trainer"]["fast_dev_run"] or not metrics:
        say("nothing is saved: this was a trial (fast_dev_run), or there was no epoch to train")
        return {}
    for logger in trainer.loggers:
        logger.log_metrics(metrics)
        logger.save()
    measured = {**metrics, **model.findings()}
    times = {"seconds": time.perf_counter() - started, "seconds_of_data": seconds_of_steps() - of_data}
    times = {name: round(seconds, 1) for name, seconds in times.items()}
    _save(trainer, model, folder, config, {**measured, **times, "data": data.fingerprint()})
    track_training(run, folder, data, measured)
    _report(model, folder, times)
    return metrics


def quiet_lightning() -> None:
    """Silence Lightning's advice on devices and loggers."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def check_precision(precision: Any, model: Ranker) -> None:
    half = str(precision).endswith("-true") and not str(precision).startswith(("32", "64"))
    if half and isinstance(model, NeuralRanker):
        raise UserError(
            f"--trainer.precision {precision}: weights and scores stay float32; bf16-mixed is what you want"
        )


# --- before the training


def _settle(config: dict[str, Any], model: Ranker, name: str) -> Any:
    """Write what depends on the ranker and the machine into the configuration; return the trainer's strategy."""
    trainer = config["trainer"]
    if not model.has_seeds and config["seed"] != 1:
        say(f"{name} draws nothing at random: --seed {config['seed']} is ignored, results go to seed-1")
        config["seed"] = 1
    if model.single_process and trainer["devices"] not in (1, "1", "auto"):
        say(f"{name} is trained in one process: --trainer.devices {trainer['devices']} is ignored")
        trainer["devices"] = trainer["num_nodes"] = 1
    gpu = trainer["accelerator"] in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    trainer["precision"] = trainer["precision"] or model.default_precision(gpu)
    check_precision(trainer["precision"], model)
    for key in ("logger", "callbacks", "default_root_dir"):
        trainer.pop(key, None)
    processes = process_count(trainer)
    if isinstance(model, NeuralRanker):
        model.divide_batch(processes)  # refused before anything is prepared
    return model.default_strategy(processes) if trainer["strategy"] == "auto" else trainer["strategy"]


def _trained_already(folder: RunFolder, config: dict[str, Any], data: RetrievalData) -> dict[str, float]:
    """Return what a complete training with these settings on this data has measured; empty if there is none."""
    if not folder.config.is_file() or settings_that_matter(folder.load_config()) != settings_that_matter(config):
        return {}
    measured = read_json(folder.development)
    if measured.get("data") != data.fingerprint() or changed_dependency(folder) is not None:
        return {}
    return {key: value for key, value in measured.items() if key.startswith("development/mrr")}


def checkpoint_to_resume(folder: RunFolder, config: dict[str, Any], data: RetrievalData) -> Path | None:
    """Return last.ckpt of an unfinished training with the same settings on the same data."""
    # what determines the weights, and the processes that share an epoch's batches
    trainer = {key: value for key, value in config["trainer"].items() if key != "log_every_n_steps"}
    started_with = {"settings": fingerprint([config["seed"], config["model"], trainer]), "data": data.fingerprint()}
    path = folder.last_checkpoint
    if path.is_file() and folder.training.is_file():
        try:
            same = read_json(folder.training) == started_with
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # cut short, or not a checkpoint at all
            say(f"{path} is damaged; training starts from the beginning ({' '.join(str(error).split())[:100]})")
        else:
            if same:
                say(f"resuming the unfinished training from {path} (remove it to start from the beginning)")
                return path
            kept = path.with_name("other-settings.ckpt")
            if is_rank_zero():
                path.replace(kept)
            say(f"an unfinished training with other settings is not resumed; its checkpoint is kept as {kept}")
    if is_rank_zero():
        write_json(folder.training, started_with)
    return None


def _start_logging(
    folder: RunFolder, config: dict[str, Any], data: RetrievalData, resumed: bool
) -> tuple[Any, list[Logger]]:
    """Return the W&B run, None without tracking, and the loggers of the trainer; nothing beyond rank zero."""
    if not is_rank_zero() or config["trainer"]["fast_dev_run"]:
        return None, []
    _keep_metrics(folder.path, resumed)
    run = start_run(folder.path, config, model=folder.model, data=data.name, seed=folder.seed, job_type="train")
    loggers: list[Logger] = [CSVLogger(folder.path, name="", version="")]
    if run is not None:
        for metric, summary in LOGGED_METRICS.items():
            run.define_metric(metric, summary=summary)
        loggers.append(WandbLogger(experiment=run))
    return run, loggers


def _keep_metrics(folder: Path, resumed: bool) -> None:
    """Keep the metrics from before an interruption, because the logger starts a new file."""
    metrics, earlier = folder / "metrics.csv", sorted(folder.glob("metrics.before-*.csv"))
    if resumed and metrics.is_file():
        metrics.rename(folder / f"metrics.before-{len(earlier) + 1}.csv")
    for path in [] if resumed else earlier:
        path.unlink()


def _callbacks(model: Ranker, folder: RunFolder, run: Any) -> list[L.Callback]:
    """Return what surrounds the training here; the ranker adds its own (`configure_callbacks`)."""
    explanations: list[L.Callback] = [Explanations()] if run is not None and model.explains else []
    if not isinstance(model, NeuralRanker):
        return [*explanations, EpochReport("EM" if hasattr(model, "iterations") else "tune", loss=None)]
    rates = [LearningRateMonitor("step")] if is_rank_zero() and run is not None else []
    return [*explanations, EpochReport(), TrainingMonitor(), *rates, BestCheckpoint(folder.last_checkpoint.parent)]


def _fit(trainer: L.Trainer, model: Ranker, data: L.LightningDataModule, checkpoint: Path | None) -> None:
    try:
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as stopped:  # Lightning's answer to Ctrl-C
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


# --- after the training


def _save(
    trainer: L.Trainer, model: Ranker, folder: RunFolder, config: dict[str, Any], measured: dict[str, Any]
) -> None:
    """Replace the results of an earlier training in this folder; config.yaml comes last."""
    exported = folder.table if getattr(model, "export", None) else None  # written when fitting ended
    folder.remove_results(keep=exported)
    model.save_artifacts(folder.path)
    trainer.save_checkpoint(folder.checkpoint, weights_only=True)
    if fusion := (model.fusion or getattr(model, "stages", None)):
        if "features" in fusion:
            fusion = {**fusion, "features": ["bm25_lemm", f"{folder.model} (alone)"]}
        write_json(folder.fusion, fusion)
    if model.dependencies:
        write_dependencies(model.dependencies, folder)
    write_json(folder.development, measured)
    write_text(folder.config, yaml.safe_dump(config, sort_keys=False))


def _report(model: Ranker, folder: RunFolder, times: Mapping[str, float]) -> None:
    name, metrics = folder.model, model.development
    if folder.seed > 1:
        name += f", seed {folder.seed}"
    found = [f"{key} {value:g}" for key, value in model.findings().items() if "/" not in key]
    parameters = ", ".join([f"field {model.field}", *(["development_cpu"] if model.sampled else []), *found])
    alone = f", alone {metrics['development/mrr_alone']:.4f}" if "development/mrr_alone" in metrics else ""
    weights = ""
    if model.fusion:
        first_stage, own = model.fusion_weights
        weights = f"; fusion weights bm25_lemm {first_stage:.3f}, {folder.model} {own:.3f}"
    took = f"{times['seconds'] - times['seconds_of_data']:.0f} s"
    print(
        f"{name}: development MRR {metrics['development/mrr']:.4f}{alone} ({parameters}{weights}), {took}", flush=True
    )
    detail(f"saved in {folder.path}")
