"""A table streamed row by row is the table that is saved at once; the export of a network, recomputed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from lexical.errors import UserError
from lexical.index.ragged import ragged
from lexical.model1.table import TranslationTable
from lexical.model1.table_files import FILES, META, TABLE, VOCABULARY, TableWriter, load_table, save_table, share_table
from lightning_modules.neural_model1 import export as table_export
from lightning_modules.neural_model1.export import ExportSettings, export_table
from lightning_modules.neural_model1.ranker import NNModel1, NNModel1Cosine

WORDS = ["red", "vin", "wine", "rouge"]
ROWS = [[0, 3], [1, 2], [], [0, 2, 3]]
SMALL = TranslationTable(ragged(ROWS, np.int32), np.array([0.5, 0.25, 0.5, 1, 0.125, 0, 0.75], np.float32))


def stream(table: TranslationTable, words: list[str], folder: Path) -> None:
    with TableWriter(folder, words) as writer:
        for i in range(table.vocabulary_size):
            start, end = table.rows.offsets[i : i + 2]
            writer.append(table.rows.values[start:end], table.probabilities[start:end])
        writer.finish({"source": "by hand"})


def assert_same(found: TranslationTable, wanted: TranslationTable) -> None:
    for left, right in zip((*found.rows, found.probabilities), (*wanted.rows, wanted.probabilities), strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# ------------------------------------------------------------------------------------------------ row by row


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
    with pytest.raises(UserError, match=r"has 'notes.txt' in it"):
        TableWriter(tmp_path, WORDS)
    assert bytes_of(tmp_path) == {"notes.txt": b"mine"}


# ------------------------------------------------------------------------------------------------ shared


def test_a_shared_table_is_the_same_data_on_disk(tmp_path: Path) -> None:
    stream(SMALL, WORDS, tmp_path / "table")
    share_table(tmp_path / "table", tmp_path / "run" / "table")
    for name in FILES:
        assert (tmp_path / "table" / name).stat().st_ino == (tmp_path / "run" / "table" / name).stat().st_ino
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["table"]
    assert_same(load_table(tmp_path / "run" / "table").table, SMALL)


def test_a_shared_table_replaces_the_old_one_and_outlives_its_source(tmp_path: Path) -> None:
    one = TranslationTable(ragged([[0]], np.int32), np.ones(1, np.float32))
    save_table(one, ["one"], {}, tmp_path / "second")
    stream(SMALL, WORDS, tmp_path / "first")
    share_table(tmp_path / "first", tmp_path / "second")
    assert_same(load_table(tmp_path / "second").table, SMALL)
    save_table(one, ["one"], {}, tmp_path / "first")  # a new table is a new file: the other place keeps the old one
    assert_same(load_table(tmp_path / "second").table, SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


# ------------------------------------------------------------------------------------------------ export

SIZE = 40
VOCABULARY_WORDS = [f"w{i}" for i in range(SIZE)]
PRESENT = np.arange(SIZE) % 5 != 3  # every fifth token occurs in queries only
THRESHOLD = 0.0274  # about 40 % of the untrained network's T(q|d) reach it


class Exported(NamedTuple):
    table: np.ndarray  # (vocabulary, vocabulary) float32, 0 where there is no entry
    has: np.ndarray  # (vocabulary, vocabulary) bool
    report: table_export.ExportReport
    meta: dict[str, object]


def model_of(kind: type[NNModel1] = NNModel1) -> NNModel1:
    model = kind(embedding=8, projection=6, hidden=[5, 4], p_self=0.05, start=0.03)
    model.use_vocabulary(VOCABULARY_WORDS)
    return model


def everything(model: NNModel1, document_tokens: np.ndarray) -> np.ndarray:
    """(vocabulary, document tokens) T(q|d) in the blocks of the export."""
    tokens = np.arange(SIZE)
    rows = model.eval().translation_rows(tokens, document_tokens)
    return np.stack([row.copy() for row in rows])


def export(model: NNModel1, options: ExportSettings, folder: Path) -> Exported:
    report = export_table(model, VOCABULARY_WORDS, PRESENT, options, folder, {"seed": 1})
    saved = load_table(folder)
    assert saved.vocabulary == VOCABULARY_WORDS
    table, has = np.zeros((SIZE, SIZE), np.float32), np.zeros((SIZE, SIZE), bool)
    places = saved.table.rows.row_numbers(), saved.table.rows.values
    table[places], has[places] = saved.table.probabilities, True
    return Exported(table, has, report, saved.meta)


@pytest.mark.parametrize("kind", [NNModel1, NNModel1Cosine])
@pytest.mark.parametrize("whole", [False, True])
def test_an_export_has_what_reaches_the_threshold_and_nothing_else(
    kind: type[NNModel1], whole: bool, tmp_path: Path
) -> None:
    model = model_of(kind)
    threshold = THRESHOLD if kind is NNModel1 else 0.5
    tokens = np.arange(SIZE) if whole else np.flatnonzero(PRESENT)
    values = everything(model, tokens)
    found = export(model, ExportSettings(threshold, whole_vocabulary=whole), tmp_path / "table")
    wanted = values >= np.float32(threshold)
    assert 0.1 < wanted.mean() < 0.9  # both kinds of pairs are there
    np.testing.assert_array_equal(found.has[:, tokens], wanted)
    np.testing.assert_array_equal(found.table[:, tokens][wanted], values[wanted])
    assert found.has.sum() == wanted.sum()  # no other document tokens


def test_the_diagonal_is_p_self_where_the_token_occurs(tmp_path: Path) -> None:
    found = export(model_of(), ExportSettings(THRESHOLD), tmp_path / "some")
    np.testing.assert_array_equal(np.diag(found.table), np.where(PRESENT, np.float32(0.05), np.float32(0)))
    found = export(model_of(), ExportSettings(THRESHOLD, whole_vocabulary=True), tmp_path / "whole")
    np.testing.assert_array_equal(np.diag(found.table), np.full(SIZE, 0.05, np.float32))


@pytest.mark.parametrize("top_k", [1, 3, 10, 1000])
def test_top_k_keeps_the_largest_of_a_row(top_k: int, tmp_path: Path) -> None:
    model, tokens = model_of(), np.flatnonzero(PRESENT)
    found = export(model, ExportSettings(THRESHOLD, top_k), tmp_path / "table")
    cut = 0
    for row, kept in zip(everything(model, tokens), found.table, strict=True):
        large = np.sort(row[row >= np.float32(THRESHOLD)])[::-1]
        np.testing.assert_array_equal(np.sort(kept[kept > 0])[::-1], large[:top_k])
        cut += len(large) > top_k
    assert (cut > 0) == (top_k < 1000)


def test_the_report_by_hand(tmp_path: Path) -> None:
    model, tokens = model_of(), np.flatnonzero(PRESENT)
    values = everything(model, tokens).astype(np.float64)
    found = export(model, ExportSettings(THRESHOLD), tmp_path / "table")
    report, kept = found.report, values[values >= np.float32(THRESHOLD)]
    assert (report.entries, report.pairs) == (len(kept), 40 * 32)
    assert report.bytes == (tmp_path / "table" / TABLE).stat().st_size > 8 * report.entries
    assert report.share_of_pairs == pytest.approx(len(kept) / 1280, rel=1e-12)
    assert report.share_of_mass == pytest.approx(kept.sum() / values.sum(), rel=1e-9)
    assert report.share_of_pairs < report.share_of_mass < 1
    assert report.seconds > 0


def test_the_description_says_how_the_table_was_made(tmp_path: Path) -> None:
    report = export_table(model_of(), VOCABULARY_WORDS, PRESENT, ExportSettings(THRESHOLD, 7), tmp_path / "t", {"a": 1})
    meta = json.loads((tmp_path / "t" / META).read_text("utf-8"))
    assert meta["entries"] == report.entries and meta["vocabulary"] == SIZE
    assert (meta["field"], meta["source"], meta["scored_with"]) == ("bwps", {"a": 1}, {"smoothing": 0.0, "floor": 1e-8})
    assert meta["parameters"] == {"threshold": THRESHOLD, "p_self": 0.05}
    assert meta["export"] == {
        "threshold": THRESHOLD, "top_k": 7, "whole_vocabulary": False, "pairs": 1280,
        "share_of_pairs": report.share_of_pairs, "share_of_mass": report.share_of_mass,
    }  # fmt: skip
    assert (tmp_path / "t" / VOCABULARY).read_text("utf-8").split() == VOCABULARY_WORDS


def test_a_threshold_of_0_keeps_all(tmp_path: Path) -> None:
    report = export(model_of(), ExportSettings(0.0), tmp_path / "table").report
    assert (report.entries, report.share_of_pairs, report.share_of_mass) == (1280, 1.0, 1.0)


def test_the_number_of_rows_at_once_changes_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven at once: 40 rows end with a part."""
    whole = export(model_of(), ExportSettings(0.0), tmp_path / "whole").table
    monkeypatch.setattr(table_export, "ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(export(model_of(), ExportSettings(0.0), tmp_path / "parts").table, whole, rtol=1e-5)


def test_dropout_has_no_part_in_an_export(tmp_path: Path) -> None:
    model = model_of().train()
    first = export(model, ExportSettings(0.0), tmp_path / "first").table
    np.testing.assert_array_equal(export(model.train(), ExportSettings(0.0), tmp_path / "second").table, first)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (ExportSettings(threshold=-0.1), "threshold"),
        (ExportSettings(threshold=1.0), "threshold"),
        (ExportSettings(top_k=0), "top_k"),
    ],
)
def test_settings_out_of_range_are_named(options: ExportSettings, flag: str) -> None:
    with pytest.raises(UserError, match=rf"^--model\.{flag} "):
        options.check()
