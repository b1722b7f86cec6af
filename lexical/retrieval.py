"""First-stage retrieval: a ``bm25s`` index (numba backend) made from the forward index.

``bm25s`` documents `build_index_from_ids` as the place to build an index in another way. Ours reads the forward index
instead of lists of Python integers: the same scores, in a fraction of the time and memory. ``bm25s`` does not keep
the idf values: see `lexical.bm25`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import bm25s
import numpy as np
from numba import njit

from lexical.bm25 import BM25Parameters, inverse_document_frequency
from lexical.forward_index import ForwardIndex
from lexical.ragged import Ragged, offsets_of

QUERIES_PER_BATCH = 256


class RetrievalIndex:
    """Top-k retrieval by BM25 over the token ids of one field."""

    def __init__(self, index: bm25s.BM25) -> None:
        self._index = index
        self._index.unique_token_ids_set = range(
            len(index.scores["indptr"]) - 1
        )  # every id of the vocabulary, without a set of them

    @classmethod
    def build(cls, forward: ForwardIndex, parameters: BM25Parameters) -> RetrievalIndex:
        index = bm25s.BM25(k1=parameters.k1, b=parameters.b, method="lucene", backend="numba")
        indptr = offsets_of(np.asarray(forward.document_frequency))
        data, indices = _score_postings(
            forward.offsets, forward.tokens, forward.counts, forward.lengths, indptr,
            inverse_document_frequency(forward), max(forward.mean_length, 1e-9), parameters.k1, parameters.b,
        )  # fmt: skip
        index.scores = {"data": data, "indices": indices, "indptr": indptr, "num_docs": forward.documents}
        index.vocab_dict = {"": forward.vocabulary_size}  # queries come as ids: no words are needed
        index.nonoccurrence_array = None
        return cls(index)

    def save(self, folder: Path) -> None:
        self._index.save(str(folder), show_progress=False)

    @classmethod
    def load(cls, folder: Path) -> RetrievalIndex:
        return cls(bm25s.BM25.load(str(folder), mmap=True, load_corpus=False))

    def top(
        self, queries: Ragged, depth: int, threads: int, on_batch: Callable[[int], None] = lambda done: None
    ) -> tuple[Ragged, np.ndarray]:
        """(candidates, scores): for each query the `depth` best documents with a score above 0, best first."""
        depth = min(depth, int(self._index.scores["num_docs"]))
        found_docs, found_scores, lengths = [], [], np.zeros(queries.rows, np.int64)
        for start in range(0, queries.rows, QUERIES_PER_BATCH):
            numbers = range(start, min(start + QUERIES_PER_BATCH, queries.rows))
            known = {i: row[row >= 0].tolist() for i in numbers if len(row := queries.row(i))}
            asked = [i for i in numbers if known.get(i)]  # a query without any known word has no candidates
            if asked:
                docs, scores = self._index.retrieve(
                    [known[i] for i in asked], k=depth, n_threads=max(1, threads), show_progress=False
                )
                kept = scores > 0
                lengths[asked] = kept.sum(axis=1)
                found_docs.append(docs[kept])
                found_scores.append(scores[kept])
            on_batch(len(numbers))
        values = np.concatenate(found_docs) if found_docs else np.zeros(0)
        scores = np.concatenate(found_scores) if found_scores else np.zeros(0)
        return Ragged(offsets_of(lengths), values.astype(np.int32)), scores.astype(np.float32)


@njit(cache=True, nogil=True)
def _score_postings(offsets, tokens, counts, lengths, indptr, idf, mean_length, k1, b):  # type: ignore[no-untyped-def]
    """The forward index turned round (column = token), each posting with its BM25 score."""
    data = np.empty(len(tokens), np.float32)
    indices = np.empty(len(tokens), np.int32)
    place = indptr[:-1].copy()
    for doc in range(len(lengths)):
        norm = k1 * (1.0 - b + b * lengths[doc] / mean_length)
        for i in range(offsets[doc], offsets[doc + 1]):
            token = tokens[i]
            data[place[token]] = idf[token] * counts[i] / (counts[i] + norm)
            indices[place[token]] = doc
            place[token] += 1
    return data, indices
