"""Train rows of the results table: one of them, with one seed or several, or all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from evaluate import evaluate
from lexical.errors import UserError
from lexical.small_files import read_json
from lexical.terminal import PREFIX, be_brief, duration, say
from lightning_modules.registry import ROWS, exports_of
from pipeline import configs
from pipeline.command_line import RankerCLI, parse_data
from pipeline.configs import count, resolve, take_options, wants_help
from pipeline.plan import expected_seconds, plan_ranker, plan_rows, plan_steps, read_options, run_plan
from pipeline.processes import is_rank_zero
from pipeline.scheduler import TO_DO, Step, run_steps
from pipeline.training import train_ranker

CONFIG_FILES = {"--config", "-c"}  # a file may hold settings of the model


def train_all(argv: Sequence[str]) -> None:
    """Print the plan of all rows with the time that each will take; train and measure them, and print the table."""
    options = read_options(argv)
    rows = plan_rows([row.name for row in sorted(ROWS, key=lambda row: row.slow)], options)
    steps = plan_steps(rows, options)
    failed = run_plan(options.folder.name, steps, options.at_once, options.folder / "logs")
    table = ["evaluate.py", *options.shared, "--output_dir", str(options.folder.parent), "--skip_measured", "true"]
    if run_steps([Step("results table", table)]) or failed:
        raise UserError("some rows are missing; the same command tries them again")


def train_several(names: Sequence[str], argv: Sequence[str]) -> dict[str, float]:
    """Print what will be trained, then a line for each ranker; return MRR on development as "NAME/metric"."""
    given, rest = take_options(argv, at_once=count)
    if given.at_once is not None and given.at_once > 1 and not wants_help(argv):
        return _train_at_once(names, argv)
    cli = RankerCLI(resolve(["--model", names[0], *take_options(rest, seeds=count)[1]]))
    started = time.perf_counter()
    if is_rank_zero():
        _say_plan(names, Path(cli.config["output_dir"]).expanduser() / cli.datamodule.name)
    measured: dict[str, float] = {}
    be_brief()
    try:
        for number, name in enumerate(names, start=1):
            os.environ[PREFIX] = f"[{number} of {len(names)}] {name}: "
            measured |= {f"{name}/{key}": value for key, value in train_seeds(name, rest).items()}
    finally:
        be_brief(False)
        del os.environ[PREFIX]
    say(f"trained in {duration(time.perf_counter() - started)}")
    return measured


def _say_plan(names: Sequence[str], folder: Path) -> None:
    rows = [row for name in names for row in (Path(name).stem, *exports_of(Path(name).stem))]
    seconds = expected_seconds(rows, folder.name)
    about = f", about {duration(seconds)} on 2 CPU cores" if seconds else ""
    say(f"{folder.name}: {len(rows)} rankers are trained{about}: {', '.join(rows)}")
    say(f"results go to {folder}")


def _train_at_once(names: Sequence[str], argv: Sequence[str]) -> dict[str, float]:
    """Train several at a time, each in a process with its share of the cores; what takes longest comes first."""
    options, started = read_options(argv), time.perf_counter()
    if own := [name for name in names if name not in configs.names("model")]:
        raise UserError(f"--at_once is for rankers of this project: train {', '.join(own)} without it")
    planned = [plan_ranker(name, name, options, options.folder) for name in names]
    # a step that is done is started, too: it looks whether the data is still the same
    trainings = [step for group in plan_steps(planned, options).values() for step in group[:-1]]
    steps = [step._replace(state=TO_DO) for step in trainings]
    _say_plan(names, options.folder)
    parse_data(resolve(options.shared))[1].prepare_data()  # each process would wait for the others to do it
    prepared = time.perf_counter()
    longest_first = sorted(steps, key=lambda step: -(step.seconds or 0.0))
    failed = run_steps(longest_first, options.at_once, options.folder / "logs")
    of_data, training = prepared - started, time.perf_counter() - prepared
    say(f"data in {duration(of_data)}, training in {duration(training)} ({options.at_once} at once)")
    if failed:
        raise UserError("some rankers are missing; the same command tries them again")
    return {
        f"{ranker.model}/{key}": value
        for ranker in planned
        for key, value in read_json(ranker.runs[0].development).items()
        if key.startswith("development/mrr")
    }


def train_seeds(name: str, argv: Sequence[str]) -> dict[str, float]:
    """Train a ranker; with `--seeds N` train seeds 1 to N, measure them, and return means over the seeds."""
    given, rest = take_options(argv, seeds=count)
    if given.seeds is None:
        return train_row(name, rest)
    if take_options(rest, seed=str)[0].seed is not None:
        raise UserError("give --seeds N (seeds 1 to N) or --seed N (one of them), not both")
    seeds = [str(seed) for seed in range(1, given.seeds + 1)]
    measured = [train_row(name, [*rest, "--seed", seed, "--skip_trained", "true"]) for seed in seeds]
    if not wants_help(rest):
        _evaluate_seeds(name, rest)
    return {key: sum(values[key] for values in measured) / len(measured) for key in measured[0]}


def train_row(name: str, argv: Sequence[str]) -> dict[str, float]:
    """Train a ranker, then the rows that are exports of it; return its MRR on development."""
    metrics = train_ranker(RankerCLI(resolve(["--model", name, *argv])))
    for export in exports_of(Path(name).stem) if metrics else ():  # there are none of a trial or beyond rank zero
        if CONFIG_FILES & set(argv):
            say(f"train its export with: python train.py --model {export}")
        else:
            train_ranker(RankerCLI(resolve(["--model", export, *without_model_settings(argv)])))
    return metrics


def _evaluate_seeds(name: str, argv: Sequence[str]) -> None:
    """Measure the seeds and average them per query, as evaluate.py does."""
    rows = ",".join((Path(name).stem, *exports_of(Path(name).stem)))
    devices = vars(take_options(argv, **{"trainer.devices": str})[0])["trainer.devices"]
    if devices not in (None, "1") or CONFIG_FILES & set(argv):
        say(f"measure the seeds with: python evaluate.py --models {rows}")
    else:
        evaluate([*without_model_settings(argv), "--models", rows, "--skip_measured", "true"])


def without_model_settings(argv: Sequence[str]) -> list[str]:
    """Return the arguments without `--model.SETTING VALUE`."""
    kept, skip = [], False
    for argument in argv:
        if argument.startswith("--"):
            skip = argument.startswith("--model.")
        if not skip:
            kept.append(argument)
    return kept
