"""Where results go: `OUTPUT_DIR/<data>/<model>/seed-<n>`, and the files in there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evaluation.measurements import per_query_path, ranking_name
from lexical.errors import UserError
from lexical.ranking.trec_run import run_file
from lightning_modules.model1.translation_ranker import TABLE_FOLDER
from lightning_modules.trained import CHECKPOINT

IRRELEVANT_SETTINGS = {  # that do not change the trained weights
    "model": ("pairs_at_once", "checkpoint_steps", "gradient_checkpointing"),
    "trainer": ("accelerator", "devices", "num_nodes", "strategy", "accumulate_grad_batches", "log_every_n_steps"),
    "data": ("workers", "cache_dir"),
}


def _file(name: str | Path) -> Any:
    """Return the property of a file or folder in a run folder."""
    return property(lambda run: run.path / name)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one ranker, data set and seed."""

    path: Path

    config = _file("config.yaml")  # all settings; written last: it marks a complete training
    checkpoint = _file(CHECKPOINT)  # the trained ranker
    last_checkpoint = _file("checkpoints/last.ckpt")  # of a training that is running or was interrupted
    training = _file("training.json")  # what the training was started with; it is resumed if that is the same
    dependencies = _file("dependencies.json")  # the trained rankers that this one was made from, with a hash of each
    fusion = _file("fusion.json")  # weights of the first stage and the ranker
    development = _file("development.json")  # what train.py measured on the development queries
    evaluation = _file("evaluation.json")  # what evaluate.py measured for this seed
    table = _file(TABLE_FOLDER)  # the translation table of a ranker that has one

    @classmethod
    def of(cls, output_dir: str | Path, data: str, model: str, seed: int) -> RunFolder:
        return cls(Path(output_dir).expanduser() / data / model / f"seed-{seed}")

    @property
    def model(self) -> str:
        """Name of the ranker."""
        return self.path.parent.name

    @property
    def seed(self) -> int:
        return int(self.path.name.removeprefix("seed-"))

    def run(self, query_set: str, alone: bool) -> Path:
        """Return the TREC run of a ranking, which is gzipped where it is large."""
        return run_file(self.path / "runs" / f"{ranking_name(query_set, alone)}.run")

    def per_query(self, query_set: str, alone: bool) -> Path:
        return per_query_path(self.path, query_set, alone)

    def remove_results(self, keep: Path | None = None) -> None:
        """Remove what an earlier training and its measurement left, config.yaml first; not the folder `keep`."""
        for path in (
            self.config, self.training, self.evaluation, self.development, self.fusion, self.dependencies,
            *(path for path in self.checkpoint.parent.glob("*.ckpt") if path.name != "other-settings.ckpt"),
        ):  # fmt: skip
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path.parent / "per_query", ignore_errors=True)  # averages over the seeds, this one included
        for pattern in ("runs", "per_query", "table", "ranker", "*.table.[0-9]*", ".ranker.*"):
            for folder in self.path.glob(pattern):  # with dots: left by a process that was killed while it saved
                if folder != keep:
                    shutil.rmtree(folder, ignore_errors=True)

    def load_config(self) -> dict[str, Any]:
        try:
            config = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{self.config} cannot be read ({error}): train this ranker again") from error
        if not isinstance(config, dict):
            raise UserError(f"{self.config} is damaged: train this ranker again")
        return config


def settings_that_matter(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide the trained weights; another machine or output folder trains the same ranker."""
    sections = {
        section: {key: value for key, value in (config.get(section) or {}).items() if key not in irrelevant}
        for section, irrelevant in IRRELEVANT_SETTINGS.items()
    }
    return {"seed": config.get("seed"), **sections}


def trained_models(data_folder: Path) -> dict[str, list[int]]:
    """Return name -> seeds of the rankers that are trained under `OUTPUT_DIR/<data>`."""
    seeds: dict[str, list[int]] = {}
    for path in sorted(data_folder.glob("*/seed-*/config.yaml")):
        seed = path.parent.name.removeprefix("seed-")
        if seed.isdigit():
            seeds.setdefault(path.parent.parent.name, []).append(int(seed))
    return {name: sorted(numbers) for name, numbers in seeds.items()}
