"""Lists of different lengths in two arrays do what the lists would do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.index.ragged import Ragged, concatenated, offsets_of, ragged

ROWS = [[7, 8, 9], [], [5], [], []]
Rows = list[list[int]]

lists_of_rows = st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6)


def as_lists(rows: Ragged) -> Rows:
    return [rows.row(i).tolist() for i in range(rows.rows)]


def test_offsets_and_values_by_hand() -> None:
    rows = ragged(ROWS, np.int32)
    assert rows.offsets.tolist() == [0, 3, 3, 4, 4, 4] and rows.offsets.dtype == np.int64
    assert rows.values.tolist() == [7, 8, 9, 5] and rows.values.dtype == np.int32
    assert rows.rows == 5
    assert rows.lengths().tolist() == [3, 0, 1, 0, 0]
    assert rows.row_numbers().tolist() == [0, 0, 0, 2]
    assert rows.positions().tolist() == [0, 1, 2, 0]


def test_no_rows_at_all() -> None:
    rows = ragged([], np.int32)
    assert rows.rows == 0 and rows.offsets.tolist() == [0]
    assert rows.values.shape == (0,) and rows.values.dtype == np.int32
    assert rows.positions().tolist() == rows.row_numbers().tolist() == []
    assert as_lists(rows.head(3)) == []


def test_select_keeps_rows_that_become_empty() -> None:
    kept = ragged(ROWS, np.int32).select(np.array([False, True, True, False]))
    assert as_lists(kept) == [[8, 9], [], [], [], []]
    assert kept.offsets.dtype == np.int64


def test_offsets_are_the_running_sum_from_zero() -> None:
    assert offsets_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert offsets_of(np.zeros(0, np.int64)).tolist() == [0]


@given(rows=lists_of_rows, length=st.integers(0, 7))
def test_head_cuts_each_row(rows: Rows, length: int) -> None:
    assert as_lists(ragged(rows, np.int32).head(length)) == [row[:length] for row in rows]


@given(rows=lists_of_rows)
def test_positions_count_inside_each_row(rows: Rows) -> None:
    expected = [position for row in rows for position in range(len(row))]
    assert ragged(rows, np.int32).positions().tolist() == expected


@given(rows=lists_of_rows, data=st.data())
def test_select_filters_each_row(rows: Rows, data: st.DataObject) -> None:
    keep = [[data.draw(st.booleans()) for _ in row] for row in rows]
    flat = np.array([is_kept for row in keep for is_kept in row], bool)
    expected = [[value for value, kept in zip(*pair, strict=True) if kept] for pair in zip(rows, keep, strict=True)]
    assert as_lists(ragged(rows, np.int32).select(flat)) == expected


@given(parts=st.lists(lists_of_rows, min_size=1, max_size=4))
def test_concatenated_parts_are_their_rows_in_order(parts: list[Rows]) -> None:
    joined = concatenated([ragged(rows, np.int32) for rows in parts])
    assert as_lists(joined) == [row for rows in parts for row in rows]
    assert joined.values.dtype == np.int32


@settings(deadline=None)
@given(rows=lists_of_rows.filter(len), data=st.data())
def test_take_returns_rows_in_any_order_and_again(rows: Rows, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9))
    taken = ragged(rows, np.int32).take(np.array(chosen, np.int64))
    assert as_lists(taken) == [rows[row] for row in chosen] and taken.offsets.dtype == np.int64


def test_rows_are_padded_to_the_longest() -> None:
    assert ragged([[1, 2], [], [3]], np.int32).padded(-1).tolist() == [[1, 2], [-1, -1], [3, -1]]
    assert ragged([[], []], np.int32).padded(-1).shape == (2, 0)
