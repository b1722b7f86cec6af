"""A table streamed row by row is the table that is saved at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from lexical.errors import UserError
from lexical.index.ragged import ragged
from lexical.model1.table import TranslationTable
from lexical.model1.table_files import TABLE, VOCABULARY, TableWriter, link_table, load_table, save_table

WORDS = ["red", "vin", "wine", "rouge"]
ROWS = [[0, 3], [1, 2], [], [0, 2, 3]]
SMALL = TranslationTable(ragged(ROWS, np.int32), np.array([0.5, 0.25, 0.5, 1, 0.125, 0, 0.75], np.float32))


def stream(table: TranslationTable, words: list[str], folder: Path) -> None:
    with TableWriter(folder, words) as writer:
        for i in range(table.vocabulary_size):
            start, end = table.rows.offsets[i : i + 2]
            writer.append(table.rows.values[start:end], table.probabilities[start:end])
        writer.finish({"source": "by hand"})


def assert_same(table: TranslationTable, expected: TranslationTable) -> None:
    for left, right in zip((*table.rows, table.probabilities), (*expected.rows, expected.probabilities), strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- row by row


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(0, 9), share=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 99))
def test_streamed_and_saved_tables_are_the_same_bytes(size: int, share: float, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rows = ragged([np.flatnonzero(rng.random(size) < share) for _ in range(size)], np.int32)
    table = TranslationTable(rows, rng.random(len(rows.values), np.float32))
    words = [f"w{i}" for i in range(size)]
    stream(table, words, tmp_path / "streamed")
    save_table(table, words, {"source": "by hand"}, tmp_path / "saved")
    assert bytes_of(tmp_path / "streamed") == bytes_of(tmp_path / "saved")
    assert_same(load_table(tmp_path / "streamed").table, table)


def test_others_can_read_it(tmp_path: Path) -> None:
    stream(SMALL, WORDS, tmp_path / "table")
    arrays = load_file(tmp_path / "table" / TABLE)
    assert arrays["offsets"].tolist() == [0, 2, 4, 4, 7] and arrays["offsets"].dtype == np.int64
    assert arrays["document_tokens"].tolist() == [0, 3, 1, 2, 0, 2, 3] and arrays["document_tokens"].dtype == np.int32
    assert arrays["probabilities"].tolist() == SMALL.probabilities.tolist()
    assert len(arrays) == 3


def test_the_arrays_start_where_memory_can_be_mapped(tmp_path: Path) -> None:
    stream(SMALL, WORDS, tmp_path / "table")
    length = int.from_bytes((tmp_path / "table" / TABLE).read_bytes()[:8], "little")
    assert length % 8 == 0


def test_rows_of_other_types_and_views_are_written_as_the_right_ones(tmp_path: Path) -> None:
    """The memory of a row is used again for the next one."""
    tokens, probabilities = np.zeros(8, np.int64), np.zeros(8)
    with TableWriter(tmp_path / "table", WORDS) as writer:
        for i, row in enumerate(ROWS):
            n = len(row)
            tokens[: 2 * n : 2] = row
            start = SMALL.rows.offsets[i]
            probabilities[: 2 * n : 2] = SMALL.probabilities[start : start + n]
            writer.append(tokens[: 2 * n : 2], probabilities[: 2 * n : 2])
        writer.finish({})
    assert_same(load_table(tmp_path / "table").table, SMALL)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_table_and_nothing_beside_it(error: type[BaseException], tmp_path: Path) -> None:
    stream(SMALL, WORDS, tmp_path / "table")
    before = bytes_of(tmp_path / "table")

    def fail() -> None:
        with TableWriter(tmp_path / "table", ["other"]) as writer:
            writer.append(np.array([0]), np.array([1.0]))
            raise error

    with pytest.raises(error):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
    assert bytes_of(tmp_path / "table") == before


def test_what_is_not_finished_is_nothing(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "table", ["one"]) as writer:
        writer.append(np.array([0]), np.array([1.0]))
        assert len(list(tmp_path.iterdir())) == 1  # it is being written beside
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [0, 3, 5])
def test_too_few_and_too_many_rows_are_refused(rows: int, tmp_path: Path) -> None:
    stream(SMALL, WORDS, tmp_path / "table")
    before = bytes_of(tmp_path / "table")
    with TableWriter(tmp_path / "table", WORDS) as writer:
        for _ in range(rows):
            writer.append(np.array([0]), np.array([1.0]))
        with pytest.raises(ValueError, match=f"{rows} rows for 4 tokens"):
            writer.finish({})
    assert bytes_of(tmp_path / "table") == before
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_a_finished_table_replaces_the_old_one(tmp_path: Path) -> None:
    save_table(TranslationTable(ragged([[0]], np.int32), np.ones(1, np.float32)), ["one"], {}, tmp_path / "table")
    stream(SMALL, WORDS, tmp_path / "table")
    assert_same(load_table(tmp_path / "table").table, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"contains 'notes.txt'"), TableWriter(tmp_path, WORDS):
        pass
    assert bytes_of(tmp_path) == {"notes.txt": b"mine"}


# --- shared


def test_a_shared_table_is_the_same_data_on_disk(tmp_path: Path) -> None:
    stream(SMALL, WORDS, tmp_path / "table")
    link_table(tmp_path / "table", tmp_path / "run" / "table")
    for name in (TABLE, VOCABULARY):  # meta.json may say something else about each
        assert (tmp_path / "table" / name).stat().st_ino == (tmp_path / "run" / "table" / name).stat().st_ino
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["table"]
    assert_same(load_table(tmp_path / "run" / "table").table, SMALL)


def test_a_shared_table_replaces_the_old_one_and_outlives_its_source(tmp_path: Path) -> None:
    other = TranslationTable(ragged([[0]], np.int32), np.ones(1, np.float32))
    save_table(other, ["one"], {}, tmp_path / "second")
    stream(SMALL, WORDS, tmp_path / "first")
    link_table(tmp_path / "first", tmp_path / "second")
    assert_same(load_table(tmp_path / "second").table, SMALL)
    save_table(other, ["one"], {}, tmp_path / "first")  # a new table is a new file: the other folder keeps the old one
    assert_same(load_table(tmp_path / "second").table, SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
