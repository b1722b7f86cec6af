"""Steps that run side by side, as the person at the terminal sees them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.steps import Running, minutes


class Board:
    """The steps at work, redrawn in place on a terminal; nothing elsewhere, or where each step speaks for itself."""

    def __init__(self, steps: int, at_once: int) -> None:
        self.steps = steps
        console = Console(stderr=True)
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._shown = at_once > 1 and console.is_terminal

    def __enter__(self) -> Board:
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._live.stop()

    def show(self, running: Sequence[Running], summary: str) -> None:
        """`summary`: of the whole, below the steps."""
        if not self._shown:
            return
        grid = Table.grid(padding=(0, 2))
        now = time.perf_counter()
        for one in running:
            about = "" if one.step.seconds is None else f" of about {minutes(one.step.seconds)}"
            last = Text(last_line(one.log), style="dim", overflow="ellipsis", no_wrap=True)
            number = Text(f"[{one.number} of {self.steps}]")
            grid.add_row(number, Text(one.step.title), f"{minutes(now - one.began)}{about}", last)
        grid.add_row("", Text(summary))
        self._live.update(grid, refresh=True)


def last_line(path: Path | None) -> str:
    """Of a log that is being written."""
    if path is None or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
