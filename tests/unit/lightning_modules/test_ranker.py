"""What every ranker does with its scores."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_modules import BM25


def test_the_time_of_a_query_set_is_that_of_its_median_batch() -> None:
    """Three batches of 2, 4 and 1 pairs take 10, 2 and 1 s, which is 5, 0.5 and 1 s a pair: the first loads kernels."""
    ranker, scores = BM25(), np.arange(7, dtype=np.float32)
    parts = np.split(scores, [2, 6])
    ranker._scored = [(part, -part, seconds) for part, seconds in zip(parts, (10.0, 2.0, 1.0), strict=True)]
    first_stage, alone, seconds = ranker._take_scores()
    assert np.array_equal(first_stage, scores) and np.array_equal(alone, -scores)
    assert seconds == pytest.approx(7 * 1.0) and not ranker._scored
