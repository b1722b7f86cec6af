"""Is one ranking better than another? Paired two-sided t-test over the queries of a set (section "Results").

    python -m evaluation.significance outputs/pydocs_passage model1_word bm25_lemm bm25_lemm_word [--query_set test]

compares the first row with each of the others. A name with .alone means the ranker without BM25 (lemm). Values are
averages over the seeds of a ranker.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import ttest_rel

from evaluation.seed_averages import read_measured
from lexical.errors import UserError, run_script

THRESHOLD = 0.05  # the paper's


class Comparison(NamedTuple):
    queries: int
    mean: float
    other_mean: float
    better: int  # queries where the first is better
    worse: int
    p_value: float  # two-sided; 1 where no query differs
    effect_size: float  # Cohen's d of the differences: their mean over their standard deviation, within 1,000


def compare(values: Mapping[str, float], others: Mapping[str, float]) -> Comparison:
    """Per-query values of two rankings of the same queries."""
    if set(values) != set(others):
        raise ValueError(f"{len(set(values) ^ set(others)):,} queries are measured for one of the rankings only")
    a, b = np.array([(values[query], others[query]) for query in values], np.float64).reshape(-1, 2).T
    different = len(a) > 1 and bool((a != b).any())
    p_value = float(ttest_rel(a, b).pvalue) if different else 1.0
    spread = float((a - b).std(ddof=1)) if different else 1.0
    effect = float(np.clip((a - b).mean() / max(spread, 1e-12), -1000, 1000)) if different else 0.0
    better, worse = int((a > b).sum()), int((a < b).sum())
    return Comparison(len(a), float(a.mean()), float(b.mean()), better, worse, p_value, effect)


def read_per_query(path: Path) -> tuple[str, dict[str, float]]:
    """(main measure, its value for each query) of a per_query file."""
    return read_measured(path)[0]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("evaluation.significance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="OUTPUT_DIR/<data>")
    parser.add_argument("row")
    parser.add_argument("others", nargs="+", metavar="other")
    parser.add_argument("--query_set", default="test")
    arguments = parser.parse_args(argv)

    def load(name: str) -> tuple[str, dict[str, float]]:
        model, alone = (name.removesuffix(".alone"), ".alone" if name.endswith(".alone") else "")
        return read_per_query(arguments.folder / model / "per_query" / f"{arguments.query_set}{alone}.tsv")

    measure, values = load(arguments.row)
    for other in arguments.others:
        try:
            found = compare(values, load(other)[1])
        except ValueError as error:
            raise UserError(f"{arguments.row} and {other} cannot be compared: {error}") from error
        sign = "significant" if found.p_value < THRESHOLD else "not significant"
        print(
            f"{arguments.row} {found.mean:.4f}, {other} {found.other_mean:.4f} ({measure}, {found.queries:,} queries): "
            f"{found.mean - found.other_mean:+.4f}, better for {found.better:,}, worse for {found.worse:,}, "
            f"p = {found.p_value:.2g}, {sign} at {THRESHOLD:g}; effect size {found.effect_size:+.2f}"
        )


if __name__ == "__main__":
    sys.exit(run_script(main))
