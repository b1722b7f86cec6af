"""What the callbacks write and log when a test ends, in a plain trainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from callbacks.run_files import SeedAverages
from evaluation.measurements import read_measurements, write_measurements
from lightning_modules import BM25
from tests.fixtures.measured_rows import measurement


def ranker_with(values: list[float]) -> BM25:
    """A ranker after `trainer.test`."""
    ranker = BM25()
    evaluated: Any = SimpleNamespace(variants=[False], measurements=[measurement(values)])
    ranker.evaluated = {"test": evaluated}
    return ranker


def test_values_are_averaged_over_the_seeds_that_exist(tmp_path: Path) -> None:
    logged: dict[str, float] = {}
    trainer: Any = SimpleNamespace(is_global_zero=True, loggers=[SimpleNamespace(log_metrics=logged.update)])
    write_measurements(tmp_path / "seed-1", [measurement([1.0, 0.0])])
    write_measurements(tmp_path / "seed-3", [measurement([0.5, 0.25]), measurement([1.0, 1.0], measure="recall@10")])
    SeedAverages(tmp_path / "seed-2").on_test_end(trainer, ranker_with([0.0, 0.5]))
    (average,) = read_measurements(tmp_path, "test", alone=False)
    assert average.per_query == {"q1": 0.5, "q2": 0.25}
    assert logged == {"test/mrr_over_seeds": pytest.approx(0.375), "test/seeds": 3.0}


def test_only_rank_zero_writes(tmp_path: Path) -> None:
    SeedAverages(tmp_path / "seed-1").on_test_end(SimpleNamespace(is_global_zero=False), ranker_with([1.0]))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
