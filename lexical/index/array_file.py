"""One-dimensional ``.npy`` files written piece by piece, read memory-mapped.

Arrays larger than memory are written by `ArrayWriter` without ever being whole in memory, and without mapped
pages that count as ours; the result is an ordinary ``.npy`` file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy_format

HEADER_BYTES = 128  # fixed, so that the true length can be written over the placeholder at the end


def _header(dtype: np.dtype, length: int) -> bytes:
    magic = npy_format.magic(1, 0)
    fields = f"{{'descr': {npy_format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': ({length},), }}"
    room = HEADER_BYTES - len(magic) - 2 - 1  # two bytes of length, one line feed
    text = fields.ljust(room) + "\n"
    return magic + len(text).to_bytes(2, "little") + text.encode("latin1")


class ArrayWriter:
    """Appends 1-D arrays to one ``.npy`` file; `close` (or leaving the ``with`` block) completes it."""

    def __init__(self, path: Path, dtype: np.typing.DTypeLike) -> None:
        self.path = Path(path)
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._file = self.path.open("wb")
        self._file.write(_header(self.dtype, 0))

    def append(self, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(values.data)
        self.length += len(values)

    def close(self) -> None:
        if not self._file.closed:
            self._file.seek(0)
            self._file.write(_header(self.dtype, self.length))
            self._file.close()

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _open_array(path: Path, file: BinaryIO) -> tuple[int, np.dtype]:
    """(length, dtype), with the file at the first value."""
    version = npy_format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"{path}: unexpected .npy version {version}")
    (length,), _, dtype = npy_format.read_array_header_1_0(file)
    return length, dtype


def _read_values(path: Path, file: BinaryIO, dtype: np.dtype, count: int) -> np.ndarray:
    values = np.fromfile(file, dtype=dtype, count=count)
    if len(values) != count:
        raise ValueError(f"{path}: the file is cut short, {count - len(values):,} values are missing")
    return values


def read_blocks(path: Path, block: int = 1 << 22) -> Iterator[np.ndarray]:
    """The values of a 1-D ``.npy`` file, `block` at a time, read (not mapped) from front to back."""
    with Path(path).open("rb") as file:
        length, dtype = _open_array(path, file)
        for start in range(0, length, block):
            yield _read_values(path, file, dtype, min(block, length - start))


def read_range(path: Path, start: int, end: int) -> np.ndarray:
    """``values[start:end]`` of a 1-D ``.npy`` file, read (not mapped: mapped pages would count as our memory)."""
    with Path(path).open("rb") as file:
        dtype = _open_array(path, file)[1]
        file.seek(start * dtype.itemsize, 1)
        return _read_values(path, file, dtype, end - start)


def map_array(path: Path) -> np.ndarray:
    """The array of a ``.npy`` file, memory-mapped and read-only."""
    return np.load(path, mmap_mode="r", allow_pickle=False)
