"""Bitext for Model 1: queries and chunks of their relevant documents (section "Non-parametric Model 1").

A relevant document is cut into contiguous chunks of 1.5 x the query's length, because EM learns best from pairs of
comparable length; each chunk is paired with the query in both directions (Jeon et al. 2005: a symmetrised corpus).
Pairs whose lengths differ by more than a factor of 9 are dropped, and so are tokens that the table will not contain:
rare ones, and words of the query that the collection does not have.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit

from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged

CHUNK = 1.5  # tokens of a chunk for each query token
LENGTH_RATIO = 9.0  # largest longer side / shorter side
TOKENS_PER_BLOCK = 2_500_000  # document tokens: bounds the memory of a block


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
    min_documents: int = 2  # tokens of fewer documents are dropped: they cannot help to find another one


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


def query_blocks(
    relevant: Ragged, document_offsets: np.ndarray, tokens: int = TOKENS_PER_BLOCK
) -> list[tuple[int, int]]:
    """Return (first, last + 1) query rows of blocks whose relevant documents have about `tokens` tokens in all."""
    lengths = document_offsets[relevant.values + 1] - document_offsets[relevant.values]
    reached = np.concatenate([[0], np.cumsum(lengths)])[relevant.offsets[1:]]  # (queries,) running sum
    total = int(reached[-1]) if len(reached) else 0
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
    inputs = (*queries, *documents, *relevant, kept, rows, options.chunk, options.symmetric, options.length_ratio)
    *sizes, dropped = _walk(False, *inputs, *_outputs(0, 0, 0))
    outputs = _outputs(*sizes)
    _walk(True, *inputs, *outputs)
    return Bitext(Ragged(*outputs[:2]), Ragged(*outputs[2:]), dropped)


def _outputs(pairs: int, source_tokens: int, target_tokens: int) -> list[np.ndarray]:
    return [
        np.zeros(pairs + 1, np.int64), np.empty(source_tokens, np.int32),
        np.zeros(pairs + 1, np.int64), np.empty(target_tokens, np.int32),
    ]  # fmt: skip


@njit(cache=True, nogil=True)
def _kept_tokens(values, start, end, kept, out):  # type: ignore[no-untyped-def]
    n = 0
    for i in range(start, end):
        token = values[i]
        if 0 <= token < len(kept) and kept[token]:
            out[n] = token
            n += 1
    return n


@njit(cache=True, nogil=True)
def _append(tokens, start, end, offsets, values, pair, size, write):  # type: ignore[no-untyped-def]
    if write:
        for i in range(start, end):
            values[size + i - start] = tokens[i]
        offsets[pair + 1] = size + end - start
    return size + end - start


@njit(cache=True, nogil=True)
def _walk(  # type: ignore[no-untyped-def]
    write, q_offsets, q_values, d_offsets, d_values, r_offsets, r_docs, kept, rows, chunk, symmetric, length_ratio,
    source_offsets, source, target_offsets, target,
):  # fmt: skip
    """Return the number of (pairs, source tokens, target tokens, dropped pairs); store them too if `write`."""
    longest_query, longest_document = 0, 0
    for row in rows:
        longest_query = max(longest_query, q_offsets[row + 1] - q_offsets[row])
        for r in range(r_offsets[row], r_offsets[row + 1]):
            longest_document = max(longest_document, d_offsets[r_docs[r] + 1] - d_offsets[r_docs[r]])
    query, document = np.empty(longest_query, np.int32), np.empty(longest_document, np.int32)
    pair, s, t, dropped = 0, 0, 0, 0
    for row in rows:
        n = _kept_tokens(q_values, q_offsets[row], q_offsets[row + 1], kept, query)
        if n == 0:
            continue
        for r in range(r_offsets[row], r_offsets[row + 1]):
            m = _kept_tokens(d_values, d_offsets[r_docs[r]], d_offsets[r_docs[r] + 1], kept, document)
            size = max(1, int(np.ceil(chunk * n))) if chunk > 0 else max(1, m)
            for start in range(0, m, size):
                end = min(start + size, m)
                if max(n, end - start) > length_ratio * min(n, end - start):
                    dropped += 2 if symmetric else 1
                    continue
                s = _append(document, start, end, source_offsets, source, pair, s, write)
                t = _append(query, 0, n, target_offsets, target, pair, t, write)
                pair += 1
                if symmetric:
                    s = _append(query, 0, n, source_offsets, source, pair, s, write)
                    t = _append(document, start, end, target_offsets, target, pair, t, write)
                    pair += 1
    return pair, s, t, dropped
