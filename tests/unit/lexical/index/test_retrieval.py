"""Retrieval from our ``bm25s`` index: the scores of the formula, of stock ``bm25s``, saved, loaded and in threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.bm25 import BM25Parameters
from lexical.index.ragged import Ragged, ragged
from lexical.index.retrieval import BLOCK, QUERIES_PER_BATCH, RetrievalIndex
from tests import ROOT
from tests.fixtures.plain_reference import plain_bm25
from tests.fixtures.tiny_collections import TinyCollection, forward_index_of, seeded_collection, tiny_collections

settings_of_bm25 = st.builds(BM25Parameters, k1=st.floats(0, 3), b=st.floats(0, 1))


@pytest.fixture(scope="module")
def collection() -> TinyCollection:
    """More queries than one batch; some queries and documents are empty, some query words unknown."""
    made = seeded_collection(documents=120, queries=QUERIES_PER_BATCH + 200)
    return made._replace(queries=[[-1, *query] if i % 5 == 0 else query for i, query in enumerate(made.queries)])


@pytest.fixture(scope="module")
def index(collection: TinyCollection) -> RetrievalIndex:
    return RetrievalIndex.build(collection.forward_index(), BM25Parameters(0.9, 0.4))


def as_dicts(results: tuple[Ragged, np.ndarray]) -> list[dict[int, float]]:
    """document -> score of each query, in the order found."""
    candidates, scores = results
    spans = zip(candidates.offsets[:-1], candidates.offsets[1:], strict=True)
    return [dict(zip(candidates.values[a:b].tolist(), scores[a:b].tolist(), strict=True)) for a, b in spans]


def plain_matches(collection: TinyCollection, query: list[int], parameters: BM25Parameters) -> dict[int, float]:
    scores = {i: plain_bm25(collection.documents, query, i, *parameters) for i in range(len(collection.documents))}
    return {number: score for number, score in scores.items() if score > 0}


@settings(deadline=None, max_examples=120)
@given(collection=tiny_collections(), parameters=settings_of_bm25)
def test_all_matching_documents_are_found_with_the_scores_of_the_formula(
    collection: TinyCollection, parameters: BM25Parameters
) -> None:
    index = RetrievalIndex.build(collection.forward_index(), parameters)
    results = as_dicts(index.top(collection.query_tokens(), depth=100, threads=1))
    assert results == [
        pytest.approx(plain_matches(collection, query, parameters), abs=1e-4) for query in collection.queries
    ]


def test_the_best_come_first_and_no_more_than_asked_for(collection: TinyCollection, index: RetrievalIndex) -> None:
    parameters, depth = BM25Parameters(0.9, 0.4), 7
    results = as_dicts(index.top(collection.query_tokens(), depth, threads=1))
    assert len(results) == len(collection.queries)
    cut = 0
    for query, documents in zip(collection.queries, results, strict=True):
        expected = plain_matches(collection, query, parameters)
        assert list(documents.values()) == pytest.approx(sorted(expected.values(), reverse=True)[:depth], abs=1e-4)
        assert documents == pytest.approx({number: expected[number] for number in documents}, abs=1e-4)
        cut += len(expected) > depth
    assert cut > 100  # the depth was felt


def exact_ranking(index: RetrievalIndex, query: list[int], id_order: np.ndarray, depth: int) -> list[tuple[int, float]]:
    """(document, score) by the float32 scores of bm25s, score down, then place of the id; all documents are sorted."""
    scores = index._index.get_scores_from_ids(query) if query else np.zeros(len(id_order), np.float32)
    order = np.lexsort((id_order, -scores))
    return [(int(i), float(scores[i])) for i in order[:depth] if scores[i] > 0]


@settings(deadline=None, max_examples=200)
@given(
    collection=tiny_collections(), parameters=settings_of_bm25, depth=st.integers(1, 10), seed=st.integers(0, 100),
    copies=st.integers(1, 5),
)  # fmt: skip
def test_ties_are_ordered_and_cut_by_id(
    collection: TinyCollection, parameters: BM25Parameters, depth: int, seed: int, copies: int
) -> None:
    """Copies of documents have equal scores."""
    collection = collection._replace(documents=collection.documents * copies)
    index = RetrievalIndex.build(collection.forward_index(), parameters)
    orders = np.random.default_rng(seed).permutation(len(collection.documents)), None
    for id_order in orders:
        found = as_dicts(index.top(collection.query_tokens(), depth, threads=2, id_order=id_order))
        rows = np.arange(len(collection.documents)) if id_order is None else id_order
        queries = [[token for token in query if token >= 0] for query in collection.queries]
        assert [list(row.items()) for row in found] == [exact_ranking(index, query, rows, depth) for query in queries]


def test_ties_across_blocks_of_documents_are_cut_by_id() -> None:
    """More documents than three blocks, most of them equal to thousands of others."""
    rng = np.random.default_rng(3)
    documents = 3 * BLOCK + 17
    texts = [[0], [1, 1], [0, 1], [2, 0, 0], []]
    collection = [texts[kind] for kind in rng.integers(0, len(texts), documents)]
    collection[-1] = [3]
    index = RetrievalIndex.build(forward_index_of(collection, 4), BM25Parameters(0.9, 0.4))
    queries, id_order = [[0], [1, 0], [0, 0, 2], [3], [3, 1]], rng.permutation(documents).astype(np.int32)
    for depth in (1, 100, documents):
        found = as_dicts(index.top(ragged(queries, np.int32), depth, threads=1, id_order=id_order))
        for query, row in zip(queries, found, strict=True):
            assert list(row.items()) == exact_ranking(index, query, id_order, depth)


def test_scores_equal_those_of_stock_bm25s(collection: TinyCollection, index: RetrievalIndex) -> None:
    stock = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numpy")
    stock.index([[f"w{token}" for token in document] for document in collection.documents], show_progress=False)
    results = as_dicts(index.top(collection.query_tokens(), depth=len(collection.documents), threads=1))
    compared = 0
    for query, documents in zip(collection.queries, results, strict=True):
        words = [f"w{token}" for token in query if token >= 0]
        scores = stock.get_scores(words) if words else np.zeros(len(collection.documents))
        assert documents == pytest.approx({int(i): float(scores[i]) for i in np.flatnonzero(scores)}, abs=1e-5)
        compared += len(documents)
    assert compared > 1000


def test_saved_and_loaded_memory_mapped_it_finds_the_same(
    collection: TinyCollection, index: RetrievalIndex, tmp_path: Path
) -> None:
    index.save(tmp_path / "index")
    loaded = RetrievalIndex.load(tmp_path / "index")
    assert isinstance(loaded._index.scores["data"], np.memmap)
    assert isinstance(loaded._index.scores["indices"], np.memmap)
    queries = collection.query_tokens()
    assert as_dicts(loaded.top(queries, 20, threads=1)) == as_dicts(index.top(queries, 20, threads=1))


def test_the_number_of_threads_does_not_change_what_is_found(
    collection: TinyCollection, index: RetrievalIndex, tmp_path: Path
) -> None:
    """In a process of its own: numba fixes the largest number of threads when it starts."""
    index.save(tmp_path / "index")
    np.savez(tmp_path / "queries.npz", *collection.query_tokens())
    script = """
import sys
from pathlib import Path
import numpy as np
from lexical.index.ragged import Ragged
from lexical.index.retrieval import RetrievalIndex

folder = Path(sys.argv[1])
queries = Ragged(*np.load(folder / "queries.npz").values())
for threads in (2, 4):
    candidates, scores = RetrievalIndex.load(folder / "index").top(queries, 20, threads)
    np.savez(folder / f"{threads}.npz", *candidates, scores)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NUMBA_NUM_THREADS": "4"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    candidates, scores = index.top(collection.query_tokens(), 20, threads=1)
    for threads in (2, 4):
        found = list(np.load(tmp_path / f"{threads}.npz").values())
        assert [array.tobytes() for array in found] == [array.tobytes() for array in (*candidates, scores)], threads


def test_progress_tells_of_every_query_once(collection: TinyCollection, index: RetrievalIndex) -> None:
    told: list[int] = []
    index.top(collection.query_tokens(), 5, threads=1, on_batch=told.append)
    assert sum(told) == len(collection.queries) and max(told) == QUERIES_PER_BATCH


def test_queries_without_known_words_find_nothing_and_keep_their_rows() -> None:
    collection = TinyCollection(3, [[0, 1], [1]], [[-1, -1], [], [1], [2], [-1, 0]])
    index = RetrievalIndex.build(collection.forward_index(), BM25Parameters())
    candidates, scores = index.top(collection.query_tokens(), depth=10, threads=1)
    assert candidates.offsets.tolist() == [0, 0, 0, 2, 2, 3]
    assert candidates.values.tolist() == [1, 0, 0]  # the shorter document first
    assert candidates.values.dtype == np.int32 and scores.dtype == np.float32


def test_a_set_without_a_single_known_word() -> None:
    collection = TinyCollection(1, [[0]], [[-1], []])
    index = RetrievalIndex.build(collection.forward_index(), BM25Parameters())
    candidates, scores = index.top(collection.query_tokens(), depth=10, threads=1)
    assert candidates.offsets.tolist() == [0, 0, 0] and len(candidates.values) == len(scores) == 0
