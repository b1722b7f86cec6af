"""The docstrings of a package, read with `ast`: nothing is imported, nothing is executed.

Files are parsed in parallel; the result is in the order of the sorted paths for any number of processes.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from datamodules.pydocs.docstring_text import split_docstring
from datamodules.pydocs.sources import InstalledSource
from datamodules.worker_pool import in_order
from lexical.terminal import track

# Tests, copies of other people's packages, and what differs from one operating system's wheel to another's.
_TEST_FOLDERS = {"test", "tests", "testing", "_testing"}
_COPIED_FOLDERS = {"vendor", "vendored", "_vendor", "_vendored", "third_party", "thirdparty", "node_modules"}
_COPIED_FOLDERS |= {"extern", "external", "externals", "_external", "_externals", "array_api_compat"}
SKIPPED_FOLDERS = frozenset(_TEST_FOLDERS | _COPIED_FOLDERS)
SKIPPED_FILES = frozenset(("conftest.py", "setup.py", "version.py", "_version.py", "__config__.py"))
SKIPPED_PREFIXES = ("test_", "_distributor_init")

FILES_PER_JOB = 32
_DEFINITION = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Docstring(NamedTuple):
    """One docstring: where it stands, its one-line summary and the rest.

    `owner` is the enclosing class within the module ("" when there is none) and, for a class, the class
    itself: with `module` it names the page that the docstring belongs to.
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
    """A file to parse and the dotted module name that its docstrings are filed under."""

    path: Path
    package: str
    module: str


class MinedFile(NamedTuple):
    """What one file gave; `parsed` is False for a file that is not valid Python."""

    parsed: bool
    docstrings: list[Docstring]


class MinedPackage(NamedTuple):
    """What one package gave, in source order."""

    source: InstalledSource
    files: int
    unparsable_files: int
    docstrings: list[Docstring]


def mine_packages(sources: Sequence[InstalledSource], workers: int = 1, progress: bool = True) -> list[MinedPackage]:
    """Every docstring of every package, in the order of `sources` and then of the sorted paths."""
    files_of = [source_files(source) for source in sources]
    all_files = [file for files in files_of for file in files]
    results = _mine_all(all_files, workers)
    mined = list(track(results, "read docstrings", len(all_files)) if progress else results)
    packages = []
    start = 0
    for source, files in zip(sources, files_of, strict=True):
        part = mined[start : start + len(files)]
        start += len(files)
        docstrings = [docstring for file in part for docstring in file.docstrings]
        packages.append(MinedPackage(source, len(part), sum(not file.parsed for file in part), docstrings))
    return packages


def source_files(source: InstalledSource) -> list[SourceFile]:
    """The files of a package that are its own documentation: no tests, no copies of other packages."""
    return [
        SourceFile(source.root / path, source.package.distribution, _module_name(source.package.folder, path))
        for path in source.python_files
        if _is_mined(path)
    ]


def mine_file(file: SourceFile) -> MinedFile:
    """The docstrings of a file in source order. At module level, so that a spawned process finds it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are the package's business
            tree = ast.parse(file.path.read_bytes())
        return MinedFile(True, list(_docstrings(tree, file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # NUL bytes, bad encoding, absurd nesting
        return MinedFile(False, [])


def _mine_files(files: list[SourceFile]) -> list[MinedFile]:
    return [mine_file(file) for file in files]


def _mine_all(files: list[SourceFile], workers: int) -> Iterator[MinedFile]:
    batches = [files[start : start + FILES_PER_JOB] for start in range(0, len(files), FILES_PER_JOB)]
    for mined in in_order(_mine_files, batches, workers):
        yield from mined


def _is_mined(path: PurePosixPath) -> bool:
    return (
        path.name not in SKIPPED_FILES
        and not path.name.startswith(SKIPPED_PREFIXES)
        and SKIPPED_FOLDERS.isdisjoint(path.parts[:-1])
    )


def _module_name(folder: str, path: PurePosixPath) -> str:
    parts = [folder, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _docstrings(tree: ast.Module, file: SourceFile) -> Iterator[Docstring]:
    for owner, name, node in _documentable(tree):
        raw = ast.get_docstring(node, clean=False)
        if raw is None or not raw.strip():
            continue
        yield Docstring(file.package, file.module, owner, name, *split_docstring(raw))


def _documentable(
    tree: ast.Module,
) -> Iterator[tuple[str, str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(owner, qualified name, node) of the module, its classes, functions and methods, in source order."""
    yield "", "", tree
    stack: list[tuple[str, ast.AST]] = [("", child) for child in reversed(list(ast.iter_child_nodes(tree)))]
    while stack:
        owner, node = stack.pop()
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, _DEFINITION):
            name = f"{owner}.{node.name}" if owner else node.name
            if not isinstance(node, ast.ClassDef):
                yield owner, name, node
                continue  # what a function defines inside itself is its own affair
            yield name, name, node
            owner = name
        stack.extend((owner, child) for child in reversed(list(ast.iter_child_nodes(node))))
