"""Counting in bounded memory: exact while there is room, then with the errors of lossy counting."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.text.vocabulary import BoundedCounter


def count(shards: list[list[int]], most: int) -> tuple[BoundedCounter, Counter[str], int]:
    """Return the counter, the true counts, and the most strings that the counter held after a shard."""
    counter, true, held = BoundedCounter(most), Counter[str](), 0
    for shard in shards:
        of_shard = Counter(map(str, shard))
        counter.add(of_shard.keys(), of_shard.values())
        true.update(of_shard)
        held = max(held, len(counter.counts))
    return counter, true, held


@settings(max_examples=300, deadline=None)
@given(shards=st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=12), most=st.integers(1, 40))
def test_memory_is_bounded_and_counts_lack_no_more_than_said(shards: list[list[int]], most: int) -> None:
    counter, true, held = count(shards, most)
    assert held <= 2 * most
    for string, occurrences in true.items():
        assert occurrences - counter.missed <= counter.counts[string] <= occurrences
    kept = counter.most_common()
    assert len(kept) <= most and set(kept) <= set(true)
    if len(true) <= 2 * most:
        assert not counter.missed and kept == sorted(true, key=lambda string: (-true[string], string))[:most]


def test_the_rarest_are_dropped_and_frequent_strings_survive() -> None:
    """Each shard has 50 new strings and three times each of 5 old ones."""
    shards = [[*range(5)] * 3 + list(range(100 * i, 100 * i + 50)) for i in range(1, 40)]
    counter, true, held = count(shards, 20)
    assert held <= 40 and len(true) > 1_900
    assert counter.most_common()[:5] == ["0", "1", "2", "3", "4"] and counter.counts["0"] == 39 * 3
    assert counter.missed == 39  # one for each shard: 1 is the count of what was dropped


def test_strings_and_occurrences_are_equally_many() -> None:
    with pytest.raises(ValueError, match="zip"):
        BoundedCounter(3).add(["a", "b"], [1])
