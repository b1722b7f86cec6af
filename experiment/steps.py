"""A long piece of work as steps: processes of train.py and evaluate.py, one after the other.

A step that fails costs no other but those that are made of it. What is done already is left alone, so the same command
goes on after an interruption.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiment.folders import RunFolder, read_json
from experiment.named_configs import CONFIGS
from terminal import PREFIX, say
from user_error import UserError

ROOT = CONFIGS.parent
ONLY_HOW = ("pairs_at_once", "checkpoint_steps", "gradient_checkpointing")  # it is learned, not what


class Step(NamedTuple):
    """A process."""

    title: str
    command: Sequence[str]  # python, a script of this project, its arguments
    state: str  # "to do", "goes on" (there is a checkpoint), "done"
    seconds: float | None  # about; None where nobody knows
    makes: str = ""  # what is not there when this fails
    made_of: tuple[str, ...] = ()  # left out where one of these is not there
    before: Callable[[], None] | None = None  # called right before it


def work_off(steps: Sequence[Step]) -> list[Step]:
    """Runs what is not done; the steps that failed, each of them named with its command."""
    failed: list[Step] = []
    missing: set[str] = set()
    began = time.perf_counter()
    for number, step in enumerate(steps, start=1):
        if step.state == "done":
            continue
        passed, left = minutes(time.perf_counter() - began), minutes(seconds_left(steps[number - 1 :]))
        prefix = f"[{number} of {len(steps)}] "
        say(f"{prefix}{step.title} ({passed} passed, about {left} left)")
        if missing & set(step.made_of):
            missing.add(step.makes)
            continue
        try:
            if step.before is not None:
                step.before()
            code = run_step(step.command, prefix)
        except (OSError, UserError) as error:
            say(f"{prefix}{step.title}: {error}")
            code = 2
        if code:
            failed.append(step)
            missing.add(step.makes)
    for step in failed:
        say(f"failed: {step.title}: python {' '.join(step.command[1:])}")
    return failed


def run_step(arguments: Sequence[str], prefix: str) -> int:
    """The exit code; Ctrl-C reaches the step itself too, and ends the whole."""
    script = [arguments[0], str(ROOT / arguments[1]), *arguments[2:]]
    code = subprocess.run(script, env={**os.environ, PREFIX: prefix}, check=False).returncode
    if code in (130, -2):
        raise KeyboardInterrupt
    return code


def state_of(run: RunFolder, wanted: Mapping[str, Any]) -> str:
    """A training with other settings of the model than `wanted` is to do again."""
    if run.config.is_file():
        have = run.load_config().get("model") or {}
        same = all(have.get(key) == value for key, value in wanted.items() if key not in ONLY_HOW)
        return "done" if same else "to do"
    return "goes on" if run.checkpoint.is_file() else "to do"


def seconds_in(path: Path) -> float | None:
    """What development.json or evaluation.json says that it took."""
    try:
        return float(read_json(path)["seconds"]) if path.is_file() else None
    except (UserError, KeyError, TypeError, ValueError):
        return None  # an older or damaged file: the estimate is none of its business


def seconds_left(steps: Sequence[Any]) -> float | None:
    """Seconds of what is not done (anything with `state` and `seconds`); None where that is not known."""
    open_steps = [step.seconds for step in steps if step.state != "done"]
    known = [one for one in open_steps if one is not None]
    return sum(known) if len(known) == len(open_steps) else None


def minutes(seconds: float | None) -> str:
    if seconds is None:
        return "unknown time"
    whole = round(seconds / 60)
    return f"{whole // 60} h {whole % 60:02d} min" if whole >= 60 else f"{whole} min"
