"""What W&B gets of measured rows, read back from an offline run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.tracked_results import log_results
from pipeline.tracking import start_run
from tests.fixtures.measured_rows import QUERIES, measurement, result
from tests.fixtures.wandb_files import read_offline_run

DATA: Any = SimpleNamespace(
    query_set=lambda name: SimpleNamespace(ids=QUERIES, texts=[f"text of {q}" for q in QUERIES])
)


def test_means_spreads_tests_and_values_of_each_query_are_logged(tmp_path: Path) -> None:
    fused = result("a", measurement([0.1, 0.3], [0.2, 0.4]), fused=True, seed_values=[0.2, 0.3])
    tests = [{"against": "b", "mark": "★", "p_value": 0.1}]
    alone = result("a", measurement([0.5, 0.25], alone=True))
    recall = result("a", measurement([1.0, 1.0], measure="recall@10"), fused=True, measurement=None)
    run = start_run(tmp_path, {}, model="a", data="data", seed=None, job_type="summary")
    log_results(run, [fused._replace(significance=tests), alone, recall], DATA)
    run.finish()
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    summary = read_offline_run(path).summary
    assert {name: summary[name] for name in ("test/MRR", "test/MRR_spread", "test/MRR_alone", "test/recall@10")} == {
        "test/MRR": pytest.approx(0.25), "test/MRR_spread": pytest.approx(0.0707, abs=1e-4),
        "test/MRR_alone": 0.375, "test/recall@10": 1.0,
    }  # fmt: skip
    assert summary["ms_per_1k"] == 1.5

    def logged(name: str) -> dict[str, Any]:
        table: dict[str, Any] = json.loads((path.parent / "files" / summary[f"{name}/path"]).read_text())
        return table

    assert logged("significance")["columns"] == ["query_set", "measure", "against", "mark", "p_value"]
    assert logged("significance")["data"] == [["test", "MRR", "b", "★", 0.1]]
    per_query = logged("per_query/test")
    assert per_query["columns"] == ["query", "text", "MRR", "MRR alone"]
    assert per_query["data"][1] == ["q2", "text of q2", pytest.approx(0.35), 0.25]
    assert [row[2:5] for row in logged("results")["data"]] == [
        ["test", "MRR", pytest.approx(0.25)], ["test", "MRR", 0.375], ["test", "recall@10", 1.0]
    ]  # fmt: skip
