"""Rankers that are made of other trained rankers: where those are, and whether they are still the same.

A row without randomness lives in seed-1, whatever the seed of the ranker that is made of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from lexical.errors import UserError
from lexical.model1.table_files import META, read_meta
from pipeline.configs import import_class, load
from pipeline.run_folder import RunFolder, read_json

MAKES = {"nn_model1": "nn_model1_exp"}  # rows that are made of a trained ranker, right after it


def part_folders(name: str, parts: Sequence[str], folder: RunFolder) -> list[RunFolder]:
    """Where the parts of the ranker `name` are trained; one line that says what to train where some are not."""
    rows = folder.path.parent.parent
    found = [RunFolder(rows / part / f"seed-{folder.seed if _is_random(rows, part) else 1}") for part in parts]
    missing = [part for part, one in zip(parts, found, strict=True) if not one.config.is_file()]
    if missing:
        makers = {made: maker for maker, made in MAKES.items()}
        trained = list(dict.fromkeys(_command_of(part, makers.get(part), folder) for part in missing))
        option = f"--model {trained[0]}" if len(trained) == 1 else f"--models {','.join(trained)}"
        raise UserError(
            f"{name} is made from a trained {' and '.join(missing)}, and {rows} has none"
            f"{f' of seed {folder.seed}' if folder.seed != 1 else ''}: python train.py {option} --seed {folder.seed}"
        )
    return found


def _command_of(part: str, maker: str | None, folder: RunFolder) -> str:
    """What is to be trained to get a part: the ranker that makes it, unless that one is there."""
    made = maker and RunFolder(folder.path.parent.parent / maker / folder.path.name).config.is_file()
    return part if maker is None or made else maker


def _is_random(rows: Path, part: str) -> bool:
    """As it was trained, with any seed, or else as its YAML file has it."""
    for saved in sorted((rows / part).glob("seed-*/ranker.json")):
        return bool(getattr(import_class(read_json(saved)["class"], part), "random", False))
    model = load(part, "model", {"model", "trainer"})["model"]
    return bool(getattr(import_class(model["class_path"], part), "random", False))


def digest(folder: RunFolder) -> str:
    """SHA-256 of what decides the scores of a trained ranker: its settings, its checkpoint, its translation table."""
    found = hashlib.sha256(json.dumps(folder.load_config().get("model"), sort_keys=True).encode())
    with folder.trained_checkpoint.open("rb") as file:
        found.update(hashlib.file_digest(file, "sha256").digest())
    if (folder.table / META).is_file():
        meta = read_meta(folder.table)
        table = [meta.get(key) for key in ("sha256", "parameters", "scored_with")]
        found.update(json.dumps(table, sort_keys=True).encode())
    return found.hexdigest()


def changed_part(folder: RunFolder) -> str | None:
    """The first part that is gone or was trained anew since the ranker in `folder` was made of it."""
    content = read_json(folder.fusion) if folder.fusion.is_file() else {}
    parts = content.get("parts") if isinstance(content, dict) else None
    for name, one in (parts or {}).items():
        part = RunFolder(folder.path.parent.parent / name / str(one.get("run")))
        if not part.config.is_file() or not part.trained_checkpoint.is_file() or digest(part) != one.get("digest"):
            return str(name)
    return None
