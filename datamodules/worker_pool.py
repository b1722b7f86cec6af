"""Workers: results in order, bounded memory, and no process left behind.

Processes are spawned, not forked: the caller may run threads (torch, tokenizers), and a forked lock is never released.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from lexical.errors import UserError

Job = TypeVar("Job")
Result = TypeVar("Result")


def cores() -> int:
    """Return the cores that this process may use (on a shared server perhaps fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[Result]:
    """Yield ``work(job)`` of each job in the order of the jobs, computing at most two jobs per worker ahead.

    With one worker everything runs in this process.
    """
    if workers <= 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_process) as pool:

        def submit(job: Job) -> Future[Result]:
            with _ignored_interrupts():  # by the processes that are started meanwhile
                return pool.submit(work, job)

        try:
            yield from computed_ahead(submit, jobs, 2 * workers)
        except BrokenProcessPool as error:
            raise UserError("a worker process was killed, perhaps for lack of memory: try --data.workers 1") from error


def computed_ahead(submit: Callable[[Job], Future[Result]], jobs: Iterable[Job], most: int) -> Iterator[Result]:
    """Yield the results of submitted jobs in the order of the jobs, at most `most` jobs ahead."""
    pending: deque[Future[Result]] = deque()
    try:
        for job in jobs:
            pending.append(submit(job))
            if len(pending) > most:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, which reaches all processes: the parent handles it. Only the main thread may change that."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


def _start_process() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:  # a killed parent closes no queue: its workers would wait forever
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
