"""The fixed list of packages whose docstrings are the embedded data, and where they are installed.

Whatever else is installed must not change the data, so nothing is discovered here: each package is named, its
version must be the one pinned in `requirements.txt`, and it is located through its metadata, never imported.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lexical.errors import UserError

REQUIREMENTS_FILE = Path(__file__).resolve().parents[2] / "requirements.txt"


class SourcePackage(NamedTuple):
    """A package to mine: its name on PyPI and the folder that it installs."""

    distribution: str
    folder: str


class InstalledSource(NamedTuple):
    """A package found on this machine in the pinned version, with the Python files that its wheel brought.

    `python_files` are relative to `root`: a file that something else put into the folder is not among them.
    """

    package: SourcePackage
    version: str
    licence: str
    root: Path
    python_files: tuple[PurePosixPath, ...]


SOURCE_PACKAGES: tuple[SourcePackage, ...] = (
    SourcePackage("aiohttp", "aiohttp"),
    SourcePackage("click", "click"),
    SourcePackage("datasets", "datasets"),
    SourcePackage("fsspec", "fsspec"),
    SourcePackage("huggingface_hub", "huggingface_hub"),
    SourcePackage("jinja2", "jinja2"),
    SourcePackage("joblib", "joblib"),
    SourcePackage("jsonargparse", "jsonargparse"),
    SourcePackage("lightning", "lightning"),
    SourcePackage("mpmath", "mpmath"),
    SourcePackage("narwhals", "narwhals"),
    SourcePackage("networkx", "networkx"),
    SourcePackage("numba", "numba"),
    SourcePackage("numpy", "numpy"),
    SourcePackage("pandas", "pandas"),
    SourcePackage("pydantic", "pydantic"),
    SourcePackage("rich", "rich"),
    SourcePackage("scikit-learn", "sklearn"),
    SourcePackage("scipy", "scipy"),
    SourcePackage("sentence-transformers", "sentence_transformers"),
    SourcePackage("spacy", "spacy"),
    SourcePackage("sympy", "sympy"),
    SourcePackage("torch", "torch"),
    SourcePackage("torchmetrics", "torchmetrics"),
    SourcePackage("transformers", "transformers"),
    SourcePackage("wandb", "wandb"),
)


def pinned_versions(requirements: Path = REQUIREMENTS_FILE) -> dict[str, str]:
    """Normalised distribution name -> exact version, from the `name==version` lines of a file."""
    try:
        lines = requirements.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"The embedded data needs {requirements}, which cannot be read ({error.strerror}).") from error
    pin = re.compile(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*==\s*([^\s;#]+)")
    matches = (pin.match(line) for line in lines)
    return {_normalised(match[1]): _public_version(match[2]) for match in matches if match}


def installed_sources(
    requirements: Path = REQUIREMENTS_FILE, packages: tuple[SourcePackage, ...] = SOURCE_PACKAGES
) -> list[InstalledSource]:
    """Every package of the list in its pinned version, or a `UserError` that says what to install."""
    pins = pinned_versions(requirements)
    return [_installed_source(package, pins, requirements) for package in packages]


def _installed_source(package: SourcePackage, pins: dict[str, str], requirements: Path) -> InstalledSource:
    pin = pins.get(_normalised(package.distribution))
    if pin is None:
        raise UserError(f"{requirements} must pin {package.distribution}==VERSION: the embedded data is mined from it.")
    advice = f"The embedded data needs {package.distribution}=={pin}; run: pip install -r {requirements}"
    try:
        distribution = importlib.metadata.distribution(package.distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"{package.distribution} is not installed. {advice}") from error
    version = _public_version(distribution.version)
    if version != pin:
        raise UserError(f"{package.distribution} is installed as {version}. {advice}")
    root = Path(str(distribution.locate_file(package.folder)))
    python_files = _python_files(distribution, package.folder)
    if not python_files or not all((root / path).is_file() for path in python_files):
        raise UserError(f"{package.distribution} {version} in {root} is incomplete. {advice} --force-reinstall")
    return InstalledSource(package, version, _licence(distribution), root, python_files)


def _python_files(distribution: importlib.metadata.Distribution, folder: str) -> tuple[PurePosixPath, ...]:
    """The `.py` files that the wheel's RECORD lists under `folder`, sorted by POSIX path on every system."""
    recorded = (PurePosixPath(path) for path in distribution.files or ())
    inside = (path.relative_to(folder) for path in recorded if path.parts[0] == folder and path.suffix == ".py")
    return tuple(sorted(inside, key=str))


def _normalised(name: str) -> str:
    """PEP 503: `Huggingface_Hub` and `huggingface-hub` are one package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _public_version(version: str) -> str:
    """PEP 440 without the local part: `2.13.0+cpu` and `2.13.0` hold the same docstrings."""
    return version.partition("+")[0]


def _licence(distribution: importlib.metadata.Distribution) -> str:
    """The licence in a few words, wherever this package's metadata keeps it."""
    metadata = distribution.metadata
    for expression in metadata.get_all("License-Expression") or []:
        return expression
    prefix = "License :: "
    classifiers = [value for value in metadata.get_all("Classifier") or [] if value.startswith(prefix)]
    if classifiers:
        return ", ".join(sorted({value.rpartition(" :: ")[2] for value in classifiers}))
    lines = "\n".join(metadata.get_all("License") or []).strip().splitlines()
    return lines[0].strip() if lines else "unknown"
