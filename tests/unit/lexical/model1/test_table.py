"""Pruning, rescaling and self-translation equal the paper's formula on a dense matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lexical.index.ragged import ragged
from lexical.model1.table import (
    Translations,
    TranslationTable,
    by_document_token,
    others_rescaled,
    with_self_translation,
)


class Case(NamedTuple):
    dense: np.ndarray  # (document tokens, query tokens) float64; 0: no entry
    threshold: float
    p_self: float


def learned_from(dense: np.ndarray) -> Translations:
    entries = [np.flatnonzero(row) for row in dense]
    probabilities = [row[columns] for row, columns in zip(dense, entries, strict=True)]
    return Translations(ragged(entries, np.int32), np.concatenate([np.zeros(0), *probabilities]))


def dense_table(table: TranslationTable) -> np.ndarray:
    """(document tokens, query tokens) float64."""
    dense = np.zeros((table.vocabulary_size, table.vocabulary_size))
    for q in range(table.vocabulary_size):
        for k in range(table.rows.offsets[q], table.rows.offsets[q + 1]):
            dense[table.rows.values[k], q] = table.probabilities[k]
    return dense


def plain_table(dense: np.ndarray, threshold: float, p_self: float) -> np.ndarray:
    """T(q|d) of the paper, entry by entry."""
    tokens = range(len(dense))
    expected = np.zeros(dense.shape)
    for d in tokens:
        others = {q: dense[d, q] for q in tokens if q != d and dense[d, q] > 0 and dense[d, q] >= threshold}
        for q, probability in others.items():
            expected[d, q] = (1 - p_self) * probability / sum(others.values())
        expected[d, d] = p_self
    return expected


def made(case: Case) -> TranslationTable:
    return with_self_translation(others_rescaled(learned_from(case.dense).pruned(case.threshold)), case.p_self)


def dense_matrices() -> st.SearchStrategy[np.ndarray]:
    def of_size(words: int) -> st.SearchStrategy[np.ndarray]:
        return hnp.arrays(np.float64, (words, words), elements=st.floats(1e-6, 1.0), fill=st.just(0.0))

    return st.integers(0, 7).flatmap(of_size)


cases = st.builds(
    Case, dense_matrices(), st.one_of(st.just(0.0), st.floats(1e-6, 0.9)), st.one_of(st.just(0.0), st.floats(1e-3, 1.0))
)


# ------------------------------------------------------------------------------------------------- by hand

# Row = document token. Token 0: one strong and one weak translation; 1: only itself; 2: nothing; 3: two others.
DENSE = np.array([
    [0.50, 0.30, 0.001, 0.1],
    [0.00, 1.00, 0.00, 0.00],
    [0.00, 0.00, 0.00, 0.00],
    [0.25, 0.00, 0.75, 0.00],
])  # fmt: skip


def test_a_table_by_hand() -> None:
    """Threshold 0.01 drops T(2|0); then the others of token 0 are 0.3 and 0.1, rescaled to 0.8."""
    table = made(Case(DENSE, threshold=0.01, p_self=0.2))
    assert [table.rows.row(q).tolist() for q in range(4)] == [[0, 3], [0, 1], [2, 3], [0, 3]]
    assert table.probabilities.tolist() == pytest.approx([0.2, 0.2, 0.6, 0.2, 0.2, 0.6, 0.2, 0.2])
    assert (table.rows.offsets.dtype, table.rows.values.dtype, table.probabilities.dtype) == (
        np.int64, np.int32, np.float32
    )  # fmt: skip
    assert (table.vocabulary_size, table.entries) == (4, 8)


def test_pruning_keeps_what_reaches_the_threshold_and_every_row() -> None:
    pruned = learned_from(DENSE).pruned(0.25)
    assert [pruned.rows.row(d).tolist() for d in range(4)] == [[0, 1], [1], [], [0, 2]]
    assert pruned.probabilities.tolist() == [0.5, 0.3, 1.0, 0.25, 0.75]


def test_pruning_drops_what_is_no_number() -> None:
    learned = Translations(ragged([[0, 1]], np.int32), np.array([np.nan, 0.5]))
    assert learned.pruned(0.0).probabilities.tolist() == [0.5]


def test_without_self_translation_the_others_have_everything() -> None:
    table = made(Case(DENSE, threshold=0.01, p_self=0.0))
    assert [table.rows.row(q).tolist() for q in range(4)] == [[3], [0], [3], [0]]
    assert table.probabilities.tolist() == pytest.approx([0.25, 0.75, 0.75, 0.25])


def test_a_table_of_no_words() -> None:
    table = made(Case(np.zeros((0, 0)), 0.1, 0.5))
    assert (table.vocabulary_size, table.entries, table.rows.offsets.tolist()) == (0, 0, [0])
    assert by_document_token(table).rows.offsets.tolist() == [0]


# --------------------------------------------------------------------------------------------- the formula


@settings(deadline=None, max_examples=100)
@given(case=cases)
@example(case=Case(DENSE, 0.01, 0.2))
@example(case=Case(np.full((5, 5), 1e-6), 0.0, 1.0))
def test_a_table_equals_the_formula(case: Case) -> None:
    np.testing.assert_allclose(dense_table(made(case)), plain_table(*case), rtol=1e-6, atol=1e-9)


@settings(deadline=None, max_examples=100)
@given(case=cases)
def test_others_sum_to_what_self_translation_leaves(case: Case) -> None:
    dense, others = dense_table(made(case)), plain_table(case.dense, case.threshold, 0.0)
    has_others = others.sum(axis=1) > 0
    assert np.diag(dense).tolist() == pytest.approx([case.p_self] * len(dense))
    off_diagonal = dense.sum(axis=1) - np.diag(dense)
    np.testing.assert_allclose(off_diagonal[has_others], 1 - case.p_self, atol=1e-6)
    assert (off_diagonal[~has_others] == 0).all()  # such a token has its self-translation and nothing else


@settings(deadline=None, max_examples=100)
@given(dense=dense_matrices(), mass=st.floats(0, 1))
def test_others_are_rescaled_to_the_mass_that_is_asked_for(dense: np.ndarray, mass: float) -> None:
    sums = dense_table(others_rescaled(learned_from(dense), mass)).sum(axis=1)
    off_diagonal = dense.sum(axis=1) - np.diag(dense)
    np.testing.assert_allclose(sums, np.where(off_diagonal > 0, mass, 0), atol=1e-6)


@settings(deadline=None, max_examples=100)
@given(case=cases)
def test_rows_are_ascending_without_repeats(case: Case) -> None:
    table = made(case)
    assert table.rows.offsets[0] == 0 and table.rows.offsets[-1] == table.entries == len(table.probabilities)
    for q in range(table.vocabulary_size):
        assert (np.diff(table.rows.row(q)) > 0).all()


@settings(deadline=None, max_examples=100)
@given(case=cases)
def test_nothing_that_goes_in_is_changed(case: Case) -> None:
    learned = learned_from(case.dense)
    before = [array.copy() for array in (*learned.rows, learned.probabilities)]
    others = others_rescaled(learned)
    once = [array.copy() for array in (*others.rows, others.probabilities)]
    with_self_translation(others, case.p_self)
    for array, copy in zip((*learned.rows, learned.probabilities), before, strict=True):
        np.testing.assert_array_equal(array, copy)
    for array, copy in zip((*others.rows, others.probabilities), once, strict=True):
        np.testing.assert_array_equal(array, copy)


# ------------------------------------------------------------------------------------------- turned round


@settings(deadline=None, max_examples=100)
@given(dense=dense_matrices())
def test_turning_round_is_the_transposed_matrix_in_order(dense: np.ndarray) -> None:
    table = with_self_translation(others_rescaled(learned_from(dense)), 0.25)
    turned = by_document_token(table)
    expected = learned_from(dense_table(table))
    for actual, target in zip(
        (*turned.rows, turned.probabilities), (*expected.rows, expected.probabilities), strict=True
    ):
        np.testing.assert_array_equal(actual, target)
        assert actual.dtype == target.dtype


@settings(deadline=None, max_examples=100)
@given(dense=dense_matrices())
def test_turning_round_twice_changes_nothing(dense: np.ndarray) -> None:
    table = others_rescaled(learned_from(dense))
    again = by_document_token(TranslationTable(*by_document_token(table)))
    for actual, expected in zip((*again.rows, again.probabilities), (*table.rows, table.probabilities), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_large_table_equals_the_formula() -> None:
    """Many rows, so that all threads have work."""
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((300, 300)) < 0.1, rng.random((300, 300)) ** 6, 0)
    case = Case(dense, 0.01, 0.15)
    np.testing.assert_allclose(dense_table(made(case)), plain_table(*case), rtol=1e-6, atol=1e-9)


def test_a_pair_is_looked_up_in_its_row() -> None:
    table = TranslationTable(ragged([[1, 4], [], [0]], np.int32), np.array([0.25, 0.5, 0.125], np.float32))
    q, d = np.array([0, 0, 0, 1, 2, 2]), np.array([1, 4, 2, 1, 0, 4])
    assert table.lookup(q, d).tolist() == [0.25, 0.5, 0, 0, 0.125, 0]
