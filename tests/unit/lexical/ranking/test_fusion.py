"""Fusion weights: the line search counts true ranks, the ascent reaches what a fine grid reaches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.index.ragged import ragged
from lexical.ranking.fusion import RESTARTS, _differences, _line_search, _orders, coordinate_ascent, fuse
from lexical.ranking.order import RankedTask, mean_reciprocal_rank


def task_of(rows: list[list[bool]], id_order: list[int]) -> RankedTask:
    """Row i of `rows` says which of query i's candidates are relevant; its candidates are documents 0, 1, 2, ..."""
    relevant = np.array([good for row in rows for good in row], bool)
    return RankedTask(ragged([list(range(len(row))) for row in rows], np.int32), np.array(id_order, np.int32), relevant)


def signal_and_noise(seed: int, queries: int = 150, depth: int = 20) -> tuple[RankedTask, np.ndarray, np.ndarray]:
    """A task with one relevant candidate a query, (pairs,) 1 for relevant ones, and (4, pairs) noise."""
    rng = np.random.default_rng(seed)
    rows = [[bool(at == good) for at in range(depth)] for good in rng.integers(0, depth, queries)]
    task = task_of(rows, rng.permutation(depth).tolist())
    return task, task.relevant.astype(np.float64), rng.normal(size=(4, queries * depth))


def best_of_circle(task: RankedTask, features: np.ndarray, steps: int = 720) -> float:
    """MRR of the best of `steps` directions of two weights, signs included."""
    angles = np.linspace(0, 2 * np.pi, steps, endpoint=False)
    weights = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return max(mean_reciprocal_rank(task, fuse(features, pair)) for pair in weights)


# -------------------------------------------------------------------------------------------- fused scores


def test_fused_scores_by_hand() -> None:
    features = np.array([[1.0, -2.0, 0.0], [10.0, 20.0, 30.0]], np.float32)
    fused = fuse(features, np.array([0.75, -0.25]))
    assert fused.dtype == np.float32
    assert fused.tolist() == [-1.75, -6.5, -7.5]


@pytest.mark.parametrize("pairs", [2, 7, 1001])
def test_equal_features_get_equal_scores_wherever_they_stand(pairs: int) -> None:
    """Also where the features cancel out, and only rounding is left."""
    features = np.full((2, pairs), np.float32(-0.6404227))
    assert len(set(fuse(features, np.array([0.1257302, -0.1257302])).tolist())) == 1


# --------------------------------------------------------------------------------------------- line search


@st.composite
def tasks_with_features(draw: st.DrawFn) -> tuple[RankedTask, np.ndarray]:
    """Small whole features, so that fused scores tie; several relevant documents or none; empty rows."""
    rows = draw(st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=5))
    task = task_of(rows, draw(st.permutations(range(6))))
    value = st.integers(-3, 3)
    count = draw(st.integers(1, 3))
    columns = draw(st.lists(st.lists(value, min_size=count, max_size=count), min_size=task.relevant.size,
                            max_size=task.relevant.size))  # fmt: skip
    return task, np.array(columns, np.float32).reshape(-1, count).T


@settings(deadline=None, max_examples=200)
@given(made=tasks_with_features(), data=st.data())
def test_the_line_search_sees_the_mrr_of_the_fused_scores(
    made: tuple[RankedTask, np.ndarray], data: st.DataObject
) -> None:
    """Weights in eighths: all sums are exact, so ties are ties on both sides and the values must agree exactly."""
    task, features = made
    eighths = st.integers(-16, 16).map(lambda eighth: eighth / 8)
    weights = np.array([data.draw(eighths) for _ in features])
    feature = data.draw(st.integers(0, len(features) - 1))
    trials = np.array(data.draw(st.lists(eighths, min_size=1, max_size=5)))

    values = _line_search(*_differences(features, task), weights, feature, trials)

    for trial, value in zip(trials, values, strict=True):
        tried = weights.copy()
        tried[feature] = trial
        assert value == pytest.approx(mean_reciprocal_rank(task, fuse(features, tried)), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_line_search_agrees_for_real_valued_features_and_weights(seed: int) -> None:
    task, signal, noise = signal_and_noise(seed)
    features = (signal + noise[:3]).astype(np.float32)
    weights, trials = np.array([0.31, -0.2, 0.49]), np.linspace(-2, 2, 41)
    values = _line_search(*_differences(features, task), weights, 1, trials)
    expected = [mean_reciprocal_rank(task, fuse(features, np.array([0.31, trial, 0.49]))) for trial in trials]
    assert values.tolist() == pytest.approx(expected, abs=1e-12)
    assert max(expected) - min(expected) > 0.2  # the trials were no flat line


def test_a_tie_goes_to_the_smaller_id_in_the_line_search_too() -> None:
    """One query, all weights 0: the relevant document 1 stands after 2 (the smallest id) and before 0."""
    task = task_of([[False, True, False]], id_order=[2, 1, 0])
    values = _line_search(*_differences(np.ones((1, 3), np.float32), task), np.zeros(1), 0, np.array([0.0, 1.0]))
    assert values.tolist() == [0.5, 0.5]


# ------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("seed", range(6))
def test_two_features_reach_the_best_of_a_fine_grid(seed: int) -> None:
    task, signal, noise = signal_and_noise(seed)
    features = np.stack([1.5 * signal + noise[0], 1.0 * signal + noise[1]])
    learned = coordinate_ascent(features, task)
    assert learned.mrr >= best_of_circle(task, features) - 0.01
    assert learned.mrr > max(mean_reciprocal_rank(task, feature) for feature in features)
    assert (learned.weights > 0).all()


def test_no_restart_repeats_another() -> None:
    assert sorted(map(tuple, _orders(2, seed=0))) == [(0, 1), (1, 0)]
    many = [tuple(order) for order in _orders(6, seed=0)]
    assert len(many) == len(set(many)) == RESTARTS


@pytest.mark.parametrize("seed", range(3))
def test_a_feature_that_only_explains_the_noise_gets_a_negative_weight(seed: int) -> None:
    """f0 = signal + noise, f1 = noise: the difference is the signal, and nothing else is as good."""
    task, signal, noise = signal_and_noise(seed)
    learned = coordinate_ascent(np.stack([0.5 * signal + noise[0], noise[0]]), task)
    assert learned.mrr == 1.0
    assert learned.weights[0] > 0 > learned.weights[1]


def test_a_feature_upside_down_is_turned_round() -> None:
    task, signal, noise = signal_and_noise(0)
    feature = 2 * signal + noise[0]
    learned = coordinate_ascent(-feature[None], task)
    assert learned.weights.tolist() == [-1.0]
    assert learned.mrr == mean_reciprocal_rank(task, feature)


def test_weights_and_mrr_belong_together() -> None:
    task, signal, noise = signal_and_noise(3)
    features = 1.2 * signal + noise[:3]
    learned = coordinate_ascent(features, task)
    assert np.abs(learned.weights).sum() == pytest.approx(1.0)
    assert learned.mrr == mean_reciprocal_rank(task, fuse(features, learned.weights))
    assert learned.mrr >= mean_reciprocal_rank(task, fuse(features, np.full(3, 1 / 3)))


@pytest.mark.parametrize("seed", [0, 23, 55])
def test_the_weights_are_never_worse_than_the_uniform_ones_they_start_from(seed: int) -> None:
    """Features with one decimal: many fused scores tie but for rounding, which must not be taken for a gain."""
    task, signal, noise = signal_and_noise(seed, queries=100, depth=50)
    features = np.round(1.5 * signal + noise[:2], 1).astype(np.float32)
    uniform = mean_reciprocal_rank(task, fuse(features, np.array([0.5, 0.5])))
    assert coordinate_ascent(features, task).mrr >= uniform


@settings(deadline=None, max_examples=60)
@given(made=tasks_with_features())
def test_of_three_features_and_more_none_is_better_alone(made: tuple[RankedTask, np.ndarray]) -> None:
    task, features = made
    if len(features) > 2:
        best = max(mean_reciprocal_rank(task, feature) for feature in features)
        assert coordinate_ascent(features, task).mrr >= best


def test_a_good_feature_among_many_bad_ones_is_found() -> None:
    """Uniform weights drown it, and leaving out one bad feature at a time gains next to nothing."""
    task, signal, noise = signal_and_noise(11)
    features = np.stack([0.02 * (signal + 0.05 * noise[0]), *(50 * noise)])
    learned = coordinate_ascent(features, task)
    assert learned.mrr >= mean_reciprocal_rank(task, features[0]) == 1.0


@settings(deadline=None, max_examples=60)
@given(made=tasks_with_features())
def test_absolute_weights_always_sum_to_1(made: tuple[RankedTask, np.ndarray]) -> None:
    learned = coordinate_ascent(made[1], made[0])
    assert np.abs(learned.weights).sum() == pytest.approx(1.0)


def test_the_same_call_gives_the_same_weights_to_the_last_bit() -> None:
    task, signal, noise = signal_and_noise(4)
    features = 1.2 * signal + noise[:3]
    first, second = (coordinate_ascent(features, task, seed=7) for _ in range(2))
    assert first.weights.tobytes() == second.weights.tobytes() and first.mrr == second.mrr


def test_a_constant_feature_changes_nothing() -> None:
    task, signal, noise = signal_and_noise(5)
    feature = 1.5 * signal + noise[0]
    learned = coordinate_ascent(np.stack([feature, np.full_like(feature, 3.0)]), task)
    assert learned.mrr == mean_reciprocal_rank(task, feature)
    assert learned.weights[0] > 0


def test_a_copy_of_a_feature_changes_nothing() -> None:
    task, signal, noise = signal_and_noise(6)
    feature = 1.5 * signal + noise[0]
    learned = coordinate_ascent(np.stack([feature, feature]), task)
    assert learned.mrr == mean_reciprocal_rank(task, feature)
    assert learned.weights.sum() > 0


def test_one_scale_for_all_features_does_not_matter() -> None:
    task, signal, noise = signal_and_noise(7)
    features = (1.2 * signal + noise[:2]).astype(np.float32)
    plain, scaled = coordinate_ascent(features, task), coordinate_ascent(features * 1024, task)
    assert plain.weights.tolist() == scaled.weights.tolist() and plain.mrr == scaled.mrr


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_features_of_different_scales_reach_the_best_of_a_fine_grid(scale: float) -> None:
    task, signal, noise = signal_and_noise(8)
    features = np.stack([1.5 * signal + noise[0], 1.0 * signal + noise[1]])
    learned = coordinate_ascent(features * [[1.0], [scale]], task)
    assert learned.mrr >= best_of_circle(task, features) - 0.01


def test_log_probabilities_work_as_well_as_the_same_values_above_0() -> None:
    """All values below 0; in sixteenths, so that the shift is exact and the differences are the same."""
    task, signal, noise = signal_and_noise(9)
    log_probs = np.minimum(np.round(16 * (1.2 * signal + noise[:2])) / 16 - 20, -1)
    assert (log_probs < 0).all()
    below, above = coordinate_ascent(log_probs, task), coordinate_ascent(log_probs + 64, task)
    assert below.weights.tolist() == above.weights.tolist() and below.mrr == above.mrr
    assert below.mrr >= best_of_circle(task, log_probs) - 0.01


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        coordinate_ascent(np.array([[0.0, bad], [1.0, 2.0]]), task_of([[True, False]], [0, 1]))


@pytest.mark.parametrize("rows", [[], [[]], [[False, False], []]])
def test_without_relevant_candidates_the_weights_stay_uniform(rows: list[list[bool]]) -> None:
    learned = coordinate_ascent(np.ones((2, sum(map(len, rows)))), task_of(rows, [0, 1]))
    assert learned.weights.tolist() == [0.5, 0.5] and learned.mrr == 0.0


def test_a_single_feature_worse_than_the_order_of_ids_keeps_a_weight() -> None:
    """Weight 0 would rank by ids alone, with MRR 1 by luck; fusion must not turn its only ranker off."""
    learned = coordinate_ascent(np.array([[1.0, 2.0, 0.0]]), task_of([[True, False, False]], [0, 1, 2]))
    assert np.abs(learned.weights).tolist() == [1.0]
    assert learned.mrr == 0.5
