"""Documents in equal chunks, sequences in groups, and where their pieces then are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.index.ragged import ragged
from lightning_modules.bert.chunks import (
    ChunkLimits,
    EncoderInputs,
    GroupLimits,
    Specials,
    chunk_lengths,
    encoder_inputs,
    own_lengths,
)

SPECIALS = Specials(cls=101, sep=102, pad=0)
PAPER = ChunkLimits()


def test_the_paper_has_three_chunks_of_477_pieces() -> None:
    assert PAPER.chunk == 477
    assert PAPER.chunk * PAPER.chunks == 1431


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, [0]), (1, [1]), (476, [476]), (477, [477]), (478, [239, 239]), (955, [319, 319, 317]),
        (1431, [477, 477, 477]), (5000, [477, 477, 477]),
    ],
)  # fmt: skip
def test_chunks_are_equal(length: int, expected: list[int]) -> None:
    assert chunk_lengths(length, PAPER) == expected


@given(st.integers(0, 400), st.integers(1, 40), st.integers(1, 5))
def test_chunks_cover_what_is_read_and_fit(length: int, chunk: int, chunks: int) -> None:
    limits = ChunkLimits(positions=chunk + 8 + 3, query_pieces=8, chunks=chunks)
    found = chunk_lengths(length, limits)
    assert sum(found) == min(length, chunk * chunks)
    assert len(found) <= chunks and max(found) <= chunk
    assert len(found) == 1 or min(found) > 0
    assert max(found) - min(found[:-1], default=max(found)) == 0  # all but the last are equal


def pieces_of(inputs: EncoderInputs) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """What stands where the inputs say that queries, documents and [CLS] are."""
    flat = np.concatenate([group.tokens.ravel() for group in inputs.groups])
    queries, documents = (
        [flat[at[mask]].tolist() for at, mask in zip(places, masks, strict=True)]
        for places, masks in ((inputs.query_at, inputs.query_mask), (inputs.document_at, inputs.document_mask))
    )
    return queries, documents, [flat[inputs.cls_at].tolist()]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 70)), min_size=1, max_size=8),
    st.integers(1, 200),
    st.integers(0, 60),
    st.booleans(),
)
def test_every_piece_is_found_again(
    lengths: list[tuple[int, int]], at_once: int, padding: int, for_scores: bool
) -> None:
    limits = ChunkLimits(positions=32, query_pieces=6, chunks=2)  # chunks of 23
    queries = [list(range(1000, 1000 + q)) for q, _ in lengths]
    documents = [list(range(2000 + 100 * i, 2000 + 100 * i + d)) for i, (_, d) in enumerate(lengths)]
    groups = GroupLimits(at_once, padding)
    groups = groups.for_scores() if for_scores else groups
    inputs = encoder_inputs(ragged(queries, np.int64), ragged(documents, np.int64), limits, SPECIALS, groups)
    found_queries, found_documents, (cls,) = pieces_of(inputs)
    assert found_queries == [query[:6] for query in queries]
    assert found_documents == [document[:46] for document in documents]
    assert set(cls) == {SPECIALS.cls}
    counts = np.bincount(inputs.cls_pair, minlength=len(lengths)).tolist()
    assert counts == [len(chunk_lengths(d, limits)) for _, d in lengths]
    for group in inputs.groups:
        assert group.tokens.size <= at_once or len(group.tokens) == 1
        mask = np.ones(group.tokens.shape, bool) if group.mask is None else group.mask
        if for_scores:  # the width depends on each sequence alone, and so does it if there is a mask
            assert (own_lengths(mask.sum(axis=1), limits.positions) == mask.shape[1]).all()
            assert mask.all() or not mask.all(axis=1).any()
        else:
            assert (~mask).sum() <= padding
        for tokens, types, real in zip(group.tokens, group.types, mask, strict=True):
            row = tokens[real].tolist()
            first = row.index(SPECIALS.sep)
            assert row[0] == SPECIALS.cls and row[-1] == SPECIALS.sep and row.count(SPECIALS.sep) == 2
            assert types[real].tolist() == [0] * (first + 1) + [1] * (len(row) - first - 1)
            assert not tokens[~real].any() and not types[~real].any()
            assert len(row) <= limits.positions


def test_own_lengths_waste_little() -> None:
    lengths = np.arange(1, 513)
    found = own_lengths(lengths, 512)
    assert (found >= lengths).all() and (found % 8 == 0).all() and found.min() == 16 and found.max() == 512
    assert ((found - lengths)[15:] < np.maximum(8, lengths[15:] / 15)).all() and len(np.unique(found)) == 47
    assert own_lengths(np.array([27, 30]), 30).tolist() == [30, 30]  # positions that an encoder does not have


def test_sequences_of_one_length_need_no_mask_and_no_padding() -> None:
    rows = ragged([[5, 6, 7]] * 4, np.int64)
    inputs = encoder_inputs(rows, rows, PAPER, SPECIALS, GroupLimits())
    assert [group.mask for group in inputs.groups] == [None]
    assert inputs.padding == 0


def test_padding_is_counted() -> None:
    inputs = encoder_inputs(
        ragged([[1], [1]], np.int64), ragged([[2] * 6, []], np.int64), PAPER, SPECIALS, GroupLimits()
    )
    assert inputs.padding == pytest.approx(6 / 20)  # sequences of 10 and 4
