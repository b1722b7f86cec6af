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

    query_tokens: np.ndarray  # (distinct query tokens,) int64 ascending, group by group
    query_groups: np.ndarray  # (distinct query tokens,) int64 ascending
    document_tokens: np.ndarray  # (distinct document tokens,) int64 ascending
    pair_query: np.ndarray  # (pairs,) int64 index into query_tokens, ascending
    pair_document: np.ndarray  # (pairs,) int64 index into document_tokens
    pair_same: np.ndarray  # (pairs,) bool: the query token is the document token
    entry_pair: np.ndarray  # (entries,) int64 the pair of a document token, for each row
    entry_weight: np.ndarray  # (entries,) float32 tf(d, D) / |D|
    entry_row: np.ndarray  # (entries,) int64 ascending; an unknown query token has no entries
    row_token: np.ndarray  # (rows,) int64 the query token, -1 if it is unknown
    row_repeats: np.ndarray  # (rows,) float32 occurrences of the token in the query
    row_document: np.ndarray  # (rows,) int64 the candidate of the row
    documents: int  # candidates of all queries


def distinct_pairs(batch: RankingBatch, group: np.ndarray | None = None) -> DistinctPairs:
    """Pair the tokens of all queries of the batch with the tokens of their candidates.

    Args:
        batch: queries and their candidates.
        group: (queries,) queries of different groups share no pair, because T(q|d) depends on the group, too; a query
            token then stands in `query_tokens` once for each group that has it.
    """
    forward, queries, candidates = batch[:3]
    documents, size = candidates.values.astype(np.int64), forward.vocabulary_size
    # the distinct tokens of each query, ascending; an unknown one is -1
    keys = queries.row_numbers() * (size + 1) + queries.values + 1
    distinct, repeats = np.unique(keys, return_counts=True)
    query, token = distinct // (size + 1), distinct % (size + 1) - 1
    of_queries = Ragged(offsets_of(np.bincount(query, minlength=queries.rows)), np.arange(len(token)))
    rows = of_queries.take(candidates.row_numbers())
    row_document = rows.row_numbers()
    grouped = (0 if group is None else group[query]) * np.int64(size) + token  # of the known tokens, where token >= 0
    query_keys = np.unique(grouped[token >= 0])
    # the distinct tokens of each document
    tokens = Ragged(forward.offsets, forward.tokens).take(documents)
    counts = Ragged(forward.offsets, forward.counts).take(documents)
    inverse = np.float32(1) / np.maximum(1, forward.lengths[documents]).astype(np.float32)
    weights = counts.values.astype(np.float32) * inverse[counts.row_numbers()]
    document_tokens = tokens_of(forward, documents)
    index_of = np.zeros(size, np.int64)
    index_of[document_tokens] = np.arange(len(document_tokens))
    # both together: a cell for each query token and document token, numbered where some row has it
    known = np.flatnonzero(token[rows.values] >= 0)
    entries = Ragged(tokens.offsets, np.arange(len(tokens.values))).take(row_document[known])
    entry_row = known[entries.row_numbers()]
    query_index = np.searchsorted(query_keys, grouped)[rows.values[entry_row]]
    cell = query_index * len(document_tokens) + index_of[tokens.values[entries.values]]
    used = np.zeros(len(query_keys) * len(document_tokens), np.bool_)
    used[cell] = True
    pair_query, pair_document = np.divmod(np.flatnonzero(used), max(1, len(document_tokens)))
    entry_pair = (np.cumsum(used) - 1)[cell]
    query_groups, query_tokens = np.divmod(query_keys, max(1, size))
    return DistinctPairs(
        query_tokens, query_groups, document_tokens, pair_query, pair_document,
        query_tokens[pair_query] == document_tokens[pair_document], entry_pair, weights[entries.values], entry_row,
        token[rows.values], repeats[rows.values].astype(np.float32), row_document, len(documents),
    )  # fmt: skip


def tokens_of(forward: ForwardIndex, documents: np.ndarray) -> np.ndarray:
    """Return (tokens,) int64 ascending: the distinct tokens of the documents."""
    used = np.zeros(forward.vocabulary_size, np.bool_)
    used[Ragged(forward.offsets, forward.tokens).take(np.unique(documents).astype(np.int64)).values] = True
    return np.flatnonzero(used)
