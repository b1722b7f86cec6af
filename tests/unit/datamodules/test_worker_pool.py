"""Worker processes: order, one process where one is enough, and what a killed worker looks like to the user."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from datamodules.worker_pool import cores, in_order
from lexical.errors import UserError


def add(summand: int, number: int) -> int:
    return number + summand


def end_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs(workers: int) -> None:
    assert list(in_order(partial(add, 100), range(20), workers)) == list(range(100, 120))


def test_a_killed_worker_is_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"^a worker process was killed, .*: try --data\.workers 1$"):
        list(in_order(end_at_three, range(8), 2))


def test_there_is_at_least_one_core() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


def ignores_interrupts(number: int) -> bool:
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_ctrl_c_is_left_to_the_parent() -> None:
    """A terminal sends it to every process: workers must not answer with tracebacks, the parent must stay able to."""
    before = signal.getsignal(signal.SIGINT)
    assert all(in_order(ignores_interrupts, range(4), 2))
    assert signal.getsignal(signal.SIGINT) == before
