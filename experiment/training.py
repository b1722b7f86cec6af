"""Training of one ranker from a parsed command line: the body of train.py."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import yaml
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from datamodules.progress import say
from datamodules.query_sets import DEVELOPMENT, TRAIN_FUSION
from experiment.command_line import NamedConfigCLI
from experiment.folders import RunFolder, write_json, write_text
from experiment.reranking import learn_fusion, rerank
from experiment.tracking import RunLabels, start_run
from lexical.ranking import mean_reciprocal_rank
from lightning_modules.lexical_ranker import LexicalRanker


def train_ranker(cli: NamedConfigCLI) -> dict[str, float]:
    """Fits, learns the fusion weights, reports on development; everything goes to the run's folder."""
    started = time.perf_counter()
    config = cli.config_as_dict()
    data, model, name = cli.datamodule, cli.model, config["model_name"]
    seed = config["seed"] if model.random else 1
    folder = RunFolder.of(config["output_dir"], data.name, name, seed)
    print(yaml.safe_dump(_given(config), sort_keys=False), end="", flush=True)
    quiet_lightning()
    if seed != config["seed"]:
        say(f"{name} draws nothing at random: --seed {config['seed']} is ignored, results go to seed-1")
    data.serve(model.field)
    data.prepare_data()

    run = start_run(RunLabels(name, data.name, seed, "train").init_arguments(config, folder.path))
    trainer = cli.instantiate_trainer(**trainer_settings(folder, run, model, config))
    trainer.fit(model, data)
    metrics: dict[str, float] = {}
    weights = None
    fusion: dict[str, Any] = {}
    if model.fused:
        fusion = learn_fusion(trainer, model, data, TRAIN_FUSION)
        weights = fusion["weights"]
    ranked = rerank(trainer, model, data, DEVELOPMENT, weights)
    metrics["development/mrr"] = mean_reciprocal_rank(ranked.task, ranked.row)
    if model.fused:
        metrics["development/mrr_alone"] = mean_reciprocal_rank(ranked.task, ranked.alone)

    for logger in trainer.loggers:
        logger.log_metrics(metrics)
        logger.save()
    trainer.save_checkpoint(folder.checkpoint)
    if model.fused:
        write_json(folder.fusion, fusion)
    seconds = time.perf_counter() - started
    measured = {**metrics, **found_parameters(model), "seconds": round(seconds, 1), "data": data.fingerprint()}
    write_json(folder.development, measured)
    folder.evaluation.unlink(missing_ok=True)  # what was measured before belongs to another ranker now
    write_text(folder.config, yaml.safe_dump(config, sort_keys=False))  # last: it says that training is complete
    if run is not None:
        run.summary.update(metrics | found_parameters(model))
        run.finish()
    _report(name, metrics, model, fusion, folder)
    return metrics


def _given(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without empty settings, to be read by a person; config.yaml has them all."""
    filled = {key: _given(value) if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in filled.items() if value is not None}


def trainer_settings(folder: RunFolder, run: Any, model: LexicalRanker, config: dict[str, Any]) -> dict[str, Any]:
    """Local CSV always, W&B where it is on; one pass, one process; the checkpoint is written when all is done."""
    loggers: list[Logger] = [CSVLogger(folder.path, name="", version="")]
    if run is not None:
        loggers.append(WandbLogger(experiment=run))
    if config["trainer"]["devices"] not in (model.processes, "auto", str(model.processes)):
        say(f"{config['model_name']} runs in one process on all cores: --trainer.devices is ignored")
    return {
        "accelerator": "cpu",
        "devices": model.processes,
        "logger": loggers,
        "default_root_dir": str(folder.path),
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "max_epochs": 1,
        "log_every_n_steps": 1,
    }


def found_parameters(model: LexicalRanker) -> dict[str, float]:
    """Tuned values of a ranker: its scalar buffers."""
    return {name: float(value) for name, value in model.named_buffers() if value.ndim == 0}


def quiet_lightning() -> None:
    """Lightning's advice on devices and loggers is for trainings with gradients."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def _report(
    name: str, metrics: dict[str, float], model: LexicalRanker, fusion: dict[str, Any], folder: RunFolder
) -> None:
    parameters = ", ".join(f"{key} {value:g}" for key, value in found_parameters(model).items())
    alone = f", alone {metrics['development/mrr_alone']:.4f}" if "development/mrr_alone" in metrics else ""
    weights = ""
    if fusion:
        pairs = zip(fusion["features"], fusion["weights"], strict=True)
        weights = "; fusion weights " + ", ".join(f"{feature} {weight:.3f}" for feature, weight in pairs)
    print(f"{name}: development MRR {metrics['development/mrr']:.4f}{alone} ({parameters}{weights})")
    say(f"saved in {folder.path}")
