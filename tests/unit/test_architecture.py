"""Who may import whom (the house rules of the project), read from the source with `ast`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import ROOT

FORBIDDEN = {
    "lexical": (
        "torch", "lightning", "wandb", "datamodules", "lightning_modules", "evaluation", "callbacks", "pipeline",
        "apps",
    ),
    "evaluation": ("torch", "lightning", "wandb", "datamodules", "lightning_modules", "callbacks", "pipeline", "apps"),
    "lightning_modules": ("datamodules", "wandb", "pipeline", "apps"),
    "datamodules": ("lightning_modules", "callbacks", "evaluation", "wandb", "pipeline", "apps"),
    "callbacks": ("pipeline",),
}  # fmt: skip


def sources() -> list[Path]:
    """Return the Python files of the project, tests left out."""
    folders = [ROOT / name for name in (*FORBIDDEN, "pipeline", "apps")]
    return [*ROOT.glob("*.py"), *(path for folder in folders for path in sorted(folder.rglob("*.py")))]


def imported_packages(path: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
    return packages


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_imports_nothing_from_above_it(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {path.name: imported_packages(path) & set(FORBIDDEN[package]) for path in files}
    assert not {name: packages for name, packages in wrong.items() if packages}


def test_the_house_has_no_pickle_and_no_room_for_odds_and_ends() -> None:
    assert not [path for path in sources() if path.stem in ("utils", "util", "helpers", "common", "misc")]
    assert not [path for path in sources() if "pickle" in imported_packages(path)]
