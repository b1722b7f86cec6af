"""Documents in equal chunks, sequences in groups, positions of their pieces, and the window with most of a query."""

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
    PairInputs,
    Specials,
    best_window,
    chunk_lengths,
    encoder_inputs,
    padded_lengths,
)

SPECIALS = Specials(cls=101, sep=102, pad=0)
PAPER = ChunkLimits()


def test_the_paper_has_three_chunks_of_477_pieces() -> None:
    assert PAPER.chunk == 477
    assert PAPER.pieces == 1431


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
    lengths = chunk_lengths(length, limits)
    assert sum(lengths) == min(length, chunk * chunks)
    assert len(lengths) <= chunks and max(lengths) <= chunk
    assert len(lengths) == 1 or min(lengths) > 0
    assert max(lengths) - min(lengths[:-1], default=max(lengths)) == 0  # all but the last are equal


def pieces_of(inputs: EncoderInputs) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Return the tokens at the positions of queries, documents and [CLS]."""
    flat = np.concatenate([group.tokens.ravel() for group in inputs.groups])
    queries, documents = (
        [flat[row[mask]].tolist() for row, mask in zip(positions, masks, strict=True)]
        for positions, masks in ((inputs.query_at, inputs.query_mask), (inputs.document_at, inputs.document_mask))
    )
    return queries, documents, flat[inputs.cls_at].tolist()


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 70)), min_size=1, max_size=8),
    st.integers(1, 200),
    st.integers(0, 60),
    st.booleans(),
)
def test_every_piece_is_at_its_position(
    lengths: list[tuple[int, int]], positions: int, padding: int, for_scores: bool
) -> None:
    limits = ChunkLimits(positions=32, query_pieces=6, chunks=2)  # chunks of 23
    queries = [list(range(1000, 1000 + q)) for q, _ in lengths]
    documents = [list(range(2000 + 100 * i, 2000 + 100 * i + d)) for i, (_, d) in enumerate(lengths)]
    groups = GroupLimits(positions, padding)
    groups = groups._replace(padding=0, alone=True) if for_scores else groups
    inputs = encoder_inputs(ragged(queries, np.int64), ragged(documents, np.int64), limits, SPECIALS, groups)
    gathered_queries, gathered_documents, cls = pieces_of(inputs)
    assert gathered_queries == [query[:6] for query in queries]
    assert gathered_documents == [document[:46] for document in documents]
    assert set(cls) == {SPECIALS.cls}
    counts = np.bincount(inputs.cls_pair, minlength=len(lengths)).tolist()
    assert counts == [len(chunk_lengths(d, limits)) for _, d in lengths]
    for group in inputs.groups:
        assert group.tokens.size <= positions or len(group.tokens) == 1
        mask = np.ones(group.tokens.shape, bool) if group.mask is None else group.mask
        if for_scores:  # width and mask depend on each sequence alone
            assert (padded_lengths(mask.sum(axis=1), limits.positions) == mask.shape[1]).all()
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


def test_padded_lengths_waste_little() -> None:
    lengths = np.arange(1, 513)
    padded = padded_lengths(lengths, 512)
    assert (padded >= lengths).all() and (padded % 8 == 0).all() and padded.min() == 16 and padded.max() == 512
    assert ((padded - lengths)[15:] < np.maximum(8, lengths[15:] / 15)).all() and len(np.unique(padded)) == 47
    assert padded_lengths(np.array([27, 30]), 30).tolist() == [30, 30]  # the encoder has no more positions


def test_sequences_of_one_length_need_no_mask_and_no_padding() -> None:
    rows = ragged([[5, 6, 7]] * 4, np.int64)
    inputs = encoder_inputs(rows, rows, PAPER, SPECIALS, GroupLimits())
    assert [group.mask for group in inputs.groups] == [None]
    assert PairInputs((inputs,)).padding == 0


def test_padding_is_counted() -> None:
    inputs = encoder_inputs(
        ragged([[1], [1]], np.int64), ragged([[2] * 6, []], np.int64), PAPER, SPECIALS, GroupLimits()
    )
    assert PairInputs((inputs,)).padding == pytest.approx(6 / 20)  # sequences of 10 and 4


# --- the window with most of a query


def test_a_rare_piece_counts_more_than_a_frequent_one() -> None:
    document = np.array([1, 1, 1, 0, 0, 0, 0, 2, 0, 0, 1])
    assert best_window(np.array([1, 2]), document, 3) == 6  # 2 occurs once and counts 1; three of four 1s are 0.75
    assert best_window(np.array([1]), document, 3) == 0


def test_matches_are_in_the_centre() -> None:
    assert best_window(np.array([7]), np.array([0] * 50 + [7] + [0] * 50), 21) == 40


@given(
    st.lists(st.integers(0, 9), max_size=5), st.lists(st.integers(0, 9), max_size=60), st.integers(1, 20)
)  # fmt: skip
def test_no_other_window_has_more_of_the_query(query: list[int], document: list[int], width: int) -> None:
    start = best_window(np.array(query, np.int32), np.array(document, np.int32), width)
    if len(document) <= width or not set(query) & set(document):
        assert start == 0  # documents that fit, too
        return
    sums = [
        sum(1 / document.count(piece) for piece in document[first : first + width] if piece in query)
        for first in range(len(document) - width + 1)
    ]
    assert 0 <= start <= len(document) - width
    assert sums[start] == pytest.approx(max(sums), abs=1e-6)
