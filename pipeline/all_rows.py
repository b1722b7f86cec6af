"""Train and measure every row of the results table: the body of `train.py --model all`.

    python train.py --model all --seeds 5 [--slow_seeds 1] [--data NAME] [--at_once 2]

Each training and each measurement is a process of its own, so one that fails costs only the rows that depend on it.
With `--at_once N`, N of them run at a time. What is trained and measured already is kept: interrupted and started
again, the command resumes. First it prints the plan, with the time that each row took before, or took on 2 CPU cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from lexical.errors import UserError
from lexical.terminal import say
from lightning_modules.registry import ROWS
from pipeline.configs import rows_left_out
from pipeline.plan import Options, PlannedRanker, has_results_only, plan_ranker, plan_steps, print_plan, read_options
from pipeline.scheduler import DONE, Step, run_steps


def run_all(argv: Sequence[str]) -> None:
    """Print the plan, run its steps and print the results table."""
    options = read_options(argv)
    rankers = plan_rows([row.name for row in sorted(ROWS, key=lambda row: row.slow)], options)
    steps = plan_steps(rankers, options)
    print_plan(options.folder.name, steps, options.at_once)
    failed = run_steps([step for group in steps.values() for step in group], options.at_once, options.folder / "logs")
    table = ["evaluate.py", *options.shared, "--output_dir", str(options.folder.parent), "--skip_measured", "true"]
    if run_steps([Step("results table", table)]) or failed:
        raise UserError("some rows are missing; the same command tries them again")


def plan_rows(names: Sequence[str], options: Options) -> list[PlannedRanker]:
    """Return the rows in this order, but each after those that it depends on.

    Left out are rows that the profile leaves out, rows whose dependencies are measured but not here (as in `results/`,
    which has no checkpoints), and the rows that depend on either.
    """
    patterns = rows_left_out(options.data, options.profile)
    planned: dict[str, PlannedRanker] = {}
    left_out: set[str] = set()

    def add(name: str) -> bool:
        """Plan a row, its dependencies first; return whether it can be trained."""
        if name in planned or name in left_out:
            return name in planned
        left_out.add(name)
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return False
        ranker = plan_ranker(name, name, options, options.folder)
        if not all(add(dependency) for dependency in ranker.dependencies):
            return False
        absent = [part for part in ranker.dependencies if _is_absent(planned[part])]
        if absent and ranker.state(ranker.runs[0]) != DONE:
            say(f"{name} is left out: {options.folder} has results of {', '.join(absent)}, but not the trained rankers")
            return False
        left_out.remove(name)
        planned[name] = ranker
        return True

    for name in names:
        add(name)
    return list(planned.values())


def _is_absent(ranker: PlannedRanker) -> bool:
    """Return whether there are only results of a row; if its settings have changed, it is trained again anyway."""
    return ranker.state(ranker.runs[0]) == DONE and has_results_only(ranker.runs[0])
