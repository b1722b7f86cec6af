"""First-stage retrieval: an index in the format of ``bm25s``, built from the forward index.

``bm25s`` documents `build_index_from_ids` as the place to build an index in another way. Ours reads the forward index
instead of lists of Python integers: the same scores, in a fraction of the time and memory. It is searched by a kernel
of its own: the same scores to the last bit, with the project's tie rule in the same pass (``benchmarks/retrieve.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bm25s
import numpy as np
from numba import get_num_threads, njit

from lexical.bm25 import BM25Parameters
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, offsets_of

QUERIES_PER_BATCH = 512
BLOCK = 1 << 15  # documents whose scores are summed at a time
GROUP = 64  # documents that are compared at a time


class RetrievalIndex:
    """Top-k retrieval by BM25 over the token ids of one field."""

    def __init__(self, index: bm25s.BM25) -> None:
        self._index = index
        self._index.unique_token_ids_set = range(len(index.scores["indptr"]) - 1)  # all ids, without a set of them

    @classmethod
    def build(cls, forward: ForwardIndex, parameters: BM25Parameters) -> RetrievalIndex:
        index = bm25s.BM25(k1=parameters.k1, b=parameters.b, method="lucene", backend="numba")
        indptr = offsets_of(np.asarray(forward.document_frequency))
        data, indices = _score_postings(
            forward.offsets, forward.tokens, forward.counts, forward.lengths, indptr,
            forward.idf, max(forward.mean_length, 1e-9), parameters.k1, parameters.b,
        )  # fmt: skip
        index.scores = {"data": data, "indices": indices, "indptr": indptr, "num_docs": forward.documents}
        index.vocab_dict = {"": forward.vocabulary_size}  # not needed: queries come as ids
        index.nonoccurrence_array = None
        return cls(index)

    def save(self, folder: Path) -> None:
        self._index.save(str(folder), show_progress=False)

    @classmethod
    def load(cls, folder: Path) -> RetrievalIndex:
        return cls(bm25s.BM25.load(str(folder), mmap=True, load_corpus=False))

    def top(
        self,
        queries: Ragged,
        depth: int,
        threads: int,
        on_batch: Callable[[int], None] = lambda queries: None,
        id_order: np.ndarray | None = None,
    ) -> tuple[Ragged, np.ndarray]:
        """Return (candidates, scores): for each query the `depth` best documents with a score above 0, best first.

        Equal scores are ordered, and cut, by `id_order`, the project's tie rule; by document row without it.
        """
        threads = min(max(1, threads), get_num_threads())
        index, total = self._index.scores, int(self._index.scores["num_docs"])
        order = np.arange(total, dtype=np.int32) if id_order is None else id_order
        depth = min(depth, total)

        def search(part: Ragged) -> tuple[np.ndarray, np.ndarray]:
            return _best_documents(*part, index["indptr"], index["indices"], index["data"], order, total, depth)

        documents, scores = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        lengths = np.zeros(queries.rows, np.int64)
        known = queries.select(queries.values >= 0)
        rows = np.flatnonzero(known.lengths())  # a query without known words has no candidates
        on_batch(queries.rows - len(rows))
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, len(rows), QUERIES_PER_BATCH):
                batch = rows[start : start + QUERIES_PER_BATCH]
                parts = [known.take(part) for part in np.array_split(batch, threads)]
                best, values = map(np.concatenate, zip(*pool.map(search, parts), strict=True))
                lengths[batch] = (values > 0).sum(axis=1)
                documents.append(best[values > 0])
                scores.append(values[values > 0])
                on_batch(len(batch))
        return Ragged(offsets_of(lengths), np.concatenate(documents)), np.concatenate(scores)


@njit(cache=True, nogil=True)
def _score_postings(offsets, tokens, counts, lengths, indptr, idf, mean_length, k1, b):  # type: ignore[no-untyped-def]
    """Transpose the forward index (column = token); return the BM25 score and the document of each posting."""
    data = np.empty(len(tokens), np.float32)
    indices = np.empty(len(tokens), np.int32)
    end = indptr[:-1].copy()  # of the postings of a token written so far
    for doc in range(len(lengths)):
        norm = k1 * (1.0 - b + b * lengths[doc] / mean_length)
        for i in range(offsets[doc], offsets[doc + 1]):
            token = tokens[i]
            data[end[token]] = idf[token] * counts[i] / (counts[i] + norm)
            indices[end[token]] = doc
            end[token] += 1
    return data, indices


@njit(cache=True, nogil=True)
def _best_documents(q_offsets, q_tokens, indptr, indices, data, id_order, documents, depth):  # type: ignore[no-untyped-def]
    """Return (queries, depth) documents and scores, score down, then `id_order` up; 0 where fewer documents match.

    The scores of one block of documents at a time are summed, in the order of the query's tokens, and looked through
    while they are in the processor's cache. A document is compared by one number: the bits of its score (which grow
    with it, as scores are positive) above its place in the order of the ids.
    """
    queries = len(q_offsets) - 1
    best, values = np.zeros((queries, depth), np.int32), np.zeros((queries, depth), np.float32)
    scores = np.zeros(BLOCK, np.float32)
    bits = scores.view(np.int32)
    keys, rows = np.empty(2 * depth, np.int64), np.empty(2 * depth, np.int32)  # of the best documents so far
    for q in range(queries):
        tokens = q_tokens[q_offsets[q] : q_offsets[q + 1]]
        posting, kept, least, lowest = indptr[tokens], 0, np.int64(1) << 32, np.int32(1)
        for first in range(0, documents, BLOCK):
            for i in range(len(tokens)):
                k, end = posting[i], indptr[tokens[i] + 1]
                while k < end and indices[k] < first + BLOCK:
                    scores[indices[k] - first] += data[k]
                    k += 1
                posting[i] = k
            for group in range(0, BLOCK, GROUP):
                reached = np.int32(0)
                for score in bits[group : group + GROUP]:  # without branches: the processor compares several at once
                    reached |= np.int32(score >= lowest)
                if not reached:
                    continue
                for j in range(group, group + GROUP):
                    key = (np.int64(bits[j]) << 32) + documents - id_order[min(first + j, documents - 1)]
                    if key > least:
                        keys[kept], rows[kept] = key, first + j
                        kept += 1
                        if kept == len(keys):
                            least, kept = np.partition(keys, depth)[depth], 0
                            lowest = np.int32(least >> 32)
                            for c in range(len(keys)):
                                if keys[c] >= least:
                                    keys[kept], rows[kept] = keys[c], rows[c]
                                    kept += 1
            scores[:] = 0
        order = np.argsort(-keys[:kept])[:depth]
        for rank in range(len(order)):
            best[q, rank] = rows[order[rank]]
            values[q, rank] = np.array([keys[order[rank]] >> 32], np.int32).view(np.float32)[0]
    return best, values
