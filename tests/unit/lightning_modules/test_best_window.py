"""The window of a document that says most of a query: by hand, against a plain loop, and as a training reads it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_modules.bert.best_window import best_window


def plain_sums(query: list[int], document: list[int], width: int) -> list[float]:
    return [
        sum(1 / document.count(piece) for piece in document[start : start + width] if piece in query)
        for start in range(len(document) - width + 1)
    ]


def test_a_rare_piece_counts_more_than_a_frequent_one() -> None:
    document = np.array([1, 1, 1, 0, 0, 0, 0, 2, 0, 0, 1])
    assert best_window(np.array([1, 2]), document, 3) == 6  # 2 is said once and counts 1; three of four 1s are 0.75
    assert best_window(np.array([1]), document, 3) == 0


def test_matches_stand_in_the_midst() -> None:
    assert best_window(np.array([7]), np.array([0] * 50 + [7] + [0] * 50), 21) == 40


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_document_that_fits_is_read_from_its_beginning(length: int) -> None:
    assert best_window(np.array([1]), np.arange(length), 5) == 0


@given(
    st.lists(st.integers(0, 9), max_size=5), st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 20)
)
def test_no_other_window_says_more(query: list[int], document: list[int], width: int) -> None:
    start = best_window(np.array(query, np.int32), np.array(document, np.int32), width)
    if len(document) <= width or not set(query) & set(document):
        assert start == 0
        return
    sums = plain_sums(query, document, width)
    assert 0 <= start <= len(document) - width
    assert sums[start] == pytest.approx(max(sums), abs=1e-6)
