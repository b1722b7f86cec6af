"""Plans of long work: rankers that are trained, each seed in a step of its own, and then measured.

`train.py --model all` plans the rows of the results table, `pipeline.ablations` the same rankers with other settings.
What is trained and measured already is kept: interrupted and started again, the same command resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lexical.errors import UserError
from lexical.small_files import read_json
from lexical.terminal import duration, say
from lightning_modules.ranker import Ranker
from lightning_modules.registry import row_of
from pipeline.command_line import parse_data
from pipeline.configs import CONFIGS, count, resolve, take_options
from pipeline.dependencies import changed_dependency
from pipeline.run_folder import RunFolder, settings_that_matter
from pipeline.scheduler import DONE, RESUMES, TO_DO, Step, run_steps

DURATIONS = CONFIGS / "durations.yaml"


class Options(NamedTuple):
    """Options of a command that trains many rankers."""

    folder: Path  # OUTPUT_DIR/<data>
    seeds: int
    slow_seeds: int  # of the rows that take a CPU hours
    at_once: int  # steps
    shared: list[str]  # options of all steps: data, profile and whatever else was given


class PlannedRanker(NamedTuple):
    """A ranker that is trained with one or more seeds and measured."""

    title: str  # the row of the results table, or the line of the ablations
    model: str
    settings: dict[str, Any]  # hyper-parameters that YAML files and `changes` give
    folder: Path  # OUTPUT_DIR/<data>
    seeds: int
    changes: Mapping[str, Any]  # settings that the command line gives, such as {"p_self": 0.0}
    dependencies: tuple[str, ...]  # names of the trained rankers that it is made from
    prepare: Callable[[], None] | None = None  # called before each of its steps
    measure_only: bool = False  # there is nothing to train

    @property
    def runs(self) -> list[RunFolder]:
        return [RunFolder(self.folder / self.model / f"seed-{seed}") for seed in range(1, self.seeds + 1)]

    def state(self, run: RunFolder) -> str:
        """Return the state of the training of a seed."""
        if not run.config.is_file():
            return RESUMES if run.last_checkpoint.is_file() else TO_DO
        trained = settings_that_matter(run.load_config())["model"]
        changed = not settings_that_matter({"model": self.settings})["model"].items() <= trained.items()
        return TO_DO if changed or (not _is_absent(run) and changed_dependency(run)) else DONE

    @property
    def has_results_only(self) -> bool:
        """Whether it was measured, but is not here; if its settings have changed, it is trained again anyway."""
        return self.state(self.runs[0]) == DONE and _is_absent(self.runs[0])


def _is_absent(run: RunFolder) -> bool:
    """Return whether a measured ranker is not here: `results/` of this project has no checkpoints."""
    return run.evaluation.is_file() and not run.checkpoint.is_file()


def read_options(argv: Sequence[str]) -> Options:
    """Parse the command line; mistakes in the options of data and trainer are reported before anything is trained."""
    for argument in argv:
        if argument.split("=")[0] == "--seed" or argument.startswith("--model"):
            raise UserError(f"{argument}: an option for one ranker, not for many; --seeds N trains seeds 1 to N")
    given, shared = take_options(argv, seeds=count, slow_seeds=count, at_once=count, output_dir=str)
    seeds, at_once = given.seeds or 1, given.at_once or 1
    devices = getattr(take_options(shared, **{"trainer.devices": str})[0], "trainer.devices")
    if at_once > 1 and devices not in (None, "1"):
        raise UserError(f"--at_once {at_once} gives each step GPUs of its own: leave out --trainer.devices {devices}")
    folder = Path(given.output_dir or "outputs").expanduser() / parse_data(resolve(shared))[1].name
    return Options(folder, seeds, given.slow_seeds or seeds, at_once, shared)


def plan_rows(names: Iterable[str], options: Options) -> list[PlannedRanker]:
    """Return the rows in this order, but each after those that it depends on.

    Left out are rows that the profile leaves out, rows whose dependencies are measured but not here (as in `results/`,
    which has no checkpoints), and the rows that depend on either.
    """
    patterns = resolve(options.shared).left_out

    @cache
    def plan(name: str) -> list[PlannedRanker]:
        """Return a row behind those that it depends on; nothing if it is left out."""
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return []
        ranker = plan_ranker(name, name, options, options.folder)
        dependencies = [plan(dependency) for dependency in ranker.dependencies]
        if not all(dependencies):
            return []
        absent = [part.title for *_, part in dependencies if part.has_results_only]
        if absent and ranker.state(ranker.runs[0]) != DONE:
            say(f"{name} is left out: {options.folder} has results of {', '.join(absent)}, but not the trained rankers")
            return []
        return [*chain.from_iterable(dependencies), ranker]

    return list({ranker.title: ranker for name in names for ranker in plan(name)}.values())


def plan_ranker(
    title: str, model: str, options: Options, folder: Path, changes: Mapping[str, Any] | None = None
) -> PlannedRanker:
    """Return a ranker with the settings of its YAML files and with `changes`; results go to `folder`."""
    ranker, settings = build_ranker(model, options, changes or {})
    seeds = min(options.seeds, options.slow_seeds) if row_of(model).slow else options.seeds
    dependencies = tuple(name for name in ranker.dependencies if "/" not in name)  # others are the user's own folders
    seeds = seeds if ranker.has_seeds else 1
    return PlannedRanker(title, model, settings, folder, seeds, changes or {}, dependencies)


def build_ranker(model: str, options: Options, changes: Mapping[str, Any]) -> tuple[Ranker, dict[str, Any]]:
    """Return an untrained ranker and the settings that it was built with."""
    choice = resolve(["--model", model, *options.shared]).model
    assert choice is not None
    settings = {**choice.settings, **changes}
    try:
        return choice.target(**settings), settings
    except (TypeError, ValueError) as error:
        raise UserError(f"{model}: {error}") from error


def plan_steps(rankers: Sequence[PlannedRanker], options: Options) -> dict[str, list[Step]]:
    """Return the steps of each ranker by its title: the training of each seed, then the measurement.

    Rows come after those that they depend on.
    """
    durations = _durations(resolve(options.shared).data.name)
    steps: dict[str, list[Step]] = {}
    for ranker in rankers:
        before = [step for name in ranker.dependencies for step in steps.get(name, [])[:-1]]
        outdated = any(step.state != DONE for step in before)
        states = {run: TO_DO if outdated else ranker.state(run) for run in ranker.runs}
        earlier = durations.get(ranker.model, {})
        # of an earlier run, of another ranker of this kind, or as measured for this project
        seconds = durations[ranker.model] = {
            "train": _first_seconds(run.development for run in states) or earlier.get("train"),
            "evaluate": _first_seconds(run.evaluation for run in states) or earlier.get("evaluate"),
        }
        waits_for = tuple(step.title for step in before)
        common = [*options.shared, "--output_dir", str(ranker.folder.parent)]
        changes = [
            f"--model.{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in ranker.changes.items()
        ]
        train = ["train.py", "--model", ranker.model, *common, "--skip_trained", "true", *changes, "--seed"]
        trainings = [
            Step(f"{ranker.title}, seed {run.seed}", [*train, str(run.seed)], state, seconds["train"], waits_for,
                 ranker.prepare, partial(_trained, run))
            for run, state in states.items() if not ranker.measure_only
        ]  # fmt: skip
        to_measure = sum(state != DONE or not run.evaluation.is_file() for run, state in states.items())
        measurement = Step(
            f"measure {ranker.title}",
            ["evaluate.py", "--models", ranker.model, *common, "--skip_measured", "true", "--table", "false"],
            TO_DO if to_measure else DONE, seconds["evaluate"] and seconds["evaluate"] * to_measure,
            tuple(step.title for step in trainings) or waits_for, ranker.prepare, partial(_measured, ranker.runs[0]),
        )  # fmt: skip
        steps[ranker.title] = [*trainings, measurement]
    return steps


def _trained(run: RunFolder) -> str:
    """Return what the training has reached."""
    measured = read_json(run.development)
    alone = f", alone {measured['development/mrr_alone']:.4f}" if "development/mrr_alone" in measured else ""
    return f"development MRR {measured['development/mrr']:.4f}{alone}"


def _measured(run: RunFolder) -> str:
    main = read_json(run.evaluation)["results"][0]
    return f"{main['query_set']} {main['measure']} {main['value']:.4f}"


def expected_seconds(models: Iterable[str], data: str) -> float | None:
    """Return how long the trainings take on a small machine; None where that is not known."""
    known = _durations(data)
    seconds = [known.get(model, {}).get("train") for model in models]
    return None if None in seconds else sum(filter(None, seconds))


def _durations(data: str) -> dict[str, dict[str, float | None]]:
    return yaml.safe_load(DURATIONS.read_text(encoding="utf-8")).get(data, {})


def _first_seconds(paths: Iterable[Path]) -> float | None:
    """Return what the first readable development.json or evaluation.json says that it took."""
    for path in paths:
        with suppress(UserError, KeyError, TypeError, ValueError):  # missing, older or damaged
            return float(read_json(path)["seconds"])
    return None


def run_plan(title: str, steps: Mapping[str, Sequence[Step]], at_once: int, logs: Path) -> list[Step]:
    """Print what is done and to do for each ranker, with the time it will take; run it and return what failed.

    Steps that run `at_once` write to `logs`.
    """
    every_step = [step for group in steps.values() for step in group]
    table = Table("ranker", "training", "measurement", "to do, about", title=f"{title}: {len(every_step)} steps")
    for ranker, (*trainings, measurement) in steps.items():
        done = sum(step.state == DONE for step in trainings)
        trained = f"{done} of {len(trainings)} seeds" if len(trainings) > 1 else "".join(s.state for s in trainings)
        table.add_row(escape(ranker), trained, measurement.state, time_left([*trainings, measurement]))
    Console(width=None if Console().is_terminal else 120).print(table)
    say(f"to do: about {time_left(every_step)}; estimates are from earlier runs, or from 2 CPU cores without a GPU")
    if at_once > 1:
        say(f"{at_once} steps run at once: speeds in the table will be those of a busy machine")
    return run_steps(every_step, at_once, logs)


def time_left(steps: Sequence[Step]) -> str:
    """Return the expected duration of the steps that are not done: a sum, also where some of them run at once."""
    seconds = [step.seconds for step in steps if step.state != DONE]
    known, unknown = [number for number in seconds if number is not None], seconds.count(None)
    parts = [duration(sum(known))] if known or not unknown else []
    parts += [f"{unknown} step{'s' if unknown > 1 else ''} of unknown length"] if unknown else []
    return " and ".join(parts)
