"""Small text files: written beside and renamed into place, read with one clear line for a damaged one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lexical.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Write the whole file or nothing: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path, advice: str = "train or evaluate this ranker again") -> Any:
    """Return the content of a JSON file; a `UserError` with `advice` if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): {advice}") from error
