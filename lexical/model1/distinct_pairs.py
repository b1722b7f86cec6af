"""The distinct (query token, document token) pairs of a batch.

T(q|d) of a context-free model depends on the two tokens alone, and a batch repeats its pairs: in a document, in the
documents of a query, in the queries of a batch. So T is computed once for each distinct pair, and

    P(q|D) = sum over the unique tokens d of D of T(q|d) * tf(d, D) / |D|

gathers from these values. The kernels release the GIL, so that the next batch is prepared in a thread beside training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lexical.batches import RankingBatch
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged


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
    documents = np.asarray(candidates.values, np.int64)
    arrays = _distinct_pairs(
        queries.offsets, np.asarray(queries.values), candidates.offsets, documents,
        forward.offsets, forward.tokens, forward.counts, forward.lengths, forward.vocabulary_size,
    )  # fmt: skip
    return DistinctPairs._make([*arrays, len(documents)])


@njit(cache=True, nogil=True)
def _distinct_pairs(  # type: ignore[no-untyped-def]
    q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, lengths, vocabulary_size
):
    # uses: the distinct tokens of each query
    use_token = np.empty(len(q_tokens), np.int64)
    use_query = np.empty(len(q_tokens), np.int64)
    use_repeats = np.zeros(len(q_tokens), np.int64)
    first_use = np.zeros(len(q_offsets), np.int64)
    uses = 0
    for query in range(len(q_offsets) - 1):
        words = np.sort(q_tokens[q_offsets[query] : q_offsets[query + 1]])
        for i in range(len(words)):
            if i == 0 or words[i] != words[i - 1]:
                use_token[uses], use_query[uses] = words[i], query
                uses += 1
            use_repeats[uses - 1] += 1
        first_use[query + 1] = uses

    # rows: the distinct tokens of the query for each of its candidates
    rows = np.sum(np.diff(first_use) * np.diff(c_offsets))
    row_offsets = np.zeros(rows + 1, np.int64)
    row_repeats = np.empty(rows, np.float32)
    row_document = np.empty(rows, np.int64)
    first_row = np.empty(len(c_docs), np.int64)
    used = np.zeros(vocabulary_size, np.bool_)
    at = entries = 0
    for query in range(len(q_offsets) - 1):
        for c in range(c_offsets[query], c_offsets[query + 1]):
            first_row[c] = at
            start, end = offsets[c_docs[c]], offsets[c_docs[c] + 1]
            used[tokens[start:end]] = True
            for use in range(first_use[query], first_use[query + 1]):
                if use_token[use] >= 0:
                    entries += end - start
                row_repeats[at], row_document[at] = use_repeats[use], c
                at += 1
                row_offsets[at] = entries
    document_tokens = np.flatnonzero(used)
    index_of = np.empty(vocabulary_size, np.int64)
    for i in range(len(document_tokens)):
        index_of[document_tokens[i]] = i

    # query token by query token: pairs are numbered as they are met
    query_tokens = np.empty(uses, np.int64)
    pair_query = np.empty(entries, np.int64)
    pair_document = np.empty(entries, np.int64)
    pair_same = np.empty(entries, np.bool_)
    entry_pair = np.empty(entries, np.int64)
    entry_weight = np.empty(entries, np.float32)
    entry_row = np.empty(entries, np.int64)
    pair_of = np.empty(vocabulary_size, np.int64)
    met_with = np.full(vocabulary_size, -1, np.int64)
    pairs = distinct = 0
    order = np.argsort(use_token[:uses], kind="mergesort")
    for i in range(uses):
        use = order[i]
        q, query = use_token[use], use_query[use]
        if q < 0:
            continue
        if distinct == 0 or query_tokens[distinct - 1] != q:
            query_tokens[distinct] = q
            distinct += 1
        for c in range(c_offsets[query], c_offsets[query + 1]):
            doc = c_docs[c]
            row = first_row[c] + use - first_use[query]
            at = row_offsets[row]
            scale = np.float32(1.0) / np.float32(max(1, lengths[doc]))
            for k in range(offsets[doc], offsets[doc + 1]):
                d = tokens[k]
                if met_with[d] != q:
                    met_with[d], pair_of[d] = q, pairs
                    pair_query[pairs], pair_document[pairs], pair_same[pairs] = distinct - 1, index_of[d], d == q
                    pairs += 1
                entry_pair[at], entry_weight[at], entry_row[at] = pair_of[d], counts[k] * scale, row
                at += 1
    return (
        query_tokens[:distinct].copy(), document_tokens, pair_query[:pairs].copy(), pair_document[:pairs].copy(),
        pair_same[:pairs].copy(), entry_pair, entry_weight, entry_row, row_repeats, row_document,
    )  # fmt: skip


def tokens_of(forward: ForwardIndex, documents: np.ndarray) -> np.ndarray:
    """Return (tokens,) int64 ascending: the distinct tokens of the documents."""
    used = np.zeros(forward.vocabulary_size, np.bool_)
    used[Ragged(forward.offsets, forward.tokens).take(np.unique(documents).astype(np.int64)).values] = True
    return np.flatnonzero(used)
