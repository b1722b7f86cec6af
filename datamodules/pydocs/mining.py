"""The docstrings of installed packages, read with `ast`: nothing is imported, nothing is executed.

Other installed packages must not change the data, so nothing is discovered: each package is named, its version must be
the one pinned in `requirements.txt`, and it is located through its metadata.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from datamodules.pydocs.docstring_text import split_docstring
from datamodules.worker_pool import in_order
from lexical.errors import UserError
from lexical.terminal import track

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

# Tests, copies of other packages, and files that differ between the wheels of operating systems.
TEST_FOLDERS = {"test", "tests", "testing", "_testing"}
COPIED_FOLDERS = {"vendor", "vendored", "_vendor", "_vendored", "third_party", "thirdparty", "node_modules"}
COPIED_FOLDERS |= {"extern", "external", "externals", "_external", "_externals", "array_api_compat"}
SKIPPED_FOLDERS = frozenset(TEST_FOLDERS | COPIED_FOLDERS)
SKIPPED_FILES = frozenset(("conftest.py", "setup.py", "version.py", "_version.py", "__config__.py"))
SKIPPED_PREFIXES = ("test_", "_distributor_init")

FILES_PER_JOB = 32
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class InstalledSource(NamedTuple):
    """A package in its pinned version.

    `python_files` are those of its wheel, relative to `root`; a file that something else put there is not among them.
    """

    distribution: str
    folder: str
    version: str
    licence: str
    root: Path
    python_files: tuple[PurePosixPath, ...]


class Docstring(NamedTuple):
    """A docstring: where it stands, its one-line summary and the rest.

    `owner` is the enclosing class within the module ("" if there is none) and, for a class, the class itself: with
    `module` it names the page that the docstring belongs to.
    """

    module: str
    owner: str
    name: str
    summary: str
    rest: str

    @property
    def qualified_name(self) -> str:
        """`package.module:Class.method`; the module's own docstring has the bare module name."""
        return f"{self.module}:{self.name}" if self.name else self.module


class MinedPackage(NamedTuple):
    """The docstrings of a package, in the order of the sorted paths and then of the source."""

    source: InstalledSource
    files: int
    unparsable_files: int
    docstrings: list[Docstring]


# --- installed packages


def installed_sources(
    requirements: Path = REQUIREMENTS_FILE, packages: Mapping[str, str] = SOURCE_PACKAGES
) -> list[InstalledSource]:
    """Locate every package of the list in its pinned version; a `UserError` says what to install."""
    try:
        lines = requirements.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"The embedded data needs {requirements}, which cannot be read ({error.strerror}).") from error
    pin = re.compile(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*==\s*([^\s;#]+)")
    matches = (pin.match(line) for line in lines)
    pins = {canonicalize_name(match[1]): Version(match[2]).public for match in matches if match}
    return [_installed_source(name, folder, pins, requirements) for name, folder in packages.items()]


def _installed_source(
    name: str, folder: str, pins: Mapping[NormalizedName, str], requirements: Path
) -> InstalledSource:
    pin = pins.get(canonicalize_name(name))
    if pin is None:
        raise UserError(f"{requirements} must pin {name}==VERSION: the embedded data is mined from it.")
    advice = f"The embedded data needs {name}=={pin}; run: pip install -r {requirements}"
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"{name} is not installed. {advice}") from error
    version = Version(distribution.version).public  # 2.13.0+cpu and 2.13.0 have the same docstrings
    if version != pin:
        raise UserError(f"{name} is installed as {version}. {advice}")
    root = Path(str(distribution.locate_file(folder)))
    recorded = (PurePosixPath(path) for path in distribution.files or ())
    inside = (path.relative_to(folder) for path in recorded if path.parts[0] == folder and path.suffix == ".py")
    python_files = tuple(sorted(inside, key=str))  # in the same order on every system
    if not python_files or not all((root / path).is_file() for path in python_files):
        raise UserError(f"{name} {version} in {root} is incomplete. {advice} --force-reinstall")
    return InstalledSource(name, folder, version, _licence(distribution), root, python_files)


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


# --- their docstrings


def mine_packages(sources: Sequence[InstalledSource], workers: int = 1) -> list[MinedPackage]:
    """Return every docstring of every package; the result is the same for any number of processes."""
    files_of = [source_files(source) for source in sources]
    files = [file for package_files in files_of for file in package_files]
    jobs = [files[start : start + FILES_PER_JOB] for start in range(0, len(files), FILES_PER_JOB)]
    mined = (file for job in in_order(_mine_files, jobs, workers) for file in job)
    results_of_all = iter(list(track(mined, "read docstrings", len(files))))
    packages = []
    for source, package_files in zip(sources, files_of, strict=True):
        results = list(islice(results_of_all, len(package_files)))
        docstrings = [docstring for result in results for docstring in result or ()]
        packages.append(MinedPackage(source, len(results), results.count(None), docstrings))
    return packages


def source_files(source: InstalledSource) -> list[tuple[Path, str]]:
    """Return (path, module) of the files that are a package's own documentation: no tests, no copies of others."""
    return [
        (source.root / path, ".".join((source.folder, *path.with_suffix("").parts)).removesuffix(".__init__"))
        for path in source.python_files
        if path.name not in SKIPPED_FILES
        and not path.name.startswith(SKIPPED_PREFIXES)
        and SKIPPED_FOLDERS.isdisjoint(path.parts[:-1])
    ]


def mine_file(path: Path, module: str) -> list[Docstring] | None:
    """Return the docstrings of a file in source order; None if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are the package's business
            tree = ast.parse(path.read_bytes())
        return [
            Docstring(module, owner, name, *split_docstring(text))
            for owner, name, node in [("", "", tree), *_definitions(tree)]
            if (text := ast.get_docstring(node, clean=False)) and text.strip()
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # NUL bytes, bad encoding, absurd nesting
        return None


def _mine_files(files: list[tuple[Path, str]]) -> list[list[Docstring] | None]:
    return [mine_file(*file) for file in files]


def _definitions(parent: ast.AST, owner: str = "") -> Iterator[tuple[str, str, Definition]]:
    """Yield (owner, qualified name, node) of classes, functions and methods in source order; those inside a function
    are not documentation."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Definition):
            name = f"{owner}.{node.name}".lstrip(".")
            is_class = isinstance(node, ast.ClassDef)
            yield name if is_class else owner, name, node
            if is_class:
                yield from _definitions(node, name)
        elif not isinstance(node, ast.expr):
            yield from _definitions(node, owner)
