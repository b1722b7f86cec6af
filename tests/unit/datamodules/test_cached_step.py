"""A cached step is complete or not there: exceptions, kills, two processes, damaged files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from datamodules import cached_step as cached_step_module
from datamodules.cached_step import MANIFEST, cached_step, code_version, fingerprint, seconds_of_steps
from tests import ROOT


class Build:
    """Writes two files, one of them in a folder, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "numbers.txt").write_text("1 2 3\n")
        (folder / "deep").mkdir()
        (folder / "deep" / "words.txt").write_text("one two three\n")


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_step_is_built_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = Build()
    for _ in range(3):
        assert cached_step(tmp_path / "a" / "step", build, "the step", {"k1": 0.9}) == tmp_path / "a" / "step"
    assert build.calls == 1
    assert (tmp_path / "a" / "step" / "deep" / "words.txt").read_text() == "one two three\n"
    assert everything_in(tmp_path / "a" / "step") == {"numbers.txt", "deep", "deep/words.txt", MANIFEST}
    assert re.fullmatch(r"the step: done in \d+\.\d s\n", capsys.readouterr().err)


def test_a_step_does_not_count_the_time_of_steps_within_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands at 0, 1, 4 and 9 when the outer step starts, the inner one starts, ends, and the outer ends."""
    clock = iter([0.0, 1.0, 4.0, 9.0])
    monkeypatch.setattr(cached_step_module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))

    def build(folder: Path) -> None:
        cached_step(tmp_path / "inner", Build(), "inner")
        (folder / "outer.txt").write_text("built")

    before = seconds_of_steps()
    cached_step(tmp_path / "outer", build, "outer")
    assert capsys.readouterr().err.splitlines() == ["inner: done in 3.0 s", "outer: done in 6.0 s"]
    assert seconds_of_steps() - before == pytest.approx(9.0)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def build(folder: Path) -> None:
        (folder / "half.txt").write_text("half")
        raise error

    with pytest.raises(type(error)):
        cached_step(tmp_path / "step", build, "the step")
    assert everything_in(tmp_path) <= {".step.lock"}
    assert cached_step(tmp_path / "step", Build(), "the step").is_dir()  # and the lock is free again


# ------------------------------------------------------------------------------------------------- damaged files


def _truncate(folder: Path) -> None:
    os.truncate(folder / "deep" / "words.txt", 5)


def _lengthen(folder: Path) -> None:
    with (folder / "numbers.txt").open("a") as file:
        file.write("4")


def _remove(folder: Path) -> None:
    (folder / "deep" / "words.txt").unlink()


def _remove_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def _garble_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"files": ')


def _replace_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("[1, 2]")


def _binary_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b"\x00\xff\xfe")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_truncate, "deep/words.txt has 5 bytes instead of 14"),
        (_lengthen, "numbers.txt has 7 bytes instead of 6"),
        (_remove, "words.txt is missing"),
        (_remove_manifest, "manifest.json is missing"),
        (_garble_manifest, "manifest.json cannot be read"),
        (_replace_manifest, "manifest.json cannot be read"),
        (_binary_manifest, "manifest.json cannot be read"),
    ],
)
def test_damage_is_noticed_said_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: object, reason: str
) -> None:
    build, folder = Build(), tmp_path / "step"
    cached_step(folder, build, "the step")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    damage(folder)  # type: ignore[operator]
    cached_step(folder, build, "the step")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"the step: the cached {folder} is damaged ({reason}); rebuilding it"
    assert len(said) == 2 and build.calls == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# ------------------------------------------------------------------------------------------------ other processes

SLOW_BUILD = """
import os, sys, time
from pathlib import Path
from datamodules.cached_step import cached_step

def build(folder):
    (folder / "half.txt").write_text("half")
    with open(sys.argv[2], "a") as log:
        log.write(f"{os.getpid()}\\n")
    time.sleep(float(sys.argv[3]))
    (folder / "whole.txt").write_text("whole")

cached_step(Path(sys.argv[1]), build, "slow step")
"""


def start_slow_build(step: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW_BUILD, str(step), str(log), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def test_a_second_process_waits_and_the_work_is_done_once(tmp_path: Path) -> None:
    step, log = tmp_path / "step", tmp_path / "log"
    both = [start_slow_build(step, log, 1.5) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(log.read_text().splitlines()) == 1
    assert everything_in(step) == {"half.txt", "whole.txt", MANIFEST}
    assert sorted(re.sub(r"\d+\.\d", "X", line) for line in said) == [
        "slow step: done in X s\n",
        "slow step: waiting for another process that is building it\n",
    ]


def test_a_killed_process_leaves_nothing_that_is_trusted(tmp_path: Path) -> None:
    step, log = tmp_path / "step", tmp_path / "log"
    killed = start_slow_build(step, log, 60)
    wait_for(log)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    assert not step.exists() and (tmp_path / ".step.building" / "half.txt").exists()
    again = start_slow_build(step, log, 0)
    said = again.communicate(timeout=60)[1]
    assert again.returncode == 0 and said.startswith("slow step: done in ")
    assert everything_in(tmp_path) - {".step.lock"} == {
        "step",
        "log",
        *(f"step/{n}" for n in ("half.txt", "whole.txt", MANIFEST)),
    }


# --------------------------------------------------------------------------------------------------- fingerprints


class Settings(NamedTuple):
    k1: float
    name: str | None


def test_fingerprints_see_values_and_no_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint(OrderedDict([("b", [1, 2]), ("a", 1)]))
    different = [
        {"a": 1},
        {"a": 2},
        {"b": 1},
        {"a": "1"},
        {"a": [1]},
        {"a": None},
        [1],
        Settings(0.9, None),
        Settings(0.9, "x"),
    ]
    assert len({fingerprint(parameters) for parameters in different}) == len(different)
    assert re.fullmatch(r"[0-9a-f]{12}", fingerprint(None))


def test_fingerprints_are_the_same_in_every_process() -> None:
    assert fingerprint({"k1": 0.9, "path": Path("/data/é"), "sizes": (1, None)}) == "52befdeacf0f"


def test_code_version_follows_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "some_step.py").write_text("A = 1\n")
    before = code_version(["some_step"])
    assert code_version(["some_step"]) == before
    (tmp_path / "some_step.py").write_text("A = 2\n")
    assert code_version(["some_step"]) != before
    with pytest.raises(ModuleNotFoundError):
        code_version(["no_such_step"])
