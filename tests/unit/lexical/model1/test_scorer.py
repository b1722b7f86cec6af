"""Model 1 scores equal the formula written out over a dense table, for queries, documents and tables of any shape."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lexical.index.ragged import Ragged, offsets_of, ragged
from lexical.model1.scorer import collection_probability, model1_scores, per_query_token
from lexical.model1.table import TranslationTable
from tests import ROOT
from tests.fixtures.tiny_collections import TinyCollection, forward_index_of, seeded_collection, tiny_collections

SMOOTHING = (0.0, 1e-6, 0.1, 0.5, 1.0)


pytestmark = pytest.mark.usefixtures("one_thread")


def table_of(dense: np.ndarray) -> TranslationTable:
    """The entries of ``dense[q, d] = T(q|d)`` that are not 0."""
    q, d = np.nonzero(dense)
    rows = Ragged(offsets_of(np.bincount(q, minlength=len(dense))), d.astype(np.int32))
    return TranslationTable(rows, dense[q, d].astype(np.float32))


def seeded_table(vocabulary_size: int, share: float = 0.3, seed: int = 0) -> np.ndarray:
    """(vocabulary, vocabulary) float32 T with so large a share of entries; every tenth row is empty."""
    rng = np.random.default_rng(seed)
    shape = (vocabulary_size, vocabulary_size)
    dense = np.where(rng.random(shape) < share, rng.uniform(1e-4, 1, shape), 0)
    dense[::10] = 0
    return dense.astype(np.float32)


def plain_model1(
    dense: np.ndarray, documents: Sequence[Sequence[int]], query: Sequence[int], number: int, smoothing: float
) -> float:
    """Equation 1 in float64, token by token of the document: neither unique tokens nor an index."""
    table, document = dense.astype(np.float64), documents[number]
    collection = [token for text in documents for token in text]
    score = 0.0
    for q in query:
        is_known = 0 <= q < len(table)
        translated = sum(table[q, d] for d in document) / len(document) if is_known and document else 0.0
        background = collection.count(q) / len(collection) if q in collection else 1e-9
        p = (1 - smoothing) * translated + smoothing * background
        score += math.log(max(p, 1e-8) if smoothing == 0 else p)
    return score


def plain_scores(dense: np.ndarray, collection: TinyCollection, smoothing: float) -> list[float]:
    numbers = range(len(collection.documents))
    return [plain_model1(dense, collection.documents, q, n, smoothing) for q in collection.queries for n in numbers]


def scores_of_all_pairs(dense: np.ndarray, collection: TinyCollection, smoothing: float) -> np.ndarray:
    texts = (collection.forward_index(), collection.query_tokens(), collection.all_pairs())
    return model1_scores(table_of(dense), *texts, smoothing)


def assert_equal_scores(actual: np.ndarray, expected: Sequence[float] | np.ndarray) -> None:
    """To 1e-5, relative to scores beyond 1."""
    assert actual.dtype == np.float32 and np.isfinite(actual).all()
    error = np.abs(actual - np.asarray(expected)) / np.maximum(1, np.abs(expected))
    assert error.max(initial=0) <= 1e-5


@st.composite
def tables_and_collections(draw: st.DrawFn) -> tuple[np.ndarray, TinyCollection]:
    """Tables with many, few or no entries, probabilities of any size, words that no document has."""
    collection = draw(tiny_collections())
    probabilities = st.one_of(st.just(0.0), st.floats(2**-30, 2**-10, width=32), st.floats(2**-10, 1, width=32))
    size = collection.vocabulary_size
    return draw(arrays(np.float32, (size, size), elements=probabilities)), collection


# ------------------------------------------------------------------------------------------------- the formula


def test_scores_by_hand() -> None:
    """Two words, each half of the collection; lambda = 0.25 adds 0.125 to every P(q|D)."""
    dense = np.array([[0.6, 0.2], [0.1, 0.5]])  # row q, column d
    collection = TinyCollection(2, documents=[[0, 0, 1], [1]], queries=[[0], [0, 1], [0, 1, 0]])
    p_0, p_1 = 0.75 * (2 * 0.6 + 0.2) / 3 + 0.125, 0.75 * (2 * 0.1 + 0.5) / 3 + 0.125  # in document 0
    assert (p_0, p_1) == pytest.approx((0.475, 0.3))
    expected = [0.475, 0.275, 0.475 * 0.3, 0.275 * 0.5, 0.475**2 * 0.3, 0.275**2 * 0.5]
    scores = scores_of_all_pairs(dense, collection, 0.25)
    assert scores.tolist() == pytest.approx(np.log(expected).tolist(), rel=1e-6)


@settings(deadline=None, max_examples=300)
@given(drawn=tables_and_collections(), smoothing=st.sampled_from(SMOOTHING))
def test_scores_equal_the_formula(drawn: tuple[np.ndarray, TinyCollection], smoothing: float) -> None:
    dense, collection = drawn
    expected = plain_scores(dense, collection, smoothing)
    assert_equal_scores(scores_of_all_pairs(dense, collection, smoothing), expected)


@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 200])
def test_a_query_may_have_any_length(length: int, smoothing: float) -> None:
    """One query of distinct words, one with repeats and unknown words."""
    size = 220
    rng = np.random.default_rng(length)
    queries = [rng.permutation(size)[:length].tolist(), rng.integers(-1, size // 3, length).tolist()]
    documents = [rng.integers(0, size // 2, count).tolist() for count in (0, 1, 20, 60)]
    collection = TinyCollection(size, documents, queries)
    dense = seeded_table(size, share=0.05)
    assert_equal_scores(scores_of_all_pairs(dense, collection, smoothing), plain_scores(dense, collection, smoothing))


def test_words_that_stand_many_times_in_a_document_count_as_often() -> None:
    """More often than 16 bits can say."""
    documents = [[0] * 70_000 + [1] * 3, [1] * 40_000 + [0], [2]]
    dense = np.array([[0.5, 0.01, 0], [0, 0.9, 0], [0.001, 0, 0]], np.float32)
    index, queries = forward_index_of(documents, 3), ragged([[0, 1, 2]], np.int32)
    scores = model1_scores(table_of(dense), index, queries, ragged([[0, 1, 2]], np.int32), 0.1)
    shares = np.array([[70_000, 3, 0], [1, 40_000, 0], [0, 0, 1]])
    background = shares.sum(axis=0) / shares.sum()
    p = 0.9 * (shares / shares.sum(axis=1, keepdims=True)) @ dense.T.astype(np.float64) + 0.1 * background
    assert_equal_scores(scores, np.log(p).sum(axis=1))


def test_p_of_a_word_that_the_collection_does_not_have() -> None:
    index = forward_index_of([[0, 0, 1], [0]], vocabulary_size=3)
    assert collection_probability(index).tolist() == [0.75, 0.25, 1e-9]
    assert collection_probability(forward_index_of([[]], vocabulary_size=2)).tolist() == [1e-9, 1e-9]


def test_without_smoothing_no_probability_is_below_the_floor() -> None:
    dense = np.array([[1e-9, 0, 0], [0, 0, 0], [0, 0, 1e-7]], np.float32)
    queries = [[0], [1], [2], [-1, 1], [-1, 2]]
    scores = scores_of_all_pairs(dense, TinyCollection(3, [[0, 2], []], queries), 0.0)
    floor = math.log(1e-8)
    in_text = [floor, floor, math.log(5e-8), 2 * floor, floor + math.log(5e-8)]
    in_nothing = [floor, floor, floor, 2 * floor, 2 * floor]
    assert_equal_scores(scores, np.column_stack([in_text, in_nothing]).ravel())


def test_an_unknown_word_costs_the_same_in_every_document() -> None:
    collection = seeded_collection(documents=20, queries=0)._replace(queries=[[3, 4], [3, -1, 4], [3, -1, 4, -1]])
    scores = scores_of_all_pairs(seeded_table(50), collection, 0.1).reshape(3, -1).astype(np.float64)
    assert scores[1] - scores[0] == pytest.approx(np.full(20, math.log(0.1 * 1e-9)), rel=1e-5)
    assert scores[2] - scores[0] == pytest.approx(np.full(20, 2 * math.log(0.1 * 1e-9)), rel=1e-5)


@pytest.mark.parametrize("beyond", [50, 51, 10_000, 2**31 - 1, -2, -(2**31)])
def test_a_token_outside_of_the_vocabulary_is_an_unknown_word(beyond: int) -> None:
    collection = seeded_collection(documents=20, queries=0)
    odd, unknown = ([[3, word, 4], [word]] for word in (beyond, -1))
    dense = seeded_table(50)
    scores = scores_of_all_pairs(dense, collection._replace(queries=odd), 0.1)
    np.testing.assert_array_equal(scores, scores_of_all_pairs(dense, collection._replace(queries=unknown), 0.1))


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_a_query_of_300_tokens_does_not_underflow(smoothing: float) -> None:
    """Probabilities whose product is below the smallest float64: distinct, the same word, unknown words."""
    size = 400
    queries = [list(range(300)), [7] * 300, [-1] * 300]
    collection = TinyCollection(size, [[300, 301], [7, 8, 9], []], queries)
    dense = np.where(seeded_table(size, share=0.05) > 0, np.float32(1e-6), np.float32(0))
    expected = plain_scores(dense, collection, smoothing)
    if smoothing < 1:
        assert min(expected) < -3_000
    assert_equal_scores(scores_of_all_pairs(dense, collection, smoothing), expected)


# ------------------------------------------------------------------------------------------------- the call


def test_only_the_listed_candidates_are_scored_in_their_order() -> None:
    collection, dense = seeded_collection(documents=30, queries=4), seeded_table(50)
    candidates = ragged([[3, 1], [], [29, 0, 3, 3], [7]], np.int32)
    scores = model1_scores(table_of(dense), collection.forward_index(), collection.query_tokens(), candidates, 0.1)
    pairs = zip(candidates.row_numbers(), candidates.values, strict=True)
    expected = [plain_model1(dense, collection.documents, collection.queries[q], doc, 0.1) for q, doc in pairs]
    assert_equal_scores(scores, expected)
    assert len(set(expected)) > 4


@pytest.mark.parametrize("candidates", [[], [[]], [[], [], []]])
def test_without_candidates_there_are_no_scores(candidates: list[list[int]]) -> None:
    queries = ragged([[1, 2]] * len(candidates), np.int32)
    index = forward_index_of([[1]], vocabulary_size=5)
    scores = model1_scores(table_of(seeded_table(5)), index, queries, ragged(candidates, np.int32), 0.1)
    assert scores.shape == (0,) and scores.dtype == np.float32


def test_an_empty_query_scores_0_and_an_empty_table_leaves_the_background() -> None:
    collection = TinyCollection(3, [[0, 1], []], [[], [0]])
    scores = scores_of_all_pairs(np.zeros((3, 3), np.float32), collection, 0.5)
    assert scores.tolist() == pytest.approx([0, 0, math.log(0.25), math.log(0.25)])


def test_the_background_can_be_given() -> None:
    collection, table = seeded_collection(documents=10, queries=5), table_of(seeded_table(50))
    texts = (collection.forward_index(), collection.query_tokens(), collection.all_pairs())
    computed = model1_scores(table, *texts, 0.3)
    np.testing.assert_array_equal(model1_scores(table, *texts, 0.3, collection_probability(texts[0])), computed)
    other = model1_scores(table, *texts, 0.3, np.full(50, 0.02))
    assert (other != computed).any()


def test_whole_numbers_are_good_values_of_lambda() -> None:
    collection, dense = seeded_collection(documents=10, queries=5), seeded_table(50)
    for smoothing in (0, 1):
        np.testing.assert_array_equal(
            scores_of_all_pairs(dense, collection, smoothing), scores_of_all_pairs(dense, collection, float(smoothing))
        )


def test_scores_do_not_depend_on_the_queries_beside() -> None:
    """What one query has left behind would be found in the next: in any order, alone and together."""
    collection = seeded_collection(documents=25, queries=40, vocabulary_size=120)
    rng = np.random.default_rng(1)
    queries = [*collection.queries, *(rng.integers(-1, 120, length).tolist() for length in (8, 9, 30, 1, 64, 3))]
    collection, table = collection._replace(queries=queries), table_of(seeded_table(120))
    index = collection.forward_index()
    together = model1_scores(table, index, collection.query_tokens(), collection.all_pairs(), 0.1).reshape(-1, 25)
    backwards = collection._replace(queries=queries[::-1])
    turned = model1_scores(table, index, backwards.query_tokens(), backwards.all_pairs(), 0.1).reshape(-1, 25)
    np.testing.assert_array_equal(turned[::-1], together)
    for number, query in enumerate(queries):
        alone = TinyCollection(120, [[]] * 25, [query])
        scores = model1_scores(table, index, alone.query_tokens(), alone.all_pairs(), 0.1)
        np.testing.assert_array_equal(scores, together[number])


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    """In a process of its own: numba fixes the largest number of threads when it starts."""
    script = """
import numba
from lexical.model1.scorer import model1_scores
from tests.unit.lexical.model1.test_scorer import seeded_table, table_of
from tests.fixtures.tiny_collections import seeded_collection

collection = seeded_collection(documents=100, queries=61)
texts = (collection.forward_index(), collection.query_tokens(), collection.all_pairs())
table = table_of(seeded_table(50))
for threads in (1, 2):
    numba.set_num_threads(threads)
    for smoothing in (0.0, 0.1):
        scores = model1_scores(table, *texts, smoothing)
        print(threads, smoothing, scores.any(), scores.tobytes().hex())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, env={**os.environ, "NUMBA_NUM_THREADS": "2"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:3] for line in lines] == [[t, s, "True"] for t in "12" for s in ("0.0", "0.1")]
    assert [line[3] for line in lines[:2]] == [line[3] for line in lines[2:]]


@pytest.mark.parametrize("smoothing", [-0.1, 1.01, 1e-7, math.nan, math.inf])
def test_a_lambda_out_of_range_is_refused(smoothing: float) -> None:
    collection = TinyCollection(2, [[0]], [[1]])
    with pytest.raises(ValueError, match="lambda must be 0, or from"):
        scores_of_all_pairs(np.eye(2), collection, smoothing)


@pytest.mark.parametrize("size", [1, 3])
def test_a_table_of_another_vocabulary_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"the table has {size} tokens and the field 2: it was made for another field"):
        scores_of_all_pairs(np.eye(size), TinyCollection(2, [[0]], [[1]]), 0.1)


# ------------------------------------------------------------------------------------------ normalisation


def test_scores_per_query_token_by_hand() -> None:
    """Repeats and unknown words count; an empty query has nothing to be divided by."""
    queries = ragged([[0, 1, 1, -1], [], [5], [2, 3]], np.int32)
    candidates = ragged([[7, 8], [7], [9], []], np.int32)
    scores = per_query_token(np.array([-10, -2, 0, -3], np.float32), queries, candidates)
    assert scores.dtype == np.float32
    assert scores.tolist() == [-2.5, -0.5, 0.0, -3.0]


def test_queries_and_candidates_must_be_equally_many() -> None:
    index = forward_index_of([[0, 1], [1]], 2)
    queries, candidates = ragged([[0]], np.int32), ragged([[0], [1]], np.int32)
    with pytest.raises(ValueError, match="1 queries for 2 lists of candidates"):
        model1_scores(table_of(np.eye(2)), index, queries, candidates, 0.1)
