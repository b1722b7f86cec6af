"""First-stage retrieval: a ``bm25s`` index (numba backend), built from the forward index.

``bm25s`` documents `build_index_from_ids` as the place to build an index in another way. Ours reads the forward index
instead of lists of Python integers: the same scores, in a fraction of the time and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import bm25s
import numpy as np
from numba import get_num_threads, njit

from lexical.bm25 import BM25Parameters
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, offsets_of

QUERIES_PER_BATCH = 256


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

        With `id_order` the project's tie rule decides between equal scores at the cut; without it bm25s decides.
        """
        threads = min(max(1, threads), get_num_threads())
        deeper = min(depth + 1, int(self._index.scores["num_docs"]))  # shows whether a tie crosses the cut
        documents, scores = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        lengths = np.zeros(queries.rows, np.int64)
        known = queries.select(queries.values >= 0)
        rows = np.flatnonzero(known.lengths())  # a query without known words has no candidates
        on_batch(queries.rows - len(rows))
        for start in range(0, len(rows), QUERIES_PER_BATCH):
            batch = rows[start : start + QUERIES_PER_BATCH]
            texts = [known.row(row).tolist() for row in batch]
            best, values = self._index.retrieve(texts, k=deeper, n_threads=threads, show_progress=False)
            if id_order is not None and deeper > depth:
                for i in np.flatnonzero((values[:, depth - 1] == values[:, depth]) & (values[:, depth] > 0)):
                    best[i, :depth] = self._cut_by_id(texts[i], values[i, :depth], id_order)
            best, values = best[:, :depth], values[:, :depth]
            lengths[batch] = (values > 0).sum(axis=1)
            documents.append(best[values > 0])
            scores.append(values[values > 0])
            on_batch(len(batch))
        return (
            Ragged(offsets_of(lengths), np.concatenate(documents).astype(np.int32)),
            np.concatenate(scores).astype(np.float32),
        )

    def _cut_by_id(self, tokens: list[int], best: np.ndarray, id_order: np.ndarray) -> np.ndarray:
        """Return the documents of a query's `best` scores (descending); the last score goes to the smallest ids."""
        scores = self._index.get_scores_from_ids(tokens)
        eligible = np.flatnonzero(scores >= best[-1])
        return eligible[np.lexsort((id_order[eligible], -scores[eligible]))[: len(best)]]


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
