"""Steps worked off: processes of train.py and evaluate.py, one after the other or several side by side.

A step that fails costs no other but those that are made of it. What is done already is left alone, so the same command
goes on after an interruption.

Side by side, each has its share of the cores and GPUs, and writes what it says to a file of its own.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiment.named_configs import CONFIGS
from experiment.steps import Step, minutes, time_left
from terminal import PREFIX, say
from user_error import UserError

ROOT = CONFIGS.parent
LOOK_EVERY = 0.1  # seconds
PATIENCE = 20.0  # seconds that interrupted steps have to put their things away


class Running(NamedTuple):
    """A step at work."""

    number: int
    step: Step
    place: int  # 0 to at_once - 1
    process: subprocess.Popen[bytes]
    began: float
    log: Path | None  # None: it speaks for itself


def work_off(steps: Sequence[Step], at_once: int = 1, logs: Path = Path("logs")) -> list[Step]:
    """Runs what is not done, each step when all that it is made of is there; the steps that failed, each of them named
    with its command. `logs`: the folder for what steps that run side by side say."""
    work = _Work(steps, at_once, logs)
    with _ended_with_us(work.running), Board(len(steps), at_once) as board:
        while work.waiting or work.running:
            work.take_in()
            if not work.start_next():
                board.show(work.running, f"{work.times()}; {len(work.waiting)} steps wait")
                time.sleep(LOOK_EVERY)
    for step in work.failed:
        say(f"failed: {step.title}: python {' '.join(step.command[1:])}")
    return work.failed


class _Work:
    """What waits, what runs, and what is not to be had any more."""

    def __init__(self, steps: Sequence[Step], at_once: int, logs: Path) -> None:
        self.steps, self.at_once, self.logs = len(steps), at_once, logs
        self.waiting = [(number, step) for number, step in enumerate(steps, start=1) if step.state != "done"]
        self.running: list[Running] = []
        self.failed: list[Step] = []
        self.missing: set[str] = set()
        self.began = time.perf_counter()

    def take_in(self) -> None:
        """The steps that have ended."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            code = _checked(one.process.returncode)
            if one.log is not None:
                how = f"failed, see {one.log}" if code else "done"
                say(f"{self._name(one.number)} {one.step.title}: {how} ({minutes(time.perf_counter() - one.began)})")
            if code:
                self._fail(one.step)

    def start_next(self) -> bool:
        """Starts the first step that is ready, or leaves it out with what it is made of; whether there was one."""
        taken = [one.place for one in self.running]
        free = [place for place in range(self.at_once) if place not in taken]
        ready = self._ready() if free else None
        if ready is None:
            return False
        number, step = ready
        say(f"{self._name(number)} {step.title} ({self.times()})")
        self.waiting.remove(ready)
        if self.missing & set(step.made_of):
            self.missing.add(step.makes)
            return True
        log = self.logs / f"{number:03d}-{step.title.replace(', ', '-').replace(' ', '-')}.log"
        try:
            if step.before is not None:
                step.before()
            environment = {PREFIX: f"{self._name(number)} ", **share(free[0], self.at_once, os.environ)}
            began, process = time.perf_counter(), _start(step.command, environment, log if self.at_once > 1 else None)
            self.running.append(Running(number, step, free[0], process, began, log if self.at_once > 1 else None))
        except (OSError, UserError) as error:
            say(f"{self._name(number)} {step.title}: {error}")
            self._fail(step)
        return True

    def _ready(self) -> tuple[int, Step] | None:
        """The first step that needs nothing of an earlier one that has not ended."""
        unfinished = [*((one.number, one.step) for one in self.running), *self.waiting]
        for number, step in self.waiting:
            if not any(earlier < number and one.makes in step.made_of for earlier, one in unfinished):
                return number, step
        return None

    def times(self) -> str:
        now = time.perf_counter()
        begun = [
            one.step._replace(seconds=one.step.seconds and max(0.0, one.step.seconds - (now - one.began)))
            for one in self.running
        ]
        left = time_left([*begun, *(step for _, step in self.waiting)], self.at_once)
        return f"{minutes(now - self.began)} passed, about {left} left"

    def _name(self, number: int) -> str:
        return f"[{number} of {self.steps}]"

    def _fail(self, step: Step) -> None:
        self.failed.append(step)
        self.missing.add(step.makes)


def run_step(arguments: Sequence[str]) -> int:
    """The exit code of a step by itself; Ctrl-C reaches the step too, and ends the whole."""
    step, running = Step("", arguments, "to do", None), list[Running]()
    with _ended_with_us(running):
        running.append(Running(1, step, 0, _start(arguments, {PREFIX: ""}, None), time.perf_counter(), None))
        return _checked(running[0].process.wait())


def _start(command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> subprocess.Popen[bytes]:
    arguments, changed = [command[0], str(ROOT / command[1]), *command[2:]], {**os.environ, **environment}
    if log is None:
        return subprocess.Popen(arguments, env=changed)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            arguments, env=changed, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


def share(place: int, at_once: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment of the step at `place`, one of `at_once`: its threads, where the user has not said how many, and its
    GPUs."""
    if at_once == 1:
        return {}
    threads = str(max(1, len(os.sched_getaffinity(0)) // at_once))
    found = {name: environment.get(name, threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    if gpus := _visible_gpus(environment):
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[place::at_once] or [gpus[place % len(gpus)]])
    return found


def _visible_gpus(environment: Mapping[str, str]) -> list[str]:
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [one for one in visible.split(",") if one]
    import torch  # takes seconds: not before it is needed

    return [str(number) for number in range(torch.cuda.device_count())]


def _checked(code: int) -> int:
    """Ctrl-C that a step has seen ends the whole."""
    if code in (130, -2):
        raise KeyboardInterrupt
    return code


@contextmanager
def _ended_with_us(running: Sequence[Running]) -> Iterator[None]:
    """Ctrl-C in a terminal reaches the steps as well: they get the time to end by themselves, and no step outlives this
    process."""
    try:
        yield
    finally:
        until = time.perf_counter() + PATIENCE
        for one in running:
            try:
                one.process.wait(max(0.0, until - time.perf_counter()))
            except subprocess.TimeoutExpired:
                one.process.terminate()
                one.process.wait()


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
        if not self._shown:
            return
        grid = Table.grid(padding=(0, 2))
        now = time.perf_counter()
        for one in running:
            about = "" if one.step.seconds is None else f" of about {minutes(one.step.seconds)}"
            grid.add_row(
                f"\\[{one.number} of {self.steps}]",
                Text(one.step.title),
                f"{minutes(now - one.began)}{about}",
                Text(last_line(one.log), style="dim", overflow="ellipsis", no_wrap=True),
            )
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
