"""Query and document as the sequences that an encoder reads: [CLS] q [SEP] d_i [SEP], a document in equal chunks.

A document of more than `chunk` pieces is cut into n = ceil(length / chunk) chunks of ceil(length / n) pieces (the last
one perhaps shorter), at most `chunks` of them; what lies behind is not read. With 512 positions and 32 query pieces a
chunk has at most 477. Sequences of all documents are sorted by length and padded in groups: a group is what the encoder
is given at once. Where a piece of a query or document then stands in its output is worked out here, so that what comes
behind the encoder is plain gathering.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lexical.errors import require
from lexical.index.ragged import Ragged, offsets_of

SPECIALS = 3  # [CLS] and two [SEP]


class ChunkLimits(NamedTuple):
    """How much of a query and of a document is read."""

    positions: int = 512  # of the encoder
    query_pieces: int = 32
    chunks: int = 3

    @property
    def chunk(self) -> int:
        """Document pieces of a chunk at the most."""
        return self.positions - self.query_pieces - SPECIALS

    @property
    def least(self) -> int:
        """Positions for the query, the special tokens and one piece of a document."""
        return self.query_pieces + SPECIALS + 1

    def check(self) -> ChunkLimits:
        require(self.chunks >= 1, "--model.chunks", self.chunks, "1 or more")
        require(self.query_pieces >= 1, "--model.query_pieces", self.query_pieces, "1 or more")
        require(self.positions >= self.least, "--model.positions", self.positions, "more than the query and 3 specials")
        return self

    def window(self, positions: int) -> ChunkLimits:
        """One shorter window of a document."""
        wanted = "more than the query and 3 specials, --model.positions at most"
        require(self.least <= positions <= self.positions, "--model.train_window", positions, wanted)
        return ChunkLimits(positions, self.query_pieces, 1)


class Specials(NamedTuple):
    """Token ids of the encoder's vocabulary."""

    cls: int
    sep: int
    pad: int


class Group(NamedTuple):
    """Sequences of about one length."""

    tokens: np.ndarray  # (sequences, longest) int64
    types: np.ndarray  # (sequences, longest) int64: 0 up to the first [SEP], 1 behind it
    mask: np.ndarray | None  # (sequences, longest) bool, None where nothing is padded


class EncoderInputs(NamedTuple):
    """Some (query, document) pairs. `*_at`: the place of a piece in the output of all groups, laid out one by one."""

    groups: tuple[Group, ...]
    cls_at: np.ndarray  # (chunks,) int64
    cls_pair: np.ndarray  # (chunks,) int64 the pair that a chunk belongs to
    query_at: np.ndarray  # (pairs, longest query) int64; 0 where masked
    query_mask: np.ndarray  # (pairs, longest query) bool
    document_at: np.ndarray  # (pairs, longest document) int64; 0 where masked
    document_mask: np.ndarray  # (pairs, longest document) bool

    @property
    def padding(self) -> float:
        """Share of the positions that the encoder computes in vain."""
        return padding_of(self.groups)


class PairInputs(NamedTuple):
    """Training pairs, encoded apart or together: each of these has an autograd graph of its own."""

    graphs: tuple[EncoderInputs, ...]

    @property
    def padding(self) -> float:
        return padding_of([group for graph in self.graphs for group in graph.groups])


def padding_of(groups: Sequence[Group]) -> float:
    """Share of the positions that are padding; of arrays or of tensors."""
    sizes = [group.tokens.shape[0] * group.tokens.shape[1] for group in groups]
    filled = [size if group.mask is None else int(group.mask.sum()) for size, group in zip(sizes, groups, strict=True)]
    return 1 - sum(filled) / sum(sizes) if sizes else 0.0


def chunk_lengths(length: int, limits: ChunkLimits) -> list[int]:
    """Pieces of each chunk of a document; an empty document has one empty chunk."""
    length = min(length, limits.chunk * limits.chunks)
    count = max(1, -(-length // limits.chunk))
    size = -(-length // count)
    return [max(0, min(size, length - start * size)) for start in range(count)]


class GroupLimits(NamedTuple):
    """What a device likes to be given at once, in positions."""

    positions: int = 4096  # at the most, padding included, unless it is a single sequence
    padding: int = 32  # more than this costs more than another group would
    alone: bool = False  # a sequence is padded as if it were alone, to `own_lengths`, not to its longest neighbour

    def for_scores(self) -> GroupLimits:
        """Groups in which what a sequence is padded to, and whether it has a mask, depends on the sequence alone.

        An encoder rounds its sums by the length that it is given; so its vectors depend on the sequence alone too, on a
        CPU to the last bit.
        """
        return self._replace(padding=0, alone=True)


def own_lengths(lengths: np.ndarray, positions: int) -> np.ndarray:
    """What sequences are padded to, each by itself: a multiple of 8 up to 256, of 16 up to 512 and so on; 16 at the
    least, as matrix products round a few rows in another way; `positions` at the most."""
    step = 1 << np.maximum(3, np.log2(lengths).astype(np.int64) - 4)
    return np.minimum(np.maximum(16, -(-lengths // step) * step), positions)


def encoder_inputs(
    queries: Ragged, documents: Ragged, limits: ChunkLimits, specials: Specials, at_once: GroupLimits
) -> EncoderInputs:
    """The sequences of the pairs (row i of `queries`, row i of `documents`)."""
    query_lengths = np.minimum(queries.lengths(), limits.query_pieces)
    chunks = [chunk_lengths(int(length), limits) for length in documents.lengths()]
    document_lengths = np.array([sum(one) for one in chunks], np.int64)
    pair = np.repeat(np.arange(len(chunks)), [len(one) for one in chunks])  # of each sequence
    pieces = np.array([length for one in chunks for length in one], np.int64)
    lengths = query_lengths[pair] + pieces + SPECIALS
    padded = own_lengths(lengths, limits.positions) if at_once.alone else lengths
    groups, base = [], np.zeros(len(pair), np.int64)  # base: where a sequence begins in the output
    start = np.zeros(len(pair), np.int64)  # of a chunk in its document
    for i in range(1, len(pair)):
        start[i] = start[i - 1] + pieces[i - 1] if pair[i] == pair[i - 1] else 0
    at = 0
    full = padded == lengths
    for members in [*_groups(padded, np.flatnonzero(full), at_once), *_groups(padded, np.flatnonzero(~full), at_once)]:
        longest = int(padded[members].max())
        tokens = np.full((len(members), longest), specials.pad, np.int64)
        types = np.zeros((len(members), longest), np.int64)
        for row, i in enumerate(members):
            q, d = int(query_lengths[pair[i]]), int(pieces[i])
            tokens[row, 0] = specials.cls
            tokens[row, 1 : 1 + q] = queries.row(pair[i])[:q]
            tokens[row, 1 + q] = specials.sep
            tokens[row, 2 + q : 2 + q + d] = documents.row(pair[i])[start[i] : start[i] + d]
            tokens[row, 2 + q + d] = specials.sep
            types[row, 2 + q : 3 + q + d] = 1
            base[i] = at + row * longest
        at += tokens.size
        mask = np.arange(longest) < lengths[members][:, None]
        groups.append(Group(tokens, types, None if mask.all() else mask))
    first = np.searchsorted(pair, np.arange(len(chunks)))  # the first chunk of each pair
    query_at, query_mask = _padded(query_lengths, base[first] + 1)
    document_at, document_mask = _padded(document_lengths, np.zeros(len(chunks), np.int64))
    inside = Ragged(offsets_of(pieces), np.zeros(int(pieces.sum()), np.int64))
    owner = inside.row_numbers()  # the sequence of each document piece
    document_at[document_mask] = (base + 2 + query_lengths[pair])[owner] + inside.positions()
    return EncoderInputs(tuple(groups), base, pair, query_at, query_mask, document_at, document_mask)


def _groups(lengths: np.ndarray, among: np.ndarray, limits: GroupLimits) -> list[np.ndarray]:
    """The sequences `among` all, from the longest to the shortest, cut into groups within the limits."""
    order, found = among[np.argsort(-lengths[among], kind="stable")], []
    first, padding = 0, 0
    for place in range(1, len(order)):
        longest, count = int(lengths[order[first]]), place - first + 1
        padding += longest - int(lengths[order[place]])
        if count * longest > limits.positions or padding > limits.padding:
            found.append(order[first:place])
            first, padding = place, 0
    return [*found, order[first:]] if len(order) else []


def slices_of(lengths: np.ndarray, most: int) -> list[np.ndarray]:
    """Places of the lengths, longest first: so many together that the longest times their number is `most` at most."""
    order, found, first = np.argsort(-lengths, kind="stable"), [], 0
    while first < len(order):
        count = max(1, most // max(64, int(lengths[order[first]])))
        found.append(order[first : first + count])
        first += count
    return found


def _padded(lengths: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, longest): first[i], first[i] + 1, ... in row i, 0 behind its length; and the mask."""
    places = np.arange(int(lengths.max(initial=0)))
    mask = places < lengths[:, None]
    return np.where(mask, first[:, None] + places, 0), mask
