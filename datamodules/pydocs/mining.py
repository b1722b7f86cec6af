"""The docstrings of a package, read with `ast`: nothing is imported, nothing is executed.

Files are parsed in parallel; the result is in the order of the sorted paths for any number of processes.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from datamodules.pydocs.docstring_text import split_docstring
from datamodules.pydocs.sources import InstalledSource
from datamodules.worker_pool import in_order
from lexical.terminal import track

# Tests, copies of other packages, and files that differ between the wheels of operating systems.
TEST_FOLDERS = {"test", "tests", "testing", "_testing"}
COPIED_FOLDERS = {"vendor", "vendored", "_vendor", "_vendored", "third_party", "thirdparty", "node_modules"}
COPIED_FOLDERS |= {"extern", "external", "externals", "_external", "_externals", "array_api_compat"}
SKIPPED_FOLDERS = frozenset(TEST_FOLDERS | COPIED_FOLDERS)
SKIPPED_FILES = frozenset(("conftest.py", "setup.py", "version.py", "_version.py", "__config__.py"))
SKIPPED_PREFIXES = ("test_", "_distributor_init")

FILES_PER_JOB = 32
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Docstring(NamedTuple):
    """A docstring: where it stands, its one-line summary and the rest.

    `owner` is the enclosing class within the module ("" if there is none) and, for a class, the class itself: with
    `module` it names the page that the docstring belongs to.
    """

    package: str
    module: str
    owner: str
    name: str
    summary: str
    rest: str

    @property
    def qualified_name(self) -> str:
        """`package.module:Class.method`; the module's own docstring has the bare module name."""
        return f"{self.module}:{self.name}" if self.name else self.module


class SourceFile(NamedTuple):
    """A file to parse and the dotted module name of its docstrings."""

    path: Path
    package: str
    module: str


class MinedPackage(NamedTuple):
    """The docstrings of a package in source order."""

    source: InstalledSource
    files: int
    unparsable_files: int
    docstrings: list[Docstring]


def mine_packages(sources: Sequence[InstalledSource], workers: int = 1) -> list[MinedPackage]:
    """Return every docstring of every package, in the order of `sources` and then of the sorted paths."""
    files_of = [source_files(source) for source in sources]
    files = [file for package_files in files_of for file in package_files]
    jobs = [files[start : start + FILES_PER_JOB] for start in range(0, len(files), FILES_PER_JOB)]
    mined = (file for job in in_order(_mine_files, jobs, workers) for file in job)
    results_of_all = iter(list(track(mined, "read docstrings", len(files))))
    packages = []
    for source, package_files in zip(sources, files_of, strict=True):
        results = list(islice(results_of_all, len(package_files)))
        docstrings = [docstring for result in results for docstring in result or ()]
        packages.append(MinedPackage(source, len(results), sum(result is None for result in results), docstrings))
    return packages


def source_files(source: InstalledSource) -> list[SourceFile]:
    """Return the files that are a package's own documentation: no tests, no copies of other packages."""
    return [
        SourceFile(source.root / path, source.distribution, _module_name(source.folder, path))
        for path in source.python_files
        if path.name not in SKIPPED_FILES
        and not path.name.startswith(SKIPPED_PREFIXES)
        and SKIPPED_FOLDERS.isdisjoint(path.parts[:-1])
    ]


def mine_file(file: SourceFile) -> list[Docstring] | None:
    """Return the docstrings of a file in source order; None if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are the package's business
            tree = ast.parse(file.path.read_bytes())
        return [
            Docstring(file.package, file.module, owner, name, *split_docstring(text))
            for owner, name, node in _definitions(tree)
            if (text := ast.get_docstring(node, clean=False)) and text.strip()
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # NUL bytes, bad encoding, absurd nesting
        return None


def _mine_files(files: list[SourceFile]) -> list[list[Docstring] | None]:
    return [mine_file(file) for file in files]


def _module_name(folder: str, path: PurePosixPath) -> str:
    parts = [folder, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, str, ast.Module | Definition]]:
    """Yield (owner, qualified name, node) of the module, its classes, functions and methods, in source order."""
    yield "", "", tree
    stack: list[tuple[str, ast.AST]] = [("", child) for child in reversed(list(ast.iter_child_nodes(tree)))]
    while stack:
        owner, node = stack.pop()
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, Definition):
            name = f"{owner}.{node.name}" if owner else node.name
            if not isinstance(node, ast.ClassDef):
                yield owner, name, node
                continue  # definitions inside a function are not documentation
            yield name, name, node
            owner = name
        stack.extend((owner, child) for child in reversed(list(ast.iter_child_nodes(node))))
