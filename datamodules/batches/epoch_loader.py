"""A loader that knows where the trainer stands, and makes batches ahead in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from torch.utils.data import DataLoader, Dataset

T = TypeVar("T")

AHEAD = 4  # batches that are made before they are asked for


class EpochLoader(Generic[T]):
    """Batches of the current epoch, from the one that comes next.

    Lightning gives a resumed training a fresh iterator: of the first epoch, from the beginning. So epoch and batch
    are asked of the trainer, and only when the first batch is wanted, when it knows them.

    Args:
        make: (epoch, number) -> batch; a pure function.
        length: batches of an epoch.
        position: (epoch, number of the next batch).
    """

    def __init__(self, make: Callable[[int, int], T], length: int, position: Callable[[], tuple[int, int]]) -> None:
        self.make, self.length, self.position = make, length, position

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        epoch, first = self.position()
        pending: deque[Future[T]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
            try:
                for number in range(first, self.length):
                    pending.append(pool.submit(self.make, epoch, number))
                    if len(pending) > AHEAD:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()


def ready_made(batches: Sequence[T] | Dataset[T]) -> DataLoader[T]:
    """Batches handed on as they are: nothing is copied, nothing dropped, nothing padded."""
    return DataLoader(batches, batch_size=None, num_workers=0, collate_fn=_as_it_is)  # type: ignore[arg-type]


def _as_it_is(batch: T) -> T:
    return batch
