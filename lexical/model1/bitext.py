"""Bitext for Model 1: queries and chunks of their relevant documents (section "Non-parametric Model 1").

A relevant document is cut into contiguous chunks of 1.5 x the query's length, because EM learns best from pairs of
comparable length; each chunk is paired with the query in both directions (Jeon et al. 2005: a symmetrised corpus).
Pairs whose lengths differ by more than a factor of 9 are dropped, and so are tokens that the table will not contain:
rare ones, and words of the query that the collection does not have.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, concatenated

CHUNK = 1.5  # tokens of a chunk for each query token
LENGTH_RATIO = 9.0  # largest longer side / shorter side
BLOCKS = 8  # of a bitext whose blocks fit into memory, see `query_blocks`
SMALLEST_BLOCK = 50_000  # document tokens: fewer are not worth a pass over the table
BYTES_PER_TOKEN = 150  # memory of a block while it is made or counted, for each document token
MEMORY_SHARE = 8  # a block takes at most one part in so many of the machine's memory


class Bitext(NamedTuple):
    """Sentence pairs: row i of `target` counts as a translation of row i of `source`."""

    source: Ragged  # token ids (int32)
    target: Ragged  # token ids (int32), as many rows
    dropped: int = 0  # pairs left out because of their lengths


class BitextOptions(NamedTuple):
    chunk: float = CHUNK  # 0: whole documents
    symmetric: bool = True  # False: only with documents as sources and queries as targets
    length_ratio: float = LENGTH_RATIO
    vocabulary: int = 1_000_000  # most frequent tokens of the collection that are kept
    min_documents: int = 1  # tokens of fewer documents are dropped


DEFAULT_OPTIONS = BitextOptions()


def most_frequent(collection_frequency: np.ndarray, count: int) -> np.ndarray:
    """Return (vocabulary,) bool: the `count` most frequent tokens of the collection; ties go to the smaller id."""
    kept = np.zeros(len(collection_frequency), bool)
    kept[np.argsort(-collection_frequency, kind="stable")[:count]] = True
    return kept & (collection_frequency > 0)


def kept_tokens(index: ForwardIndex, options: BitextOptions) -> np.ndarray:
    """Return (vocabulary,) bool: the tokens that go into the bitext."""
    frequent = most_frequent(index.collection_frequency, options.vocabulary)
    return frequent & (index.document_frequency >= options.min_documents)


def largest_block() -> int:
    """Return the document tokens of a block that takes an eighth of the machine's memory.

    The physical memory decides, not what is free of it: the same run always has the same blocks.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(SMALLEST_BLOCK, memory // MEMORY_SHARE // BYTES_PER_TOKEN)


def query_blocks(
    relevant: Ragged, document_offsets: np.ndarray, largest: int | None = None, smallest: int = SMALLEST_BLOCK
) -> list[tuple[int, int]]:
    """Return (first, last + 1) query rows of blocks that EM counts one after the other.

    For each block EM reads nearly its whole table, so the number of blocks is fixed, and time grows with the bitext and
    no faster. A single block would be slower: its sentence pairs are accessed out of order and leave the CPU's cache.

    Args:
        relevant: documents of each query.
        document_offsets: of the tokens of all documents.
        largest: document tokens of a block, about; default: `largest_block`. A larger bitext has more blocks.
        smallest: document tokens of a block, about. A smaller bitext has fewer blocks.
    """
    lengths = document_offsets[relevant.values + 1] - document_offsets[relevant.values]
    reached = np.concatenate([[0], np.cumsum(lengths)])[relevant.offsets[1:]]  # (queries,) running sum
    total = int(reached[-1]) if len(reached) else 0
    tokens = min(max(smallest, -(-total // BLOCKS)), largest or largest_block())
    blocks = -(-total // tokens)  # of equal size: a small last one would cost EM nearly as much as a full one
    numbers = np.maximum(1, -(-reached * blocks // max(1, total)))
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), relevant.rows]
    return [(first, last) for first, last in pairwise(bounds) if first < last]


def make_bitext(
    queries: Ragged,
    documents: Ragged,
    relevant: Ragged,
    kept: np.ndarray,
    rows: np.ndarray,
    options: BitextOptions = DEFAULT_OPTIONS,
) -> Bitext:
    """Return the bitext of the query `rows` and their `relevant` documents, of the tokens that are `kept` only.

    Args:
        queries: token ids; those below 0 are unknown words.
        documents: token ids of all documents; may be memory-mapped.
        relevant: documents of each query.
        kept: (vocabulary,) bool, see `kept_tokens`.
        rows: (n,) rows of `queries` and `relevant`.
        options: how documents are cut and which pairs are dropped.
    """
    queries, relevant = _only(kept, queries.take(rows)), relevant.take(rows)
    query = relevant.row_numbers()  # (relevant documents,)
    has_words = queries.lengths()[query] > 0
    query, documents = query[has_words], _only(kept, documents.take(relevant.values[has_words]))
    chunk_lengths = documents.lengths() if options.chunk <= 0 else np.ceil(options.chunk * queries.lengths()[query])
    chunk_lengths = np.maximum(1, chunk_lengths.astype(np.int64))
    starts = np.flatnonzero(documents.positions() % np.repeat(chunk_lengths, documents.lengths()) == 0)  # (chunks,)
    document = documents.row_numbers()[starts]
    chunks = Ragged(np.append(starts, len(documents.values)), documents.values)
    n, m = queries.lengths()[query[document]], chunks.lengths()
    fitting = np.flatnonzero(np.maximum(n, m) <= options.length_ratio * np.minimum(n, m))
    dropped = (chunks.rows - len(fitting)) * (2 if options.symmetric else 1)
    chunks, queries = chunks.take(fitting), queries.take(query[document[fitting]])
    if not options.symmetric:
        return Bitext(chunks, queries, dropped)
    sides = np.arange(2 * chunks.rows).reshape(2, -1).T  # (pairs, 2) rows of a chunk and of its query
    both = concatenated([chunks, queries])
    return Bitext(both.take(sides.ravel()), both.take(sides[:, ::-1].ravel()), dropped)


def _only(kept: np.ndarray, texts: Ragged) -> Ragged:
    """Return the texts without the tokens that are not kept, or not in the vocabulary at all."""
    return texts.select(np.append(kept, False)[texts.values.clip(-1, len(kept))])
