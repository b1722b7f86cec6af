"""The distinct (query token, document token) pairs of a batch.

T(q|d) of a context-free model depends on the two tokens alone, and a batch repeats its pairs: in a document, in the
documents of a query, in the queries of a batch. So T is computed once for each distinct pair, and

    P(q|D) = sum over the unique tokens d of D of T(q|d) * tf(d, D) / |D|

gathers from these values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lexical.batches import RankingBatch
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, offsets_of


class DistinctPairs(NamedTuple):
    """A batch of queries and documents. A row is a distinct token of a query and one of its documents: one P(q|D)."""

    query_tokens: np.ndarray  # (distinct query tokens,) int64 ascending
    document_tokens: np.ndarray  # (distinct document tokens,) int64 ascending
    pair_query: np.ndarray  # (pairs,) int64 index into query_tokens, ascending
    pair_document: np.ndarray  # (pairs,) int64 index into document_tokens
    pair_same: np.ndarray  # (pairs,) bool: the query token is the document token
    entry_pair: np.ndarray  # (entries,) int64 the pair of a document token, for each row
    entry_weight: np.ndarray  # (entries,) float32 tf(d, D) / |D|
    entry_row: np.ndarray  # (entries,) int64 ascending; an unknown query token has no entries
    row_repeats: np.ndarray  # (rows,) float32 occurrences of the token in the query
    row_document: np.ndarray  # (rows,) int64 the candidate of the row
    documents: int  # candidates of all queries


def distinct_pairs(batch: RankingBatch) -> DistinctPairs:
    """Pair the tokens of all queries of the batch with the tokens of their candidates."""
    forward, queries, candidates = batch[:3]
    documents, size = candidates.values.astype(np.int64), forward.vocabulary_size
    # the distinct tokens of each query, ascending; an unknown one is -1
    keys = queries.row_numbers() * (size + 1) + queries.values + 1
    distinct, repeats = np.unique(keys, return_counts=True)
    query, token = distinct // (size + 1), distinct % (size + 1) - 1
    of_queries = Ragged(offsets_of(np.bincount(query, minlength=queries.rows)), np.arange(len(token)))
    rows = of_queries.take(candidates.row_numbers())
    row_token, row_document = token[rows.values], rows.row_numbers()
    # the distinct tokens of each document
    tokens = Ragged(forward.offsets, forward.tokens).take(documents)
    counts = Ragged(forward.offsets, forward.counts).take(documents)
    inverse = np.float32(1) / np.maximum(1, forward.lengths[documents]).astype(np.float32)
    weights = counts.values.astype(np.float32) * inverse[counts.row_numbers()]
    # both together
    known = np.flatnonzero(row_token >= 0)
    entries = Ragged(tokens.offsets, np.arange(len(tokens.values))).take(row_document[known])
    entry_row = known[entries.row_numbers()]
    pairs, entry_pair = np.unique(row_token[entry_row] * size + tokens.values[entries.values], return_inverse=True)
    pair_query, pair_document = np.divmod(pairs, max(1, size))
    query_tokens, document_tokens = np.unique(token[token >= 0]), np.unique(tokens.values).astype(np.int64)
    return DistinctPairs(
        query_tokens, document_tokens, np.searchsorted(query_tokens, pair_query),
        np.searchsorted(document_tokens, pair_document), pair_query == pair_document, entry_pair,
        weights[entries.values], entry_row, repeats[rows.values].astype(np.float32), row_document,
        len(documents),
    )  # fmt: skip


def tokens_of(forward: ForwardIndex, documents: np.ndarray) -> np.ndarray:
    """Return (tokens,) int64 ascending: the distinct tokens of the documents."""
    used = np.zeros(forward.vocabulary_size, np.bool_)
    used[Ragged(forward.offsets, forward.tokens).take(np.unique(documents).astype(np.int64)).values] = True
    return np.flatnonzero(used)
