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
from numba import get_num_threads, njit

from lexical.bm25 import BM25Parameters
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, offsets_of

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
            forward.idf, max(forward.mean_length, 1e-9), parameters.k1, parameters.b,
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
        self,
        queries: Ragged,
        depth: int,
        threads: int,
        on_batch: Callable[[int], None] = lambda done: None,
        id_order: np.ndarray | None = None,
    ) -> tuple[Ragged, np.ndarray]:
        """(candidates, scores): for each query the `depth` best documents with a score above 0, best first.

        With `id_order` documents of equal score are cut by the project's tie rule; without it as bm25s happens to.
        """
        threads = min(max(1, threads), get_num_threads())
        one_more = min(depth + 1, int(self._index.scores["num_docs"]))  # shows whether a tie crosses the cut
        found_docs, found_scores, lengths = [], [], np.zeros(queries.rows, np.int64)
        for start in range(0, queries.rows, QUERIES_PER_BATCH):
            numbers = range(start, min(start + QUERIES_PER_BATCH, queries.rows))
            known = {i: row[row >= 0].tolist() for i in numbers if len(row := queries.row(i))}
            asked = [i for i in numbers if known.get(i)]  # a query without any known word has no candidates
            if asked:
                tokens = [known[i] for i in asked]
                docs, scores = self._index.retrieve(tokens, k=one_more, n_threads=threads, show_progress=False)
                if id_order is not None and one_more > depth:
                    for at in np.flatnonzero((scores[:, depth - 1] == scores[:, depth]) & (scores[:, depth] > 0)):
                        docs[at, :depth] = self._cut_by_id(tokens[at], scores[at, :depth], id_order)
                docs, scores = docs[:, :depth], scores[:, :depth]
                kept = scores > 0
                lengths[asked] = kept.sum(axis=1)
                found_docs.append(docs[kept])
                found_scores.append(scores[kept])
            on_batch(len(numbers))
        values = np.concatenate(found_docs) if found_docs else np.zeros(0)
        scores = np.concatenate(found_scores) if found_scores else np.zeros(0)
        return Ragged(offsets_of(lengths), values.astype(np.int32)), scores.astype(np.float32)

    def _cut_by_id(self, tokens: list[int], best: np.ndarray, id_order: np.ndarray) -> np.ndarray:
        """The documents of the scores `best` (descending) of one query; the last score goes to the smallest ids."""
        every = self._index.get_scores_from_ids(tokens)
        able = np.flatnonzero(every >= best[-1])
        return able[np.lexsort((id_order[able], -every[able]))[: len(best)]]


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
