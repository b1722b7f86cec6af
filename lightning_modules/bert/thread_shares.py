"""Work for all of torch's threads, without a barrier before its end: a range in equal shares, or a list item by item.

torch divides every single operation among its threads and waits for the slowest. For many small operations in a row
that costs more than it gains, the more so where other processes use the cores; and how it divides a matrix product may
change the last bits of a row. Here each thread does its share of all of them: in these threads torch itself uses one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")
SWITCH = 2e-4  # seconds: a share needs Python's lock for microseconds at a time, others may keep it for 5 ms


def in_shares(work: Callable[[int, int], T], total: int, least: int) -> list[T]:
    """[work(0, a), work(a, b), ..., work(z, total)]: at least one share, none of less than `least` beside others.

    Gradients are off, and inference mode is as with the caller. The borders depend on `total` and the number of torch's
    threads alone, and so does what is computed.
    """
    threads = max(1, min(torch.get_num_threads(), total // least))
    share = _without_gradients(work)
    if threads == 1:
        return [share(0, total)]
    borders = [total * i // threads for i in range(threads + 1)]
    return list(_pool(torch.get_num_threads()).map(share, borders, borders[1:]))


def one_thread_each(work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """work(item) of all items, in their order. Gradients are off, inference mode is as with the caller; autocast is a
    thread's own, so it is for `work` to set.

    What is computed for an item does not depend on the number of threads: torch uses one for it, always.
    """
    threads, share = torch.get_num_threads(), _without_gradients(work)
    return map(share, items) if threads == 1 else _pool(threads).map(share, items)


def _without_gradients(work: Callable[..., T]) -> Callable[..., T]:
    """Modes are a thread's own: inference mode is taken along from the caller."""
    inference = torch.is_inference_mode_enabled()

    def share(*arguments: Any) -> T:
        with torch.inference_mode(inference), torch.no_grad():
            return work(*arguments)

    return share


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    met = threading.Barrier(threads)  # no thread takes the place of another one

    def start(_: int) -> None:
        torch.get_num_threads()  # the first call in a thread overwrites what was set before
        torch.set_num_threads(1)
        met.wait()

    sys.setswitchinterval(SWITCH)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="share")
    list(pool.map(start, range(threads)))
    torch.set_num_threads(threads)  # the number is the thread's own, but new threads begin with the last one set
    return pool


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of the threads
