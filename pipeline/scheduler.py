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
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.worker_pool import cores
from lexical.errors import UserError
from lexical.terminal import PREFIX, duration, say

ROOT = Path(__file__).resolve().parent.parent
TO_DO, RESUMES, DONE = "to do", "resumes", "done"  # states of a step; one resumes from its checkpoint
POLL = 0.1  # seconds
PATIENCE = 30.0  # seconds that interrupted steps have to end


class Step(NamedTuple):
    """One subprocess that the scheduler runs."""

    title: str  # no other step has it
    command: Sequence[str]  # a script of this project and its options
    state: str = TO_DO
    seconds: float | None = None  # expected duration; None if unknown
    dependencies: tuple[str, ...] = ()  # titles of the steps that must succeed before this one
    prepare: Callable[[], None] | None = None  # called right before the step starts
    outcome: Callable[[], str] | None = None  # returns its figures, called when it has succeeded


class _Running(NamedTuple):
    step: Step
    slot: int  # among the steps that run at once, from 0
    log: Path | None
    process: subprocess.Popen[Any]
    started: float  # time.perf_counter


def run_steps(steps: Sequence[Step], at_once: int = 1, logs: Path = Path("logs")) -> list[Step]:
    """Run the steps that are not done, in this order where dependencies allow it; return those that failed.

    Where several run `at_once`, each writes to a file in `logs`.
    """
    labels = {step.title: f"[{number} of {len(steps)}] {step.title}" for number, step in enumerate(steps, start=1)}
    done = {step.title for step in steps if step.state == DONE}
    waiting = [step for step in steps if step.state != DONE]
    running: list[_Running] = []
    failed: list[Step] = []
    with _interruptible(running):
        while (ready := [step for step in waiting if done.issuperset(step.dependencies)]) or running:
            for step in ready[: at_once - len(running)]:
                waiting.remove(step)
                say(labels[step.title])
                slot = min(set(range(at_once)) - {other.slot for other in running})
                name = f"{steps.index(step) + 1:03d}-{step.title.replace(', ', '-').replace(' ', '-')}.log"
                environment = {**os.environ, **share(slot, at_once, os.environ), PREFIX: f"{labels[step.title]}: "}
                try:
                    running.append(_start(step, slot, environment, logs / name if at_once > 1 else None))
                except (OSError, UserError) as error:
                    say(f"{labels[step.title]}: {error}")
                    failed.append(step)
            time.sleep(POLL)
            for ended in [other for other in running if other.process.poll() is not None]:
                running.remove(ended)
                outcome = "done"
                if ended.process.returncode:
                    failed.append(ended.step)
                    outcome = f"failed, see {ended.log}" if ended.log else "failed"
                else:
                    done.add(ended.step.title)
                    outcome = ended.step.outcome() if ended.step.outcome else outcome
                say(f"{labels[ended.step.title]}: {outcome} ({duration(time.perf_counter() - ended.started)})")
    for step in waiting:
        missing = next(title for title in step.dependencies if title not in done)
        say(f"{labels[step.title]}: left out, as it depends on: {missing}")
    for step in failed:
        say(f"failed: {step.title}: python {' '.join(step.command)}")
    return failed


def _start(step: Step, slot: int, environment: Mapping[str, str], log: Path | None) -> _Running:
    """Start a step in a process group of its own: a Ctrl-C at the terminal reaches it once, through the scheduler."""
    if step.prepare is not None:
        step.prepare()
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") if log else nullcontext() as output:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / step.command[0]), *step.command[1:]], env=environment, process_group=0,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output and subprocess.STDOUT,
        )  # fmt: skip
    return _Running(step, slot, log, process, time.perf_counter())


def share(slot: int, at_once: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the step in a slot finds in its environment: its threads, unless the user has set them, and its GPUs.

    Where there are fewer GPUs than steps, steps share them.
    """
    if at_once == 1:
        return {}
    threads = str(max(1, cores() // at_once))
    shared = {name: environment.get(name, threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is None:
        import torch  # takes seconds

        visible = ",".join(map(str, range(torch.cuda.device_count())))
    if gpus := [gpu for gpu in visible.split(",") if gpu]:
        shared["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot::at_once] or [gpus[slot % len(gpus)]])
    return shared


@contextmanager
def _interruptible(running: Sequence[_Running]) -> Iterator[None]:
    """Let no step outlive the block. When it is interrupted, the steps get time to end; a second Ctrl-C kills them.

    SIGTERM, which batch systems send, and SIGHUP, of a terminal that was closed, are treated as Ctrl-C.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]  # an ignored SIGINT, as of background jobs, would be ignored by the steps
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    handlers = {number: signal.signal(number, interrupt) for number in numbers}
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
