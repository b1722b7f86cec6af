"""Items worked through by threads of their own."""

from __future__ import annotations

import threading

import pytest
import torch

from lightning_modules.bert.threads import one_ahead, one_thread_each

pytestmark = pytest.mark.usefixtures("torch_threads")


def test_items_are_computed_at_the_same_time_and_the_caller_keeps_its_threads() -> None:
    torch.set_num_threads(2)
    both_run = threading.Barrier(2)

    def work(_: int) -> tuple[int, bool, str]:
        both_run.wait(timeout=30)
        return torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name

    results = list(one_thread_each(work, [0, 1]))
    assert [result[:2] for result in results] == [(1, False), (1, False)]
    assert len({name for *_, name in results}) == 2
    assert torch.get_num_threads() == 2
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert counts == [2]  # threads that start later are not limited to one


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_order_from_one_thread_each(threads: int) -> None:
    torch.set_num_threads(threads)

    def work(item: int) -> tuple[int, int, bool, bool]:
        nested = list(one_thread_each(lambda number: number + item, [1, 2]))  # does not wait for the same pool
        assert nested == [1 + item, 2 + item]
        return item, torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    assert list(one_thread_each(work, range(20))) == [(item, 1, False, False) for item in range(20)]
    with torch.inference_mode():
        assert list(one_thread_each(work, [7])) == [(7, 1, False, True)]
    assert list(one_thread_each(work, [])) == []
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("threads", [1, 2])
def test_the_error_of_an_item_reaches_the_caller(threads: int) -> None:
    torch.set_num_threads(threads)
    results = one_thread_each(lambda item: 1 // (5 - item), range(8))
    assert [next(results) for _ in range(5)] == [0, 0, 0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_the_next_item_is_computed_while_the_caller_has_the_last() -> None:
    started = [threading.Event() for _ in range(3)]

    def work(item: int) -> int:
        started[item].set()
        return 10 * item

    results = one_ahead(work, [0, 1, 2])
    assert next(results) == 0 and started[1].wait(timeout=30)
    assert not started[2].is_set()  # one ahead, not all
    assert list(results) == [10, 20]
    assert list(one_ahead(work, [])) == []
