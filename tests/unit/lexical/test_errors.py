"""How an entry script ends: one line, the right exit code."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from lexical.errors import UserError, run_script


def ends_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def main(argv: Sequence[str]) -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["some/where/train.py"])
    return run_script(main)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("two\nlines  become one"), 2, "train.py: two lines become one"),
        (KeyboardInterrupt(), 130, "train.py: interrupted; the same command continues from the steps that are done"),
        (
            OSError(errno.ENOSPC, "No space left on device", "x.npy"),
            1,
            "train.py: No space left on device: x.npy; fix that and repeat",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "out"),
            1,
            "train.py: Permission denied: out; fix that and repeat",
        ),
    ],
)
def test_one_line_and_an_exit_code(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with(error, monkeypatch) == code
    assert capsys.readouterr().err == f"{line}\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        ends_with(ZeroDivisionError(), monkeypatch)
    with pytest.raises(FileNotFoundError):
        ends_with(FileNotFoundError(errno.ENOENT, "gone"), monkeypatch)


def test_success_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])
    assert run_script(lambda argv: None) == 0
