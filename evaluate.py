"""Measure trained rankers on the test queries and print the results table.

    python evaluate.py [--models a,b,c] [--data NAME] [--output_dir DIR]
    python evaluate.py --data folder --data.path DIR --leaderboard true

Without --models: every ranker that train.py has trained on the data. Writes TREC runs and per-query values beside
each ranker, and results.{json,md,tex,html} for the data. Rows measured earlier on the same data stay in the table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lexical.errors import run_script

if TYPE_CHECKING:
    from evaluation.results_table import Result

OPTIONS: dict[str, dict[str, Any]] = {
    "models": {"type": str | None, "default": None, "help": "names, separated by commas; default: all trained"},
    "skip_measured": {"type": bool, "default": False, "help": "keep what was measured on this very data"},
    "table": {"type": bool, "default": True, "help": "write the table of all results; false: measure only"},
    "run_depth": {"type": int | None, "default": None, "help": "documents of a query in run files; default: all"},
    "leaderboard": {"type": bool, "default": False, "help": "also write runs as qid, docid, rank (tabs)"},
}


def evaluate(argv: Sequence[str]) -> list[Result]:
    """Measure the rankers that `argv` names; return all results on this data."""
    from pipeline.configs import resolve_command, take_options

    resolved = resolve_command(argv, __doc__)
    from pipeline.command_line import parse_data
    from pipeline.evaluating import evaluate_rankers

    shared = take_options(argv, **dict.fromkeys(OPTIONS, str))[1]
    return evaluate_rankers(*parse_data(resolved, OPTIONS), shared)


if __name__ == "__main__":
    sys.exit(run_script(evaluate))
