"""W&B is optional and never fatal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.tracking import finishing, start_run, wandb_mode
from tests.fixtures.wandb_files import read_offline_runs

KEY = "0" * 40
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
    starts = ("W&B does not start (offline): ", "W&B does not start (unknown): ", "W&B does not start (offline): ")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("W&B")]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 3
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
