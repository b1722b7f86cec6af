"""Shares of a range in threads of their own."""

from __future__ import annotations

import threading

import pytest
import torch

from lightning_modules.bert.thread_shares import in_shares, one_thread_each

pytestmark = pytest.mark.usefixtures("torch_threads")


@pytest.mark.parametrize(("total", "threads"), [(0, 2), (1, 2), (10, 1), (10, 2), (11, 3), (9, 4), (1000, 4)])
def test_the_shares_cover_the_range_in_order(total: int, threads: int) -> None:
    torch.set_num_threads(threads)
    shares = in_shares(lambda first, end: list(range(first, end)), total, least=3)
    assert len(shares) == max(1, min(threads, total // 3))
    assert [number for share in shares for number in share] == list(range(total))


def test_each_share_has_one_thread_of_torch_and_no_gradients_and_the_caller_keeps_its_own() -> None:
    torch.set_num_threads(2)
    together = threading.Barrier(2)

    def share(first: int, end: int) -> tuple[int, bool, str]:
        together.wait(timeout=30)  # both run at the same time
        return torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name

    found = in_shares(share, 2, least=1)
    assert [one[:2] for one in found] == [(1, False), (1, False)]
    assert len({one[2] for one in found}) == 2
    assert torch.get_num_threads() == 2
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [2]  # threads that start later are not bound to one


def test_an_error_of_a_share_reaches_the_caller() -> None:
    torch.set_num_threads(2)

    def share(first: int, end: int) -> None:
        if first:
            raise ValueError("broken share")

    with pytest.raises(ValueError, match="broken share"):
        in_shares(share, 2, least=1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_items_are_worked_off_in_order_by_one_thread_each(threads: int) -> None:
    torch.set_num_threads(threads)

    def work(item: int) -> tuple[int, int, bool, bool]:
        inner = list(one_thread_each(lambda one: one + item, [1, 2]))  # as a worker it has no other threads to wait for
        assert inner == [1 + item, 2 + item]
        return item, torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    assert list(one_thread_each(work, range(20))) == [(item, 1, False, False) for item in range(20)]
    with torch.inference_mode():
        assert list(one_thread_each(work, [7])) == [(7, 1, False, True)]
    assert list(one_thread_each(work, [])) == []
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_a_late_item_reaches_the_caller(threads: int) -> None:
    torch.set_num_threads(threads)
    found = one_thread_each(lambda item: 1 // (5 - item), range(8))
    assert [next(found) for _ in range(5)] == [0, 0, 0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
