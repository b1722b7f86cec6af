"""A prepared folder that is complete or not there at all.

A step writes into a folder beside its place and is renamed into it when it is done, so a killed preparation leaves
nothing that a later run would trust. A file lock makes a second process wait for the first instead of doing the work
twice. A manifest with the size of every file is checked when the step is opened: a truncated or missing file means
building anew, with a line that says so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lexical.terminal import say

MANIFEST = "manifest.json"


def fingerprint(parameters: Any) -> str:
    """12 hex digits of everything that determines a step's content (JSON-able; key order does not matter)."""
    text = json.dumps(parameters, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def code_version(modules: Iterable[str]) -> str:
    """A digest of the source files of `modules`: whoever changes how a step works gets it built anew."""
    digest = hashlib.sha256()
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(name)
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()[:12]


def cached_step(folder: Path, build: Callable[[Path], None], what: str, parameters: Any = None) -> Path:
    """`folder`, built by ``build(temporary_folder)`` unless it is there already. `what` names it to the user."""
    if _is_sound(folder, what):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder, what):
        if _is_sound(folder, what, quiet=True):
            return folder  # another process built it while this one waited
        building = folder.with_name(f".{folder.name}.building")
        shutil.rmtree(building, ignore_errors=True)  # left by a killed process: the lock says nobody is at it now
        building.mkdir(parents=True)
        started = time.perf_counter()
        try:
            build(building)
            _write_manifest(building, parameters)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        say(f"{what}: done in {time.perf_counter() - started:.1f} s")
    return folder


def wait_for(folder: Path, what: str) -> None:
    """Returns when no other process is building `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder, what):
        pass


@contextmanager
def _locked(folder: Path, what: str) -> Iterator[None]:
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{what}: another process is at it, waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write_manifest(folder: Path, parameters: Any) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({"parameters": parameters, "files": files}, indent=1, sort_keys=True, default=str)
    (folder / MANIFEST).write_text(text + "\n")


def _is_sound(folder: Path, what: str, quiet: bool = False) -> bool:
    if not folder.is_dir():
        return False
    problem = _damage(folder)
    if problem and not quiet:
        say(f"{what}: the cached {folder} is damaged ({problem}); building it anew")
    return problem is None


def _damage(folder: Path) -> str | None:
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        for name, size in files.items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found:,} bytes instead of {size:,}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return None
