"""What a long preparation tells the person at the terminal: one line a step, and a bar where a terminal can show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")
PREFIX = "LEXICAL_PROGRESS_PREFIX"  # environment: what stands before every bar, where this is one step of many


_silent = False


def be_silent() -> None:
    """From now on this process says nothing: of several processes that train together one speaks."""
    global _silent
    _silent = True


def say(line: str) -> None:
    """One plain line on standard error, so that standard output holds results only."""
    if not _silent:
        print(line, file=sys.stderr, flush=True)


def progress_bar(transient: bool = True) -> Progress:
    """A bar on standard error; silent where that is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn(os.environ.get(PREFIX, "") + "{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        disable=_silent or not console.is_terminal,
    )


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=description)
