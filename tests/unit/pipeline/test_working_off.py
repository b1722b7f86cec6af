"""Steps worked off in real processes: in order, side by side, failed, interrupted."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lexical.errors import UserError
from pipeline.scheduler import run_step, work_off
from pipeline.step_board import last_line
from pipeline.step_process import check_devices, share
from pipeline.steps import Step, minutes, time_left
from tests import ROOT

MEET = """
import sys, time
from pathlib import Path
mine, other = map(Path, sys.argv[1:])
mine.touch()
until = time.monotonic() + 20
while not other.exists():
    assert time.monotonic() < until, "the other one has not come"
    time.sleep(0.01)
print(f"{mine.name} has met {other.name}")
"""


def step(
    title: str, script: Path, *arguments: str, made_of: tuple[str, ...] = (), state: str = "to do", makes: str = ""
) -> Step:
    return Step(title, [sys.executable, str(script), *arguments], state, 60.0, makes or title, made_of)


def script(folder: Path, name: str, content: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(content)
    return path


# --- how long


@pytest.mark.parametrize(("seconds", "shown"), [(20, "0 min"), (150, "2 min"), (7500, "2 h 05 min")])
def test_times_are_read_easily(seconds: float, shown: str) -> None:
    assert minutes(seconds) == shown


def test_the_time_left_names_what_nobody_has_timed() -> None:
    done, known, unknown = (
        Step("", [], "done", 999.0),
        Step("", [], "to do", 600.0),
        Step("", [], "goes on", None),
    )
    assert time_left([done]) == "0 min"
    assert time_left([done, known, known]) == "20 min" and time_left([known, known], at_once=2) == "20 min of work"
    assert time_left([known, unknown]) == "10 min and 1 step of unknown length"
    assert time_left([done, unknown, unknown]) == "2 steps of unknown length"


# --- one after the other


def test_a_failed_step_costs_only_what_is_made_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good, bad = (
        script(tmp_path, name, f"print('{name} ran'); raise SystemExit({code})") for name, code in (("g", 0), ("b", 3))
    )
    steps = [
        step("a", bad),
        step("b", good, made_of=("a",)),
        step("c", good, made_of=("b",)),
        step("d", good, made_of=("none",)),
        step("e", good, state="done"),
    ]
    failed = work_off(steps)
    shown = capfd.readouterr()
    assert [one.title for one in failed] == ["a"] and shown.out == "b ran\ng ran\n"
    assert "[4 of 5] d (0 min passed, about 1 min left)" in shown.err and "failed: a: python" in shown.err
    assert "[2 of 5] b (left out without a)" in shown.err and "[3 of 5] c (left out without b)" in shown.err


def test_what_has_to_be_done_before_a_step_may_fail(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    good = script(tmp_path, "good", "")
    steps = [step("a", good)._replace(before=full), step("b", good)]
    assert [one.title for one in work_off(steps)] == ["a"]
    assert "[1 of 2] a: [Errno 28] No space left on device" in capfd.readouterr().err


# --- side by side


def test_steps_run_side_by_side_and_wait_for_what_they_are_made_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """a and b end only if they run at the same time; c is made of a, d of nothing."""
    meet = script(tmp_path, "meet", MEET)
    x, y = str(tmp_path / "x"), str(tmp_path / "y")
    needs = script(tmp_path, "needs", "import sys, pathlib; raise SystemExit(not pathlib.Path(sys.argv[1]).exists())")
    made = script(tmp_path, "made", "import sys, time, pathlib; time.sleep(0.5); pathlib.Path(sys.argv[1]).touch()")
    steps = [
        step("a, seed 1", made, str(tmp_path / "of_a"), makes="a"),
        step("measure a", needs, str(tmp_path / "of_a"), made_of=("a",), makes="a"),
        step("b", meet, x, y),
        step("c", meet, y, x),
    ]
    assert work_off(steps, 2, tmp_path / "logs") == []
    shown = capfd.readouterr()
    assert shown.out == ""  # each has a file for what it says
    assert (tmp_path / "logs/003-b.log").read_text() == "x has met y\n"
    begun = re.findall(r"^\[(\d) of 4\] .* left\)$", shown.err, re.MULTILINE)
    assert begun[:2] == ["1", "3"] and sorted(begun) == ["1", "2", "3", "4"]
    assert "[2 of 4] measure a: done (0 min)" in shown.err


def test_a_step_that_fails_beside_another_is_named_with_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad, good = script(tmp_path, "bad", "raise SystemExit('why it failed')"), script(tmp_path, "good", "")
    failed = work_off([step("a", bad), step("b", good), step("c", good, made_of=("a",))], 2, tmp_path / "logs")
    log = tmp_path / "logs/001-a.log"
    assert [one.title for one in failed] == ["a"] and f"[1 of 3] a: failed, see {log}" in capfd.readouterr().err
    assert log.read_text() == "why it failed\n" and not (tmp_path / "logs/003-c.log").exists()


def test_cores_and_gpus_are_shared_out() -> None:
    cores = len(os.sched_getaffinity(0))
    alone = {"CUDA_VISIBLE_DEVICES": ""}
    assert share(0, 1, alone) == {}
    threads = str(max(1, cores // 2))
    assert share(0, 2, alone) == {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    assert share(1, 64 * cores, {**alone, "NUMBA_NUM_THREADS": "3"}) == {
        "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "3",
    }  # fmt: skip
    four = {"CUDA_VISIBLE_DEVICES": "0,2,5,GPU-7f"}
    assert [share(place, 2, four)["CUDA_VISIBLE_DEVICES"] for place in range(2)] == ["0,5", "2,GPU-7f"]
    assert [share(place, 3, {"CUDA_VISIBLE_DEVICES": "4,6"})["CUDA_VISIBLE_DEVICES"] for place in range(3)] == [
        "4", "6", "4",
    ]  # fmt: skip


def test_a_step_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tell = script(tmp_path, "tell", "import os; print(os.environ['OMP_NUM_THREADS'])")
    work_off([step("a", tell)], 1000, tmp_path / "logs")
    assert (tmp_path / "logs/001-a.log").read_text() == "1\n"


def test_steps_side_by_side_have_one_device_each() -> None:
    for devices in ([], ["--trainer.devices", "1"]):
        check_devices(2, devices)
    check_devices(1, ["--trainer.devices=4"])
    with pytest.raises(
        UserError, match=r"--at_once 2 gives each step GPUs of its own: --trainer.devices 4 does not go"
    ):
        check_devices(2, ["--trainer.devices=4"])


# --- interrupted


SLEEPER = """
import signal, sys, time, pathlib
pathlib.Path(sys.argv[1]).touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)  # it puts its things away
    pathlib.Path(sys.argv[1]).write_text("put away")
    raise SystemExit(130)
"""
WORK = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from pipeline.steps import Step
from pipeline.scheduler import work_off
from lexical.errors import run_script
import pipeline.step_process
pipeline.step_process.PATIENCE = {patience}
steps = [Step(name, [sys.executable, {sleeper!r}, name], "to do", None, name) for name in {names!r}]
raise SystemExit(run_script(lambda _: work_off(steps, {at_once}, Path("logs"))))
"""


def wait_for(paths: list[Path]) -> None:
    until = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until
        time.sleep(0.05)


def worker(folder: Path, names: list[str], at_once: int, patience: float = 20.0) -> list[str]:
    sleeper = script(folder, "sleeper", SLEEPER)
    values = {"root": str(ROOT), "sleeper": str(sleeper), "names": names, "at_once": at_once, "patience": patience}
    return [sys.executable, str(script(folder, "work", WORK.format(**values)))]


DEAF = """
import signal, sys, time, pathlib
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_a_step_that_does_not_listen_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.step_process.PATIENCE", 0.3)
    deaf, begun = script(tmp_path, "deaf", DEAF), tmp_path / "begun"
    content = f"import time, pathlib\nwhile not pathlib.Path({str(begun)!r}).exists(): time.sleep(0.01)\n"
    stopped = script(tmp_path, "stopped", content + "raise SystemExit(130)")
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work_off([step("a", deaf, str(begun)), step("b", stopped)], 2, tmp_path / "logs")
    assert time.monotonic() - began < 30


def test_sigterm_ends_the_steps_too(tmp_path: Path) -> None:
    """As a batch system sends it, to the parent alone."""
    process = subprocess.Popen(
        worker(tmp_path, ["a"], 1, patience=0.5), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    wait_for([tmp_path / "a"])
    process.terminate()
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "ending 1 running step(s)" in error
    assert (tmp_path / "a").read_text() == "put away"


@pytest.mark.parametrize("at_once", [1, 2])
def test_ctrl_c_lets_the_steps_put_their_things_away(at_once: int, tmp_path: Path) -> None:
    names = ["a", "b"][:at_once]
    process = subprocess.Popen(
        worker(tmp_path, names, at_once), cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for([tmp_path / name for name in names])
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "interrupted; the same command continues" in error
    assert [(tmp_path / name).read_text() for name in names] == ["put away"] * at_once


def test_a_step_that_was_interrupted_alone_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.step_process.PATIENCE", 1.0)
    sleeper = script(tmp_path, "sleeper", SLEEPER)
    begun = tmp_path / "begun"
    content = f"import time, pathlib\nwhile not pathlib.Path({str(begun)!r}).exists(): time.sleep(0.01)\n"
    stopped = script(tmp_path, "stopped", content + "raise SystemExit(130)")
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work_off([step("a", sleeper, str(begun)), step("b", stopped)], 2, tmp_path / "logs")
    assert time.monotonic() - began < 30  # the sleeper would have taken a minute
    assert begun.read_text() == "put away"  # it was told by a signal of its own
    with pytest.raises(KeyboardInterrupt):
        run_step([sys.executable, str(stopped)])


# --- what is shown


def test_a_terminal_shows_the_steps_at_work(tmp_path: Path) -> None:
    """In a real terminal: titles, the last line of each log, what waits."""
    slow = script(tmp_path, "sleeper", "import time; print('epoch 1 of 3', flush=True); time.sleep(1.5)")
    values = {
        "root": str(ROOT),
        "sleeper": str(slow),
        "names": ["first", "second", "third"],
        "at_once": 2,
        "patience": 1,
    }
    work = script(tmp_path, "work", WORK.format(**values))
    seen = b""

    def read(descriptor: int) -> bytes:
        nonlocal seen
        data = os.read(descriptor, 1024)
        seen += data
        return data

    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        code = pty.spawn([sys.executable, str(work)], read)
    finally:
        os.chdir(here)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert os.waitstatus_to_exitcode(code) == 0, text
    assert "[1 of 3]  first" in text and "[2 of 3]  second" in text and "epoch 1 of 3" in text
    assert "left, 1 to come" in text and "[3 of 3] third: done" in text


def test_the_last_line_of_a_log_that_is_being_written(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert last_line(None) == last_line(log) == ""
    log.write_bytes(b"one\n" + b"\xff" * 5000 + b"\n two \n\n")
    assert last_line(log) == "two"
