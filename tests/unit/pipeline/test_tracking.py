"""W&B is optional and never fatal; what it gets of measured rows is read back from an offline run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.tracking import finishing, log_results, start_run, wandb_mode
from tests.fixtures.measured_rows import QUERIES, measurement, result
from tests.fixtures.wandb_files import read_offline_run, read_offline_runs

KEY = "0" * 40
DATA: Any = SimpleNamespace(
    query_set=lambda name: SimpleNamespace(ids=QUERIES, texts=[f"text of {q}" for q in QUERIES])
)
LABELS: dict[str, Any] = {"model": "bm25_lemm", "data": "data", "job_type": "train"}


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return monkeypatch


def test_offline_without_a_key_and_online_with_one(no_key: pytest.MonkeyPatch) -> None:
    assert wandb_mode() == "offline"
    no_key.setenv("WANDB_API_KEY", KEY)
    assert wandb_mode() == "online"


def test_a_login_in_netrc_is_a_key(no_key: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text(f"machine wandb.example.org login user password {KEY}\n")
    (tmp_path / "netrc").chmod(0o600)
    assert wandb_mode() == "offline"
    no_key.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert wandb_mode() == "online"
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password short\n")
    assert wandb_mode() == "offline"


@pytest.mark.parametrize(("given", "mode"), [("disabled", "disabled"), ("online", "online"), ("", "offline")])
def test_the_environment_decides(no_key: pytest.MonkeyPatch, given: str, mode: str) -> None:
    no_key.setenv("WANDB_MODE", given)
    assert wandb_mode() == mode


def test_disabled_tracking_leaves_no_trace(no_key: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_key.setenv("WANDB_MODE", "disabled")
    assert start_run(tmp_path / "run", {}, seed=1, **LABELS) is None and not list(tmp_path.iterdir())


def test_errors_of_wandb_never_stop_a_training(
    no_key: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_key.setenv("WANDB_PROJECT", "a/b:c?#%")
    assert start_run(tmp_path, {}, seed=1, **LABELS) is None
    no_key.setenv("WANDB_MODE", "unknown")
    assert start_run(tmp_path, {}, seed=1, **LABELS) is None
    starts = ("W&B does not start (offline): ", "W&B does not start (unknown): ")  # offline again says the same
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("W&B")]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 2
    finished = []
    with finishing(SimpleNamespace(finish=lambda: finished.append(True))):
        raise ValueError("two\nlines")
    assert finished == [True]
    assert capsys.readouterr().err == "W&B: two lines; local files are complete\n"


def test_labels_are_in_the_config_too(no_key: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start_run(tmp_path, {"seed": 2}, seed=2, **LABELS).finish()
    (run,) = read_offline_runs(tmp_path / "wandb")
    assert (run.group, run.job_type, run.name) == ("bm25_lemm/data", "train", "bm25_lemm-seed2")
    assert set(run.tags) == {"bm25_lemm", "data", "train"}
    assert run.config["labels"]["group"] == "bm25_lemm/data" and run.config["seed"] == 2


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
