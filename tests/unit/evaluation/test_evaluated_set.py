"""One ranking of a query set: which measures it has, in which order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from evaluation.evaluated_set import EvaluatedSet
from lexical.batches import EvaluationSet
from lexical.index.ragged import ragged
from lexical.ranking.order import RankedTask


@pytest.mark.parametrize(("graded", "main"), [(False, "MRR"), (True, "nDCG@10")])
def test_the_main_measure_follows_the_judgements(graded: bool, main: str) -> None:
    """The relevant document is the second of two: its reciprocal rank is 1/2, its gain 1 / log2(3)."""
    task = RankedTask(ragged([[0, 1]], np.int32), np.arange(2), np.array([False, True]))
    documents = pa.array(["d0", "d1"])
    query_set = EvaluationSet("test", ["q"], [("q", "d1", 1)], graded, task, documents.take, depth=2)
    evaluated = EvaluatedSet(query_set, np.array([2.0, 1.0], np.float32), None, seconds=0.0)
    assert {one.measure: one.mean for one in evaluated.measurements} == {
        main: pytest.approx(1 / np.log2(3) if graded else 0.5), "recall@2": 1.0,
    }  # fmt: skip
