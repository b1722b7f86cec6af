"""Work item by item: in torch's threads, one thread per item, or one item ahead of the caller.

torch divides every single operation among its threads and waits for the slowest. For many small operations in a row
that costs more than it gains, the more so where other processes use the cores; and how a matrix product is divided may
change the last bits of a row. Here each thread computes whole items, and inside these threads torch itself uses one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")
SWITCH_INTERVAL = 2e-4  # seconds: an item needs Python's lock for microseconds, other threads may keep it for 5 ms


def one_thread_each(work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """Yield work(item) of all items, in their order, without gradients.

    The result of an item does not depend on the number of threads: torch always uses one for it. Inference mode is the
    caller's. Autocast is a property of a thread, so `work` must set it.
    """
    inference = torch.is_inference_mode_enabled()

    def compute(item: S) -> T:
        with torch.inference_mode(inference), torch.no_grad():
            return work(item)

    threads = torch.get_num_threads()
    return map(compute, items) if threads == 1 else _pool(threads).map(compute, items)


def one_ahead(work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """Yield work(item) of all items, in their order; a thread computes the next one while the caller uses the last."""
    with ThreadPoolExecutor(1, thread_name_prefix="next") as pool:
        upcoming: deque[Future[T]] = deque()
        for item in items:
            upcoming.append(pool.submit(work, item))
            if len(upcoming) > 1:
                yield upcoming.popleft().result()
        while upcoming:
            yield upcoming.popleft().result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    all_started = threading.Barrier(threads)  # makes the pool start every thread

    def start(_: int) -> None:
        torch.get_num_threads()  # the first call in a thread overwrites what was set before
        torch.set_num_threads(1)
        all_started.wait()

    sys.setswitchinterval(SWITCH_INTERVAL)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="item")
    list(pool.map(start, range(threads)))
    torch.set_num_threads(threads)  # the number belongs to a thread, but new threads start with the last one set
    return pool


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child process has none of the threads
