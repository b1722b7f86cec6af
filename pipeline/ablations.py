"""What each design decision is worth: the lines of configs/ablations.yaml, each against its base, on the test queries.

    python -m pipeline.ablations [--data NAME] [--output_dir DIR] [--only name,name] [--seeds N] [--at_once N]

A base is the ranker of OUTPUT_DIR/<data>, as `train.py` leaves it; a line lives in OUTPUT_DIR/ablations/<line>/<data>.
Each training and each measurement is a process of its own: one that fails costs only what depends on it, and what is
done already is kept, so that the same command resumes. Writes OUTPUT_DIR/<data>/ablations.{json,md} and prints them.
All other options (`--data.path DIR`) are given to all trainings and measurements.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.markdown import Markdown

from evaluation.ablation_table import Ablation, Export, MeasuredLine, compare_with_bases, markdown, read_ablations
from evaluation.measurements import Measurement, over_seeds, read_measurements
from lexical.errors import UserError, run_script
from lexical.model1.table_files import TABLE, read_meta
from lexical.small_files import read_json, write_json, write_text
from lexical.terminal import say
from pipeline.configs import CONFIGS, names, take_options, wants_help
from pipeline.dependencies import write_dependencies
from pipeline.plan import (
    Options,
    PlannedRanker,
    build_ranker,
    plan_ranker,
    plan_rows,
    plan_steps,
    read_options,
    run_plan,
)
from pipeline.scheduler import DONE, Step

ABLATIONS = CONFIGS / "ablations.yaml"


class PlannedLine(NamedTuple):
    line: Ablation
    ranker: PlannedRanker
    base: PlannedRanker  # the same ranker for a line that is a base


def run_ablations(argv: Sequence[str], path: Path = ABLATIONS) -> list[MeasuredLine]:
    """Run the chosen lines; return and print all that are complete, earlier ones included (Holm's family)."""
    if wants_help(argv):
        print(__doc__)
        return []
    given, rest = take_options(argv, only=str)
    threshold, ablations = read_ablations(path)
    known = [line.name for line in ablations]
    chosen = known if given.only is None else given.only.split(",")
    if unknown := set(chosen) - set(known):
        raise UserError(f"--only: there is no line {min(unknown)!r}; known are: {', '.join(known)}")
    options = read_options(rest)
    planned = plan_lines(ablations, options)
    to_run = [entry for entry in planned if entry.line.name in chosen]
    title, logs = f"ablations on {options.folder.name}", options.folder.parent / "ablations" / "logs"
    failed = run_plan(title, steps_of(to_run, options), options.at_once, logs)
    done = {title for title, group in steps_of(planned, options).items() if all(step.state == DONE for step in group)}
    complete = [entry for entry in planned if {entry.ranker.title, entry.base.title} <= done]
    lines = compare_with_bases(list(map(measured_line, complete)), threshold)
    if lines:
        text = markdown(lines, f"{options.folder.name}: ablations", threshold)
        write_json(options.folder / "ablations.json", [line.entry() for line in lines])
        write_text(options.folder / "ablations.md", text)
        Console(width=None if Console().is_terminal else 220).print(Markdown(text))
        print(f"written: {options.folder}/ablations.{{json,md}}")
    if failed or not {entry.ranker.title for entry in to_run} <= done:
        raise UserError("some lines are missing; the same command tries them again")
    return lines


def steps_of(entries: Sequence[PlannedLine], options: Options) -> dict[str, list[Step]]:
    """Return the steps of the bases, of the rows that those are made from, and of the lines."""
    rows = plan_rows(list(dict.fromkeys(entry.line.row for entry in entries)), options)
    return plan_steps([*rows, *(entry.ranker for entry in entries if not entry.line.is_base)], options)


def plan_lines(lines: Sequence[Ablation], options: Options) -> list[PlannedLine]:
    """Return the lines with their settings on this data. A line that equals its base there is left out."""
    planned = []
    for line in lines:
        if not line.is_base and line.name in names("model"):
            raise UserError(f"the line {line.name!r} of {ABLATIONS.name} needs another name than a ranker")
        folder = options.folder.parent / "ablations" / line.name / options.folder.name
        try:
            base = plan_ranker(line.row, line.row, options, options.folder)
            ranker = base if line.is_base else plan_ranker(line.name, line.model, options, folder, line.changes)
            changed = _all_settings(line.model, options, line.changes) != _all_settings(line.row, options, {})
        except UserError as error:
            raise UserError(f"the line {line.name!r} of {ABLATIONS.name}: {error}") from error
        if line.changes and line.model == line.row and not changed:
            say(f"{line.name}: {line.setting} is what {line.row} has on this data anyway; left out")
            continue
        if line.measure_only:
            borrow = partial(borrow_base, line, ranker, base)
            ranker = ranker._replace(dependencies=(line.row,), prepare=borrow, measure_only=True)
        elif not line.is_base and ranker.dependencies:
            ranker = ranker._replace(prepare=partial(borrow_dependencies, ranker, options.folder))
        planned.append(PlannedLine(line, ranker, base))
    return planned


def _all_settings(model: str, options: Options, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a ranker; an export takes those that are not given from its network's `export_...`."""
    ranker, _ = build_ranker(model, options, changes)
    inherited: dict[str, Any] = {}
    for dependency in ranker.dependencies:
        inherited |= build_ranker(dependency, options, {})[0].hparams
    return {key: inherited.get(f"export_{key}") if value is None else value for key, value in ranker.hparams.items()}


def borrow_dependencies(ranker: PlannedRanker, folder: Path) -> None:
    """Link the trained rankers that a line is made from; they are in the folder of the bases."""
    for name in ranker.dependencies:
        _link(ranker.folder / name, folder / name)


def borrow_base(line: Ablation, ranker: PlannedRanker, base: PlannedRanker) -> None:
    """Let the line have the base's trained files, with a config.yaml of its own."""
    for run, source in zip(ranker.runs, base.runs, strict=True):
        run.evaluation.unlink(missing_ok=True)
        for path in (source.checkpoint.parent, source.fusion, source.development, source.table):
            if path.exists():
                _link(run.path / path.name, path)
        config = source.load_config()
        config["model"] |= line.changes
        write_dependencies([str(source.path)], run)
        write_text(run.config, yaml.safe_dump(config, sort_keys=False))


def _link(path: Path, target: Path) -> None:
    """Link relatively, so that OUTPUT_DIR can be moved as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    relative = os.path.relpath(target.resolve(), path.parent.resolve())
    if not path.is_symlink() or str(path.readlink()) != relative:  # another seed may be using the right one
        path.unlink(missing_ok=True)
        path.symlink_to(relative)


def measured_line(entry: PlannedLine) -> MeasuredLine:
    """Return what evaluate.py has written for the line, on the first query set of its base."""
    base, runs = entry.base.runs[0], entry.ranker.runs
    saved = read_json(base.evaluation)
    for run in runs:
        if read_json(run.evaluation)["data"] != saved["data"]:
            raise UserError(f"{run.path} was measured on other data or candidates than {base.path}")
    query_set = saved["results"][0]["query_set"]

    def measurement(alone: bool) -> Measurement:
        return over_seeds(entry.line.name, [read_measurements(run.path, query_set, alone)[0] for run in runs])

    alone = measurement(alone=True) if runs[0].per_query(query_set, alone=True).is_file() else None
    export = None
    if entries := read_json(runs[0].development).get("table/entries"):
        share = read_meta(runs[0].table)["export"]["share_of_pairs"]
        export = Export(int(entries), (runs[0].table / TABLE).stat().st_size, float(share))
    return MeasuredLine(entry.line, measurement(alone=False), alone, export)


if __name__ == "__main__":
    sys.exit(run_script(run_ablations))
