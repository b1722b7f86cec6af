"""Steps worked off: processes of train.py and evaluate.py, one after the other or several side by side.

A step that fails costs no other but those that are made of it. What is done already is left alone, so the same command
goes on after an interruption.

Side by side, each has its share of the cores and GPUs, and writes what it says to a file of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from lexical.errors import UserError
from lexical.terminal import PREFIX, say
from pipeline.step_board import Board
from pipeline.step_process import Process, checked, ended_with_us, share, start
from pipeline.steps import Running, Step, minutes, time_left

LOOK_EVERY = 0.1  # seconds


def work_off(steps: Sequence[Step], at_once: int = 1, logs: Path = Path("logs")) -> list[Step]:
    """Runs what is not done, each step when all that it is made of is there; the steps that failed, each of them named
    with its command. `logs`: the folder for what steps that run side by side say."""
    work = _Work(steps, at_once, logs)
    with ended_with_us(work.processes), Board(len(steps), at_once) as board:
        while work.waiting or work.running:
            work.take_in()
            if not work.start_next():
                board.show(work.running, f"{work.times()}, {len(work.waiting)} to come")
                time.sleep(LOOK_EVERY)
    for step in work.failed:
        say(f"failed: {step.title}: python {' '.join(step.command[1:])}")
    return work.failed


def run_step(command: Sequence[str]) -> int:
    """The exit code of a step by itself; Ctrl-C reaches the step too, and ends the whole."""
    processes: list[Process] = []
    with ended_with_us(processes):
        processes.append(start(command, {PREFIX: ""}, None))
        return checked(processes[0].wait())


class _Work:
    """What waits, what runs, and what is not to be had any more."""

    def __init__(self, steps: Sequence[Step], at_once: int, logs: Path) -> None:
        self.steps, self.at_once = len(steps), at_once
        self.logs = logs if at_once > 1 else None  # alone, a step speaks for itself
        self.waiting = [(number, step) for number, step in enumerate(steps, start=1) if step.state != "done"]
        self.running: list[Running] = []
        self.processes: list[Process] = []  # all that were started
        self.failed: list[Step] = []
        self.missing: set[str] = set()
        self.began = time.perf_counter()

    def take_in(self) -> None:
        """The steps that have ended."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            code = checked(one.process.returncode)
            if one.log is not None:
                how = f"failed, see {one.log}" if code else "done"
                self._say(one.number, f"{one.step.title}: {how} ({minutes(time.perf_counter() - one.began)})")
            if code:
                self._fail(one.step)

    def start_next(self) -> bool:
        """Starts the first step that is ready, or leaves it out with what it is made of; whether there was one."""
        taken = [one.place for one in self.running]
        free = next((place for place in range(self.at_once) if place not in taken), None)
        ready = None if free is None else self._ready()
        if free is None or ready is None:
            return False
        number, step = ready
        gone = self.missing & set(step.made_of)
        self._say(number, f"{step.title} ({f'left out without {min(gone)}' if gone else self.times()})")
        self.waiting.remove(ready)
        if gone:
            self.missing.add(step.makes)
            return True
        title = step.title.replace(", ", "-").replace(" ", "-")
        log = None if self.logs is None else self.logs / f"{number:03d}-{title}.log"
        try:
            if step.before is not None:
                step.before()
            environment = {PREFIX: f"{self._name(number)} ", **share(free, self.at_once, os.environ)}
            self.processes.append(start(step.command, environment, log))
            self.running.append(Running(number, step, free, self.processes[-1], time.perf_counter(), log))
        except (OSError, UserError) as error:
            self._say(number, f"{step.title}: {error}")
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

    def _say(self, number: int, line: str) -> None:
        say(f"{self._name(number)} {line}")

    def _fail(self, step: Step) -> None:
        self.failed.append(step)
        self.missing.add(step.makes)
