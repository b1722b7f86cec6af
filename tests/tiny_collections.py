"""Collections of a few documents of token ids, made up by hypothesis or by a seed, with their forward index."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from lexical.forward_index import ForwardIndex, build_forward_index, open_forward_index
from lexical.ragged import Ragged, ragged


class TinyCollection(NamedTuple):
    vocabulary_size: int
    documents: list[list[int]]
    queries: list[list[int]]  # -1 is an unknown word

    def forward_index(self) -> ForwardIndex:
        return forward_index_of(self.documents, self.vocabulary_size)

    def query_tokens(self) -> Ragged:
        return ragged(self.queries, np.int32)

    def all_pairs(self) -> Ragged:
        """Every document as a candidate of every query."""
        return ragged([list(range(len(self.documents)))] * len(self.queries), np.int32)


def forward_index_of(documents: Sequence[Sequence[int]], vocabulary_size: int) -> ForwardIndex:
    """Built on disk and opened memory-mapped, as in the project (the files live on while they are mapped)."""
    with tempfile.TemporaryDirectory() as folder:
        build_forward_index([ragged([list(row) for row in documents], np.int32)], vocabulary_size, Path(folder))
        return open_forward_index(Path(folder))


@st.composite
def tiny_collections(draw: st.DrawFn) -> TinyCollection:
    """Few words, so that tokens repeat; empty documents, empty queries, unknown words and words of no document."""
    size = draw(st.integers(1, 6))
    documents = draw(st.lists(st.lists(st.integers(0, size - 1), max_size=10), min_size=1, max_size=8))
    queries = draw(st.lists(st.lists(st.integers(-1, size - 1), max_size=6), min_size=1, max_size=5))
    return TinyCollection(size, documents, queries)


def seeded_collection(documents: int, queries: int, vocabulary_size: int = 50, seed: int = 0) -> TinyCollection:
    """A few hundred documents with frequent and rare words, some of them empty."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, vocabulary_size + 1)

    def texts(count: int, longest: int) -> list[list[int]]:
        return [
            rng.choice(vocabulary_size, rng.integers(0, longest + 1), p=frequency / frequency.sum()).tolist()
            for _ in range(count)
        ]

    return TinyCollection(vocabulary_size, texts(documents, 40), texts(queries, 6))
