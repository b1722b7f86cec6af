"""Scores from gathered evidence equal those of the finished table; tuning equals trying every setting."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lexical.index.forward_index import ForwardIndex, token_counts
from lexical.index.ragged import Ragged, offsets_of, ragged
from lexical.model1 import tuning
from lexical.model1.scorer import collection_probability, model1_scores, per_query_token
from lexical.model1.table import Translations, TranslationTable, others_rescaled, with_self_translation
from lexical.model1.tuning import (
    WHOLE_GRID,
    JudgedQueries,
    MixtureTerms,
    TableGrid,
    TableSettings,
    TableTrial,
    exact_terms,
    gather_terms,
    mixture_scores,
    tune_smoothing,
    tune_table,
)
from lexical.ranking.fusion import TRIAL_WEIGHTS
from lexical.ranking.order import RankedTask, mean_reciprocal_rank, ranking_order
from tests import ROOT
from tests.fixtures.tiny_collections import TinyCollection, forward_index_of, seeded_collection, tiny_collections

SMALL_GRID = TableGrid((0.3, 0.05, 0.0), (0.05, 0.3, 0.8), (0.05, 0.5))


pytestmark = pytest.mark.usefixtures("one_thread")


def settings_in(grid: TableGrid) -> int:
    return math.prod(map(len, grid))


def translations_of(dense: np.ndarray) -> Translations:
    """The entries of ``dense[d, q] = T(q|d)`` that are not 0."""
    d, q = np.nonzero(dense)
    rows = Ragged(offsets_of(np.bincount(d, minlength=len(dense))), q.astype(np.int32))
    return Translations(rows, dense[d, q].astype(np.float64))


def seeded_translations(vocabulary_size: int = 50, seed: int = 0) -> Translations:
    """Each document token translates to a few query tokens, to itself more often than not; some to nothing."""
    rng = np.random.default_rng(seed)
    shape = (vocabulary_size, vocabulary_size)
    dense = np.where(rng.random(shape) < 0.15, rng.exponential(size=shape), 0) + np.diag(rng.random(vocabulary_size))
    dense[::12] = 0
    return translations_of(dense / np.maximum(dense.sum(axis=1, keepdims=True), 1e-9))


def finished(learned: Translations, threshold: float, p_self: float) -> TranslationTable:
    """The table that the scorer reads."""
    return with_self_translation(others_rescaled(learned.pruned(threshold)), p_self)


def scores_from_table(
    table: TranslationTable, index: ForwardIndex, queries: Ragged, candidates: Ragged, smoothing: float
) -> np.ndarray:
    return per_query_token(model1_scores(table, index, queries, candidates, smoothing), queries, candidates)


def terms_of(others: TranslationTable, index: ForwardIndex, queries: Ragged, candidates: Ragged) -> MixtureTerms:
    return gather_terms(others, exact_terms(index, queries, candidates), index, candidates)


def scores_from_terms(
    learned: Translations, index: ForwardIndex, queries: Ragged, candidates: Ragged, setting: TableSettings
) -> np.ndarray:
    evidence = terms_of(others_rescaled(learned.pruned(setting.threshold)), index, queries, candidates)
    return mixture_scores(evidence, candidates, collection_probability(index), setting.p_self, setting.smoothing)


def assert_evidence_serves_as_the_table(
    learned: Translations, collection: TinyCollection, candidates: Ragged, setting: TableSettings
) -> None:
    """To 1e-5, relative to scores beyond 1."""
    texts = (collection.forward_index(), collection.query_tokens(), candidates)
    actual = scores_from_terms(learned, *texts, setting)
    expected = scores_from_table(finished(learned, setting.threshold, setting.p_self), *texts, setting.smoothing)
    assert actual.dtype == np.float32 and np.isfinite(actual).all()
    assert (np.abs(actual - expected) <= 1e-5 * np.maximum(1, np.abs(expected))).all()


# ----------------------------------------------------------------------------------------------- evidence


def test_evidence_by_hand() -> None:
    """Word 0 says itself with 0.5 and word 1 with 0.5; word 1 says word 0 with 0.2; word 2 says nothing else."""
    learned = translations_of(np.array([[0.5, 0.5, 0], [0.2, 0, 0], [0, 0, 1.0]]))
    collection = TinyCollection(3, documents=[[0, 0, 1, 2], [], [1]], queries=[[0, 1, 0, -1]])
    texts = (collection.forward_index(), collection.query_tokens(), collection.all_pairs())
    evidence = terms_of(others_rescaled(learned), *texts)
    assert evidence.tokens.row(0).tolist() == [0, 1, -1] and evidence.repeats.tolist() == [2, 1, 1]
    assert evidence.starts.tolist() == [0, 9]
    assert evidence.exact.tolist() == [0.5, 0.25, 0, 0, 0, 0, 0, 1, 0]
    assert evidence.translated.tolist() == [0.25, 0.5, 0, 0, 0, 0, 1, 0, 0]  # what others say is rescaled to 1
    scores = scores_from_terms(learned, *texts, TableSettings(0, 0.4, 0.1))
    background = (0.4, 0.4, 1e-9)
    p = [0.9 * (0.4 * 0.5 + 0.6 * 0.25), 0.9 * (0.4 * 0.25 + 0.6 * 0.5), 0]
    p_0, p_1, p_unknown = (own + 0.1 * share for own, share in zip(p, background, strict=True))
    assert scores[0] == pytest.approx((2 * math.log(p_0) + math.log(p_1) + math.log(p_unknown)) / 4, rel=1e-6)
    assert scores[1] == pytest.approx((3 * math.log(0.04) + math.log(1e-10)) / 4, rel=1e-6)


@st.composite
def learned_and_collections(draw: st.DrawFn) -> tuple[Translations, TinyCollection]:
    collection = draw(tiny_collections())
    size = collection.vocabulary_size
    probabilities = st.one_of(st.just(0.0), st.floats(1e-6, 1))
    return translations_of(draw(arrays(np.float64, (size, size), elements=probabilities))), collection


@settings(deadline=None, max_examples=200)
@given(
    drawn=learned_and_collections(),
    setting=st.builds(
        TableSettings,
        threshold=st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0]),
        p_self=st.sampled_from([0.0, 0.05, 0.5, 0.9, 1.0]),
        smoothing=st.sampled_from([0.0, 1e-6, 0.1, 0.5, 1.0]),
    ),
)
def test_evidence_gives_the_scores_of_the_finished_table(
    drawn: tuple[Translations, TinyCollection], setting: TableSettings
) -> None:
    learned, collection = drawn
    assert_evidence_serves_as_the_table(learned, collection, collection.all_pairs(), setting)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 200])
def test_evidence_serves_queries_of_any_length(length: int) -> None:
    """Queries of distinct words and queries with repeats and unknown words take turns."""
    size = 220
    rng = np.random.default_rng(length)
    distinct = [rng.permutation(size)[:length].tolist() for _ in range(3)]
    repeated = [rng.integers(-1, size // 3, length).tolist() for _ in range(3)]
    documents = [rng.integers(0, size, count).tolist() for count in (0, 1, 30, 90)]
    collection = TinyCollection(
        size, documents, [query for pair in zip(distinct, repeated, strict=True) for query in pair]
    )
    setting = TableSettings(0.01, 0.2, 0.1)
    assert_evidence_serves_as_the_table(seeded_translations(size), collection, collection.all_pairs(), setting)


def test_evidence_of_only_the_listed_candidates() -> None:
    collection = seeded_collection(documents=30, queries=0)._replace(queries=[[3, 3, 8], [1], [], [-1], [5, 2, 9]])
    candidates = ragged([[4, 2, 29], [], [7, 8], [9], [0, 1]], np.int32)
    assert_evidence_serves_as_the_table(seeded_translations(), collection, candidates, TableSettings(0.05, 0.3, 0.2))


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    """In a process of its own: numba fixes the largest number of threads when it starts."""
    script = """
import numba
from lexical.model1.tuning import tune_table
from tests.unit.lexical.model1.test_tuning import *

collection, learned = seeded_collection(documents=60, queries=61), seeded_translations()
queries = judged(collection, learned, TableSettings(0.05, 0.3, 0.05))
for threads in (1, 2):
    numba.set_num_threads(threads)
    scores = scores_from_terms(learned, *queries[:2], queries.task.candidates, TableSettings(0.05, 0.3, 0.1))
    mrr = []
    tune_table(learned, queries, SMALL_GRID, lambda trial: mrr.append(trial.mrr.hex()))
    print(scores.any(), scores.tobytes().hex(), *mrr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, env={**os.environ, "NUMBA_NUM_THREADS": "2"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = (line.split() for line in done.stdout.splitlines())
    assert first == second
    assert first[0] == "True" and len(first) == 2 + settings_in(SMALL_GRID)


def fused(first: np.ndarray, own: np.ndarray, weight: float) -> np.ndarray:
    weight = np.float32(weight)
    return (np.float32(1) - weight) * first + weight * own


# ------------------------------------------------------------------------------------------------- tuning


def judged(
    collection: TinyCollection, learned: Translations, hidden: TableSettings, first_weight: float = 0.0, seed: int = 0
) -> JudgedQueries:
    """Every document a candidate; relevant is the one that the `hidden` settings put first, fused with made-up scores
    of a first stage if that has a weight."""
    rng = np.random.default_rng(seed)
    texts, documents = (collection.forward_index(), collection.query_tokens()), len(collection.documents)
    candidates, id_order = collection.all_pairs(), rng.permutation(documents).astype(np.int32)
    own = scores_from_table(finished(learned, hidden.threshold, hidden.p_self), *texts, candidates, hidden.smoothing)
    first = rng.uniform(0, 1, len(own)).astype(np.float32)
    ranked = ranking_order(candidates, fused(first, own, 1 - first_weight), id_order)
    relevant = np.zeros(len(own), bool)
    relevant[ranked[::documents]] = True
    return JudgedQueries(*texts, RankedTask(candidates, id_order, relevant), first if first_weight else None)


def plain_mrr(table: TranslationTable, smoothing: float, queries: JudgedQueries) -> float:
    """The MRR of the table's scores, or of the best of their fusions."""
    own = scores_from_table(table, queries.forward, queries.queries, queries.task.candidates, smoothing)
    first = queries.first_stage
    fusions = [own] if first is None else [fused(first, own, weight) for weight in TRIAL_WEIGHTS]
    return max(mean_reciprocal_rank(queries.task, scores) for scores in fusions)


def texts_without_twins(seed: int) -> TinyCollection:
    """Documents of 5 words and more: two with the same shares of words would be equally good but for rounding."""
    collection = seeded_collection(documents=60, queries=30, seed=seed)
    return collection._replace(documents=[text for text in collection.documents if len(text) >= 5])


def settings_of(grid: TableGrid) -> list[TableSettings]:
    return [TableSettings(t, p, s) for t in grid.thresholds for p in grid.p_self for s in grid.smoothing]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("first_weight", [0.0, 0.6])
@pytest.mark.parametrize("hidden", [(0.3, 0.3, 0.05), (0.05, 0.05, 0.5), (0.0, 0.8, 0.05), (0.1, 0.5, 0.2)])
def test_tuning_equals_trying_the_grid(hidden: tuple[float, float, float], first_weight: float, seed: int) -> None:
    collection, learned = texts_without_twins(seed), seeded_translations(seed=seed)
    queries = judged(collection, learned, TableSettings(*hidden), first_weight, seed)
    expected = [
        plain_mrr(finished(learned, tried.threshold, tried.p_self), tried.smoothing, queries)
        for tried in settings_of(SMALL_GRID)
    ]
    trials: list[TableTrial] = []
    scores = tune_table(learned, queries, SMALL_GRID, trials.append)
    assert [trial.settings for trial in trials] == settings_of(SMALL_GRID)
    assert [trial.mrr for trial in trials] == pytest.approx(expected, abs=1e-9)
    best = max(range(len(expected)), key=lambda i: round(expected[i], 9))  # `max` takes the first of ties
    assert scores.settings == settings_of(SMALL_GRID)[best]
    assert scores.mrr == pytest.approx(max(expected))
    assert len(set(expected)) > 3


def test_exact_matches_are_counted_once_for_all_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []

    def counted(index: ForwardIndex, queries: Ragged, candidates: Ragged) -> tuple[np.ndarray, np.ndarray]:
        passes.append(candidates.rows)
        return token_counts(index, queries, candidates)

    monkeypatch.setattr(tuning, "token_counts", counted)
    collection, learned = texts_without_twins(3), seeded_translations(seed=3)
    tune_table(learned, judged(collection, learned, TableSettings(0.05, 0.3, 0.05)), SMALL_GRID)
    assert len(SMALL_GRID.thresholds) == 3 and len(passes) == 1


def test_tuning_finds_hidden_settings() -> None:
    """With Model 1 alone only the settings that made the judgements put every relevant document first."""
    collection, learned = texts_without_twins(3), seeded_translations(seed=3)
    hidden = TableSettings(0.05, 0.3, 0.05)
    trials: list[TableTrial] = []
    scores = tune_table(learned, judged(collection, learned, hidden), SMALL_GRID, trials.append)
    assert scores == TableTrial(hidden, 1.0)
    assert sorted(trial.mrr for trial in trials)[-2] < 1


def test_the_first_of_equally_good_settings_wins() -> None:
    """One candidate a query: every setting has MRR 1."""
    index, queries = forward_index_of([[0, 1], [1]], 2), ragged([[0], [1]], np.int32)
    task = RankedTask(ragged([[0], [1]], np.int32), np.arange(2, dtype=np.int32), np.ones(2, bool))
    trials: list[TableTrial] = []
    scores = tune_table(translations_of(np.eye(2)), JudgedQueries(index, queries, task, None), on_trial=trials.append)
    assert scores == trials[0] == TableTrial(settings_of(WHOLE_GRID)[0], 1.0)
    assert len(trials) == settings_in(WHOLE_GRID) and {trial.mrr for trial in trials} == {1.0}


def test_tuning_keeps_a_rare_translation_that_finds_the_relevant_document() -> None:
    """Word 1 says word 0 with 0.002: a threshold of 0.003 drops that, and the smaller document id wins the tie."""
    learned = translations_of(np.array([[1.0, 0, 0], [0.002, 0.5, 0.498], [0, 0, 1.0]]))
    task = RankedTask(ragged([[0, 1]], np.int32), np.arange(2, dtype=np.int32), np.array([False, True]))
    queries = JudgedQueries(forward_index_of([[2], [1]], 3), ragged([[0]], np.int32), task, None)
    trials: list[TableTrial] = []
    scores = tune_table(learned, queries, TableGrid((3e-3, 1e-3), (0.5,), (0.1,)), trials.append)
    assert [trial.mrr for trial in trials] == [0.5, 1.0]
    assert scores.settings == TableSettings(1e-3, 0.5, 0.1)


def test_tuning_weighs_the_word_itself_against_its_translations() -> None:
    """The relevant document has translations only, the other one has the word once in four."""
    learned = translations_of(np.array([[0, 0, 1.0], [1.0, 0, 0], [0, 1.0, 0]]))
    task = RankedTask(ragged([[0, 1]], np.int32), np.arange(2, dtype=np.int32), np.array([False, True]))
    queries = JudgedQueries(forward_index_of([[0, 2, 2, 2], [1, 1, 2]], 3), ragged([[0]], np.int32), task, None)
    trials: list[TableTrial] = []
    tune_table(learned, queries, TableGrid((0.0,), (0.9, 0.5), (0.1,)), trials.append)
    assert [trial.mrr for trial in trials] == [0.5, 1.0]  # 0.9 / 4 > 0.1 * 2 / 3, but 0.5 / 4 < 0.5 * 2 / 3


def test_a_grid_of_single_values_is_measured_once() -> None:
    collection, learned = texts_without_twins(0), seeded_translations()
    queries = judged(collection, learned, TableSettings(0.0, 0.8, 0.05), first_weight=0.5)
    trials: list[TableTrial] = []
    scores = tune_table(learned, queries, TableGrid((1e-3,), (0.25,), (0.15,)), trials.append)
    assert trials == [scores]
    assert scores.settings == TableSettings(1e-3, 0.25, 0.15)
    assert scores.mrr == pytest.approx(plain_mrr(finished(learned, 1e-3, 0.25), 0.15, queries))


@pytest.mark.parametrize("fused_with", [None, np.zeros(0, np.float32)])
def test_without_queries_the_first_setting_is_taken(fused_with: np.ndarray | None) -> None:
    nothing = ragged([], np.int32)
    task = RankedTask(nothing, np.arange(1, dtype=np.int32), np.zeros(0, bool))
    queries = JudgedQueries(forward_index_of([[0]], 2), nothing, task, fused_with)
    trials: list[TableTrial] = []
    scores = tune_table(translations_of(np.eye(2)), queries, SMALL_GRID, trials.append)
    assert scores == TableTrial(settings_of(SMALL_GRID)[0], 0.0)
    assert len(trials) == settings_in(SMALL_GRID)


def test_queries_without_relevant_candidates_count_as_0() -> None:
    collection, learned = TinyCollection(2, [[0, 1], [1]], [[0], [1], [], [0]]), translations_of(np.eye(2))
    task = RankedTask(
        ragged([[0, 1], [], [0], [1]], np.int32), np.arange(2, dtype=np.int32), np.array([True, False, True, False])
    )
    queries = JudgedQueries(collection.forward_index(), collection.query_tokens(), task, None)
    assert tune_table(learned, queries, SMALL_GRID).mrr == 0.5


@pytest.mark.parametrize("first_weight", [0.0, 0.6])
def test_lambda_of_a_final_table_is_tuned_alone(first_weight: float) -> None:
    """The table has its self-translations already, and nothing is added to them."""
    collection, learned = texts_without_twins(1), seeded_translations(seed=1)
    queries = judged(collection, learned, TableSettings(0.05, 0.3, 0.3), first_weight, seed=1)
    table, values = finished(learned, 0.05, 0.3), (0.01, 0.1, 0.3, 0.6, 0.9)
    expected = [plain_mrr(table, smoothing, queries) for smoothing in values]
    trials: list[TableTrial] = []
    scores = tune_smoothing(table, queries, values, trials.append)
    assert [trial.settings.smoothing for trial in trials] == list(values)
    assert [trial.mrr for trial in trials] == pytest.approx(expected, abs=1e-9)
    assert (scores.settings.smoothing, scores.mrr) == (values[int(np.argmax(expected))], pytest.approx(max(expected)))
    assert math.isnan(scores.settings.threshold) and math.isnan(scores.settings.p_self)
    assert len(set(expected)) > 1


@pytest.mark.parametrize("floor", [1e-8, 0.003, 0.03])
def test_where_lambda_is_0_a_final_table_is_scored_with_the_given_floor(floor: float) -> None:
    collection, learned = texts_without_twins(1), seeded_translations(seed=1)
    queries, table = (
        judged(collection, learned, TableSettings(0.05, 0.3, 0.3), 0.6, seed=1),
        finished(learned, 0.3, 0.1),
    )
    texts = queries.forward, queries.queries, queries.task.candidates
    own = per_query_token(model1_scores(table, *texts, smoothing=0, floor=floor), *texts[1:])
    assert queries.first_stage is not None
    fusions = [fused(queries.first_stage, own, weight) for weight in TRIAL_WEIGHTS]
    expected = max(mean_reciprocal_rank(queries.task, scores) for scores in fusions)
    assert tune_smoothing(table, queries, (0.0,), floor=floor).mrr == pytest.approx(expected, abs=1e-9)
