"""Arrays written piece by piece are ordinary ``.npy`` files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lexical.index.array_file import ArrayWriter, map_array, read_range


def write(path: Path, dtype: np.typing.DTypeLike, *pieces: np.ndarray) -> Path:
    with ArrayWriter(path, dtype) as writer:
        for piece in pieces:
            writer.append(piece)
    return path


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "uint64", "float32", "float64", ">i4"])
def test_pieces_become_one_array_that_numpy_loads(dtype: str, tmp_path: Path) -> None:
    pieces = [np.array(values, dtype) for values in ([1, 0, 1], [], [1])]
    loaded = np.load(write(tmp_path / "a.npy", dtype, *pieces), allow_pickle=False)
    assert loaded.dtype == np.dtype(dtype)
    assert loaded.tolist() == np.array([1, 0, 1, 1], dtype).tolist()


def test_a_file_without_values_is_an_empty_array_and_can_be_mapped(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.npy", np.int32)
    assert np.load(path).shape == (0,) and np.load(path).dtype == np.int32
    assert map_array(path).shape == (0,)
    assert len(read_range(path, 0, 0)) == 0


def test_the_file_is_what_numpy_itself_would_write(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.int64)
    write(tmp_path / "ours.npy", np.int64, values[:300], values[300:])
    np.save(tmp_path / "numpy.npy", values)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


def test_values_are_converted_to_the_type_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npy", np.int32, np.array([1, 2], np.int64), np.arange(10)[::5])
    assert np.load(path).dtype == np.int32
    assert np.load(path).tolist() == [1, 2, 0, 5]


def test_the_writer_counts_what_it_has_written(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "a.npy", np.int32) as writer:
        writer.append(np.zeros(3))
        writer.append(np.zeros(4))
        assert writer.length == 7
    writer.close()  # a second time does no harm
    assert len(np.load(tmp_path / "a.npy")) == 7


@settings(deadline=None, max_examples=60)
@given(values=hnp.arrays(np.int16, st.integers(0, 40)), ends=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_a_range_is_the_slice_of_the_array(
    values: np.ndarray, ends: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("range") / "a.npy", np.int16, values)
    start, end = (min(len(values), bound) for bound in sorted(ends))
    part = read_range(path, start, end)
    assert part.tolist() == values[start:end].tolist() and part.dtype == np.int16


def test_a_file_cut_short_is_refused_not_read_in_part(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npy", np.int64, np.arange(10))
    path.write_bytes(path.read_bytes()[:-16])
    with pytest.raises(ValueError, match=r"a\.npy"):
        read_range(path, 4, 10)


def test_a_mapped_array_cannot_be_changed(tmp_path: Path) -> None:
    mapped = map_array(write(tmp_path / "a.npy", np.float32, np.array([1.5, 2.5])))
    assert isinstance(mapped, np.memmap) and mapped.tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 0.0
