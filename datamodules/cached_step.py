"""A prepared folder that is complete or does not exist.

A step is written into a folder beside its final one and renamed when it is complete, so a killed preparation leaves
nothing that a later run would trust. A file lock makes a second process wait for the first instead of repeating the
work. A manifest with the size of every file is checked when the step is opened: if a file is truncated or missing, the
step is rebuilt, with a line that says so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lexical.terminal import say

MANIFEST = "manifest.json"
_seconds = [0.0]  # of all steps built so far; then, for each step that is being built, of those built within it


def fingerprint(parameters: Any) -> str:
    """Return 12 hex digits of everything that determines a step's content (JSON-able; key order does not matter)."""
    text = json.dumps(parameters, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def code_version(modules: Iterable[str]) -> str:
    """Return a digest of the source files of `modules`: when the code of a step changes, the step is rebuilt."""
    digest = hashlib.sha256()
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(name)
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()[:12]


def cached_step(folder: Path, build: Callable[[Path], None], label: str, parameters: Any = None) -> Path:
    """Return `folder`, built by ``build(temporary_folder)`` if it does not exist or is damaged.

    Args:
        folder: where the step belongs.
        build: writes the files of the step into the folder that it is given.
        label: names the step in messages.
        parameters: what determined the content, for the manifest.
    """
    damage = _damage(folder)
    if damage is None:
        return folder
    if folder.is_dir():
        say(f"{label}: the cached {folder} is damaged ({damage}); rebuilding it")
    with _lock(folder, label):
        if _damage(folder) is None:
            return folder  # another process built it while this one waited
        building = folder.with_name(f".{folder.name}.building")
        shutil.rmtree(building, ignore_errors=True)  # left by a killed process: nobody else holds the lock
        building.mkdir(parents=True)
        started = time.perf_counter()
        _seconds.append(0.0)
        try:
            build(building)
            _write_manifest(building, parameters)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        finally:
            of_others, elapsed = _seconds.pop(), time.perf_counter() - started
            _seconds[-1] += elapsed
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        say(f"{label}: done in {elapsed - of_others:.1f} s")
    return folder


def seconds_of_steps() -> float:
    """Return how long this process has built steps."""
    return _seconds[0]


def wait_for(folder: Path, label: str) -> None:
    """Return when no other process is building `folder`."""
    with _lock(folder, label):
        pass


def _lock(folder: Path, label: str) -> AbstractContextManager[Any]:
    """Return a context in which no other process builds `folder`; wait for one that does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        say(f"{label}: waiting for another process that is building it")
        return lock.acquire()


def _write_manifest(folder: Path, parameters: Any) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({"parameters": parameters, "files": files}, indent=1, sort_keys=True, default=str)
    (folder / MANIFEST).write_text(text + "\n")


def _damage(folder: Path) -> str | None:
    """Return what is wrong with a finished step; None if it is complete."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        for name, expected in files.items():
            size = (folder / name).stat().st_size
            if size != expected:
                return f"{name} has {size:,} bytes instead of {expected:,}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return None
