"""Every row of the results table, trained and measured in the right order: the body of `train.py --model all`.

    python train.py --model all --seeds 5 [--data NAME] [--at_once 2]

Each training and each measurement is a process of its own, so one that fails costs no other, and several GPUs work as
ever. With `--at_once N` so many of them run side by side, each on its share of cores and GPUs; speeds are then measured
beside other work. What is trained and measured already is kept: interrupted and started again, it goes on.

First the plan is printed, with the time that each step took before, or took on 2 CPU cores where it was measured for
this project.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from lexical.errors import UserError
from lexical.terminal import say
from pipeline.configs import CONFIGS, DEFAULT_DATA, load_data, merged, take_count, take_option
from pipeline.dependencies import MAKES, changed_part
from pipeline.run_folder import RunFolder
from pipeline.scheduler import run_step, work_off
from pipeline.step_process import check_devices
from pipeline.steps import Step, seconds_in, state_of, time_left

ROWS = (  # in the order of work: quick ones first, each behind what it is made of
    "bm25_lemm", "bm25_lemm_word", "bm25_lemm_bwps", "model1_embed", "model1_word", "model1_bwps",
    "nn_model1", "nn_model1_cosine",
    "bert_vanilla_short", "bert_model1_short", "bert_vanilla_full", "bert_model1_full",
    "bert_cedr_knrm", "bert_cedr_drmm", "bert_cedr_pacrr",
    "leaderboard_traditional", "leaderboard",
)  # fmt: skip
RANDOM = ("nn_*", "bert_*", "leaderboard")  # rows that have seeds
SLOW = ("bert_*", "leaderboard")  # rows that a CPU takes long for
ALSO_MEASURED = {"nn_model1": "nn_model1,nn_model1_exp"}
DURATIONS = CONFIGS / "durations.yaml"


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
    at_once: int  # steps side by side
    rest: list[str]  # for every training and measurement


def asked_for(argv: Sequence[str]) -> Asked:
    data, rest = take_option(argv, "data")
    output, rest = take_option(rest, "output_dir")
    seeds, rest = take_count(rest, "seeds")
    slow_seeds, rest = take_count(rest, "slow_seeds")
    at_once, rest = take_count(rest, "at_once")
    if any(argument.split("=", 1)[0] == "--seed" for argument in rest):
        raise UserError("--model all takes --seeds N (seeds 1 to N), not --seed")
    if wrong := [one for one in rest if one.startswith("--model.")]:
        raise UserError(f"{wrong[0]}: a setting of one ranker cannot be given to all; train that ranker by itself")
    check_devices(at_once or 1, rest)
    places = data or DEFAULT_DATA, Path(output or "outputs").expanduser()
    return Asked(*places, seeds or 1, slow_seeds or seeds or 1, at_once or 1, rest)


def rows_of(data: str) -> list[str]:
    """The rows that are made for this data: its YAML may leave some out, and with them what is made of them."""
    left_out = load_data(data).get("leave_out") or []
    kept = [row for row in ROWS if not _is_one_of(row, left_out)]
    return [row for row in kept if made_of(row, data) <= set(kept)]


def _is_one_of(row: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(row, pattern) for pattern in patterns)


def plan(asked: Asked, folder: Path) -> list[Job]:
    """All jobs in the order of work; `folder`: OUTPUT_DIR/<data>."""
    known = yaml.safe_load(DURATIONS.read_text(encoding="utf-8")).get(Path(asked.data).stem, {})
    jobs: list[Job] = []
    for row in rows_of(asked.data):
        if not_here(row, asked.data, folder):
            continue
        count = asked.seeds if _is_one_of(row, RANDOM) else 1
        count = min(count, asked.slow_seeds) if _is_one_of(row, SLOW) else count
        runs = [RunFolder(folder / row / f"seed-{seed}") for seed in range(1, count + 1)]
        before = [seconds_in(run.development) for run in runs]
        about = next((one for one in before if one), known.get(row, {}).get("train"))
        anew = made_of(row, asked.data) & {job.row for job in jobs if job.seed is not None and job.state != "done"}
        states = ["to do" if anew or changed_part(run) else _state(run, asked.data) for run in runs]
        jobs += [Job(row, seed, state, about) for seed, state in enumerate(states, start=1)]
        done = all(state == "done" for state in states)
        missing = [run for run in runs if not all(one.evaluation.is_file() for one in _made(run))] if done else runs
        before = [seconds_in(run.evaluation) for run in runs]
        each = next((one for one in before if one), known.get(row, {}).get("evaluate"))
        jobs.append(
            Job(row, None, "to do" if missing else "done", None if each is None else each * len(missing or runs))
        )
    return jobs


def _made(run: RunFolder) -> list[RunFolder]:
    """What a training makes: its row, and the one that is made of it right after."""
    row = run.path.parent.name
    return [run, *(RunFolder(run.path.parent.parent / made / run.path.name) for made in [MAKES.get(row)] if made)]


def _state(run: RunFolder, data: str) -> str:
    """Of the training; it is not done before all that it makes is there."""
    states = [state_of(one, merged(one.path.parent.name, data)[0].get("init_args") or {}) for one in _made(run)]
    return "to do" if states[0] == "done" and set(states) != {"done"} else states[0]


def made_of(row: str, data: str) -> set[str]:
    """The rows that a row is made of."""
    settings = merged(row, data)[0].get("init_args") or {}
    makers = {made: maker for maker, made in MAKES.items()}
    return {makers.get(part, part) for part in [*settings.get("parts", ()), settings.get("reranker")] if part}


def not_here(row: str, data: str, folder: Path) -> list[str]:
    """What a row is made of and cannot be had in `folder`: trained and measured, but only the figures were kept."""
    runs = {part: RunFolder(folder / part / "seed-1") for part in made_of(row, data)}
    return sorted(part for part, run in runs.items() if _is_measured_elsewhere(run, data))


def _is_measured_elsewhere(run: RunFolder, data: str) -> bool:
    """One whose settings have changed is trained again anyway."""
    return _state(run, data) == "done" and run.evaluation.is_file() and not run.trained_checkpoint.is_file()


def print_plan(jobs: Sequence[Job], asked: Asked, folder: Path) -> None:
    grid = Table(title=f"{Path(asked.data).stem}: {len(jobs)} steps")
    for title, side in (("row", "left"), ("training", "right"), ("measurement", "right"), ("to do, about", "right")):
        grid.add_column(title, justify=side)  # type: ignore[arg-type]
    for row in dict.fromkeys(job.row for job in jobs):
        mine = [job for job in jobs if job.row == row]
        seeds = [job for job in mine if job.seed is not None]
        done = sum(job.state == "done" for job in seeds)
        trained = f"{done} of {len(seeds)} seeds" if len(seeds) > 1 else seeds[0].state
        grid.add_row(row, trained, mine[-1].state, time_left(mine))
    Console(width=None if Console().is_terminal else 100).print(grid)
    for row in rows_of(asked.data):
        if gone := not_here(row, asked.data, folder):
            say(f"{row} is left out: {folder} has what was measured of {', '.join(gone)}, not the trained rankers")
    left = time_left(jobs, asked.at_once)
    say(f"about {left} to go; estimates are from earlier runs, or from 2 CPU cores without a GPU")
    if asked.at_once > 1:
        say(f"{asked.at_once} steps run side by side: speeds in the table will be those of a machine that is busy")


def run_all(argv: Sequence[str], folder_of: Callable[[Asked], Path]) -> None:
    """Prints the plan and works it off. `folder_of`: where the results of this data go."""
    asked = asked_for(argv)
    folder = folder_of(asked)
    jobs = plan(asked, folder)
    print_plan(jobs, asked, folder)
    steps = [
        Step(job.title, command(job, asked), job.state, job.seconds, job.row, _made_of(job, asked)) for job in jobs
    ]
    failed = work_off(steps, asked.at_once, folder / "logs")
    if run_step([sys.executable, "evaluate.py", *places(asked), "--skip_measured", "true"]) or failed:
        raise UserError("not all rows are there; the same command tries the missing ones again")


def _made_of(job: Job, asked: Asked) -> tuple[str, ...]:
    """A row without its training cannot be measured, and one without its parts cannot be trained."""
    return (job.row,) if job.seed is None else tuple(made_of(job.row, asked.data))


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
