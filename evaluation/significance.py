"""Which row is significantly better than which? Paired two-sided t-test over the queries of a set (section "Results").

    python -m evaluation.significance outputs/pydocs_passage model1_word bm25_lemm bm25_lemm_word [--query_set test]

compares the first row with each of the others. A name with .alone is the ranker without BM25 (lemm). Values are
averages over the seeds of a ranker. The hypotheses that the results table is marked with are configs/hypotheses.yaml.

A difference is significant if its p-value stays below the threshold after Holm's correction for all hypotheses that
are tested together: the hypotheses of a query set, the lines of an ablation, the rows named in one command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import yaml

from evaluation.measurements import Measurement, read_measurements
from lexical.errors import ArgumentParser, UserError, run_script

T = TypeVar("T")
THRESHOLD = 0.05  # the paper's
ROUNDING = 5e-7  # smaller differences are none: means over seeds of (nearly) equal values


class Hypothesis(NamedTuple):
    """`row` is as good as `against`; where that is rejected, the mark stands behind the row's figure."""

    row: str
    against: str
    mark: str


class Verdict(NamedTuple):
    """A test of a hypothesis on one query set: an entry of "significance" in results.json."""

    against: str
    mark: str
    queries: int
    difference: float  # mean of the row minus mean of the other
    relative: float  # the same as a share of the other's mean; 0 where that is 0
    effect_size: float  # Cohen's d: mean of the per-query differences over their standard deviation, within 1,000
    better: int  # queries
    worse: int
    p_value: float  # two-sided; 1 where no query differs
    p_holm: float  # after Holm's correction for all hypotheses that are tested together
    significant: bool  # p_holm below the threshold

    def cells(self) -> list[str]:
        """Return difference, relative, effect size, p and p (Holm) as tables show them."""
        return [
            f"{self.difference:+.4f}", f"{100 * self.relative:+.1f}%", f"{self.effect_size:+.2f}",
            f"{self.p_value:.2g}", f"{self.p_holm:.2g}",
        ]  # fmt: skip


def read_hypotheses(path: Path) -> tuple[float, list[Hypothesis]]:
    """Return threshold and hypotheses of a file such as configs/hypotheses.yaml."""
    threshold, hypotheses = read_entries(path, "hypotheses", Hypothesis, "{row, against, mark}")
    for hypothesis in hypotheses:
        if not all(isinstance(text, str) and text.strip() for text in hypothesis):
            raise UserError(f"{path}: row, against and mark of {tuple(hypothesis)} must be texts")
    return threshold, hypotheses


def read_entries(path: Path, key: str, entry_type: Callable[..., T], expected: str) -> tuple[float, list[T]]:
    """Return the threshold for p-values and the entries of a YAML file; a `UserError` if they are not as `expected`."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        threshold = float(content.get("threshold", THRESHOLD))
        entries = [entry_type(**entry) for entry in content[key]]
    except (OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        expected = f"a list `{key}` of {expected}, and perhaps a `threshold`"
        raise UserError(f"{path} cannot be used ({' '.join(str(error).split())}): it must have {expected}") from error
    if not 0 < threshold < 1:
        raise UserError(f"{path}: the threshold {threshold:g} must be between 0 and 1")
    return threshold, entries


def compare(hypothesis: Hypothesis, values: Mapping[str, float], others: Mapping[str, float]) -> Verdict:
    """Test one hypothesis by the per-query values of its two rows; `p_holm` and `significant` are not known yet."""
    from scipy.stats import ttest_rel  # takes a second to import

    if different := values.keys() ^ others.keys():
        names = f"{hypothesis.row} and {hypothesis.against}"
        count = f"{len(different):,} queries are measured for one of them only"
        raise UserError(f"{names} cannot be compared: {count}; evaluate both again")
    a, b = np.array([(values[query], others[query]) for query in values], np.float64).reshape(-1, 2).T
    better, worse = int((a - b > ROUNDING).sum()), int((b - a > ROUNDING).sum())
    p_value, effect = 1.0, 0.0
    if len(a) > 1 and better + worse:
        p_value = float(ttest_rel(a, b).pvalue)
        effect = float(np.clip((a - b).mean() / max((a - b).std(ddof=1), 1e-12), -1000, 1000))
    difference, other = float(a.mean()) - float(b.mean()), float(b.mean())
    return Verdict(
        against=hypothesis.against, mark=hypothesis.mark, queries=len(a), difference=difference,
        relative=difference / other if other else 0.0, effect_size=effect, better=better, worse=worse,
        p_value=p_value, p_holm=1.0, significant=False,
    )  # fmt: skip


def verdicts(
    rows: Mapping[str, Mapping[str, float]], hypotheses: Sequence[Hypothesis], threshold: float
) -> dict[str, list[Verdict]]:
    """Test all hypotheses on one query set; return row -> verdicts.

    `rows` are the per-query values of each row that was measured on it. Hypotheses about other rows are left out, and
    do not count for the correction.
    """
    from statsmodels.stats.multitest import multipletests  # takes a second to import

    testable = [hypothesis for hypothesis in hypotheses if hypothesis.row in rows and hypothesis.against in rows]
    if not testable:
        return {}
    tests = [compare(test, rows[test.row], rows[test.against]) for test in testable]
    corrected = multipletests([test.p_value for test in tests], method="holm")[1].tolist()
    tested: dict[str, list[Verdict]] = {}
    for hypothesis, verdict, p_holm in zip(testable, tests, corrected, strict=True):
        verdict = verdict._replace(p_holm=p_holm, significant=p_holm < threshold)
        tested.setdefault(hypothesis.row, []).append(verdict)
    return tested


def main(argv: Sequence[str]) -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = ArgumentParser("evaluation.significance", description=__doc__, formatter_class=formatter)
    parser.add_argument("folder", type=Path, help="OUTPUT_DIR/<data>")
    parser.add_argument("row")
    parser.add_argument("others", nargs="+", metavar="other")
    parser.add_argument("--query_set", default="test")
    arguments = parser.parse_args(argv)

    def load(name: str) -> Measurement:
        folder = arguments.folder / name.removesuffix(".alone")
        return read_measurements(folder, arguments.query_set, name.endswith(".alone"))[0]

    names = [arguments.row, *arguments.others]
    rows = {name: load(name) for name in names}
    hypotheses = [Hypothesis(arguments.row, name, "") for name in dict.fromkeys(arguments.others)]
    row = rows[arguments.row]
    per_query = {name: measured.per_query for name, measured in rows.items()}
    for verdict in verdicts(per_query, hypotheses, THRESHOLD)[arguments.row]:
        other = rows[verdict.against]
        print(
            f"{arguments.row} {row.mean:.4f}, {verdict.against} {other.mean:.4f} ({row.measure}, "
            f"{verdict.queries:,} queries): {verdict.difference:+.4f}, better for {verdict.better:,}, "
            f"worse for {verdict.worse:,}, p = {verdict.p_value:.2g}, after Holm's correction {verdict.p_holm:.2g}: "
            f"{'' if verdict.significant else 'not '}significant at {THRESHOLD:g}; "
            f"effect size {verdict.effect_size:+.2f}"
        )


if __name__ == "__main__":
    sys.exit(run_script(main))
