"""BM25 of given candidates equals the formula written out; tuning equals trying everything."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.bm25 import (
    GRID_B,
    GRID_K1,
    BM25Parameters,
    Trial,
    bm25_scores,
    normalised_bm25,
    scores_by_parameters,
    tune,
)
from lexical.index.forward_index import build_forward_index
from lexical.index.ragged import ragged
from lexical.ranking.order import RankedTask
from tests import ROOT
from tests.fixtures.plain_reference import plain_bm25, plain_idf, plain_reciprocal_rank
from tests.fixtures.tiny_collections import TinyCollection, forward_index_of, seeded_collection, tiny_collections

settings_of_bm25 = st.builds(BM25Parameters, k1=st.floats(0, 3), b=st.floats(0, 1))


def scores_of_all_pairs(collection: TinyCollection, parameters: BM25Parameters) -> np.ndarray:
    index = collection.forward_index()
    return bm25_scores(index, collection.query_tokens(), collection.all_pairs(), parameters)


def plain_scores(collection: TinyCollection, parameters: BM25Parameters) -> list[float]:
    numbers = range(len(collection.documents))
    return [plain_bm25(collection.documents, q, number, *parameters) for q in collection.queries for number in numbers]


# ------------------------------------------------------------------------------------------------- scores


def test_scores_by_hand() -> None:
    """Three documents of mean length 2, k1 = 1, b = 0.5: the norm is 0.5 + 0.25 |D|."""
    collection = TinyCollection(3, documents=[[0, 0, 1], [1, 2], [2]], queries=[[0], [1, 2], [0, 0]])
    idf_0, idf_1 = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)  # in one document; in two
    idf_2 = idf_1
    expected = [
        idf_0 * 2 / (2 + 1.25), 0.0, 0.0,
        idf_1 * 1 / (1 + 1.25), (idf_1 + idf_2) * 1 / (1 + 1.0), idf_2 * 1 / (1 + 0.75),
        2 * idf_0 * 2 / (2 + 1.25), 0.0, 0.0,  # a word that stands twice in the query counts twice
    ]  # fmt: skip
    scores = scores_of_all_pairs(collection, BM25Parameters(k1=1.0, b=0.5))
    assert scores.dtype == np.float32
    assert scores.tolist() == pytest.approx(expected, rel=1e-6)


@settings(deadline=None, max_examples=100)
@given(collection=tiny_collections(), parameters=settings_of_bm25)
def test_scores_equal_the_formula(collection: TinyCollection, parameters: BM25Parameters) -> None:
    expected = plain_scores(collection, parameters)
    np.testing.assert_allclose(scores_of_all_pairs(collection, parameters), expected, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(collection=tiny_collections())
def test_idf_equals_the_formula(collection: TinyCollection) -> None:
    expected = [plain_idf(collection.documents, token) for token in range(collection.vocabulary_size)]
    assert collection.forward_index().idf.tolist() == pytest.approx(expected)


def test_idf_of_a_word_in_every_document_is_small_and_above_0() -> None:
    idf = forward_index_of([[0], [0, 1], [0]], vocabulary_size=3).idf
    assert idf.tolist() == pytest.approx([math.log(1 + 0.5 / 3.5), math.log(1 + 2.5 / 1.5), 0.0])


def test_only_the_listed_candidates_are_scored_in_their_order() -> None:
    collection = seeded_collection(documents=30, queries=4)
    candidates = ragged([[3, 1], [], [29, 0, 3], [7]], np.int32)
    index = collection.forward_index()
    scores = bm25_scores(index, collection.query_tokens(), candidates, BM25Parameters())
    pairs = zip(candidates.row_numbers(), candidates.values, strict=True)
    expected = [plain_bm25(collection.documents, collection.queries[q], doc, 1.2, 0.75) for q, doc in pairs]
    assert scores.tolist() == pytest.approx(expected, abs=1e-5)
    assert any(expected)


@settings(deadline=None, max_examples=100)
@given(collection=tiny_collections(), parameters=settings_of_bm25)
def test_gathered_matches_give_the_same_scores(collection: TinyCollection, parameters: BM25Parameters) -> None:
    index = collection.forward_index()
    scores = scores_by_parameters(index, collection.query_tokens(), collection.all_pairs())(parameters)
    direct = bm25_scores(index, collection.query_tokens(), collection.all_pairs(), parameters)
    np.testing.assert_allclose(scores, direct, rtol=1e-5, atol=1e-6)


def test_the_number_of_threads_does_not_change_a_bit(tmp_path: Path) -> None:
    """In a process of its own: numba fixes the largest number of threads when it starts."""
    collection = seeded_collection(documents=300, queries=64)
    build_forward_index([ragged(collection.documents, np.int32)], collection.vocabulary_size, tmp_path)
    script = """
import sys
from pathlib import Path
import numba
from lexical.bm25 import *
from lexical.index.forward_index import open_forward_index
from tests.fixtures.tiny_collections import seeded_collection

collection = seeded_collection(documents=300, queries=64)
index = open_forward_index(Path(sys.argv[1]))
texts = (index, collection.query_tokens(), collection.all_pairs())
for threads in (1, 2, 3, 4):
    numba.set_num_threads(threads)
    direct, gathered = bm25_scores(*texts, BM25Parameters()), scores_by_parameters(*texts)(BM25Parameters())
    print(direct.any(), direct.tobytes().hex() + gathered.tobytes().hex())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NUMBA_NUM_THREADS": "4"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and len(set(lines)) == 1
    assert lines[0].startswith("True ")


# ------------------------------------------------------------------------------------------ normalisation


def test_normalised_scores_by_hand() -> None:
    """BM25 is divided by the idf of the unique known words; a query without any keeps its score of 0."""
    collection = TinyCollection(3, [[0, 0, 1], [1, 2], [2]], [[0, 2, 2, -1], [-1], [], [1, 1]])
    index = collection.forward_index()
    texts = (index, collection.query_tokens(), collection.all_pairs(), BM25Parameters())
    divisors = np.repeat([index.idf[0] + index.idf[2], 1.0, 1.0, index.idf[1]], 3)
    normalised = normalised_bm25(*texts)
    assert normalised.dtype == np.float32 and normalised[:3].all()
    assert normalised.tolist() == pytest.approx((bm25_scores(*texts) / divisors).tolist(), rel=1e-6)


@settings(deadline=None, max_examples=40)
@given(collection=tiny_collections(), parameters=settings_of_bm25)
def test_normalised_scores_of_queries_without_repeats_are_between_0_and_1(
    collection: TinyCollection, parameters: BM25Parameters
) -> None:
    unique = collection._replace(queries=[list(dict.fromkeys(query)) for query in collection.queries])
    scores = normalised_bm25(unique.forward_index(), unique.query_tokens(), unique.all_pairs(), parameters)
    assert ((scores >= 0) & (scores <= 1 + 1e-6)).all()


# ------------------------------------------------------------------------------------------------- tuning


def judged(collection: TinyCollection, hidden: BM25Parameters, seed: int = 0) -> RankedTask:
    """Every document a candidate; relevant is the one that BM25 with the `hidden` setting puts first."""
    documents = len(collection.documents)
    id_order = np.random.default_rng(seed).permutation(documents).astype(np.int32)
    scores = np.array(plain_scores(collection, hidden), np.float32).reshape(-1, documents)
    first = np.array([np.lexsort((id_order, -row))[0] for row in scores])
    return RankedTask(collection.all_pairs(), id_order, (first[:, None] == np.arange(documents)).ravel())


def plain_mrr(collection: TinyCollection, task: RankedTask, parameters: BM25Parameters) -> float:
    shape = len(collection.queries), len(collection.documents)
    scores = np.array(plain_scores(collection, parameters), np.float32).reshape(shape).tolist()
    relevant = task.relevant.reshape(shape).tolist()
    ids = [f"{position:04}" for position in task.id_order]
    return float(np.mean([plain_reciprocal_rank(ids, *row) for row in zip(scores, relevant, strict=True)]))


# Each value of a small grid, with the points half-way to its neighbours.
NEAR_K1 = {0.2: [0.2, 0.6], 1.0: [0.6, 1.0, 2.0], 3.0: [2.0, 3.0]}
NEAR_B = {0.0: [0.0, 0.25], 0.5: [0.25, 0.5, 0.75], 1.0: [0.75, 1.0]}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("hidden", [(0.2, 0.0), (0.6, 0.25), (0.9, 0.4), (2.0, 0.25), (3.0, 0.5)])
def test_tuning_equals_trying_the_grid_and_then_the_half_way_points(hidden: tuple[float, float], seed: int) -> None:
    collection = seeded_collection(documents=40, queries=20, seed=seed)
    task = judged(collection, BM25Parameters(*hidden), seed)

    def best_of(settings_tried: list[BM25Parameters]) -> BM25Parameters:
        return max(
            settings_tried, key=lambda parameters: plain_mrr(collection, task, parameters)
        )  # `max` takes the first of ties

    grid = [BM25Parameters(k1, b) for k1 in NEAR_K1 for b in NEAR_B]
    best = best_of(grid)
    near = [BM25Parameters(k1, b) for k1 in NEAR_K1[best.k1] for b in NEAR_B[best.b]]
    trials: list[Trial] = []
    tuned = tune(
        collection.forward_index(), collection.query_tokens(), task, trials.append, list(NEAR_K1), list(NEAR_B)
    )
    assert tuned == best_of([best, *near])
    assert [trial.parameters for trial in trials] == [*grid, *(point for point in near if point != best)]
    assert [trial.mrr for trial in trials] == pytest.approx(
        [plain_mrr(collection, task, trial.parameters) for trial in trials]
    )


def test_the_first_of_equally_good_settings_wins() -> None:
    """One candidate a query: every setting has MRR 1."""
    collection = TinyCollection(2, [[0, 1], [1]], [[0], [1]])
    task = RankedTask(ragged([[0], [1]], np.int32), np.arange(2, dtype=np.int32), np.ones(2, bool))
    tuned = tune(collection.forward_index(), collection.query_tokens(), task)
    assert tuned == BM25Parameters(GRID_K1[0], GRID_B[0])


def test_tuning_prefers_length_normalisation_where_short_documents_are_relevant() -> None:
    """Equal counts, different lengths: without normalisation (b = 0) the smaller id would win the tie."""
    documents = [[0] + [1] * 20, [0, 1], [1]]
    task = RankedTask(ragged([[0, 1, 2]], np.int32), np.arange(3, dtype=np.int32), np.array([False, True, False]))
    index = forward_index_of(documents, 2)
    trials: list[Trial] = []
    tuned = tune(index, ragged([[0]], np.int32), task, trials.append, k1_values=(1.2,), b_values=(0.0, 1.0))
    assert [trial.mrr for trial in trials[:2]] == [0.5, 1.0]
    assert tuned == BM25Parameters(1.2, 1.0)


def test_a_setting_with_many_digits_can_be_given() -> None:
    """A user gives k1 in full and leaves b to be tuned."""
    collection = seeded_collection(documents=20, queries=5)
    task, index = judged(collection, BM25Parameters()), collection.forward_index()
    actual = tune(index, collection.query_tokens(), task, k1_values=(1.234567,), b_values=(0.0, 0.333333, 1.0))
    assert actual.k1 == pytest.approx(1.234567, abs=1e-4)


def test_tuning_finds_a_hidden_setting_half_way_between_the_points_of_the_grid() -> None:
    collection, hidden = seeded_collection(documents=60, queries=40), BM25Parameters(2.0, 0.75)
    task, index = judged(collection, hidden), collection.forward_index()
    trials: list[Trial] = []
    tuned = tune(index, collection.query_tokens(), task, trials.append, (0.2, 1.0, 3.0), (0.0, 0.5, 1.0))
    assert tuned == hidden
    assert max(trial.mrr for trial in trials[:9]) < 0.9 and max(trial.mrr for trial in trials) == 1.0
