"""W&B is optional and never fatal."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.tracking import RunLabels, start_run, wandb_mode

KEY = "0" * 40


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


@pytest.mark.parametrize(
    ("given", "mode"), [("disabled", "disabled"), ("online", "online"), ("", "offline"), ("of", "offline")]
)
def test_the_environment_decides_and_a_wrong_word_does_no_harm(
    no_key: pytest.MonkeyPatch, given: str, mode: str
) -> None:
    no_key.setenv("WANDB_MODE", given)
    assert wandb_mode() == mode


def test_what_wandb_throws_never_stops_a_training(
    no_key: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = RunLabels("bm25_lemm", "data", 1, "train").init_arguments({}, tmp_path)
    assert start_run({**arguments, "project": "a/b:c?#%"}) is None
    assert capsys.readouterr().err.startswith("W&B does not start (offline): ")


def test_labels_are_in_the_config_too(no_key: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = RunLabels("bm25_lemm", "data", 2, "train").init_arguments({"seed": 2}, tmp_path)
    assert (arguments["group"], arguments["job_type"], arguments["name"]) == (
        "bm25_lemm/data",
        "train",
        "bm25_lemm-seed2",
    )
    assert arguments["config"]["labels"]["group"] == "bm25_lemm/data" and arguments["config"]["seed"] == 2
