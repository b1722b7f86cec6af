"""Run steps, subprocesses of train.py and evaluate.py, one after the other or several at once.

A step that fails costs only those that depend on it. Steps that run at once share the cores and GPUs, and each writes
to a log file of its own. Ctrl-C and SIGTERM end them cleanly, so that the same command resumes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.worker_pool import cores
from lexical.errors import UserError
from lexical.terminal import PREFIX, say

ROOT = Path(__file__).resolve().parent.parent
TO_DO, RESUMES, DONE = "to do", "resumes", "done"  # states of a step
POLL = 0.1  # seconds
PATIENCE = 30.0  # seconds that interrupted steps have to end


class Step(NamedTuple):
    """One subprocess that the scheduler runs.

    title: no other step has it.
    command: a script of this project and its options.
    state: TO_DO, RESUMES (there is a checkpoint) or DONE.
    seconds: expected duration; None if unknown.
    dependencies: titles of the steps that must succeed before this one.
    prepare: called right before the step starts.
    """

    title: str
    command: Sequence[str]
    state: str = TO_DO
    seconds: float | None = None
    dependencies: tuple[str, ...] = ()
    prepare: Callable[[], None] | None = None


class _Running(NamedTuple):
    step: Step
    slot: int  # among the steps that run at once, from 0
    process: subprocess.Popen[Any]
    started: float  # time.perf_counter
    log: Path | None


def run_steps(steps: Sequence[Step], at_once: int = 1, logs: Path = Path("logs")) -> list[Step]:
    """Run the steps that are not done, in this order where dependencies allow it; return those that failed.

    Where several run `at_once`, each writes to a file in `logs`.
    """
    unfinished = {step.title: step for step in steps if step.state != DONE}
    numbers = {step.title: number for number, step in enumerate(steps, start=1)}
    order = TopologicalSorter({title: unfinished.keys() & step.dependencies for title, step in unfinished.items()})
    order.prepare()
    ready: list[str] = []
    running: list[_Running] = []
    failed: list[Step] = []

    def report(step: Step, line: str) -> None:
        say(f"[{numbers[step.title]} of {len(steps)}] {step.title}{line}")

    with _interruptible(running):
        while True:
            ready = sorted([*ready, *order.get_ready()], key=numbers.__getitem__)
            while ready and len(running) < at_once:
                step = unfinished[ready.pop(0)]
                report(step, "")
                slot = min(set(range(at_once)) - {other.slot for other in running})
                log = logs / f"{numbers[step.title]:03d}-{step.title.replace(', ', '-').replace(' ', '-')}.log"
                environment = share(slot, at_once, os.environ)
                environment[PREFIX] = f"[{numbers[step.title]} of {len(steps)}] "
                try:
                    running.append(_start(step, slot, environment, log if at_once > 1 else None))
                except (OSError, UserError) as error:
                    report(step, f": {error}")
                    failed.append(unfinished.pop(step.title))
            if not running and not ready:
                break
            time.sleep(POLL)
            for ended in [other for other in running if other.process.poll() is not None]:
                running.remove(ended)
                step = unfinished.pop(ended.step.title)
                result = "failed" if ended.process.returncode else "done"
                result += f", see {ended.log}" if ended.process.returncode and ended.log else ""
                report(step, f": {result} ({duration(time.perf_counter() - ended.started)})")
                if ended.process.returncode:
                    failed.append(step)
                else:
                    order.done(step.title)
    missing = {*unfinished, *(step.title for step in failed)}
    for step in unfinished.values():
        report(step, f": left out, as it depends on: {min(missing & set(step.dependencies), key=numbers.__getitem__)}")
    for step in failed:
        say(f"failed: {step.title}: python {' '.join(step.command)}")
    return failed


def _start(step: Step, slot: int, environment: Mapping[str, str], log: Path | None) -> _Running:
    """Start a step in a process group of its own: a Ctrl-C at the terminal reaches it once, through the scheduler."""
    if step.prepare is not None:
        step.prepare()
    start = partial(
        subprocess.Popen, [sys.executable, str(ROOT / step.command[0]), *step.command[1:]],
        env={**os.environ, **environment}, stdin=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
    if log is None:
        return _Running(step, slot, start(), time.perf_counter(), None)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = start(stdout=output, stderr=subprocess.STDOUT)
    return _Running(step, slot, process, time.perf_counter(), log)


def share(slot: int, at_once: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one of the steps that run at once: its threads, unless the user has set them, and its
    GPUs. Where there are fewer GPUs than steps, steps share them."""
    if at_once == 1:
        return {}
    threads = str(max(1, cores() // at_once))
    shared = {name: environment.get(name, threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    if gpus := _visible_gpus(environment):
        shared["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot::at_once] or [gpus[slot % len(gpus)]])
    return shared


def _visible_gpus(environment: Mapping[str, str]) -> list[str]:
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu for gpu in visible.split(",") if gpu]
    import torch  # takes seconds

    return [str(number) for number in range(torch.cuda.device_count())]


@contextmanager
def _interruptible(running: Sequence[_Running]) -> Iterator[None]:
    """Let no step outlive the block. When it is interrupted, the steps get time to end; a second Ctrl-C kills them.

    SIGTERM, which batch systems send, and SIGHUP, of a terminal that was closed, are treated as Ctrl-C.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, interrupt)
    try:
        yield
    except BaseException:
        processes = [step.process for step in running]
        try:
            if processes:
                say(f"ending {len(processes)} running step(s) within {PATIENCE:g} s; a second Ctrl-C kills them")
            _send(signal.SIGINT, processes)
            deadline = time.perf_counter() + PATIENCE
            with suppress(subprocess.TimeoutExpired):
                for process in processes:
                    process.wait(max(0.0, deadline - time.perf_counter()))
        finally:
            _send(signal.SIGKILL, processes)
            for process in processes:
                process.wait()
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _send(number: signal.Signals, processes: Sequence[subprocess.Popen[Any]]) -> None:
    """Send a signal to the processes and all that they have started."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
