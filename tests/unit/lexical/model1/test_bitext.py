"""The bitext equals one made with plain loops; blocks and shares change nothing of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.index.ragged import Ragged, ragged
from lexical.model1.bitext import (
    BLOCKS,
    DEFAULT_OPTIONS,
    SMALLEST_BLOCK,
    Bitext,
    BitextOptions,
    largest_block,
    make_bitext,
    most_frequent,
    query_blocks,
)

Tokens = tuple[int, ...]
Pair = tuple[Tokens, Tokens]  # source, target


class Judged(NamedTuple):
    """Queries, documents and the numbers of each query's relevant documents."""

    queries: list[list[int]]
    documents: list[list[int]]
    relevant: list[list[int]]
    kept: list[bool]

    def arrays(self) -> tuple[Ragged, Ragged, Ragged, np.ndarray]:
        """What the bitext is made of, in the order of the arguments."""
        lists = (self.queries, self.documents, self.relevant)
        queries, documents, relevant = (ragged(rows, np.int32) for rows in lists)
        return queries, documents, relevant, np.array(self.kept, bool)


def all_kept(
    queries: list[list[int]], documents: list[list[int]], relevant: list[list[int]], vocabulary_size: int = 100
) -> Judged:
    return Judged(queries, documents, relevant, [True] * vocabulary_size)


def bitext_blocks(
    queries: Ragged,
    documents: Ragged,
    relevant: Ragged,
    kept: np.ndarray,
    options: BitextOptions = DEFAULT_OPTIONS,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Bitext]:
    """The whole bitext block by block; `share` (rank, number of ranks) takes every n-th query of each block."""
    rank, ranks = share
    for first, last in query_blocks(relevant, documents.offsets):
        yield make_bitext(queries, documents, relevant, kept, np.arange(first + rank, last, ranks), options)


def pairs_of(blocks: Iterable[Bitext]) -> list[Pair]:
    pairs: list[Pair] = []
    for source, target, _ in blocks:
        assert source.values.dtype == target.values.dtype == np.int32
        assert source.rows == target.rows
        pairs += [(tuple(source.row(i).tolist()), tuple(target.row(i).tolist())) for i in range(source.rows)]
    return pairs


def bitext_of(judged: Judged, options: BitextOptions | None = None) -> list[Pair]:
    return pairs_of(bitext_blocks(*judged.arrays(), options or BitextOptions()))


def plain_bitext(judged: Judged, options: BitextOptions) -> list[Pair]:
    """By lists and slices."""

    def kept_tokens(tokens: list[int]) -> Tokens:
        return tuple(token for token in tokens if token in range(len(judged.kept)) and judged.kept[token])

    pairs: list[Pair] = []
    for query, numbers in zip(map(kept_tokens, judged.queries), judged.relevant, strict=True):
        for document in (kept_tokens(judged.documents[number]) for number in numbers):
            if not query or not document:
                continue
            size = math.ceil(options.chunk * len(query)) or len(document)
            while document:
                piece, document = document[:size], document[size:]
                shorter, longer = sorted([len(piece), len(query)])
                if longer / shorter <= options.length_ratio:
                    pairs += [(piece, query), (query, piece)] if options.symmetric else [(piece, query)]
    return pairs


@st.composite
def judged_queries(draw: st.DrawFn) -> Judged:
    """Few words; unknown ones (below 0), ones outside of the vocabulary and ones that are not kept; empty texts."""
    size = draw(st.integers(1, 5))
    tokens = st.integers(-2, size + 1)
    documents = draw(st.lists(st.lists(tokens, max_size=40), min_size=1, max_size=5))
    queries = draw(st.lists(st.lists(tokens, max_size=14), max_size=5))
    numbers = st.lists(st.integers(0, len(documents) - 1), max_size=3, unique=True)
    relevant = draw(st.lists(numbers, min_size=len(queries), max_size=len(queries)))
    return Judged(queries, documents, relevant, draw(st.lists(st.booleans(), min_size=size, max_size=size)))


all_options = st.builds(
    BitextOptions, st.sampled_from([0.0, 0.5, 1.0, 1.5, 4.0]), st.booleans(), st.sampled_from([1.0, 2.5, 9.0])
)


# ------------------------------------------------------------------------------------------------- chunks


def test_chunks_by_hand() -> None:
    """Three query tokens: chunks of ceil(4.5) = 5 document tokens; the last one has what is left."""
    judged = all_kept([[1, 2, 3]], [list(range(10, 22))], [[0]])
    query, chunks = (1, 2, 3), [(10, 11, 12, 13, 14), (15, 16, 17, 18, 19), (20, 21)]
    assert bitext_of(judged) == [pair for chunk in chunks for pair in ((chunk, query), (query, chunk))]


@settings(deadline=None, max_examples=300)
@given(judged=judged_queries(), options=all_options)
def test_the_bitext_equals_plain_loops(judged: Judged, options: BitextOptions) -> None:
    assert bitext_of(judged, options) == plain_bitext(judged, options)


@settings(deadline=None, max_examples=100)
@given(judged=judged_queries())
def test_the_bitext_of_the_paper_equals_plain_loops(judged: Judged) -> None:
    assert bitext_of(judged) == plain_bitext(judged, BitextOptions(1.5, True, 9.0))


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 100])
def test_a_chunk_has_half_as_many_tokens_again_as_the_query_rounded_up(tokens: int) -> None:
    judged = all_kept([[0] * tokens], [[1] * 1000], [[0]])
    lengths = [len(source) for source, _ in bitext_of(judged, BitextOptions(symmetric=False))]
    assert set(lengths[:-1]) == {(3 * tokens + 1) // 2}


@pytest.mark.parametrize(("query", "document", "pairs"), [(9, 1, 2), (10, 1, 0), (1, 9, 2), (1, 10, 0), (2, 18, 2)])
def test_lengths_may_differ_by_a_factor_of_9_and_not_more(query: int, document: int, pairs: int) -> None:
    judged = all_kept([[0] * query], [[1] * document], [[0]])
    assert len(bitext_of(judged, BitextOptions(chunk=0))) == pairs


def test_only_the_rest_of_a_document_is_dropped_where_it_is_too_short() -> None:
    """Ten query tokens, 16 document tokens: one chunk of 15, and one token that is left over."""
    judged = all_kept([[0] * 10], [[1] * 16], [[0]])
    assert bitext_of(judged, BitextOptions(symmetric=False)) == [((1,) * 15, (0,) * 10)]


def test_tokens_that_are_not_kept_count_for_nothing() -> None:
    """Two of four query tokens are left: chunks of 3 out of the four document tokens that are left."""
    judged = Judged([[-1, 1, 4, 2]], [[3, -7, 1, 4, 4, 2, 0, 9, 3]], [[0]], [False, True, True, True, False])
    assert bitext_of(judged, BitextOptions(symmetric=False)) == [((3, 1, 2), (1, 2)), ((3,), (1, 2))]


def test_queries_and_documents_without_tokens_are_skipped() -> None:
    judged = Judged([[], [-1, 3], [0]], [[], [-1, 3, 3], [1]], [[2], [2], [0, 1, 2]], [True, True, True, False])
    assert bitext_of(judged) == [((1,), (0,)), ((0,), (1,))]


def test_every_relevant_document_of_a_query_is_taken_and_no_other() -> None:
    judged = all_kept([[0], [1], [2]], [[10], [11], [12], [13]], [[3, 1], [], [1]])
    assert bitext_of(judged, BitextOptions(symmetric=False)) == [((13,), (0,)), ((11,), (0,)), ((11,), (2,))]


def test_whole_documents() -> None:
    judged = all_kept([[0, 1], [2]], [[10, 11, 12, 13, 14], [10, 11]], [[0, 1], [0]])
    expected = [((10, 11, 12, 13, 14), (0, 1)), ((10, 11), (0, 1)), ((10, 11, 12, 13, 14), (2,))]
    assert bitext_of(judged, BitextOptions(chunk=0, symmetric=False)) == expected


def test_in_one_direction_documents_are_sources_and_queries_targets() -> None:
    judged = all_kept([[0, 1]], [[10, 11, 12, 13]], [[0]])
    forward, both = bitext_of(judged, BitextOptions(symmetric=False)), bitext_of(judged)
    assert forward == [((10, 11, 12), (0, 1)), ((13,), (0, 1))]
    assert Counter(both) == Counter(forward) + Counter((target, source) for source, target in forward)


@pytest.mark.parametrize(
    "judged",
    [all_kept([], [[1]], []), all_kept([[0], [1]], [[1]], [[], []]), Judged([[0]], [[0]], [[0]], [])],
    ids=["no queries", "nothing relevant", "nothing kept"],
)
def test_there_may_be_nothing_to_pair(judged: Judged) -> None:
    assert bitext_of(judged) == []


# ------------------------------------------------------------------------------------------------- blocks


@settings(deadline=None, max_examples=150)
@given(judged=judged_queries(), tokens=st.integers(1, 120))
def test_blocks_of_any_size_hold_the_same_pairs_in_the_same_order(judged: Judged, tokens: int) -> None:
    arrays = judged.arrays()
    blocks = query_blocks(arrays[2], arrays[1].offsets, tokens)
    assert [row for first, last in blocks for row in range(first, last)] == list(range(len(judged.queries)))
    bitexts = [make_bitext(*arrays, np.arange(first, last)) for first, last in blocks]
    assert pairs_of(bitexts) == bitext_of(judged)


@settings(deadline=None, max_examples=150)
@given(judged=judged_queries(), tokens=st.integers(1, 120))
def test_a_block_without_its_first_query_stays_within_its_size(judged: Judged, tokens: int) -> None:
    _, documents, relevant, _ = judged.arrays()
    lengths = [sum(len(judged.documents[number]) for number in numbers) for numbers in judged.relevant]
    for first, last in query_blocks(relevant, documents.offsets, tokens):
        assert sum(lengths[first + 1 : last]) <= tokens


def test_small_blocks_are_many() -> None:
    judged = all_kept([[0]] * 6, [[1] * 5], [[0]] * 6)
    _, documents, relevant, _ = judged.arrays()
    assert {last - first for first, last in query_blocks(relevant, documents.offsets, 10)} <= {1, 2}
    assert query_blocks(relevant, documents.offsets, 1) == [(i, i + 1) for i in range(6)]
    assert query_blocks(relevant, documents.offsets) == [(0, 6)]


def test_the_number_of_blocks_does_not_grow_with_the_bitext_until_memory_bounds_them() -> None:
    """500 queries with a document each; tokens of a document: what gives the wanted total."""
    relevant = Ragged(np.arange(501), np.arange(500, dtype=np.int32))

    def blocks(tokens: int, largest: int | None = None) -> int:
        return len(query_blocks(relevant, np.linspace(0, tokens, 501).astype(np.int64), largest))

    assert blocks(SMALLEST_BLOCK) == 1
    assert blocks(4 * SMALLEST_BLOCK) == 4
    assert {blocks(times * BLOCKS * SMALLEST_BLOCK, 10**9) for times in (1, 2, 4, 8)} == {BLOCKS}
    assert blocks(80 * SMALLEST_BLOCK, largest=2 * SMALLEST_BLOCK) == 40


def test_the_largest_block_takes_an_eighth_of_the_memory() -> None:
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert largest_block() * 150 == pytest.approx(int(memory.split()[1]) * 1024 / 8, rel=0.01)


def longer_than_a_block() -> tuple[Ragged, Ragged, Ragged, np.ndarray]:
    """Document 1 has more tokens than a block; only 40 of them are known. Eleven queries ask for it now and then."""
    long = np.full(SMALLEST_BLOCK + 50, -1, np.int32)
    long[:: len(long) // 40 + 1] = np.arange(40) % 7
    documents = ragged([[0, 1, 2, 3], long, [4, 5, 6]], np.int32)
    relevant = ragged([[0], [1], [2], [0, 1], [1], [], [2, 0], [0], [1, 2], [1], [2]], np.int32)
    queries = ragged([[i % 7, (i + 1) % 7, 5][: i % 3 + 1] for i in range(11)], np.int32)
    return queries, documents, relevant, np.ones(7, bool)


def test_a_document_may_be_longer_than_a_block() -> None:
    queries, documents, relevant, kept = longer_than_a_block()
    blocks = list(bitext_blocks(queries, documents, relevant, kept))
    lists = ([rows.row(i).tolist() for i in range(rows.rows)] for rows in (queries, documents, relevant))
    assert len(blocks) > 3
    assert pairs_of(blocks) == plain_bitext(Judged(*lists, kept.tolist()), BitextOptions())


# ------------------------------------------------------------------------------------------------- shares


@settings(deadline=None, max_examples=100)
@given(judged=judged_queries(), ranks=st.integers(1, 7))
def test_the_shares_of_all_ranks_are_the_bitext(judged: Judged, ranks: int) -> None:
    shares = [list(bitext_blocks(*judged.arrays(), share=(rank, ranks))) for rank in range(ranks)]
    assert len({len(blocks) for blocks in shares}) == 1
    assert Counter(pair for blocks in shares for pair in pairs_of(blocks)) == Counter(bitext_of(judged))


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_all_ranks_have_equally_many_blocks(ranks: int) -> None:
    arrays = longer_than_a_block()
    alone = list(bitext_blocks(*arrays))
    shares = [list(bitext_blocks(*arrays, share=(rank, ranks))) for rank in range(ranks)]
    assert {len(blocks) for blocks in shares} == {len(alone)}
    for number, block in enumerate(alone):
        together = Counter(pair for blocks in shares for pair in pairs_of([blocks[number]]))
        assert together == Counter(pairs_of([block]))


# ---------------------------------------------------------------------------------- kept tokens and files


def test_ties_of_frequency_go_to_the_smaller_id() -> None:
    frequency = np.array([3, 5, 3, 9, 3])
    assert most_frequent(frequency, 3).tolist() == [True, True, False, True, False]
    assert most_frequent(frequency, 4).tolist() == [True, True, True, True, False]


def test_tokens_that_the_collection_does_not_have_are_never_kept() -> None:
    frequency = np.array([0, 2, 0, 1])
    assert most_frequent(frequency, 3).tolist() == [False, True, False, True]
    assert most_frequent(frequency, 100).tolist() == [False, True, False, True]
    assert most_frequent(np.zeros(0, np.int64), 3).tolist() == []


@given(frequency=st.lists(st.integers(0, 4), max_size=12), count=st.integers(0, 15))
def test_the_most_frequent_tokens_equal_a_sort(frequency: list[int], count: int) -> None:
    ranked = sorted(range(len(frequency)), key=lambda token: (-frequency[token], token))
    expected = {token for token in ranked[:count] if frequency[token]}
    assert set(np.flatnonzero(most_frequent(np.array(frequency, np.int64), count)).tolist()) == expected


def test_documents_may_be_memory_mapped(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(-1, 30, rng.integers(0, 60)).tolist() for _ in range(40)]
    judged = all_kept(texts[:20], texts[20:], [rng.integers(0, 20, 2).tolist() for _ in range(20)], 25)
    queries, documents, relevant, kept = judged.arrays()
    for name, array in documents._asdict().items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = Ragged(*(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in documents._fields))
    pairs = pairs_of(bitext_blocks(queries, mapped, relevant, kept))
    assert pairs == plain_bitext(judged, BitextOptions()) and pairs


def test_pairs_that_the_length_ratio_leaves_out_are_counted() -> None:
    queries, relevant = ragged([[0] * 10], np.int32), ragged([[0]], np.int32)
    documents = ragged([[0] * 31], np.int32)  # chunks of 15, 15 and 1 tokens
    for symmetric, left_out in ((True, 2), (False, 1)):
        options = BitextOptions(symmetric=symmetric)
        bitext = make_bitext(queries, documents, relevant, np.ones(1, bool), np.arange(1), options)
        assert bitext.dropped == left_out and bitext.source.rows == 2 * left_out
