"""Every row of the results table, trained and measured in the right order: the body of `train.py --model all`.

    python train.py --model all --seeds 5 [--data NAME]

Each training and each measurement is a process of its own, so one that fails costs no other, and several GPUs work as
ever. What is trained and measured already is kept: interrupted and started again, it goes on. First the plan is
printed, with the time that each step took before, or took on 2 CPU cores where it was measured for this project.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from experiment.folders import RunFolder, read_json
from experiment.named_configs import CONFIGS, DEFAULT_DATA, load_data, merged, take_option
from terminal import PREFIX, say
from user_error import UserError

ROWS = (  # in the order of work: quick ones first, each behind what it is made of
    "bm25_lemm", "bm25_lemm_word", "bm25_lemm_bwps", "model1_embed", "model1_word", "model1_bwps",
    "nn_model1", "nn_model1_cosine",
    "bert_vanilla_short", "bert_model1_short", "bert_vanilla_full", "bert_model1_full",
    "bert_cedr_knrm", "bert_cedr_drmm", "bert_cedr_pacrr",
)  # fmt: skip
RANDOM, SLOW = ("nn_*", "bert_*"), "bert_*"  # rows that have seeds; rows that a CPU takes long for
ALSO_MEASURED = {"nn_model1": "nn_model1,nn_model1_exp"}
DURATIONS = CONFIGS / "durations.yaml"
ROOT = CONFIGS.parent


class Job(NamedTuple):
    """Training of one seed, or the measurement of all seeds of a row."""

    row: str
    seed: int | None  # None: measurement
    state: str  # "to do", "goes on" (there is a checkpoint), "done"
    seconds: float | None  # about; None where nobody knows

    @property
    def title(self) -> str:
        return f"measure {self.row}" if self.seed is None else f"{self.row}, seed {self.seed}"


class Asked(NamedTuple):
    """What the command line asks for."""

    data: str
    output_dir: Path
    seeds: int
    slow_seeds: int
    rest: list[str]  # for every training and measurement


def asked_for(argv: Sequence[str]) -> Asked:
    data, rest = take_option(argv, "data")
    output, rest = take_option(rest, "output_dir")
    seeds, rest = take_option(rest, "seeds")
    slow_seeds, rest = take_option(rest, "slow_seeds")
    if any(argument.split("=", 1)[0] == "--seed" for argument in rest):
        raise UserError("--model all takes --seeds N (seeds 1 to N), not --seed")
    if wrong := [one for one in rest if one.startswith("--model.")]:
        raise UserError(f"{wrong[0]}: a setting of one ranker cannot be given to all; train that ranker by itself")
    for flag, value in (("--seeds", seeds), ("--slow_seeds", slow_seeds)):
        if value is not None and (not value.isdigit() or int(value) < 1):
            raise UserError(f"{flag} {value}: must be a number, 1 or more")
    count = int(seeds or 1)
    return Asked(data or DEFAULT_DATA, Path(output or "outputs"), count, int(slow_seeds or count), rest)


def rows_of(data: str) -> list[str]:
    """The rows that are made for this data: its YAML may leave some out."""
    left_out = load_data(data).get("leave_out") or []
    return [row for row in ROWS if not any(fnmatchcase(row, pattern) for pattern in left_out)]


def plan(asked: Asked, folder: Path) -> list[Job]:
    """All jobs in the order of work; `folder`: OUTPUT_DIR/<data>."""
    known = yaml.safe_load(DURATIONS.read_text(encoding="utf-8")).get(Path(asked.data).stem, {})
    jobs = []
    for row in rows_of(asked.data):
        count = 1 if not any(fnmatchcase(row, one) for one in RANDOM) else asked.seeds
        count = min(count, asked.slow_seeds) if fnmatchcase(row, SLOW) else count
        runs = [RunFolder(folder / row / f"seed-{seed}") for seed in range(1, count + 1)]
        before = [_seconds(run.development) for run in runs]
        about = next((one for one in before if one), known.get(row, {}).get("train"))
        wanted = merged(row, asked.data)[0].get("init_args") or {}
        jobs += [Job(row, seed, _state(run, wanted), about) for seed, run in enumerate(runs, start=1)]
        anew = any(job.row == row and job.state != "done" for job in jobs)
        missing = runs if anew else [run for run in runs if not run.evaluation.is_file()]
        each = next((one for one in map(_evaluation_seconds, runs) if one), known.get(row, {}).get("evaluate"))
        jobs.append(
            Job(row, None, "to do" if missing else "done", None if each is None else each * len(missing or runs))
        )
    return jobs


def _state(run: RunFolder, wanted: Mapping[str, Any]) -> str:
    """A training with other settings than the YAML files have now is to do again."""
    if run.config.is_file():
        have = run.load_config().get("model") or {}
        return "done" if all(have.get(key) == value for key, value in wanted.items()) else "to do"
    return "goes on" if run.checkpoint.is_file() else "to do"


def _seconds(path: Path) -> float | None:
    try:
        return float(read_json(path)["seconds"]) if path.is_file() else None
    except (UserError, KeyError, TypeError, ValueError):
        return None  # an older or damaged file: the estimate is none of its business


def _evaluation_seconds(run: RunFolder) -> float | None:
    return _seconds(run.evaluation)


def print_plan(jobs: Sequence[Job], asked: Asked) -> None:
    grid = Table(title=f"{asked.data}: {len(jobs)} steps")
    for title, side in (("row", "left"), ("training", "right"), ("measurement", "right"), ("to do, about", "right")):
        grid.add_column(title, justify=side)  # type: ignore[arg-type]
    for row in dict.fromkeys(job.row for job in jobs):
        mine = [job for job in jobs if job.row == row]
        seeds = [job for job in mine if job.seed is not None]
        done = sum(job.state == "done" for job in seeds)
        trained = f"{done} of {len(seeds)} seeds" if len(seeds) > 1 else seeds[0].state
        grid.add_row(row, trained, mine[-1].state, minutes(_left(mine)))
    Console(width=None if Console().is_terminal else 100).print(grid)
    say(f"about {minutes(_left(jobs))} to go; estimates are from earlier runs, or from 2 CPU cores without a GPU")


def _left(jobs: Sequence[Job]) -> float | None:
    """Seconds of what is not done; None where that is not known."""
    open_jobs = [job.seconds for job in jobs if job.state != "done"]
    known = [one for one in open_jobs if one is not None]
    return sum(known) if len(known) == len(open_jobs) else None


def minutes(seconds: float | None) -> str:
    if seconds is None:
        return "unknown time"
    whole = round(seconds / 60)
    return f"{whole // 60} h {whole % 60:02d} min" if whole >= 60 else f"{whole} min"


def run_all(argv: Sequence[str], folder_of: Callable[[Asked], Path]) -> None:
    """Prints the plan and works it off. `folder_of`: where the results of this data go."""
    asked = asked_for(argv)
    jobs = plan(asked, folder_of(asked))
    print_plan(jobs, asked)
    failed: list[Job] = []
    began = time.perf_counter()
    for number, job in enumerate(jobs, start=1):
        if job.state == "done":
            continue
        passed, left = minutes(time.perf_counter() - began), minutes(_left(jobs[number - 1 :]))
        prefix = f"[{number} of {len(jobs)}] "
        say(f"{prefix}{job.title} ({passed} passed, about {left} left)")
        if any(one.row == job.row for one in failed) and job.seed is None:
            continue  # a row without its training cannot be measured
        if run_step(command(job, asked), prefix):
            failed.append(job)
    for job in failed:
        say(f"failed: {job.title}: python {' '.join(command(job, asked)[1:])}")
    if run_step([sys.executable, "evaluate.py", *places(asked), "--skip_measured", "true"], "") or failed:
        raise UserError("not all rows are there; the same command tries the missing ones again")


def places(asked: Asked) -> list[str]:
    return ["--data", asked.data, "--output_dir", str(asked.output_dir), *asked.rest]


def command(job: Job, asked: Asked) -> list[str]:
    """The job as a command of its own."""
    if job.seed is None:
        rows = ALSO_MEASURED.get(job.row, job.row)
        return [
            sys.executable,
            "evaluate.py",
            "--models",
            rows,
            *places(asked),
            "--skip_measured",
            "true",
            "--table",
            "false",
        ]
    kept = ["--seed", str(job.seed), "--skip_trained", "true"]
    return [sys.executable, "train.py", "--model", job.row, *places(asked), *kept]


def run_step(arguments: Sequence[str], prefix: str) -> int:
    """The exit code; Ctrl-C reaches the step itself too, and ends the whole."""
    script = [arguments[0], str(ROOT / arguments[1]), *arguments[2:]]
    code = subprocess.run(script, env={**os.environ, PREFIX: prefix}, check=False).returncode
    if code in (130, -2):
        raise KeyboardInterrupt
    return code
