"""A long piece of work as steps: what each of them is, whether it is done, and how long the rest takes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lexical.errors import UserError
from pipeline.run_folder import RunFolder, read_json

ONLY_HOW = ("pairs_at_once", "checkpoint_steps", "gradient_checkpointing")  # it is learned, not what


ONLY_WHERE = {  # it is done
    "trainer": ("accelerator", "devices", "num_nodes", "strategy", "accumulate_grad_batches", "log_every_n_steps"),
    "data": ("workers", "cache_dir"),
}


class Step(NamedTuple):
    """A process."""

    title: str
    command: Sequence[str]  # python, a script of this project, its arguments
    state: str  # "to do", "goes on" (there is a checkpoint), "done"
    seconds: float | None  # about; None where nobody knows
    makes: str = ""  # what is not there when this fails
    made_of: tuple[str, ...] = ()  # left out where one of these is not there
    before: Callable[[], None] | None = None  # called right before it


class Running(NamedTuple):
    """A step at work."""

    number: int
    step: Step
    place: int  # among those that run side by side, from 0
    process: subprocess.Popen[bytes]
    began: float  # time.perf_counter
    log: Path | None  # None: it speaks for itself


def what_is_learned(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what a training ends with; another machine or folder makes no other ranker."""
    left_out = {"model": ONLY_HOW, **ONLY_WHERE}
    found: dict[str, Any] = {"seed": config.get("seed")}
    for section, names in left_out.items():
        found[section] = {key: value for key, value in (config.get(section) or {}).items() if key not in names}
    return found


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


def time_left(steps: Sequence[Any], at_once: int = 1) -> str:
    """About, of what is not done (anything with `state` and `seconds`).

    How much sooner steps end that run side by side depends on the machine: they share its cores. So it is the sum.
    """
    open_steps = [step.seconds for step in steps if step.state != "done"]
    known = [one for one in open_steps if one is not None]
    unknown = len(open_steps) - len(known)
    found = [minutes(sum(known))] if known or not unknown else []
    found += [f"{unknown} step{'s' if unknown > 1 else ''} of unknown length"] if unknown else []
    return " and ".join(found) + (" of work" if at_once > 1 else "")


def minutes(seconds: float) -> str:
    whole = round(seconds / 60)
    return f"{whole // 60} h {whole % 60:02d} min" if whole >= 60 else f"{whole} min"
