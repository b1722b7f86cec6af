"""One row of the results table or several of them: what the options of train.py stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lexical.errors import UserError
from lexical.terminal import say
from lightning_modules.registry import exports_of
from pipeline.configs import load, resolve, take_option, without_options

CONFIG_FILES = {"--config", "-c"}  # a file may hold settings of the model


def train_row(argv: Sequence[str]) -> dict[str, float]:
    """Train `--model NAME`, then the rows that are exports of it."""
    from pipeline.command_line import RankerCLI
    from pipeline.training import train_ranker

    name = Path(str(take_option(argv, "model")[0])).stem
    metrics: dict[str, float] = {}
    for row in (name, *exports_of(name)):
        if row != name:
            if not metrics:  # another process than rank zero, or a trial
                break
            if CONFIG_FILES & set(argv):
                say(f"train its export with: python train.py --model {row}")
                break
            argv = ["--model", row, *without_options(take_option(argv, "model")[1], "--model.")]
        resolved = resolve(argv)
        assert resolved.model is not None
        found = train_ranker(RankerCLI(resolved, f"Train {row} on {resolved.data.name}."))
        metrics = metrics or found
    return metrics


def train_models(argv: Sequence[str]) -> dict[str, float]:
    """Train the rankers of `--models a,b,c` in this order, with the same settings; return "NAME/metric" -> value."""
    models, rest = take_option(argv, "models")
    names = str(models).split(",")
    if take_option(rest, "model")[0] is not None:
        raise UserError("give --model NAME or --models a,b,c, not both")
    for name in names:
        load(name, "model")  # a mistyped name is reported before anything is trained
    measured = {name: train_row(["--model", name, *rest]) for name in names}
    return {f"{name}/{key}": value for name, values in measured.items() for key, value in values.items()}


def train_seeds(argv: Sequence[str]) -> dict[str, float]:
    """Train seeds 1 to N of `--seeds N`, those that are missing, and measure them; return means over the seeds."""
    seeds, argv = take_option(argv, "seeds")
    if not str(seeds).isdecimal() or int(str(seeds)) < 1:
        raise UserError(f"--seeds {seeds}: must be a number, 1 or more")
    if take_option(argv, "seed")[0] is not None:
        raise UserError("give --seeds N (seeds 1 to N) or --seed N (one of them), not both")
    numbers = range(1, int(str(seeds)) + 1)
    measured = [train_row([*argv, "--seed", str(seed), "--skip_trained", "true"]) for seed in numbers]
    if {"-h", "--help"}.isdisjoint(argv):
        _measure_seeds(argv)
    return {name: sum(values[name] for values in measured) / len(measured) for name in measured[0]}


def _measure_seeds(argv: Sequence[str]) -> None:
    """Measure the seeds and average them per query, as evaluate.py does."""
    from evaluate import evaluate

    model, rest = take_option(argv, "model")
    name = Path(str(model)).stem
    rows = ",".join((name, *exports_of(name)))
    if take_option(rest, "trainer.devices")[0] not in (None, "1") or CONFIG_FILES & set(rest):
        say(f"measure the seeds with: python evaluate.py --models {rows}")
        return
    evaluate([*without_options(rest, "--model."), "--models", rows, "--skip_measured", "true"])


def train_all(argv: Sequence[str]) -> dict[str, float]:
    """Train and measure every row on this data; what is there is kept."""
    from pipeline.all_rows import run_all

    run_all(argv)
    return {}


def print_data_statistics(argv: Sequence[str]) -> dict[str, float]:
    from pipeline.data_statistics import print_statistics

    print_statistics(resolve(argv))
    return {}
