"""What a person reads on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lexical.terminal import be_brief, detail, say, say_once


@pytest.fixture
def brief() -> Iterator[None]:
    be_brief()
    yield
    be_brief(False)


def test_a_notice_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("runs are kept offline", "runs are kept offline", "another", "runs are kept offline"):
        say_once(line)
    say("runs are kept offline")
    assert capsys.readouterr().err.splitlines() == ["runs are kept offline", "another", "runs are kept offline"]


def test_details_are_for_a_single_step(brief: None, capsys: pytest.CaptureFixture[str]) -> None:
    detail("epoch 1 of 3")
    say("MRR 0.4")
    be_brief(False)
    detail("epoch 2 of 3")
    assert capsys.readouterr().err == "MRR 0.4\nepoch 2 of 3\n"
