"""What each design decision is worth: the lines of configs/ablations.yaml, each against its base, on the test queries.

    python -m pipeline.ablations [--data NAME] [--output_dir DIR] [--only name,name] [--seeds N] [--at_once N]

A base is the ranker of OUTPUT_DIR/<data>, as `train.py` leaves it; a line lives in OUTPUT_DIR/ablations/<line>/<data>.
Each training and each measurement is a process of its own: one that fails costs no other, and what is done already is
kept, so the same command goes on after an interruption. Writes OUTPUT_DIR/<data>/ablations.{json,md} and prints them.
Everything else on the command line (`--data.path DIR`) goes to all trainings and measurements.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evaluation.ablation_table import (
    HEADER,
    MARK,
    Ablation,
    Ablations,
    Export,
    Line,
    Measured,
    cells,
    compare_with_bases,
    markdown,
    read_ablations,
)
from evaluation.measurements import Measurement, combine_seeds, per_query_path, read_measurements
from lexical.errors import UserError, run_script
from lexical.model1.table_files import TABLE, read_meta
from lexical.terminal import say
from pipeline.configs import CONFIGS, DEFAULT_DATA, merged, resolve, take_count, take_option
from pipeline.run_folder import RunFolder, read_json, write_json, write_text
from pipeline.scheduler import work_off
from pipeline.step_process import check_devices
from pipeline.steps import Step, seconds_in, state_of, time_left

ABLATIONS = CONFIGS / "ablations.yaml"


class Asked(NamedTuple):
    """What the command line asks for."""

    data: str
    output_dir: Path
    only: list[str]
    seeds: int
    at_once: int  # steps side by side
    rest: list[str]  # for every training and measurement

    def places(self, output_dir: Path) -> list[str]:
        return ["--data", self.data, "--output_dir", str(output_dir), *self.rest]


class Work(NamedTuple):
    """A line on this data."""

    line: Ablation
    output_dir: Path
    folder: Path  # output_dir/<data>
    runs: list[RunFolder]  # of each seed
    settings: dict[str, Any]  # of the ranker
    named: list[str]  # those of them that the YAML files and the line name
    made_from: tuple[str, ...]  # the trained rankers that this one is made of

    def sources(self, base: Work, run: RunFolder) -> list[RunFolder]:
        """The base's trained runs that `run` is made of; none where it is trained by itself."""
        names = (base.line.trains,) if self.line.measure_only else self.made_from
        return [RunFolder(base.folder / name / run.path.name) for name in names]


def asked_for(argv: Sequence[str]) -> Asked:
    data, rest = take_option(argv, "data")
    output, rest = take_option(rest, "output_dir")
    only, rest = take_option(rest, "only")
    seeds, rest = take_count(rest, "seeds")
    at_once, rest = take_count(rest, "at_once")
    if wrong := [one for one in rest if one.split("=", 1)[0] in ("--seed", "--models") or one.startswith("--model")]:
        raise UserError(f"{wrong[0]}: rankers and their settings are the lines of {ABLATIONS.name}; choose by --only")
    check_devices(at_once or 1, rest)
    names = [] if only is None else only.split(",")
    places = data or DEFAULT_DATA, Path(output or "outputs").expanduser()
    return Asked(*places, names, seeds or 1, at_once or 1, rest)


def settle(ablations: Ablations, asked: Asked) -> list[Work]:
    """All lines with their settings on this data, as the command line of train.py resolves them.

    A mistyped setting is answered before anything is trained. A line that is its base on this data is left out.
    """
    found: list[Work] = []
    bases: dict[str, Work] = {}
    for line in ablations.lines:
        work = _settled(line, asked)
        base = bases.setdefault(line.row, work)
        if not line.is_base and line.trains == line.row and work.settings == base.settings:
            say(f"{line.name}: {line.setting} is what {line.row} has on this data anyway; left out")
            continue
        found.append(work)
    return found


def _settled(line: Ablation, asked: Asked) -> Work:
    from pipeline.command_line import NamedConfigCLI

    try:
        resolved = resolve(["--model", line.trains, "--data", asked.data, *asked.rest, *flags(line)])
        cli = NamedConfigCLI(resolved, "")
    except UserError as error:
        raise UserError(f"the line {line.name!r} of {ABLATIONS.name}: {error}") from error
    assert resolved.model is not None
    ranker: Any = resolved.model.target
    settings = cli.config_as_dict()["model"]
    named = [*(merged(line.trains, asked.data)[0].get("init_args") or {}), *line.changes]
    output_dir = asked.output_dir if line.is_base else asked.output_dir / "ablations" / line.name
    seeds = range(1, (asked.seeds if ranker.random else 1) + 1)
    runs = [RunFolder.of(output_dir, cli.datamodule.name, line.trains, seed) for seed in seeds]
    return Work(line, output_dir, runs[0].path.parent.parent, runs, settings, named, tuple(cli.model.made_from))


def flags(line: Ablation) -> list[str]:
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in line.changes.items()}
    return [f"--model.{key}={value}" for key, value in values.items()]


def plan(works: Sequence[Work], asked: Asked) -> dict[str, list[Step]]:
    """The steps of each line, in the order of work: trainings, then its measurement."""
    steps: dict[str, list[Step]] = {}
    bases = {work.line.row: work for work in works if work.line.is_base}
    for work in works:
        base = bases[work.line.row]
        before = [] if work is base else [step.state for step in steps[base.line.name][:-1]]
        sources = _source_trainings(work, asked) if work is base else []
        before += [step.state for step in sources]
        planned = [step.command for others in steps.values() for step in others]
        mine = [step for step in sources if step.command not in planned]  # it may be a base itself
        states = [_state(run, work, base, before) for run in work.runs]
        if not work.line.measure_only:
            made_of = _made_of(work, base, bases)
            mine += [_training(work, base, *one, made_of, asked) for one in zip(work.runs, states, strict=True)]
        complete = all(state == "done" for state in states) and all(run.evaluation.is_file() for run in work.runs)
        steps[work.line.name] = [*mine, _measurement(work, base, "done" if complete else "to do", asked)]
    return steps


def _state(run: RunFolder, work: Work, base: Work, before: Sequence[str]) -> str:
    """To do, too, where what it is made of is newer, or not there yet. `before`: the states of the base's trainings."""
    wanted = {key: work.settings[key] for key in work.named}
    state, sources = state_of(run, wanted), work.sources(base, run)
    if state == "done" and sources:
        changed = any(one != "done" for one in before) or any(_older(run.config, one.config) for one in sources)
        return "to do" if changed else "done"
    return state


def _older(path: Path, than: Path) -> bool:
    return not than.is_file() or not path.is_file() or path.stat().st_mtime_ns < than.stat().st_mtime_ns


def _source_trainings(base: Work, asked: Asked) -> list[Step]:
    """Of the rankers that the base is made of."""
    steps = []
    for run, name in ((run, name) for name in base.made_from for run in base.runs):
        source = RunFolder(base.folder / name / run.path.name)
        state = state_of(source, merged(name, asked.data)[0].get("init_args") or {})
        seconds = _about("train", name, [source.development], asked)
        command = _train(name, source, base.output_dir, asked)
        steps.append(Step(f"{name}, seed {run.seed}", command, state, seconds, name))
    return steps


def _made_of(work: Work, base: Work, bases: Mapping[str, Work]) -> tuple[str, ...]:
    """What has to be there before the line is trained: the base, and for the base itself the rankers that it is made
    of, which may be bases of other lines."""
    if work is not base:
        return (base.line.name,) if work.made_from else ()
    return tuple(bases[name].line.name if name in bases else name for name in work.made_from)


def _training(work: Work, base: Work, run: RunFolder, state: str, made_of: tuple[str, ...], asked: Asked) -> Step:
    line = work.line
    seconds = _about("train", line.trains, [one.development for one in (run, *base.runs)], asked)
    command = [*_train(line.trains, run, work.output_dir, asked), *flags(line)]
    before = partial(_borrow_sources, run, work, base) if work.made_from else None
    return Step(f"{line.name}, seed {run.seed}", command, state, seconds, line.name, made_of, before)


def _measurement(work: Work, base: Work, state: str, asked: Asked) -> Step:
    line = work.line
    each = _about("evaluate", line.trains, [run.evaluation for run in (*work.runs, *base.runs)], asked)
    kept = ["--skip_measured", "true", "--table", "false"]
    command = [sys.executable, "evaluate.py", "--models", line.trains, *asked.places(work.output_dir), *kept]
    made_of = (base.line.name,) if line.measure_only else (line.name,)
    before = partial(_borrow_base, work, base) if line.measure_only else None
    seconds = None if each is None else each * len(work.runs)
    return Step(f"measure {line.name}", command, state, seconds, line.name, made_of, before)


def _train(name: str, run: RunFolder, output_dir: Path, asked: Asked) -> list[str]:
    kept = ["--seed", str(run.seed), "--skip_trained", "true"]
    return [sys.executable, "train.py", "--model", name, *asked.places(output_dir), *kept]


def _about(kind: str, name: str, files: Sequence[Path], asked: Asked) -> float | None:
    """Seconds: as long as it took before, or its base, or as it was measured for this project on 2 cores."""
    known = yaml.safe_load((CONFIGS / "durations.yaml").read_text(encoding="utf-8")).get(Path(asked.data).stem, {})
    return next((one for one in map(seconds_in, files) if one), known.get(name, {}).get(kind))


def _borrow_sources(run: RunFolder, work: Work, base: Work) -> None:
    """The trained rankers that the line is made of: links to the base's."""
    if any(_older(run.config, source.config) for source in work.sources(base, run)):
        run.config.unlink(missing_ok=True)  # made of another training: not to be kept
    for name in work.made_from if work is not base else ():
        _link(work.folder / name, base.folder / name)


def _borrow_base(work: Work, base: Work) -> None:
    """The trained base under changed settings: links to its files, and a config.yaml of its own."""
    for run, source in zip(work.runs, base.runs, strict=True):
        run.evaluation.unlink(missing_ok=True)
        for path in (source.ranker, source.checkpoint.parent, source.fusion, source.development, source.table):
            if path.exists():
                _link(run.path / path.name, path)
        config = source.load_config()
        config["model"] |= {key: work.settings[key] for key in work.line.changes}
        write_text(run.config, yaml.safe_dump(config, sort_keys=False))


def _link(path: Path, to: Path) -> None:
    """Relative, so that OUTPUT_DIR may be moved as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(to.resolve(), path.parent.resolve())
    if path.is_symlink():
        if str(path.readlink()) == target:
            return  # another seed may be using it
        path.unlink()
    path.symlink_to(target)


def print_plan(works: Sequence[Work], steps: dict[str, list[Step]], asked: Asked) -> None:
    everything = [step for mine in steps.values() for step in mine]
    grid = Table(title=f"ablations on {asked.data}: {len(everything)} steps")
    for title in ("line", "setting", "training", "measurement", "to do, about"):
        grid.add_column(title)
    for number, work in enumerate(works):
        mine = steps[work.line.name]
        trained = "the base's" if work.line.measure_only else _together([step.state for step in mine[:-1]])
        last = number + 1 == len(works) or works[number + 1].line.is_base
        about = time_left(mine) if any(step.state != "done" for step in mine) else ""
        shown = [work.line.name, work.line.setting, trained, mine[-1].state, about]
        grid.add_row(*map(escape, shown), end_section=last)
    Console(width=None if Console().is_terminal else 120).print(grid)
    say(f"about {time_left(everything, asked.at_once)} to go")


def _together(states: Sequence[str]) -> str:
    """The state of several steps in a few words."""
    done = sum(state == "done" for state in states)
    return f"{done} of {len(states)} done" if 0 < done < len(states) else states[0]


def measured_line(work: Work, base: Work) -> Measured:
    """What evaluate.py has written for the line, on the first query set of its base."""
    saved = read_json(base.runs[0].evaluation)
    first = saved["results"][0]
    for run in work.runs:
        if read_json(run.evaluation)["data"] != saved["data"]:
            raise UserError(f"{run.path} was measured on other data or candidates than {base.runs[0].path}")
    query_set = first["query_set"]
    values = _main_measure(work, query_set, alone=False)
    has_alone = per_query_path(work.runs[0].path, query_set, alone=True).is_file()
    by_itself = _main_measure(work, query_set, alone=True).per_query if has_alone else None
    return Measured(
        work.line, query_set, values.measure, values.per_query, by_itself, len(work.runs), _export(work.runs[0])
    )


def _main_measure(work: Work, query_set: str, alone: bool) -> Measurement:
    seeds = {run.path.name: read_measurements(run.path, query_set, alone) for run in work.runs}
    return combine_seeds(work.line.name, seeds)[0]


def _export(run: RunFolder) -> Export | None:
    """Of a ranker that scores with an exported table (the first seed's)."""
    found = read_json(run.development)
    if "table/entries" not in found:
        return None
    share = read_meta(run.table)["export"]["share_of_pairs"]
    return Export(int(found["table/entries"]), (run.table / TABLE).stat().st_size, float(share))


def write_table(lines: Sequence[Line], folder: Path, threshold: float) -> None:
    """ablations.{json,md}, and the table on the terminal."""
    first = lines[0]
    title = f"{folder.name}: ablations, {first.measure} on {first.queries:,} queries ({first.query_set})"
    notes = [f"{MARK} significantly different from the base: paired two-sided t-test, p below {threshold:g}"]
    write_json(folder / "ablations.json", [line._asdict() for line in lines])
    write_text(folder / "ablations.md", markdown(lines, title, notes))
    grid = Table(title=title)
    for number, heading in enumerate(HEADER):
        grid.add_column(heading, justify="left" if number < 3 else "right")
    for number, line in enumerate(lines):
        last = number + 1 == len(lines) or lines[number + 1].row != line.row
        grid.add_row(*map(escape, cells(line)), end_section=last)
    Console(width=None if Console().is_terminal else 220).print(grid)
    print("\n".join(notes))
    print(f"written: {folder}/ablations.{{json,md}}")


def run_ablations(argv: Sequence[str], path: Path = ABLATIONS) -> list[Line]:
    """Prints the plan, works it off, compares; the table, with all lines that are there (Holm's family)."""
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return []
    asked = asked_for(argv)
    ablations = read_ablations(path)
    wanted = {line.name for line in (ablations.only(asked.only) if asked.only else ablations).lines}
    works = settle(ablations, asked)
    chosen = [work for work in works if work.line.name in wanted]
    steps = plan(chosen, asked)
    print_plan(chosen, steps, asked)
    logs = asked.output_dir / "ablations" / "logs"
    failed = work_off([step for mine in steps.values() for step in mine], asked.at_once, logs)
    done = {name for name, mine in plan(works, asked).items() if all(step.state == "done" for step in mine)}
    bases = {work.line.row: work for work in works if work.line.is_base}
    there = [work for work in works if {work.line.name, bases[work.line.row].line.name} <= done]
    lines = compare_with_bases([measured_line(work, bases[work.line.row]) for work in there], ablations.threshold)
    if lines:
        write_table(lines, bases[lines[0].row].folder, ablations.threshold)
    if failed or not {work.line.name for work in chosen} <= done:
        raise UserError("not all lines are there; the same command tries the missing ones again")
    return lines


if __name__ == "__main__":
    sys.exit(run_script(run_ablations))
