"""One-dimensional ``.npy`` files larger than memory: written piece by piece, read in parts or memory-mapped."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format


class ArrayWriter(AbstractContextManager["ArrayWriter"]):
    """Appends 1-D arrays to an ordinary ``.npy`` file; `close` (or leaving the ``with`` block) completes it."""

    def __init__(self, path: Path, dtype: np.typing.DTypeLike) -> None:
        self.path = Path(path)
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._file = self.path.open("wb")
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(values.data)
        self.length += len(values)

    def close(self) -> None:
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def _write_header(self) -> None:
        """Write numpy's header, which has room for any length: the final one replaces the first in place."""
        fields = {"descr": npy_format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.length,)}
        npy_format.write_array_header_1_0(self._file, fields)

    def __exit__(self, *error: object) -> None:
        self.close()


def map_array(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file, memory-mapped and read-only."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path} is not a whole .npy file: {error}") from error


def read_range(path: Path, start: int, end: int) -> np.ndarray:
    """Read ``values[start:end]`` of a 1-D ``.npy`` file; mapped pages would count as memory of this process."""
    mapped = map_array(path)
    assert isinstance(mapped, np.memmap)
    return np.fromfile(path, mapped.dtype, end - start, offset=mapped.offset + start * mapped.itemsize)
