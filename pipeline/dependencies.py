"""Rankers that are made from other trained rankers: which ones are missing, and whether they are still the same.

dependencies.json   {"model1_word": {"run": "seed-1", "digest": "..."}, ...}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from lexical.errors import UserError
from lexical.model1.table_files import META, read_meta
from lexical.small_files import read_json, write_json
from lightning_modules.ranker import Ranker
from lightning_modules.registry import row_of
from lightning_modules.trained import dependency_folder
from pipeline.run_folder import RunFolder


def check_dependencies(ranker: Ranker, name: str, folder: RunFolder, data_fingerprint: Callable[[], str]) -> None:
    """Raise a `UserError` that says what to train if a dependency is missing, or was trained on other data.

    `data_fingerprint` prepares the data: it is called when nothing is missing.
    """
    missing, runs = [], {}
    for dependency in ranker.dependencies:
        try:
            runs[dependency] = RunFolder(dependency_folder(dependency, folder.path))
        except UserError:
            missing.append(dependency)
    if missing:
        trained = list(dict.fromkeys(row_of(name).export_of or name for name in missing))  # makes its export, too
        option = f"--model {trained[0]}" if len(trained) == 1 else f"--models {','.join(trained)}"
        raise UserError(
            f"{name} is made from a trained {' and '.join(missing)}, and {folder.path.parent.parent} has none"
            f"{f' of seed {folder.seed}' if folder.seed != 1 else ''}: python train.py {option} --seed {folder.seed}"
        )
    for dependency, run in runs.items():
        if read_json(run.development).get("data") != data_fingerprint():
            raise UserError(
                f"{name} is made from {dependency}, which was trained on other data or candidates than these: give the "
                f"same --data settings, or train it again: python train.py --model {dependency}"
            )


def write_dependencies(names: Sequence[str], folder: RunFolder) -> None:
    """Write what the ranker in `folder` was made from: names of rows, or folders of runs."""
    runs = {name: RunFolder(dependency_folder(name, folder.path)) for name in names}
    write_json(folder.dependencies, {name: {"run": run.path.name, "digest": digest(run)} for name, run in runs.items()})


def changed_dependency(folder: RunFolder) -> str | None:
    """Return the first dependency that is missing or was trained again since the ranker in `folder` was made."""
    content: dict[str, dict[str, str]] = read_json(folder.dependencies) if folder.dependencies.is_file() else {}
    for name, saved in content.items():
        run = RunFolder(Path(name).expanduser() if "/" in name else folder.path.parent.parent / name / saved["run"])
        if not run.config.is_file() or not run.checkpoint.is_file() or digest(run) != saved["digest"]:
            return name
    return None


def digest(folder: RunFolder) -> str:
    """Return a SHA-256 of what determines the scores of a trained ranker: settings, checkpoint, translation table."""
    content = hashlib.sha256(json.dumps(folder.load_config().get("model"), sort_keys=True).encode())
    with folder.checkpoint.open("rb") as file:
        content.update(hashlib.file_digest(file, "sha256").digest())
    if (folder.table / META).is_file():
        meta = read_meta(folder.table)
        table = [meta.get(key) for key in ("sha256", "parameters", "scored_with")]
        content.update(json.dumps(table, sort_keys=True).encode())
    return content.hexdigest()
