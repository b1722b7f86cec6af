"""The export of a network to a sparse table, recomputed row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from callbacks import sparse_export
from callbacks.sparse_export import ExportReport, ExportSettings, export_table
from lexical.errors import UserError
from lexical.model1.table_files import META, TABLE, VOCABULARY, load_table
from lightning_modules import NeuralModel1, NeuralModel1Cosine

SIZE = 40
VOCABULARY_WORDS = [f"w{i}" for i in range(SIZE)]
PRESENT = np.arange(SIZE) % 5 != 3  # every fifth token occurs in queries only
THRESHOLD = 0.0274  # about 40 % of the untrained network's T(q|d) reach it


class Exported(NamedTuple):
    table: np.ndarray  # (vocabulary, vocabulary) float32, 0 where there is no entry
    kept: np.ndarray  # (vocabulary, vocabulary) bool
    report: ExportReport
    meta: dict[str, object]


def model_of(kind: type[NeuralModel1] = NeuralModel1) -> NeuralModel1:
    model = kind(embedding=8, projection=6, hidden=[5, 4], p_self=0.05, start=0.03)
    model.build_for(VOCABULARY_WORDS)
    return model


def rows_of(model: NeuralModel1, document_tokens: np.ndarray) -> np.ndarray:
    """Return (vocabulary, document tokens) T(q|d)."""
    tokens = np.arange(SIZE)
    rows = model.eval().translation_rows(tokens, document_tokens)
    return np.stack([row.copy() for row in rows])


def export(model: NeuralModel1, options: ExportSettings, folder: Path) -> Exported:
    report = export_table(model, PRESENT, options, folder)
    saved = load_table(folder)
    assert saved.vocabulary == VOCABULARY_WORDS
    table, kept = np.zeros((SIZE, SIZE), np.float32), np.zeros((SIZE, SIZE), bool)
    entries = saved.table.rows.row_numbers(), saved.table.rows.values
    table[entries], kept[entries] = saved.table.probabilities, True
    return Exported(table, kept, report, saved.meta)


@pytest.mark.parametrize("kind", [NeuralModel1, NeuralModel1Cosine])
@pytest.mark.parametrize("whole", [False, True])
def test_an_export_has_what_reaches_the_threshold_and_nothing_else(
    kind: type[NeuralModel1], whole: bool, tmp_path: Path
) -> None:
    model = model_of(kind)
    threshold = THRESHOLD if kind is NeuralModel1 else 0.5
    tokens = np.arange(SIZE) if whole else np.flatnonzero(PRESENT)
    values = rows_of(model, tokens)
    exported = export(model, ExportSettings(threshold, whole_vocabulary=whole), tmp_path / "table")
    expected = values >= np.float32(threshold)
    assert 0.1 < expected.mean() < 0.9  # both kinds of pairs are there
    np.testing.assert_array_equal(exported.kept[:, tokens], expected)
    np.testing.assert_array_equal(exported.table[:, tokens][expected], values[expected])
    assert exported.kept.sum() == expected.sum()  # no other document tokens


def test_the_diagonal_is_p_self_where_the_token_occurs(tmp_path: Path) -> None:
    exported = export(model_of(), ExportSettings(THRESHOLD), tmp_path / "some")
    np.testing.assert_array_equal(np.diag(exported.table), np.where(PRESENT, np.float32(0.05), np.float32(0)))
    exported = export(model_of(), ExportSettings(THRESHOLD, whole_vocabulary=True), tmp_path / "whole")
    np.testing.assert_array_equal(np.diag(exported.table), np.full(SIZE, 0.05, np.float32))


@pytest.mark.parametrize("top_k", [1, 3, 10, 1000])
def test_top_k_keeps_the_largest_of_a_row(top_k: int, tmp_path: Path) -> None:
    model, tokens = model_of(), np.flatnonzero(PRESENT)
    exported = export(model, ExportSettings(THRESHOLD, top_k), tmp_path / "table")
    cut = 0
    for row, kept in zip(rows_of(model, tokens), exported.table, strict=True):
        large = np.sort(row[row >= np.float32(THRESHOLD)])[::-1]
        np.testing.assert_array_equal(np.sort(kept[kept > 0])[::-1], large[:top_k])
        cut += len(large) > top_k
    assert (cut > 0) == (top_k < 1000)


def test_the_report_by_hand(tmp_path: Path) -> None:
    model, tokens = model_of(), np.flatnonzero(PRESENT)
    values = rows_of(model, tokens).astype(np.float64)
    exported = export(model, ExportSettings(THRESHOLD), tmp_path / "table")
    report, kept = exported.report, values[values >= np.float32(THRESHOLD)]
    assert (report.entries, report.pairs) == (len(kept), 40 * 32)
    assert report.bytes == (tmp_path / "table" / TABLE).stat().st_size > 8 * report.entries
    assert report.share_of_pairs == pytest.approx(len(kept) / 1280, rel=1e-12)
    assert report.share_of_mass == pytest.approx(kept.sum() / values.sum(), rel=1e-9)
    assert report.share_of_pairs < report.share_of_mass < 1
    assert report.seconds > 0


def test_the_description_says_how_the_table_was_made(tmp_path: Path) -> None:
    model = model_of()
    report = export_table(model, PRESENT, ExportSettings(THRESHOLD, 7), tmp_path / "t")
    meta = json.loads((tmp_path / "t" / META).read_text("utf-8"))
    assert meta["entries"] == report.entries and meta["vocabulary"] == SIZE
    assert (meta["field"], meta["scored_with"]) == ("bwps", {"smoothing": 0.0, "floor": 1e-8})
    assert meta["source"] == {"ranker": "NeuralModel1", "seed": 1, "checkpoint": model.fingerprint()}
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
    monkeypatch.setattr(sparse_export, "ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(export(model_of(), ExportSettings(0.0), tmp_path / "parts").table, whole, rtol=1e-5)


def test_the_export_is_without_dropout(tmp_path: Path) -> None:
    model = model_of().train()
    first = export(model, ExportSettings(0.0), tmp_path / "first").table
    np.testing.assert_array_equal(export(model.train(), ExportSettings(0.0), tmp_path / "second").table, first)


@pytest.mark.parametrize(
    ("flag", "value"), [("export_threshold", -0.1), ("export_threshold", 1.0), ("export_top_k", 0)]
)
def test_settings_out_of_range_are_named(flag: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"^--model\.{flag} "):
        NeuralModel1(**{flag: value})  # type: ignore[arg-type]
