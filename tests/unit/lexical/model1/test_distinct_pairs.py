"""The distinct pairs of a batch are enough for log P(Q|D): with any T they give what loops over all tokens give."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lexical.batches import RankingBatch
from lexical.index.ragged import ragged
from lexical.model1.distinct_pairs import DistinctPairs, distinct_pairs, tokens_of
from tests.fixtures.tiny_collections import TinyCollection, tiny_collections

FLOOR = 1e-8


def batch_of(collection: TinyCollection, candidates: list[list[int]]) -> RankingBatch:
    return RankingBatch(collection.forward_index(), collection.query_tokens(), ragged(candidates, np.int32))


def scores_from(pairs: DistinctPairs, dense: np.ndarray) -> np.ndarray:
    """(documents,) log P(Q|D), by nothing but the arrays of `pairs`."""
    translation = dense[pairs.query_tokens[pairs.pair_query], pairs.document_tokens[pairs.pair_document]]
    p = np.zeros(len(pairs.row_repeats))
    np.add.at(p, pairs.entry_row, translation[pairs.entry_pair] * pairs.entry_weight)
    scores = np.zeros(pairs.documents)
    np.add.at(scores, pairs.row_document, np.log(np.maximum(p, FLOOR)) * pairs.row_repeats)
    return scores


def plain_scores(dense: np.ndarray, collection: TinyCollection, candidates: list[list[int]]) -> list[float]:
    """The formula, token by token."""
    scores = []
    for query, listed in zip(collection.queries, candidates, strict=True):
        for document in (collection.documents[number] for number in listed):
            score = 0.0
            for q in query:
                p = sum(dense[q, d] for d in document) / len(document) if q >= 0 and document else 0.0
                score += math.log(max(p, FLOOR))
            scores.append(score)
    return scores


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, TinyCollection, list[list[int]]]:
    """T, texts, and candidates of each query: none, some of them, the same one twice."""
    collection = draw(tiny_collections())
    numbers = st.lists(st.integers(0, len(collection.documents) - 1), max_size=5)
    size = collection.vocabulary_size
    elements = st.one_of(st.just(0.0), st.floats(2**-30, 1, width=32))
    dense = draw(arrays(np.float32, (size, size), elements=elements)).astype(np.float64)
    return dense, collection, [draw(numbers) for _ in collection.queries]


@settings(deadline=None, max_examples=300)
@given(drawn=batches())
def test_scores_equal_the_formula(drawn: tuple[np.ndarray, TinyCollection, list[list[int]]]) -> None:
    dense, collection, candidates = drawn
    scores = scores_from(distinct_pairs(batch_of(collection, candidates)), dense)
    np.testing.assert_allclose(scores, plain_scores(dense, collection, candidates), rtol=1e-6, atol=1e-6)


@settings(deadline=None, max_examples=200)
@given(drawn=batches())
def test_each_pair_that_a_query_meets_is_there_once(drawn: tuple[np.ndarray, TinyCollection, list[list[int]]]) -> None:
    _, collection, candidates = drawn
    pairs = distinct_pairs(batch_of(collection, candidates))
    met = {
        (q, d)
        for query, listed in zip(collection.queries, candidates, strict=True)
        for number in listed
        for d in collection.documents[number]
        for q in query
        if q >= 0
    }
    queries, documents = pairs.query_tokens[pairs.pair_query], pairs.document_tokens[pairs.pair_document]
    assert sorted(zip(queries.tolist(), documents.tolist(), strict=True)) == sorted(met)
    in_queries = {q for query in collection.queries for q in query if q >= 0}
    in_documents = {d for listed in candidates for number in listed for d in collection.documents[number]}
    assert pairs.query_tokens.tolist() == sorted(in_queries)
    assert pairs.document_tokens.tolist() == sorted(in_documents)
    for ascending in (pairs.pair_query, pairs.entry_row):
        assert (np.diff(ascending) >= 0).all()
    assert pairs.documents == sum(map(len, candidates))


def test_the_arrays_by_hand() -> None:
    """Two queries share the word 1; document 0 has the word 2 twice; an unknown word has a row without entries."""
    collection = TinyCollection(4, documents=[[2, 0, 2], [1]], queries=[[3, 1, 3], [-1, 1]])
    pairs = distinct_pairs(batch_of(collection, [[0], [1, 0]]))
    assert pairs.query_tokens.tolist() == [1, 3]
    assert pairs.document_tokens.tolist() == [0, 1, 2]
    assert pairs.pair_query.tolist() == [0, 0, 0, 1, 1]
    assert pairs.pair_document.tolist() == [0, 1, 2, 0, 2]
    assert pairs.row_document.tolist() == [0, 0, 1, 1, 2, 2]
    assert pairs.row_repeats.tolist() == [1, 2, 1, 1, 1, 1]
    assert pairs.entry_row.tolist() == [0, 0, 1, 1, 3, 5, 5]
    assert pairs.entry_pair.tolist() == [0, 2, 3, 4, 1, 0, 2]
    third = np.float32(1 / 3)
    assert pairs.entry_weight.tolist() == [third, 2 * third, third, 2 * third, 1, third, 2 * third]
    assert pairs.documents == 3


def test_types_are_what_tensors_are_indexed_with() -> None:
    pairs = distinct_pairs(batch_of(TinyCollection(2, [[0, 1]], [[1]]), [[0]]))
    assert [array.dtype.name for array in pairs[:-1]] == ["int64"] * 5 + [
        "bool",
        "int64",
        "float32",
        "int64",
        "int64",
        "float32",
        "int64",
    ]


def test_a_batch_may_be_empty() -> None:
    """A process that has no share of the last step: no queries at all."""
    pairs = distinct_pairs(batch_of(TinyCollection(3, [[0, 1]], []), []))
    assert [len(array) for array in pairs[:-1]] == [0] * 12
    assert pairs.documents == 0


def test_queries_without_candidates_and_candidates_of_an_empty_query_have_no_rows() -> None:
    pairs = distinct_pairs(batch_of(TinyCollection(3, [[0, 1]], [[2], []]), [[], [0, 0]]))
    assert len(pairs.pair_query) == len(pairs.row_repeats) == 0
    assert pairs.documents == 2
    assert scores_from(pairs, np.ones((3, 3))).tolist() == [0, 0]


@settings(deadline=None, max_examples=100)
@given(collection=tiny_collections(), data=st.data())
def test_tokens_of_documents_are_the_set_of_their_tokens(collection: TinyCollection, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(collection.documents) - 1), max_size=10))
    tokens = tokens_of(collection.forward_index(), np.array(chosen, np.int32))
    assert tokens.tolist() == sorted({token for number in chosen for token in collection.documents[number]})
    assert tokens.dtype == np.int64
