"""Lists of different lengths in two flat arrays: the form of all queries, candidates and documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """Row i is ``values[offsets[i]:offsets[i + 1]]``."""

    offsets: np.ndarray  # (rows + 1,) int64, starts with 0
    values: np.ndarray  # (offsets[-1],)

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    def row(self, i: int) -> np.ndarray:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def row_numbers(self) -> np.ndarray:
        """Return (values,) the row of each value."""
        return np.repeat(np.arange(self.rows), self.lengths())

    def head(self, length: int) -> Ragged:
        """Cut each row to its first `length` values."""
        return self.select(self.positions() < length)

    def positions(self) -> np.ndarray:
        """Return (values,) the position of each value in its row."""
        return np.arange(len(self.values)) - np.repeat(self.offsets[:-1], self.lengths())

    def rows_between(self, first: int, end: int) -> Ragged:
        """Return the rows `first` to `end` - 1; `end` may exceed the number of rows."""
        offsets = self.offsets[first : end + 1]
        return Ragged(offsets - offsets[0], self.values[offsets[0] : offsets[-1]])

    def padded(self, filler: int) -> np.ndarray:
        """Return (rows, longest) values, `filler` behind the end of a row."""
        matrix = np.full((self.rows, int(self.lengths().max(initial=0))), filler, self.values.dtype)
        matrix[self.row_numbers(), self.positions()] = self.values
        return matrix

    def take(self, rows: np.ndarray) -> Ragged:
        """Return these rows, in this order; a row may come again."""
        offsets = offsets_of(self.offsets[rows + 1] - self.offsets[rows])
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], np.diff(offsets))
        return Ragged(offsets, self.values[places])

    def select(self, keep: np.ndarray) -> Ragged:
        """Keep the values where `keep` (values,) is true; all rows remain, perhaps empty."""
        kept = np.concatenate([[0], np.cumsum(keep)])
        return Ragged(kept[self.offsets].astype(np.int64), self.values[keep])


def ragged(rows: Iterable[np.ndarray | list[int]], dtype: np.typing.DTypeLike) -> Ragged:
    """Build a `Ragged` from its rows."""
    arrays = [np.asarray(row, dtype=dtype) for row in rows]
    values = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
    return Ragged(offsets_of(np.array([len(row) for row in arrays], np.int64)), values)


def concatenated(parts: Sequence[Ragged]) -> Ragged:
    """Return the rows of all parts, in order."""
    lengths = np.concatenate([part.lengths() for part in parts])
    return Ragged(offsets_of(lengths), np.concatenate([part.values for part in parts]))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return (n + 1,) int64 running sum of `lengths`, starting with 0."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
