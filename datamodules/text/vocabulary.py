"""Count strings in bounded memory: web text has tens of millions of distinct ones, most of which occur once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

import numpy as np


class BoundedCounter:
    """Count strings; when there are more than twice `most`, drop the rarest until `most` are left.

    This is lossy counting: a string that was dropped is counted from 0 if it comes again. What one dropping forgets of
    a string is at most the largest count that it drops; `missed` is their sum. So a count is too low by at most
    `missed`, and each string that occurs more often than that is in `counts`. The result depends on the order of the
    calls of `add` only.
    """

    def __init__(self, most: int) -> None:
        self.most, self.missed = most, 0
        self.counts: Counter[str] = Counter()

    def add(self, strings: Iterable[str], occurrences: Iterable[int]) -> None:
        """Add the occurrences of distinct strings."""
        self.counts.update(dict(zip(strings, occurrences, strict=True)))
        if len(self.counts) > 2 * self.most:
            values = np.fromiter(self.counts.values(), np.int64, len(self.counts))
            least = int(np.partition(values, -self.most - 1)[-self.most - 1])
            kept = {string: count for string, count in self.counts.items() if count > least}
            tied = (item for item in self.counts.items() if item[1] == least)
            self.counts = Counter(kept | dict(islice(tied, self.most - len(kept))))
            self.missed += least

    def most_common(self) -> list[str]:
        """Return at most `most` strings, most frequent first, ties by text."""
        return sorted(sorted(self.counts), key=lambda string: -self.counts[string])[: self.most]
