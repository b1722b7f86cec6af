"""The registry of rows agrees with the rankers' classes and YAML files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightning_modules.registry import ROWS, Row, exports_of, row_of, table_order
from pipeline.configs import names, resolve
from tests import ROOT


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_row_is_as_slow_as_its_ranker_and_names_its_folder(row: Row) -> None:
    choice = resolve(["--model", row.name, "--data", "pydocs_doc"]).model
    assert choice is not None
    ranker = choice.target
    assert ranker.slow == row.slow  # type: ignore[attr-defined]
    assert ranker.__module__.split(".")[1] == row.family
    if row.export_of is not None:
        assert ranker(**choice.settings).dependencies == (row.export_of,)


def test_every_ranker_with_a_yaml_file_has_a_row() -> None:
    rows = [row.name for row in ROWS]
    assert len(set(rows)) == len(rows)
    assert set(names("model")) - set(rows) == {"model1_table"}  # a table that the user gives


def test_rows_are_found_by_name() -> None:
    assert exports_of("nn_model1") == ["nn_model1_exp"] and exports_of("nn_model1_exp") == []
    assert row_of("own").label == "own" and row_of("own").group > max(row.group for row in ROWS)
    assert sorted(["own", "nn_model1", "bm25_lemm"], key=table_order) == ["bm25_lemm", "nn_model1", "own"]


def test_the_makefile_gets_the_rows_of_the_demo() -> None:
    """Quick rows; exports are trained with their networks."""
    command = [sys.executable, "-m", "lightning_modules.registry"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip().split(",")
    assert set(printed) == {
        "bm25_lemm", "bm25_lemm_word", "bm25_lemm_bwps", "model1_embed", "model1_word", "model1_bwps", "nn_model1",
        "nn_model1_cosine", "nn_model1_em",
    }  # fmt: skip
