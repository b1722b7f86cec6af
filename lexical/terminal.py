"""Output of long steps on the terminal: one plain line per step, and progress bars where a terminal can show them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
PREFIX = "LEXICAL_PROGRESS_PREFIX"  # environment: text before every bar, where this process is one step of many
_silent = _brief = False
_said: set[str] = set()


def be_silent() -> None:
    """Print nothing more from this process: of several processes that train together only one prints."""
    global _silent
    _silent = True


def say(line: str) -> None:
    """Print one plain line on standard error; standard output is for results."""
    if not _silent:
        print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return seconds, minutes or hours and minutes, as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def say_once(line: str) -> None:
    """Print a notice that each of many steps would repeat: once per program."""
    if line not in _said:
        _said.add(line)
        say(line)


def be_brief(brief: bool = True) -> None:
    """Leave out `detail` from now on: several rankers are trained, and each prints one line."""
    global _brief
    _brief = brief


def detail(line: str) -> None:
    """Print a line about a part of a step, such as an epoch."""
    if not _brief:
        say(line)


def printable(text: str) -> str:
    """Escape what a terminal would obey: control, direction and line characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def progress_bar(transient: bool = True) -> Progress:
    """Return a progress bar on standard error, disabled where that is not a terminal."""
    console = Console(stderr=True)
    prefix = os.environ.get(PREFIX, "")
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    return Progress(
        TextColumn(prefix + "{task.description}", markup=False), *columns,
        console=console, transient=transient, disable=_silent or not console.is_terminal,
    )  # fmt: skip


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, with a progress bar."""
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=description)
