"""Loaders of batches: of finished ones, and of those of an epoch, which a thread computes ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch.utils.data import Dataset

from datamodules.worker_pool import computed_ahead

T = TypeVar("T")

BATCHES_AHEAD = 4  # computed before they are needed


@dataclass
class EpochLoader(Generic[T]):
    """Batches of the current epoch, starting with the next one.

    Lightning gives a resumed training a fresh iterator: of the first epoch, from the beginning. Therefore epoch and
    batch come from the trainer, and only when the first batch is requested, when it knows them.
    """

    make: Callable[[int, int], T]  # (epoch, number) -> batch; a pure function
    length: int  # batches of an epoch
    position: Callable[[], tuple[int, int]]  # () -> (epoch, number of the next batch)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        epoch, first = self.position()
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
            numbers = range(first, self.length)
            yield from computed_ahead(lambda number: pool.submit(self.make, epoch, number), numbers, BATCHES_AHEAD)


class Batches(Generic[T]):
    """Finished batches, in order: nothing is copied, dropped, padded, or given to a distributed sampler.

    Lightning replaces the sampler of a torch `DataLoader` when there are several processes; it leaves other iterables
    alone.

    Args:
        batches: a sequence or data set of batches, or a function that returns one whenever the loader is iterated.
    """

    def __init__(self, batches: Sequence[T] | Dataset[T] | Callable[[], Sequence[T]]) -> None:
        self._batches = batches

    @property
    def batches(self) -> Any:
        return self._batches() if callable(self._batches) else self._batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[T]:
        batches = self.batches
        return (batches[number] for number in range(len(batches)))
