"""Query and document as the sequences that an encoder reads: [CLS] q [SEP] d_i [SEP], a document in equal chunks.

A document of more than `chunk` pieces is cut into n = ceil(length / chunk) chunks of ceil(length / n) pieces (the last
one perhaps shorter), at most `chunks` of them; the rest is not read. With 512 positions and 32 query pieces a chunk has
at most 477. Sequences of all documents are sorted by length and padded in groups: the encoder reads one group at a
time. Where each piece of a query or document stands in the encoder's output is worked out here, so that what follows
the encoder is plain gathering.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lexical.errors import UserError
from lexical.index.ragged import Ragged, ragged

SPECIALS = 3  # [CLS] and two [SEP]


class ChunkLimits(NamedTuple):
    """How much of a query and of a document is read."""

    positions: int = 512  # of the encoder
    query_pieces: int = 32
    chunks: int = 3

    @property
    def chunk(self) -> int:
        """The most document pieces of a chunk."""
        return self.positions - self.query_pieces - SPECIALS

    @property
    def pieces(self) -> int:
        """The most pieces of a document that are read."""
        return self.chunk * self.chunks


class Specials(NamedTuple):
    """Token ids of the encoder's vocabulary."""

    cls: int
    sep: int
    pad: int

    @classmethod
    def of(cls, vocabulary: list[str], backbone: str) -> Specials:
        """Look up [CLS], [SEP] and [PAD]; `backbone` is named in the error message."""
        ids = {piece: number for number, piece in enumerate(vocabulary) if piece in ("[CLS]", "[SEP]", "[PAD]")}
        if len(ids) < 3:
            raise UserError(
                f"--model.backbone {backbone}: the word pieces of this data have no [CLS], [SEP] and [PAD]; "
                "give the tokenizer of the backbone: --data.tokenizer"
            )
        return cls(ids["[CLS]"], ids["[SEP]"], ids["[PAD]"])


class GroupLimits(NamedTuple):
    """How large the groups are that a device computes at once, in positions."""

    positions: int = 4096  # padding included; a longer sequence is a group of its own
    padding: int = 32  # more than this costs more than a further group
    alone: bool = False  # pad a sequence as if it were alone, to `padded_lengths`, not to the longest of its group


class Group(NamedTuple):
    """Sequences of about the same length."""

    tokens: np.ndarray  # (sequences, longest) int64
    types: np.ndarray  # (sequences, longest) int64: 0 up to the first [SEP], 1 behind it
    mask: np.ndarray | None  # (sequences, longest) bool; None where nothing is padded


class EncoderInputs(NamedTuple):
    """(query, document) pairs. `*_at`: position of a piece in the outputs of all groups, flattened and concatenated."""

    groups: tuple[Group, ...]
    cls_at: np.ndarray  # (chunks,) int64
    cls_pair: np.ndarray  # (chunks,) int64 the pair that a chunk belongs to
    query_at: np.ndarray  # (pairs, longest query) int64; 0 where masked
    query_mask: np.ndarray  # (pairs, longest query) bool
    document_at: np.ndarray  # (pairs, longest document) int64; 0 where masked
    document_mask: np.ndarray  # (pairs, longest document) bool


class PairInputs(NamedTuple):
    """Training pairs; each `EncoderInputs` has an autograd graph of its own."""

    graphs: tuple[EncoderInputs, ...]

    @property
    def padding(self) -> float:
        """The share of the positions that are padding."""
        groups = [group for graph in self.graphs for group in graph.groups]
        positions = sum(group.tokens.shape[0] * group.tokens.shape[1] for group in groups)
        return sum(0 if group.mask is None else int((~group.mask).sum()) for group in groups) / max(1, positions)


def chunk_lengths(length: int, limits: ChunkLimits) -> list[int]:
    """Return the pieces of each chunk of a document; an empty document has one empty chunk."""
    length = min(length, limits.pieces)
    count = max(1, -(-length // limits.chunk))
    size = -(-length // count)
    return [max(0, min(size, length - start * size)) for start in range(count)]


def best_window(query: np.ndarray, document: np.ndarray, width: int) -> int:
    """Return where the window of `width` pieces starts that has most of the query.

    Each distinct query piece counts 1 over the whole document, divided among its occurrences: frequent pieces do not
    decide. Of windows with equal sums, the middle one of the first run of neighbours: its matches are near its centre.
    """
    matches = np.isin(document, query)
    if len(document) <= width or not matches.any():
        return 0
    _, number, counts = np.unique(document, return_inverse=True, return_counts=True)
    summed = np.concatenate([[0.0], np.cumsum(matches / counts[number])])
    sums = summed[width:] - summed[:-width]
    best = np.flatnonzero(sums >= sums.max() - 1e-9)
    last = np.flatnonzero(np.diff(best, append=best[-1] + 2) > 1)[0]  # of the first run of neighbours
    return int(best[last // 2])


def padded_lengths(lengths: np.ndarray, positions: int) -> np.ndarray:
    """Return what sequences are padded to, each by itself.

    A multiple of 8 up to 256, of 16 up to 512 and so on; at least 16, because matrix products round few rows
    differently; at most `positions`.
    """
    step = 1 << np.maximum(3, np.log2(lengths).astype(np.int64) - 4)
    return np.minimum(np.maximum(16, -(-lengths // step) * step), positions)


def encoder_inputs(
    queries: Ragged, documents: Ragged, limits: ChunkLimits, specials: Specials, group_limits: GroupLimits
) -> EncoderInputs:
    """Lay out the pairs (row i of `queries`, row i of `documents`)."""
    query_lengths = np.minimum(queries.lengths(), limits.query_pieces)
    chunks = ragged([chunk_lengths(int(length), limits) for length in documents.lengths()], np.int64)
    pieces, pair, first_chunk = chunks.values, chunks.row_numbers(), chunks.offsets[:-1]  # a chunk is a sequence
    before = np.cumsum(pieces) - pieces  # document pieces of all earlier sequences
    start = before - before[first_chunk][pair]  # of a chunk in its document
    lengths = query_lengths[pair] + pieces + SPECIALS
    padded = padded_lengths(lengths, limits.positions) if group_limits.alone else lengths
    full = padded == lengths
    groups, total = [], 0
    base = np.zeros(len(pair), np.int64)  # where a sequence begins in the output
    for chosen in (np.flatnonzero(full), np.flatnonzero(~full)):
        for members in _grouped(padded, chosen, group_limits):
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
                base[i] = total + row * longest
            total += tokens.size
            mask = np.arange(longest) < lengths[members][:, None]
            groups.append(Group(tokens, types, None if mask.all() else mask))
    query_at, query_mask = _consecutive(query_lengths, base[first_chunk] + 1)
    document_lengths = np.minimum(documents.lengths(), limits.pieces)
    document_at, document_mask = _consecutive(document_lengths, np.zeros_like(document_lengths))
    document_at[document_mask] = np.arange(pieces.sum()) + np.repeat(base + 2 + query_lengths[pair] - before, pieces)
    return EncoderInputs(tuple(groups), base, pair, query_at, query_mask, document_at, document_mask)


def _grouped(lengths: np.ndarray, chosen: np.ndarray, limits: GroupLimits) -> list[np.ndarray]:
    """Cut the `chosen` sequences, from the longest to the shortest, into groups within the limits."""
    order = chosen[np.argsort(-lengths[chosen], kind="stable")]
    groups, first, padding = [], 0, 0
    for position in range(1, len(order)):
        longest, count = int(lengths[order[first]]), position - first + 1
        padding += longest - int(lengths[order[position]])
        if count * longest > limits.positions or padding > limits.padding:
            groups.append(order[first:position])
            first, padding = position, 0
    return [*groups, order[first:]] if len(order) else []


def slices_by_length(lengths: np.ndarray, pieces: int) -> list[np.ndarray]:
    """Return the row numbers, longest first, in slices: the longest row times their number is at most `pieces`."""
    order, slices, first = np.argsort(-lengths, kind="stable"), [], 0
    while first < len(order):
        count = max(1, pieces // max(64, int(lengths[order[first]])))
        slices.append(order[first : first + count])
        first += count
    return slices


def _consecutive(lengths: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, longest): first[i], first[i] + 1, ... in row i, 0 behind its length; and the mask."""
    columns = np.arange(int(lengths.max(initial=0)))
    mask = columns < lengths[:, None]
    return np.where(mask, first[:, None] + columns, 0), mask
