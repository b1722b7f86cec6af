"""Training of one ranker from a parsed command line: the body of train.py."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import yaml
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from datamodules.query_sets import DEVELOPMENT, TRAIN_FUSION
from experiment.command_line import NamedConfigCLI
from experiment.folders import RunFolder, write_json, write_text
from experiment.reranking import learn_fusion, rerank
from experiment.tracking import RunLabels, finish_run, never_fatal, start_run
from lexical.ranking import mean_reciprocal_rank
from lightning_modules.lexical_ranker import LexicalRanker
from terminal import say

_TRAINER_DEFAULTS = {"accelerator": "auto", "devices": 1, "fast_dev_run": False, "num_nodes": 1, "strategy": "auto"}


def train_ranker(cli: NamedConfigCLI) -> dict[str, float]:
    """Fits, learns the fusion weights, reports on development; everything goes to the run's folder."""
    assert cli.resolved.model is not None
    started = time.perf_counter()
    data, model, name = cli.datamodule, cli.model, cli.resolved.model.name
    config = cli.config_as_dict()
    seed = config["seed"] if model.random else 1
    folder = RunFolder.of(config["output_dir"], data.name, name, seed)
    if seed != config["seed"]:
        say(f"{name} draws nothing at random: --seed {config['seed']} is ignored, results go to seed-1")
    _settle_trainer(config, model, name)
    print(yaml.safe_dump({"ranker": name, **_given(config)}, sort_keys=False), end="", flush=True)
    quiet_lightning()
    data.serve(model.field)
    data.prepare_data()

    folder.forget_results()
    run = start_run(RunLabels(name, data.name, seed, "train").init_arguments(config, folder.path))
    loggers: list[Logger] = [CSVLogger(folder.path, name="", version="")]
    if run is not None:
        loggers.append(WandbLogger(experiment=run))
    trainer = cli.instantiate_trainer(**config["trainer"], logger=loggers, default_root_dir=str(folder.path))
    trainer.fit(model, data)
    fusion = learn_fusion(trainer, model, name, data, TRAIN_FUSION) if model.fused else None
    ranked = rerank(trainer, model, data, DEVELOPMENT, fusion["weights"] if fusion else None)
    metrics = {"development/mrr": mean_reciprocal_rank(ranked.task, ranked.row)}
    if model.fused:
        metrics["development/mrr_alone"] = mean_reciprocal_rank(ranked.task, ranked.alone)

    for logger in trainer.loggers:
        logger.log_metrics(metrics)
        logger.save()
    trainer.save_checkpoint(folder.checkpoint)
    if fusion:
        write_json(folder.fusion, fusion)
    seconds = time.perf_counter() - started
    measured = {**metrics, **found_parameters(model), "seconds": round(seconds, 1), "data": data.fingerprint()}
    write_json(folder.development, measured)
    write_json(folder.ranker, {"name": name, "class": f"{type(model).__module__}.{type(model).__qualname__}"})
    write_text(folder.config, yaml.safe_dump(config, sort_keys=False))  # last: it says that training is complete
    with never_fatal():
        finish_run(run, metrics | found_parameters(model))
    _report(name, metrics, model, fusion, folder)
    return metrics


def _given(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without empty settings, to be read by a person; config.yaml has them all."""
    filled = {key: _given(value) if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in filled.items() if value is not None}


def _settle_trainer(config: dict[str, Any], model: LexicalRanker, name: str) -> None:
    """Writes what the ranker fixes into the configuration: what is saved is what ran. Says what was overruled."""
    for key, value in model.trainer_settings.items():
        asked = config["trainer"][key]
        if asked not in (value, None, _TRAINER_DEFAULTS.get(key)):
            say(f"{name} runs with --trainer.{key} {value}: {asked} is ignored")
        config["trainer"][key] = value
    for key in ("logger", "callbacks", "default_root_dir"):
        config["trainer"].pop(key, None)


def found_parameters(model: LexicalRanker) -> dict[str, float]:
    """Tuned values of a ranker: its scalar buffers."""
    return {name: float(value) for name, value in model.named_buffers() if value.ndim == 0}


def quiet_lightning() -> None:
    """Lightning's advice on devices and loggers is for trainings with gradients."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def _report(
    name: str, metrics: dict[str, float], model: LexicalRanker, fusion: dict[str, Any] | None, folder: RunFolder
) -> None:
    parameters = ", ".join(f"{key} {value:g}" for key, value in found_parameters(model).items())
    alone = f", alone {metrics['development/mrr_alone']:.4f}" if "development/mrr_alone" in metrics else ""
    weights = ""
    if fusion:
        pairs = zip(fusion["features"], fusion["weights"], strict=True)
        weights = "; fusion weights " + ", ".join(f"{feature} {weight:.3f}" for feature, weight in pairs)
    print(f"{name}: development MRR {metrics['development/mrr']:.4f}{alone} ({parameters}{weights})")
    say(f"saved in {folder.path}")
