"""Who may import whom (the house rules of the project), read from the source with `ast`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import ROOT

FORBIDDEN = {
    "lexical": {
        "torch",
        "lightning",
        "wandb",
        "datamodules",
        "lightning_modules",
        "evaluation",
        "callbacks",
        "pipeline",
        "apps",
    },
    "evaluation": {"lightning", "wandb", "datamodules", "lightning_modules", "callbacks", "pipeline", "apps"},
    "lightning_modules": {"datamodules", "wandb", "pipeline", "apps"},
    "datamodules": {"lightning_modules", "wandb", "pipeline", "apps"},
}


def sources() -> list[Path]:
    """All of the project's own files but the scripts."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_layer_imports_nothing_from_above_it(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {path.name: imported_packages(path) & FORBIDDEN[package] for path in files}
    assert not {name: names for name, names in wrong.items() if names}


def test_no_pickle_and_no_names_that_say_nothing() -> None:
    files = [path for path in sources() if path.parent.name != "tests"]
    assert not [path.name for path in files if path.stem in ("utils", "util", "helpers", "common", "misc")]
    assert not [path.name for path in files if "pickle" in imported_packages(path)]


def test_every_file_is_small_enough_to_be_read() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in sources() if path.parent.name != "tests"}
    assert max(lengths.values()) <= 350, sorted(lengths.items(), key=lambda item: -item[1])[:3]
