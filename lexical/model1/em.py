"""IBM Model 1 by expectation maximisation (Brown et al. 1993), exact, on all cores, without torch.

    expected count of (f, e)  =  sum over pairs, over occurrences of e in the source and f in the target, of
                                 t(f|e) / (t(f|NULL) + sum over e' in the source of t(f|e'))
    t(f|e)                    =  expected count of (f, e) / sum over f' of the expected count of (f', e)

e is a source token, f a target token; every source also has the NULL word, which explains the target tokens that no
other word does and is dropped afterwards. The start is uniform.

Memory: 20 bytes for each DISTINCT pair of tokens that occur in one sentence pair (a little more while the first
iteration merges the pairs of its blocks), plus one block of the bitext. Occurrences of pairs are never stored: they are
visited source token by source token. For token e, t(.|e) is copied to a dense array over the vocabulary, then the
targets of all sentence pairs with e are read in order: each of the (pairs x source tokens x target tokens) steps is one
access to that array. One thread computes the sum of e, in the order of the bitext, so the result does not depend on the
number of threads.

The first iteration needs no probabilities: from a uniform start all words of a source (and NULL) share a target
token equally. It also collects the distinct pairs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import get_num_threads, njit, prange
from scipy.sparse import csr_matrix  # not csr_array, which would keep the 64 bits of `Ragged.offsets` for all indices

from lexical.index.ragged import Ragged
from lexical.model1.bitext import Bitext

LIKELIHOOD_PARTS = 32  # partial sums of the log-likelihood: fixed, so that it is rounded alike on every machine


class PairCounts(NamedTuple):
    """Expected counts of the distinct pairs: row = source token, targets ascending inside a row."""

    pairs: Ragged  # (vocabulary) rows of target tokens (int32)
    values: np.ndarray  # (pairs,) float64
    null: np.ndarray  # (vocabulary,) float64: target tokens that the NULL word explains


class Model1EM:
    """One iteration is `accumulate` with each block of the bitext, then `maximise`; repeat with the same bitext."""

    def __init__(self, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.iteration = 0  # complete iterations
        self.translation = np.zeros(0)  # (pairs,) t(f|e) of the last complete iteration; overwritten by the next
        self.null = np.zeros(vocabulary_size)  # (vocabulary,) t(f|NULL)
        self.expected = _pair_counts(csr_matrix((vocabulary_size, vocabulary_size)), self.null)  # of this iteration
        self.log_likelihood = 0.0  # of the blocks so far, under the table that the running iteration started with
        self.target_tokens = self.dropped_pairs = 0  # of the blocks so far

    @property
    def pairs(self) -> Ragged:
        return self.expected.pairs

    def accumulate(self, block: Bitext) -> None:
        """Add the expected counts of one block of the bitext."""
        source, target = block.source, block.target
        if source.rows != target.rows:
            raise ValueError(f"the bitext has {source.rows:,} sources and {target.rows:,} targets")
        for tokens in (source.values, target.values):
            if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.vocabulary_size:
                raise ValueError(f"the bitext has token ids outside of 0 to {self.vocabulary_size - 1:,}")
        self.target_tokens += len(target.values)
        self.dropped_pairs += block.dropped
        if self.iteration == 0:
            counts = _uniform_counts(block, self.vocabulary_size)
            self.expected = merged(self.expected, counts) if self.expected.null.any() else counts
            self.log_likelihood += -float(np.log(max(1, self.vocabulary_size))) * len(target.values)
            return
        by_token = _by_source_token(source, np.ones(source.rows, np.int8), self.vocabulary_size)
        starts, occurrences = by_token.indptr, by_token.indices
        denominators = np.empty(len(target.values))  # numpy's arrays use huge pages; it is accessed out of order
        _denominators(
            starts, occurrences, *target, *self.pairs, self.translation, self.null, _even_parts(target.offsets),
            denominators,
        )  # fmt: skip
        parts = _log_likelihood(source.offsets, target.offsets, denominators, LIKELIHOOD_PARTS)
        self.log_likelihood += math.fsum(parts)
        np.divide(1.0, denominators, out=denominators, where=denominators > 0)
        _add_expected(
            starts, occurrences, *target, *self.pairs, self.translation, denominators, _even_parts(starts),
            self.expected.values,
        )  # fmt: skip
        self.expected.null[:] += np.bincount(target.values, denominators, self.vocabulary_size) * self.null

    def maximise(self) -> float:
        """Normalise the counts and begin the next iteration; return the log-likelihood under the table BEFORE."""
        reached = self.log_likelihood
        counts, spare = self.expected.values, self.translation
        _normalise(self.pairs.offsets, counts)
        total = self.expected.null.sum()
        self.null = self.expected.null / total if total > 0 else np.zeros_like(self.expected.null)
        if len(spare) != len(counts):  # after the first iteration
            spare = np.empty_like(counts)
        spare.fill(0.0)
        self.translation = counts
        self.expected = PairCounts(self.pairs, spare, np.zeros_like(self.null))
        self.log_likelihood, self.target_tokens, self.dropped_pairs = 0.0, 0, 0
        self.iteration += 1
        return reached


def train_model1(blocks: list[Bitext], vocabulary_size: int, iterations: int = 5) -> tuple[Model1EM, list[float]]:
    """Train on a bitext in memory; return the EM and the log-likelihood at the start of each iteration."""
    em = Model1EM(vocabulary_size)
    reached = []
    for _ in range(iterations):
        for block in blocks:
            em.accumulate(block)
        reached.append(em.maximise())
    return em, reached


def merged(a: PairCounts, b: PairCounts) -> PairCounts:
    """Add the counts of two first iterations, which are all above 0, over the union of their pairs."""
    shape = (len(a.null), len(a.null))
    x, y = (csr_matrix((counts.values, counts.pairs.values, counts.pairs.offsets), shape) for counts in (a, b))
    return _pair_counts(x + y, a.null + b.null)


def _pair_counts(counts: csr_matrix, null: np.ndarray) -> PairCounts:
    offsets, targets = counts.indptr.astype(np.int64, copy=False), counts.indices.astype(np.int32, copy=False)
    return PairCounts(Ragged(offsets, targets), counts.data, null)


def _even_parts(offsets: np.ndarray) -> np.ndarray:
    """Return the bounds of a range of rows for each thread, with about equally many values."""
    bounds = np.searchsorted(offsets, np.linspace(0, offsets[-1], get_num_threads() + 1)[1:-1])
    return np.concatenate([[0], bounds, [len(offsets) - 1]]).astype(np.int64)


def _by_source_token(source: Ragged, values: np.ndarray, vocabulary_size: int) -> csr_matrix:
    """Invert the source side: row = source token, columns = its sentence pairs, ascending; `values`: of each pair."""
    values = np.repeat(values, source.lengths())
    return csr_matrix((values, source.values, source.offsets), (source.rows, vocabulary_size)).T.tocsr()


def _uniform_counts(block: Bitext, vocabulary_size: int) -> PairCounts:
    """Return the expected counts of one block where all words of a source, and NULL, explain a target token equally."""
    source, target = block.source, block.target
    share = 1.0 / (source.lengths() + 1.0)  # (sentence pairs,)
    ones = np.ones(len(target.values))
    targets = csr_matrix((ones, target.values, target.offsets), (target.rows, vocabulary_size))
    counts = _by_source_token(source, share, vocabulary_size) @ targets
    counts.sort_indices()
    null = np.bincount(target.values, np.repeat(share, target.lengths()), vocabulary_size)
    return _pair_counts(counts, null.astype(np.float64, copy=False))  # an empty block gives integers


@njit(cache=True, nogil=True, parallel=True)
def _denominators(starts, occurrences, t_offsets, target, offsets, targets, translation, null, parts, sums):  # type: ignore[no-untyped-def]
    """Set `sums` (target tokens,) to t(f|NULL) + sum over the source of t(f|e); a part is a range of sentence pairs."""
    for part in prange(len(parts) - 1):
        first, last = parts[part], parts[part + 1]
        for j in range(t_offsets[first], t_offsets[last]):
            sums[j] = null[target[j]]
        given_e = np.empty(len(null), np.float64)
        for e in range(len(starts) - 1):
            i = starts[e] + np.searchsorted(occurrences[starts[e] : starts[e + 1]], first)
            if i == starts[e + 1] or occurrences[i] >= last:
                continue
            for k in range(offsets[e], offsets[e + 1]):
                given_e[targets[k]] = translation[k]
            while i < starts[e + 1] and occurrences[i] < last:
                for j in range(t_offsets[occurrences[i]], t_offsets[occurrences[i] + 1]):
                    sums[j] += given_e[target[j]]
                i += 1


@njit(cache=True, nogil=True, parallel=True)
def _add_expected(starts, occurrences, t_offsets, target, offsets, targets, translation, inverse, parts, expected):  # type: ignore[no-untyped-def]
    """Add t(f|e) * sum over the occurrences of the pair of 1 / denominator; a part is a range of e."""
    for part in prange(len(parts) - 1):
        sums = np.zeros(len(starts) - 1, np.float64)
        for e in range(parts[part], parts[part + 1]):
            if starts[e] == starts[e + 1]:
                continue
            for i in range(starts[e], starts[e + 1]):
                for j in range(t_offsets[occurrences[i]], t_offsets[occurrences[i] + 1]):
                    sums[target[j]] += inverse[j]
            for k in range(offsets[e], offsets[e + 1]):
                expected[k] += translation[k] * sums[targets[k]]
                sums[targets[k]] = 0.0


@njit(cache=True, nogil=True, parallel=True)
def _log_likelihood(s_offsets, t_offsets, denominators, parts):  # type: ignore[no-untyped-def]
    """Return (parts,) sums over the target tokens of ln(denominator / (source length + 1))."""
    pairs = len(s_offsets) - 1
    sums = np.zeros(parts, np.float64)
    for part in prange(parts):
        total = 0.0
        for pair in range(pairs * part // parts, pairs * (part + 1) // parts):
            n = t_offsets[pair + 1] - t_offsets[pair]
            total -= n * np.log(s_offsets[pair + 1] - s_offsets[pair] + 1.0)
            for j in range(t_offsets[pair], t_offsets[pair + 1]):
                if denominators[j] > 0:
                    total += np.log(denominators[j])
        sums[part] = total
    return sums


@njit(cache=True, nogil=True, parallel=True)
def _normalise(offsets, values):  # type: ignore[no-untyped-def]
    """Divide each row by its sum, in place."""
    for row in prange(len(offsets) - 1):
        total = 0.0
        for k in range(offsets[row], offsets[row + 1]):
            total += values[k]
        if total > 0:
            for k in range(offsets[row], offsets[row + 1]):
                values[k] /= total
