"""Trained rankers read back from the folders of their runs: `load_ranker("outputs/pydocs_passage/nn_model1/seed-1")`.

OUTPUT_DIR/<data>/<model>/seed-<n>/checkpoints/ranker.ckpt
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lexical.errors import UserError

if TYPE_CHECKING:
    from lightning_modules.ranker import Ranker

CHECKPOINT = Path("checkpoints") / "ranker.ckpt"


def load_ranker(run: str | Path, settings: dict[str, Any] | None = None) -> Ranker:
    """Return the trained ranker of a run's folder, or of a checkpoint file, in evaluation mode.

    `settings` override the hyper-parameters in the checkpoint.
    """
    from lightning_modules.ranker import Ranker

    run = Path(run).expanduser()
    path = run / CHECKPOINT if run.is_dir() else run
    if not path.is_file():
        raise UserError(f"{run} has no trained ranker ({CHECKPOINT})")
    try:
        ranker_class = _class_of(path)
        if not issubclass(ranker_class, Ranker):
            raise TypeError(f"{ranker_class} is not a ranker")
        return ranker_class.load_from_checkpoint(path, map_location="cpu", weights_only=True, **(settings or {})).eval()
    except Exception as error:  # damaged, hostile or of another version: not trusted
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{run}: the trained ranker cannot be loaded ({reason}); train it again") from error


def dependency_folder(name: str, run: str | Path) -> Path:
    """Return the folder of a run that another one depends on: `name` is a folder, or a row beside the folder `run`.

    A row without seeds lives in seed-1.
    """
    beside = Path(run).parent.parent / name
    candidates = [Path(name).expanduser()] if "/" in name else [beside / Path(run).name, beside / "seed-1"]
    for candidate in candidates:
        path = candidate / CHECKPOINT
        # another seed's run is no substitute for a ranker that draws something at random
        if path.is_file() and (candidate == candidates[0] or not getattr(_class_of(path), "has_seeds", True)):
            return candidate
    raise UserError(f"{candidates[0]} has no trained ranker: train {name} first")


def _class_of(checkpoint: Path) -> type:
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    return import_class(saved.get("ranker", ""), str(checkpoint))


def import_class(class_path: str, where: str) -> type:
    """Return the class of a dotted path; `where` names the file or flag in the error message."""
    module, _, attribute = str(class_path).rpartition(".")
    try:
        imported = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{where}: there is no class {class_path} ({error})") from error
    if not isinstance(imported, type):
        raise UserError(f"{where}: {class_path} is not a class")
    return imported
