"""EM of Model 1 equals nltk's and a direct one in plain loops; blocks and threads change nothing of it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate import AlignedSent, IBMModel1

from lexical.index.ragged import Ragged, offsets_of, ragged
from lexical.model1.bitext import Bitext, make_bitext, query_blocks
from lexical.model1.em import Model1EM, PairCounts, merged, train_model1
from tests import ROOT

Line = tuple[list[int], list[int]]  # source, target
Lines = list[Line]


def bitext_of(lines: Lines) -> Bitext:
    return Bitext(*(ragged([line[side] for line in lines], np.int32) for side in (0, 1)))


def dense(em: Model1EM) -> np.ndarray:
    """(vocabulary + 1, vocabulary): t(f|e), the last row is that of NULL."""
    table = np.zeros((em.vocabulary_size + 1, em.vocabulary_size))
    table[em.pairs.row_numbers(), em.pairs.values] = em.translation
    table[-1] = em.null
    return table


def plain_em(lines: Lines, vocabulary_size: int, iterations: int) -> tuple[np.ndarray, list[float]]:
    """The same by loops over a dense table; NULL is one more word of every source."""
    table = np.full((vocabulary_size + 1, vocabulary_size), 1.0 / vocabulary_size)
    likelihoods = []
    for _ in range(iterations):
        counts, likelihood = np.zeros_like(table), 0.0
        for source, target in lines:
            words = [*source, vocabulary_size]
            for f in target:
                total = sum(table[e, f] for e in words)
                likelihood += math.log(total / len(words))
                for e in words:
                    counts[e, f] += table[e, f] / total
        for e, row in enumerate(counts):
            table[e] = row / row.sum() if row.any() else 0.0
        likelihoods.append(likelihood)
    return table, likelihoods


def seeded_lines(count: int, vocabulary_size: int, seed: int = 0, longest: int = 8) -> Lines:
    """Frequent and rare words, repeats, and now and then an empty side."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, vocabulary_size + 1)

    def side() -> list[int]:
        return rng.choice(vocabulary_size, rng.integers(0, longest + 1), p=frequency / frequency.sum()).tolist()

    return [(side(), side()) for _ in range(count)]


VOCABULARY = 6
sides = st.lists(st.integers(0, VOCABULARY - 1), max_size=5)
bitexts = st.lists(st.tuples(sides, sides), max_size=6)
numbers_of_iterations = st.integers(1, 6)


# ------------------------------------------------------------------------------------------------ numbers


def test_two_iterations_by_hand() -> None:
    """0 1 -> 0 1 and 0 -> 0. All of a source share a target token equally at first, so 0 has 1/3 + 1/2 of token 0."""
    block = bitext_of([([0, 1], [0, 1]), ([0], [0])])
    em = Model1EM(2)
    em.accumulate(block)
    assert em.expected.values.tolist() == pytest.approx([5 / 6, 1 / 3, 1 / 3, 1 / 3])
    assert em.maximise() == pytest.approx(3 * math.log(1 / 2))
    assert dense(em) == pytest.approx(np.array([[5 / 7, 2 / 7], [1 / 2, 1 / 2], [5 / 7, 2 / 7]]))

    em.accumulate(block)
    of_0, of_1 = Fraction(5, 7) + Fraction(1, 2) + Fraction(5, 7), Fraction(2, 7) + Fraction(1, 2) + Fraction(2, 7)
    assert (of_0, of_1) == (Fraction(27, 14), Fraction(15, 14))
    expected = [10 / 27 + 1 / 2, 4 / 15, 7 / 27, 7 / 15]
    assert em.expected.values.tolist() == pytest.approx(expected)
    assert em.maximise() == pytest.approx(math.log(27 / 14 / 3) + math.log(15 / 14 / 3) + math.log(10 / 7 / 2))
    assert dense(em) == pytest.approx(np.array([[235 / 307, 72 / 307], [5 / 14, 9 / 14], [235 / 307, 72 / 307]]))
    assert em.iteration == 2


@pytest.mark.parametrize("iterations", range(1, 7))
@pytest.mark.parametrize("seed", range(3))
def test_the_table_equals_that_of_nltk(seed: int, iterations: int) -> None:
    """NULL is nltk's `None`. Targets here have no word twice: nltk counts such words once (it divides by a sum over
    all their places), which is not the formula of Brown et al.; sources may repeat."""
    lines = [(source, list(dict.fromkeys(target))) for source, target in seeded_lines(40, 12, seed)]
    assert any(len(set(source)) < len(source) for source, _ in lines)
    assert any(not source and target for source, target in lines)
    corpus = [AlignedSent([str(f) for f in target], [str(e) for e in source]) for source, target in lines]
    reference = IBMModel1(corpus, iterations).translation_table
    em, _ = train_model1([bitext_of(lines)], 12, iterations)
    for e, f, probability in zip(em.pairs.row_numbers(), em.pairs.values, em.translation, strict=True):
        assert probability == pytest.approx(reference[str(f)][str(e)], abs=1e-6)
    for f in range(12):
        assert em.null[f] == pytest.approx(reference[str(f)][None] if str(f) in reference else 0.0, abs=1e-6)


def test_the_example_of_nltk() -> None:
    """Six German and English lines; the figures are those of nltk's documentation, after five iterations."""
    text = """klein ist das haus = the house is small
              das haus ist ja groß = the house is big
              das buch ist ja klein = the book is small
              das haus = the house
              das buch = the book
              ein buch = a book"""
    words: dict[str, int] = {}
    halves = [[half.split() for half in line.split("=")] for line in text.splitlines()]
    lines = [tuple([words.setdefault(word, len(words)) for word in half] for half in pair) for pair in halves]
    em, _ = train_model1([bitext_of([(english, german) for german, english in lines])], len(words), 5)
    table = dense(em)
    assert table[words["book"], words["buch"]] == pytest.approx(0.889, abs=5e-4)
    assert table[words["book"], words["das"]] == pytest.approx(0.062, abs=5e-4)
    assert em.null[words["buch"]] == pytest.approx(0.113, abs=5e-4)
    assert em.null[words["ja"]] == pytest.approx(0.073, abs=5e-4)


@settings(deadline=None, max_examples=150)
@given(lines=bitexts, iterations=numbers_of_iterations)
def test_table_and_likelihood_equal_plain_loops(lines: Lines, iterations: int) -> None:
    em, reached = train_model1([bitext_of(lines)], VOCABULARY, iterations)
    table, likelihoods = plain_em(lines, VOCABULARY, iterations)
    np.testing.assert_allclose(dense(em), table, rtol=0, atol=1e-6)
    assert reached == pytest.approx(likelihoods, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_a_longer_bitext_equals_plain_loops(seed: int) -> None:
    """Long enough for every thread to have work."""
    lines = seeded_lines(400, 60, seed)
    em, reached = train_model1([bitext_of(lines)], 60, 5)
    table, likelihoods = plain_em(lines, 60, 5)
    np.testing.assert_allclose(dense(em), table, rtol=1e-9, atol=1e-12)
    assert reached == pytest.approx(likelihoods, rel=1e-12)


@pytest.mark.parametrize(
    "lines",
    [
        [([0], [0])],
        [([0], [0])] * 3,
        [([], [0, 1]), ([2], [0])],
        [([0, 1], []), ([0], [1])],
        [([], []), ([0], [1]), ([], [])],
        [([0, 0, 0], [1, 1])],
        [([1, 1], [1, 1, 1]), ([1, 0], [0, 1])],
        [([], [0, 0, 1])],
        [([0, 1, 2], [])],
    ],
    ids=[
        "one token", "one line again and again", "no source", "no target", "empty lines",
        "repeats", "repeats on both sides", "only NULL", "no target at all",
    ],
)  # fmt: skip
@pytest.mark.parametrize("iterations", [1, 2, 6])
def test_odd_lines_equal_plain_loops(lines: Lines, iterations: int) -> None:
    em, reached = train_model1([bitext_of(lines)], 3, iterations)
    table, likelihoods = plain_em(lines, 3, iterations)
    np.testing.assert_allclose(dense(em), table, rtol=0, atol=1e-9)
    assert reached == pytest.approx(likelihoods, rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(lines=bitexts)
def test_the_likelihood_never_decreases(lines: Lines) -> None:
    _, reached = train_model1([bitext_of(lines)], VOCABULARY, 7)
    for before, after in pairwise(reached):
        assert after >= before - 1e-9 * abs(before)


@settings(deadline=None, max_examples=60)
@given(lines=bitexts, iterations=numbers_of_iterations)
def test_the_probabilities_of_a_source_word_sum_to_1(lines: Lines, iterations: int) -> None:
    em, _ = train_model1([bitext_of(lines)], VOCABULARY, iterations)
    translated = {e for source, target in lines if target for e in source}
    expected = [float(e in translated) for e in range(VOCABULARY)] + [float(any(target for _, target in lines))]
    assert dense(em).sum(1).tolist() == pytest.approx(expected, abs=1e-12)
    assert (em.translation >= 0).all() and (em.null >= 0).all()


def test_after_many_iterations_probabilities_still_sum_to_1() -> None:
    """Small probabilities have become 0 by then; none is lost and none is not a number."""
    em, reached = train_model1([bitext_of(seeded_lines(60, 20))], 20, 500)
    assert (em.translation == 0).any()
    assert np.bincount(em.pairs.row_numbers(), em.translation, 20) == pytest.approx(np.ones(20))
    assert np.isfinite(reached).all() and reached[-1] > reached[0]


# ------------------------------------------------------------------------------------------- pairs, blocks


@settings(deadline=None, max_examples=60)
@given(lines=bitexts, iterations=numbers_of_iterations)
def test_pairs_are_those_that_stand_together_each_once_and_in_order(lines: Lines, iterations: int) -> None:
    em, _ = train_model1([bitext_of(lines)], VOCABULARY, iterations)
    together = sorted({(e, f) for source, target in lines for e in source for f in target})
    assert list(zip(em.pairs.row_numbers().tolist(), em.pairs.values.tolist(), strict=True)) == together
    assert em.pairs.rows == VOCABULARY and em.pairs.values.dtype == np.int32


@settings(deadline=None, max_examples=80)
@given(parts=st.lists(bitexts, min_size=1, max_size=4), iterations=numbers_of_iterations)
def test_blocks_give_the_table_of_the_whole(parts: list[Lines], iterations: int) -> None:
    whole, reached_whole = train_model1(
        [bitext_of([line for lines in parts for line in lines])], VOCABULARY, iterations
    )
    em, reached = train_model1([bitext_of(lines) for lines in parts], VOCABULARY, iterations)
    np.testing.assert_array_equal(em.pairs.offsets, whole.pairs.offsets)
    np.testing.assert_array_equal(em.pairs.values, whole.pairs.values)
    np.testing.assert_allclose(dense(em), dense(whole), rtol=1e-9, atol=1e-12)
    assert reached == pytest.approx(reached_whole, rel=1e-12, abs=1e-12)


def test_a_later_block_may_bring_new_words_and_new_pairs() -> None:
    lines: Lines = [([0, 1], [1, 2]), ([1, 3], [0, 2]), ([4, 0], [4, 2])]
    em, _ = train_model1([bitext_of([line]) for line in lines], 5, 4)
    np.testing.assert_allclose(dense(em), plain_em(lines, 5, 4)[0], rtol=1e-12)


def test_a_first_block_without_sources_still_counts_for_null() -> None:
    lines: Lines = [([], [0, 1]), ([2], [0])]
    em, _ = train_model1([bitext_of([line]) for line in lines], 3, 1)
    assert em.null.tolist() == pytest.approx([1.5 / 2.5, 1 / 2.5, 0.0])


@pytest.mark.parametrize("lines", [[], [([0, 1], [])], [([], [])]], ids=["no lines", "no target", "an empty line"])
def test_counts_of_a_block_without_target_tokens_are_float(lines: Lines) -> None:
    """Processes sum their counts byte by byte: one with nothing to count has the same types as the others."""
    em = Model1EM(3)
    for _ in range(2):
        em.accumulate(bitext_of(lines))
        assert em.expected.values.dtype == em.expected.null.dtype == np.float64
        em.maximise()
        assert em.translation.dtype == em.null.dtype == np.float64


def test_many_blocks_of_a_longer_bitext_give_the_table_of_the_whole() -> None:
    lines = seeded_lines(600, 80, seed=5)
    whole, _ = train_model1([bitext_of(lines)], 80)
    em, _ = train_model1([bitext_of(lines[i : i + 37]) for i in range(0, 600, 37)], 80)
    np.testing.assert_allclose(dense(em), dense(whole), rtol=1e-9, atol=1e-15)


def test_the_size_of_the_blocks_does_not_change_the_table() -> None:
    """A bitext in 1 block, in about 10 and in about 100 gives the same table to 1e-12."""
    rng = np.random.default_rng(3)
    queries, documents = (
        ragged([rng.integers(0, 150, rng.integers(*lengths)) ** 2 // 150 for _ in range(300)], np.int32)
        for lengths in ((1, 7), (20, 60))
    )
    relevant = Ragged(np.arange(301), np.arange(300, dtype=np.int32))

    def table(largest: int) -> tuple[int, Model1EM]:
        blocks = query_blocks(relevant, documents.offsets, largest)
        rows = [np.arange(first, last) for first, last in blocks]
        bitext = [make_bitext(queries, documents, relevant, np.ones(150, bool), block) for block in rows]
        return len(blocks), train_model1(bitext, 150)[0]

    (one, whole), *others = (table(len(documents.values) // count + 1) for count in (1, 10, 100))
    assert (one, others[0][0]) == (1, 10) and others[1][0] > 80
    for _, em in others:
        np.testing.assert_array_equal(em.pairs.values, whole.pairs.values)
        np.testing.assert_allclose(em.translation, whole.translation, rtol=0, atol=1e-12)
        np.testing.assert_allclose(em.null, whole.null, rtol=0, atol=1e-12)


def counts_of(values: dict[tuple[int, int], float], null: list[float]) -> PairCounts:
    keys = sorted(values)
    lengths = np.bincount(np.array([e for e, _ in keys], np.int64), minlength=len(null))
    targets = np.array([f for _, f in keys], np.int32)
    return PairCounts(Ragged(offsets_of(lengths), targets), np.array([values[key] for key in keys]), np.array(null))


some_counts = st.builds(
    counts_of,
    st.dictionaries(st.tuples(*[st.integers(0, VOCABULARY - 1)] * 2), st.floats(0.01, 9), max_size=20),
    st.lists(st.floats(0, 9), min_size=VOCABULARY, max_size=VOCABULARY),
)


def as_dict(counts: PairCounts) -> dict[tuple[int, int], float]:
    keys = zip(counts.pairs.row_numbers().tolist(), counts.pairs.values.tolist(), strict=True)
    return dict(zip(keys, counts.values.tolist(), strict=True))


@settings(deadline=None, max_examples=80)
@given(a=some_counts, b=some_counts)
def test_merged_counts_equal_the_sum_of_dictionaries(a: PairCounts, b: PairCounts) -> None:
    left, right = as_dict(a), as_dict(b)
    expected = {key: left.get(key, 0.0) + right.get(key, 0.0) for key in sorted(left.keys() | right.keys())}
    total = merged(a, b)
    assert list(as_dict(total).items()) == list(expected.items())
    assert len(total.values) == len(total.pairs.values) == len(expected)
    assert total.null.tolist() == [x + y for x, y in zip(a.null, b.null, strict=True)]


# ------------------------------------------------------------------------------------------------- bounds


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    """In a process of its own: numba fixes the largest number of threads when it starts."""
    script = """
import numba
import numpy as np
from lexical.model1.em import train_model1
from tests.unit.lexical.model1.test_em import bitext_of, seeded_lines

lines = seeded_lines(3000, 300)
blocks = [bitext_of(lines[:1000]), bitext_of(lines[1000:])]
for threads in (1, 2, 3, 4):
    numba.set_num_threads(threads)
    em, reached = train_model1(blocks, 300, 4)
    print(em.translation.any(), *[array.tobytes().hex() for array in (em.translation, em.null, np.array(reached))])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, env={**os.environ, "NUMBA_NUM_THREADS": "4"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 4 and lines[0][0] == "True"
    for name, values in zip(("any", "translation", "null", "likelihood"), zip(*lines, strict=True), strict=True):
        assert len(set(values)) == 1, name


@pytest.mark.parametrize("token", [-1, 5, 2**31 - 1])
@pytest.mark.parametrize("side", ["source", "target"])
def test_tokens_outside_of_the_vocabulary_are_refused(side: str, token: int) -> None:
    good, bad = [0, 4], [0, token]
    block = bitext_of([(bad, good) if side == "source" else (good, bad)])
    with pytest.raises(ValueError, match="token ids outside of 0 to 4"):
        Model1EM(5).accumulate(block)


@pytest.mark.parametrize("blocks", [[], [[]], [[], []], [[([], [])]]], ids=["no blocks", "empty", "two", "empty line"])
@pytest.mark.parametrize("vocabulary_size", [0, 3])
def test_an_empty_bitext_gives_an_empty_table(blocks: list[Lines], vocabulary_size: int) -> None:
    em, reached = train_model1([bitext_of(lines) for lines in blocks], vocabulary_size, 3)
    assert reached == [0.0, 0.0, 0.0]
    assert em.pairs.rows == vocabulary_size
    assert len(em.pairs.values) == len(em.translation) == 0
    assert em.null.tolist() == [0.0] * vocabulary_size


def test_words_that_are_never_used_change_nothing_but_the_likelihood_of_the_start() -> None:
    lines = seeded_lines(100, 20)
    small, reached_small = train_model1([bitext_of(lines)], 20, 4)
    large, reached_large = train_model1([bitext_of(lines)], 5000, 4)
    assert np.array_equal(large.pairs.values, small.pairs.values)
    np.testing.assert_allclose(large.translation, small.translation, rtol=1e-12)
    np.testing.assert_allclose(large.null[:20], small.null, rtol=1e-12)
    assert not large.null[20:].any()
    tokens = sum(len(target) for _, target in lines)
    assert reached_large[0] == pytest.approx(-tokens * math.log(5000))
    assert reached_large[1:] == pytest.approx(reached_small[1:], rel=1e-12)


def test_sides_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="1 sources and 2 targets"):
        Model1EM(2).accumulate(Bitext(ragged([[0]], np.int32), ragged([[0], [1]], np.int32)))
