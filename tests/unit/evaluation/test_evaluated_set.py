"""One ranking of a query set: its measures, and histograms of its scores by hand and against numpy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from evaluation.evaluated_set import BINS, EvaluatedSet, score_histogram
from lexical.batches import EvaluationSet
from lexical.index.ragged import ragged
from lexical.ranking.order import RankedTask


@pytest.mark.parametrize(("graded", "main"), [(False, "MRR"), (True, "nDCG@10")])
def test_the_main_measure_follows_the_judgements(graded: bool, main: str) -> None:
    """The relevant document is the second of two: its reciprocal rank is 1/2, its gain 1 / log2(3)."""
    task = RankedTask(ragged([[0, 1]], np.int32), np.arange(2), np.array([False, True]))
    documents = pa.array(["d0", "d1"])
    query_set = EvaluationSet("test", ["q"], [("q", "d1", 1)], graded, 1, task, documents.take, 2)
    evaluated = EvaluatedSet(query_set, np.array([2.0, 1.0], np.float32), None, seconds=0.0)
    assert {measurement.measure: measurement.mean for measurement in evaluated.measurements} == {
        main: pytest.approx(1 / np.log2(3) if graded else 0.5), "recall@2": 1.0,
    }  # fmt: skip


def test_a_histogram_by_hand() -> None:
    """Others spread over 0..30, two relevant scores in the fourth bin."""
    others = np.arange(0, 30.001, 0.01)
    scores, relevant = np.append(others, [3.5, 3.6]), np.append(np.zeros(len(others), bool), [True, True])
    counts = score_histogram(scores, relevant)
    assert counts is not None and len(counts["edges"]) == BINS + 1
    assert (counts["edges"][0], counts["edges"][-1]) == (pytest.approx(0.15), pytest.approx(29.85))
    assert counts["relevant"] == [0, 0, 0, 2] + [0] * 26  # edges 0.15 + 0.99 n: 3.12 to 4.11
    assert sum(counts["others"]) == len(others)
    assert counts["others"][0] == counts["others"][-1] == pytest.approx(114, abs=1)  # 99 in the bin and 15 beyond it


def test_a_histogram_equals_numpy_s_with_tails_in_the_outer_bins() -> None:
    rng = np.random.default_rng(5)
    scores, relevant = rng.normal(size=5000).astype(np.float32), rng.random(5000) < 0.02
    scores[relevant] += 6
    counts = score_histogram(scores, relevant)
    assert counts is not None
    assert counts["edges"][0] == pytest.approx(np.quantile(scores[~relevant], 0.005), abs=1e-6)
    assert counts["edges"][-1] == pytest.approx(np.quantile(scores[relevant], 0.995), abs=1e-6)
    for group, counted in ((scores[relevant], counts["relevant"]), (scores[~relevant], counts["others"])):
        inside, _ = np.histogram(group, counts["edges"])
        assert counted[1:-1] == inside[1:-1].tolist() and sum(counted) == len(group)


@pytest.mark.parametrize("value", [0.0, -7.25, 1e9])
def test_scores_that_are_all_equal_have_a_histogram(value: float) -> None:
    counts = score_histogram(np.full(9, value), np.arange(9) < 2)
    assert counts is not None and (sum(counts["relevant"]), sum(counts["others"])) == (2, 7)
    assert all(a < b for a, b in zip(counts["edges"], counts["edges"][1:], strict=False))


def test_a_histogram_without_relevant_documents_or_without_any() -> None:
    counts = score_histogram(np.arange(5.0), np.zeros(5, bool))
    assert counts is not None and sum(counts["relevant"]) == 0 and sum(counts["others"]) == 5
    assert score_histogram(np.zeros(0), np.zeros(0, bool)) is None
