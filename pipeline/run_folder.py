"""Where results go: ``OUTPUT_DIR/<data>/<model>/seed-<n>``, and the files in there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lexical.errors import UserError


class RunFolder(NamedTuple):
    """The folder of one ranker, data set and seed."""

    path: Path

    @classmethod
    def of(cls, output_dir: str | Path, data: str, model: str, seed: int) -> RunFolder:
        return cls(Path(output_dir).expanduser() / data / model / f"seed-{seed}")

    @property
    def seed(self) -> int:
        return int(self.path.name.removeprefix("seed-"))

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def ranker(self) -> Path:
        """Name and class of the ranker."""
        return self.path / "ranker.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best_checkpoint(self) -> Path:
        """Weights of the best epoch, of a ranker that is trained by gradients."""
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def trained_checkpoint(self) -> Path:
        """What is ranked with: the best epoch where there are epochs."""
        return self.best_checkpoint if self.best_checkpoint.is_file() else self.checkpoint

    @property
    def training(self) -> Path:
        """What the training in this folder was started with: an interrupted one is continued if it is the same."""
        return self.path / "training.json"

    @property
    def fusion(self) -> Path:
        return self.path / "fusion.json"

    @property
    def development(self) -> Path:
        """What train.py measured on the development queries."""
        return self.path / "development.json"

    @property
    def evaluation(self) -> Path:
        """What evaluate.py measured for this seed."""
        return self.path / "evaluation.json"

    @property
    def summarised(self) -> Path:
        """In a ranker's folder, above its seeds: a fingerprint of the results that W&B has a summary of."""
        return self.path / "summarised.txt"

    @property
    def table(self) -> Path:
        """The translation table of a ranker that has one."""
        return self.path / "table"

    def run(self, query_set: str, alone: bool) -> Path:
        return self.path / "runs" / f"{query_set}{'.alone' if alone else ''}.run"

    def per_query(self, query_set: str, alone: bool) -> Path:
        return self.path / "per_query" / f"{query_set}{'.alone' if alone else ''}.tsv"

    def forget_results(self, keep_checkpoints: bool = False) -> None:
        """Takes away what says that this folder is complete, and what was measured: a training begins."""
        old = [] if keep_checkpoints else [self.training, self.checkpoint, self.best_checkpoint]
        for path in (*old, self.config, self.evaluation, self.development, self.fusion):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path.parent / "per_query", ignore_errors=True)  # averages over the seeds, this one included
        for pattern in ("runs", "per_query", "table", "ranker", "*.table.*", ".ranker.*"):
            for folder in self.path.glob(pattern):  # with dots: left by a process that was killed while it saved
                shutil.rmtree(folder, ignore_errors=True)

    def load_config(self) -> dict[str, Any]:
        try:
            config = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{self.config} cannot be read ({error}): train this ranker again") from error
        if not isinstance(config, dict):
            raise UserError(f"{self.config} is damaged: train this ranker again")
        return config


def trained_models(data_folder: Path) -> dict[str, list[int]]:
    """Name -> seeds of the rankers that are trained under ``OUTPUT_DIR/<data>``."""
    found: dict[str, list[int]] = {}
    for path in sorted(data_folder.glob("*/seed-*/config.yaml")):
        seed = path.parent.name.removeprefix("seed-")
        if seed.isdigit():
            found.setdefault(path.parent.parent.name, []).append(int(seed))
    return {name: sorted(seeds) for name, seeds in found.items()}


def write_text(path: Path, text: str) -> None:
    """Writes beside and renames into place: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): train or evaluate this ranker again") from error


def entry(path: Path, key: str) -> Any:
    """One entry of a JSON file that this project has written."""
    content = read_json(path)
    if not isinstance(content, dict) or key not in content:
        raise UserError(f"{path} is damaged (it has no {key!r}): train this ranker again")
    return content[key]
