"""The forward index counts what `collections.Counter` counts, in blocks, on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from lexical.index.forward_index import ForwardIndex, build_forward_index, open_forward_index, read_document_blocks
from lexical.index.ragged import Ragged, ragged
from tests.fixtures.tiny_collections import TinyCollection, forward_index_of, seeded_collection, tiny_collections


def counted(index: ForwardIndex) -> list[dict[int, int]]:
    """token -> count of each document, in the order of the index."""
    spans = zip(index.offsets[:-1], index.offsets[1:], strict=True)
    return [dict(zip(index.tokens[a:b].tolist(), index.counts[a:b].tolist(), strict=True)) for a, b in spans]


def test_two_documents_and_an_empty_one_by_hand() -> None:
    index = forward_index_of([[3, 1, 3], [], [1]], vocabulary_size=5)
    assert index.offsets.tolist() == [0, 2, 2, 3]
    assert index.tokens.tolist() == [1, 3, 1]
    assert index.counts.tolist() == [1, 2, 1]
    assert index.lengths.tolist() == [3, 0, 1]
    assert index.document_frequency.tolist() == [0, 2, 0, 1, 0]
    assert index.collection_frequency.tolist() == [0, 2, 0, 2, 0]
    assert (index.documents, index.vocabulary_size, index.mean_length) == (3, 5, 4 / 3)


@settings(deadline=None, max_examples=60)
@given(collection=tiny_collections())
def test_counts_equal_those_of_a_counter(collection: TinyCollection) -> None:
    documents, index = collection.documents, collection.forward_index()
    assert counted(index) == [dict(sorted(Counter(document).items())) for document in documents]
    assert [list(row) for row in counted(index)] == [sorted(set(document)) for document in documents]
    assert index.lengths.tolist() == [len(document) for document in documents]
    words = range(collection.vocabulary_size)
    containing = Counter(token for document in documents for token in set(document))
    occurring = Counter(token for document in documents for token in document)
    assert index.document_frequency.tolist() == [containing[token] for token in words]
    assert index.collection_frequency.tolist() == [occurring[token] for token in words]


@pytest.mark.parametrize("size", [1, 7, 99, 100, 101])
def test_the_size_of_a_block_does_not_change_a_byte(size: int, tmp_path: Path) -> None:
    collection = seeded_collection(documents=100, queries=0)
    sequences = ragged(collection.documents, np.int32)
    np.save(tmp_path / "offsets.npy", sequences.offsets)
    np.save(tmp_path / "tokens.npy", sequences.values)

    build_forward_index([sequences], collection.vocabulary_size, tmp_path / "whole")
    build_forward_index(read_document_blocks(tmp_path, size), collection.vocabulary_size, tmp_path / "blocks")

    for name in ForwardIndex._fields:
        whole, blocks = ((tmp_path / folder / f"{name}.npy").read_bytes() for folder in ("whole", "blocks"))
        assert whole == blocks, name


def test_blocks_of_documents_by_hand(tmp_path: Path) -> None:
    np.save(tmp_path / "offsets.npy", np.array([0, 2, 2, 3, 3, 5]))
    np.save(tmp_path / "tokens.npy", np.array([4, 9, 7, 1, 1], np.int32))
    blocks = [(block.offsets.tolist(), block.values.tolist()) for block in read_document_blocks(tmp_path, 2)]
    assert blocks == [([0, 2, 2], [4, 9]), ([0, 1, 1], [7]), ([0, 2], [1, 1])]


def test_opened_again_it_is_memory_mapped_read_only_and_typed(tmp_path: Path) -> None:
    build_forward_index([ragged([[0, 2, 2], [1]], np.int32)], 3, tmp_path / "made" / "on the way")
    index = open_forward_index(tmp_path / "made" / "on the way")
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in index)
    types = {name: array.dtype.name for name, array in index._asdict().items()}
    assert types == {
        "offsets": "int64", "tokens": "int32", "counts": "int32", "lengths": "int32",
        "document_frequency": "int64", "collection_frequency": "int64", "idf": "float64",
    }  # fmt: skip
    assert counted(index) == [{0: 1, 2: 2}, {1: 1}]


def test_building_leaves_the_sequences_as_they_were(tmp_path: Path) -> None:
    sequences = ragged([[3, 1, 2]], np.int32)
    build_forward_index([sequences], 4, tmp_path)
    assert sequences.values.tolist() == [3, 1, 2]


@pytest.mark.parametrize("blocks", [[], [ragged([], np.int32)]], ids=["no block", "an empty block"])
def test_a_collection_without_documents(blocks: list[Ragged], tmp_path: Path) -> None:
    build_forward_index(blocks, 2, tmp_path)
    index = open_forward_index(tmp_path)
    assert (index.documents, index.mean_length) == (0, 0.0)
    assert index.offsets.tolist() == [0] and index.document_frequency.tolist() == [0, 0]


def test_a_token_below_0_counts_in_the_length_alone() -> None:
    index = forward_index_of([[1, -1, 0, -1, 1], [-1], [0]], 2)
    assert index.lengths.tolist() == [5, 1, 1] and index.offsets.tolist() == [0, 2, 2, 3]
    assert index.tokens.tolist() == [0, 1, 0] and index.counts.tolist() == [1, 2, 1]
    assert index.document_frequency.tolist() == [2, 1] and index.collection_frequency.tolist() == [2, 2]


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=r".+"):
        forward_index_of([[0, 2]], vocabulary_size=2)
