"""Steps run in real processes: in order, several at once, failing, interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lexical.terminal import duration
from pipeline.scheduler import DONE, Step, run_steps, share
from tests import ROOT

RECORD = "import sys; print(sys.argv[1]); raise SystemExit(int(sys.argv[2]))"
MEET = """
import sys, time
from pathlib import Path
own, other = map(Path, sys.argv[1:])
own.touch()
deadline = time.monotonic() + 20
while not other.exists():
    assert time.monotonic() < deadline, "the other step has not started"
    time.sleep(0.01)
print(f"{own.name} has met {other.name}")
"""
SLEEP = """
import signal, sys, time, pathlib
if "deaf" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text("started")
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.2)
    pathlib.Path(sys.argv[1]).write_text("cleaned up")
    raise SystemExit(130)
"""
RUN = """
import signal, sys
signal.signal(signal.SIGINT, signal.{background})  # shells let background jobs ignore it
from pathlib import Path
sys.path.insert(0, {root!r})
import pipeline.scheduler
from lexical.errors import run_script
pipeline.scheduler.PATIENCE = {patience}
steps = [pipeline.scheduler.Step(name, [{sleep!r}, name, *{options!r}]) for name in {names!r}]
raise SystemExit(run_script(lambda _: pipeline.scheduler.run_steps(steps, len(steps))))
"""


def script(folder: Path, name: str, content: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(content)
    return str(path)


@pytest.mark.parametrize(("seconds", "shown"), [(20, "20 s"), (150, "2 min"), (7500, "2 h 05 min")])
def test_durations_are_readable(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


# --- one after the other


def test_a_failed_step_costs_only_what_depends_on_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = script(tmp_path, "record", RECORD)
    steps = [
        Step("a", [record, "a", "3"]),
        Step("b", [record, "b", "0"], dependencies=("a",)),
        Step("c", [record, "c", "0"], dependencies=("b",)),
        Step("d", [record, "d", "0"], dependencies=("e",)),
        Step("e", [record, "e", "0"], DONE),
    ]
    failed = run_steps(steps)
    shown = capfd.readouterr()
    assert [step.title for step in failed] == ["a"] and shown.out == "a\nd\n"
    assert shown.err.splitlines() == [
        "[1 of 5] a", "[1 of 5] a: failed (0 s)", "[4 of 5] d", "[4 of 5] d: done (0 s)",
        "[2 of 5] b: left out, as it depends on: a", "[3 of 5] c: left out, as it depends on: b",
        f"failed: a: python {record} a 3",
    ]  # fmt: skip


def test_a_step_that_cannot_be_prepared_has_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def prepare() -> None:
        raise OSError(28, "No space left on device")

    record = script(tmp_path, "record", RECORD)
    steps = [Step("a", [record, "a", "0"], prepare=prepare), Step("b", [record, "b", "0"])]
    assert [step.title for step in run_steps(steps)] == ["a"]
    shown = capfd.readouterr()
    assert "[1 of 2] a: [Errno 28] No space left on device" in shown.err and shown.out == "b\n"


# --- several at once


def test_steps_run_at_once_and_wait_for_their_dependencies(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """b and c end only if they run at the same time, which is when a has ended."""
    record, meet = script(tmp_path, "record", RECORD), script(tmp_path, "meet", MEET)
    x, y = str(tmp_path / "x"), str(tmp_path / "y")
    steps = [
        Step("a, seed 1", [record, "a", "0"]),
        Step("b", [meet, x, y], dependencies=("a, seed 1",)),
        Step("c", [meet, y, x]),
        Step("d", [record, "d", "1"]),
        Step("e", [record, "e", "0"], dependencies=("d",)),
    ]
    assert [step.title for step in run_steps(steps, 2, tmp_path / "logs")] == ["d"]
    shown = capfd.readouterr()
    assert shown.out == ""  # each step writes to a file
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert logs == {
        "001-a-seed-1.log": "a\n", "002-b.log": "x has met y\n", "003-c.log": "y has met x\n", "004-d.log": "d\n",
    }  # fmt: skip
    starts = re.findall(r"^\[(\d) of 5\] [^:\n]*$", shown.err, re.MULTILINE)
    assert starts[:2] == ["1", "3"] and sorted(starts) == ["1", "2", "3", "4"]
    assert f"[4 of 5] d: failed, see {tmp_path / 'logs/004-d.log'} (0 s)" in shown.err


def test_cores_and_gpus_are_shared() -> None:
    cores = len(os.sched_getaffinity(0))
    no_gpu = {"CUDA_VISIBLE_DEVICES": ""}
    assert share(0, 1, no_gpu) == {}
    threads = str(max(1, cores // 2))
    assert share(0, 2, no_gpu) == {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    assert share(1, 64 * cores, {**no_gpu, "NUMBA_NUM_THREADS": "3"}) == {
        "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "3",
    }  # fmt: skip
    four = {"CUDA_VISIBLE_DEVICES": "0,2,5,GPU-7f"}
    assert [share(slot, 2, four)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["0,5", "2,GPU-7f"]
    two = {"CUDA_VISIBLE_DEVICES": "4,6"}
    assert [share(slot, 3, two)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["4", "6", "4"]


def test_a_step_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = script(tmp_path, "threads", "import os; print(os.environ['OMP_NUM_THREADS'])")
    run_steps([Step("a", [threads])], 1000, tmp_path / "logs")
    assert (tmp_path / "logs/001-a.log").read_text() == "1\n"


# --- interrupted


def started(
    folder: Path, names: list[str], *options: str, patience: float = 20.0, background: str = "default_int_handler"
) -> subprocess.Popen[str]:
    """Start a scheduler with sleeping steps, and wait until all of them run."""
    sleep = script(folder, "sleep", SLEEP)
    run = RUN.format(
        root=str(ROOT), sleep=sleep, names=names, options=options, patience=patience, background=background
    )
    process = subprocess.Popen(
        [sys.executable, script(folder, "run", run)], cwd=folder, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not all((folder / name).is_file() and (folder / name).read_text() for name in names):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_steps_have_time_to_clean_up(names: list[str], number: signal.Signals, tmp_path: Path) -> None:
    """SIGINT reaches the process group, as from a terminal, SIGTERM the scheduler alone, as from a batch system."""
    process = started(tmp_path, names, background="SIG_IGN" if number == signal.SIGTERM else "default_int_handler")
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and f"ending {len(names)} running step(s)" in error
    assert "interrupted; the same command continues" in error
    assert [(tmp_path / name).read_text() for name in names] == ["cleaned up"] * len(names)


def test_steps_that_ignore_an_interruption_are_killed(tmp_path: Path) -> None:
    process = started(tmp_path, ["a"], "deaf", patience=0.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_a_second_ctrl_c_kills_the_steps(tmp_path: Path) -> None:
    process = started(tmp_path, ["a"], "deaf", patience=60)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "ending 1 running step(s)" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
