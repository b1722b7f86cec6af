"""Forward index of one field: the unique tokens of each document and how often each occurs in it.

All re-scoring on the CPU (BM25, Model 1) reads this index and nothing else. On disk it is a folder of plain ``.npy``
files that are memory-mapped when opened; it is built block by block from the token sequences of the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from lexical.index.array_file import ArrayWriter, map_array, read_range
from lexical.index.ragged import Ragged, offsets_of

DOCUMENTS_PER_BLOCK = 20_000


class ForwardIndex(NamedTuple):
    """CSR arrays; row = document, tokens ascending in a row. A posting is one unique token of one document."""

    offsets: np.ndarray  # (documents + 1,) int64
    tokens: np.ndarray  # (postings,) int32 token ids
    counts: np.ndarray  # (postings,) int32 occurrences of the token in the document
    lengths: np.ndarray  # (documents,) int32 tokens of the document: repeats counted, and those outside the vocabulary
    document_frequency: np.ndarray  # (vocabulary,) int64 documents that contain the token
    collection_frequency: np.ndarray  # (vocabulary,) int64 occurrences in the collection
    idf: np.ndarray  # (vocabulary,) float64 ln(1 + (N - df + 0.5) / (df + 0.5)); 0 for a token of no document

    @property
    def documents(self) -> int:
        return len(self.lengths)

    @property
    def vocabulary_size(self) -> int:
        return len(self.document_frequency)

    @property
    def mean_length(self) -> float:
        return float(np.sum(self.lengths, dtype=np.int64)) / max(1, self.documents)


def build_forward_index(blocks: Iterable[Ragged], vocabulary_size: int, folder: Path) -> None:
    """Write the forward index of the documents in `blocks` (row = document, values = token ids).

    A token below 0 is not in the vocabulary: it counts towards the length of its document and has no posting.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document_frequency = np.zeros(vocabulary_size, np.int64)
    collection_frequency = np.zeros(vocabulary_size, np.int64)
    postings = documents = 0
    with (
        ArrayWriter(folder / "offsets.npy", np.int64) as offsets,
        ArrayWriter(folder / "tokens.npy", np.int32) as tokens,
        ArrayWriter(folder / "counts.npy", np.int32) as counts,
        ArrayWriter(folder / "lengths.npy", np.int32) as lengths,
    ):
        offsets.append(np.zeros(1, np.int64))
        for block in blocks:
            known = block.select(block.values >= 0)
            keys = known.row_numbers() * vocabulary_size + known.values
            unique, occurrences = np.unique(keys, return_counts=True)
            rows, row_tokens = np.divmod(unique, max(1, vocabulary_size))
            offsets.append(postings + offsets_of(np.bincount(rows, minlength=block.rows))[1:])
            tokens.append(row_tokens)
            counts.append(occurrences)
            lengths.append(block.lengths())
            postings += len(unique)
            documents += block.rows
            document_frequency += np.bincount(row_tokens, minlength=vocabulary_size)
            collection_frequency += np.bincount(known.values, minlength=vocabulary_size)
    np.save(folder / "document_frequency.npy", document_frequency)
    np.save(folder / "collection_frequency.npy", collection_frequency)
    df = document_frequency.astype(np.float64)
    np.save(folder / "idf.npy", np.where(df > 0, np.log1p((documents - df + 0.5) / (df + 0.5)), 0.0))


def open_forward_index(folder: Path) -> ForwardIndex:
    return ForwardIndex(*(map_array(folder / f"{name}.npy") for name in ForwardIndex._fields))


def read_document_blocks(folder: Path, documents: int = DOCUMENTS_PER_BLOCK) -> Iterator[Ragged]:
    """Read the rows of ``offsets.npy`` and ``tokens.npy``, `documents` at a time, never all in memory."""
    offsets = np.load(folder / "offsets.npy")
    for first in range(0, len(offsets) - 1, documents):
        bounds = offsets[first : first + documents + 1]
        yield Ragged(bounds - bounds[0], read_range(folder / "tokens.npy", bounds[0], bounds[-1]))


def token_counts(index: ForwardIndex, queries: Ragged, candidates: Ragged) -> tuple[np.ndarray, np.ndarray]:
    """Count the query tokens in the candidate documents; row i of `candidates` belongs to row i of `queries`.

    Returns:
        starts: (queries + 1,) int64 first value of each query.
        counts: (values,) int32 count of each token of the query in its first candidate, in its second one, and so on.
    """
    starts = offsets_of(queries.lengths() * candidates.lengths())
    return starts, _token_counts(*queries, *candidates, index.offsets, index.tokens, index.counts, starts)


@njit(cache=True, nogil=True)
def find_token(tokens: np.ndarray, start: int, end: int, token: int) -> int:
    """Return the position of `token` in the ascending ``tokens[start:end]``, or -1."""
    position = start + int(np.searchsorted(tokens[start:end], token))
    return position if position < end and tokens[position] == token else -1


@njit(cache=True, nogil=True, parallel=True)
def _token_counts(q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, starts):  # type: ignore[no-untyped-def]
    values = np.zeros(starts[-1], np.int32)
    for q in prange(len(q_offsets) - 1):
        k = starts[q]
        for pair in range(c_offsets[q], c_offsets[q + 1]):
            doc = c_docs[pair]
            for i in range(q_offsets[q], q_offsets[q + 1]):
                if q_tokens[i] >= 0:
                    posting = find_token(tokens, offsets[doc], offsets[doc + 1], q_tokens[i])
                    if posting >= 0:
                        values[k] = counts[posting]
                k += 1
    return values
