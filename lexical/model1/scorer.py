"""Model 1 over the forward index (equations 1 and 2 of the paper): scores of given candidates, on the CPU.

    P(q|D)    = (1 - lambda) * sum over unique d in D of T(q|d) * tf(d, D) / |D|  +  lambda * P(q|C)
    score     = sum over q in Q of ln P(q|D)          (a repeated query token counts each time)

P(q|C) is the share of q among the collection's tokens, 1e-9 for a token that the collection does not have. Without
smoothing (lambda = 0, for exported networks) it is ln max(P(q|D), floor), by default 1e-8. For fusion the score is
divided by the number of query tokens.

Speed: up to eight query tokens are processed together. Their T are laid out as one short vector for each token of the
vocabulary; the vectors of a candidate's tokens are summed in registers. A query of any length needs no more memory than
one of eight tokens.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, njit, prange

from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.table import TranslationTable

UNSEEN = 1e-9  # P(q|C) of a token that the collection does not have
FLOOR = 1e-8  # smallest P(q|D) without smoothing
LANES = 8  # query tokens that are processed together: the sums of `_sum_lanes`
PARTS_PER_THREAD = 4


def collection_probability(index: ForwardIndex) -> np.ndarray:
    """Return (vocabulary,) float64 P(q|C)."""
    frequency = np.asarray(index.collection_frequency, np.float64)
    return np.where(frequency > 0, frequency / max(1, index.lengths.sum(dtype=np.int64)), UNSEEN)


def model1_scores(
    table: TranslationTable,
    index: ForwardIndex,
    queries: Ragged,
    candidates: Ragged,
    smoothing: float,
    background: np.ndarray | None = None,
    floor: float = FLOOR,
) -> np.ndarray:
    """Return (pairs,) float32 ln P(Q|D) of the candidates; row i of `candidates` belongs to row i of `queries`.

    The result does not depend on the number of threads.

    Args:
        queries: token ids; those below 0 are unknown words.
        smoothing: the paper's lambda.
        background: (vocabulary,) P(q|C); computed when not given.
        floor: smallest P(q|D) without smoothing.
    """
    if not (smoothing == 0 or 1e-6 <= smoothing <= 1):
        raise ValueError(f"lambda must be 0, or from 0.000001 to 1, not {smoothing}")
    if table.vocabulary_size != index.vocabulary_size:
        raise ValueError(
            f"the table has {table.vocabulary_size:,} tokens and the field {index.vocabulary_size:,}: "
            "it was made for another field"
        )
    if queries.rows != candidates.rows:
        raise ValueError(f"{queries.rows:,} queries for {candidates.rows:,} lists of candidates")
    tokens, repeats = distinct_tokens(queries)
    starts, sums = translation_sums(table, index, tokens, candidates)
    return _log_probabilities(
        *tokens, repeats, *candidates, index.lengths, starts, sums,
        collection_probability(index) if background is None else background,
        float(smoothing), 0.0 if smoothing else float(floor),
    )  # fmt: skip


def per_query_token(scores: np.ndarray, queries: Ragged, candidates: Ragged) -> np.ndarray:
    """Divide the scores by the number of tokens of their query, for fusion."""
    return (scores / np.repeat(np.maximum(1, queries.lengths()), candidates.lengths())).astype(np.float32)


def distinct_tokens(queries: Ragged) -> tuple[Ragged, np.ndarray]:
    """Return the distinct tokens of each query, in order of first occurrence, and how often each occurs in it."""
    rows, tokens = queries.row_numbers(), queries.values.astype(np.int64)
    keys = rows * (tokens.max(initial=0) - tokens.min(initial=0) + 1) + tokens  # another one for each row and token
    _, first, repeats = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(first)
    first = first[order]
    return Ragged(offsets_of(np.bincount(rows[first], minlength=queries.rows)), tokens[first]), repeats[order]


def translation_sums(
    table: TranslationTable, index: ForwardIndex, tokens: Ragged, candidates: Ragged
) -> tuple[np.ndarray, np.ndarray]:
    """Sum T(q|d) * tf(d, D) over the unique tokens d of each candidate D, for each of the query's distinct `tokens`.

    Returns:
        starts: (queries + 1,) int64 first sum of each query.
        sums: float32; of all tokens of the query in its first candidate, in its second one, and so on.
    """
    starts = offsets_of(tokens.lengths() * candidates.lengths())
    sums = _translation_sums(
        *tokens, *candidates, index.offsets, index.tokens, index.counts, *table.rows, table.probabilities,
        starts, min(tokens.rows, PARTS_PER_THREAD * get_num_threads()),
    )  # fmt: skip
    return starts, sums


@njit(cache=True, nogil=True, parallel=True, fastmath={"contract"})
def _translation_sums(  # type: ignore[no-untyped-def]
    q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, t_offsets, t_tokens, t_values, starts, parts
):
    queries, vocabulary_size = len(q_offsets) - 1, len(t_offsets) - 1
    sums = np.zeros(starts[-1], np.float32)
    for part in prange(parts):
        position = np.zeros(vocabulary_size, np.int32)  # the row of a document token in `translation`, if it has one
        for q in range(queries * part // parts, queries * (part + 1) // parts):
            n = q_offsets[q + 1] - q_offsets[q]
            for start in range(0, n, LANES):
                lanes = q_tokens[q_offsets[q] + start : q_offsets[q] + min(start + LANES, n)]
                translating = 0
                for q_token in lanes:
                    if 0 <= q_token < vocabulary_size:
                        translating += t_offsets[q_token + 1] - t_offsets[q_token]
                translation = np.zeros((translating + 1, LANES), np.float32)  # T(lane | d); the first row stays 0
                used = 0
                for i in range(len(lanes)):
                    if 0 <= lanes[i] < vocabulary_size:
                        for k in range(t_offsets[lanes[i]], t_offsets[lanes[i] + 1]):
                            if position[t_tokens[k]] == 0:
                                used += 1
                                position[t_tokens[k]] = used
                            translation[position[t_tokens[k]], i] = t_values[k]
                for pair in range(c_offsets[q], c_offsets[q + 1]):
                    row = slice(offsets[c_docs[pair]], offsets[c_docs[pair] + 1])
                    of_lanes = _sum_lanes(tokens[row], counts[row], position, translation)
                    k = starts[q] + (pair - c_offsets[q]) * n + start
                    for i in range(len(lanes)):
                        sums[k + i] = of_lanes[i]
                for i in range(len(lanes)):
                    if 0 <= lanes[i] < vocabulary_size:
                        for k in range(t_offsets[lanes[i]], t_offsets[lanes[i] + 1]):
                            position[t_tokens[k]] = 0
    return sums


@njit(cache=True, nogil=True, fastmath={"contract"})
def _sum_lanes(tokens, counts, position, translation):  # type: ignore[no-untyped-def]
    """Return LANES sums over the tokens d of a document of T(lane | d) * tf(d); variables stay in registers."""
    a = b = c = d = e = f = g = h = np.float32(0)
    for k in range(len(tokens)):
        t, n = translation[position[tokens[k]]], np.float32(counts[k])
        a, b, c, d = a + n * t[0], b + n * t[1], c + n * t[2], d + n * t[3]
        e, f, g, h = e + n * t[4], f + n * t[5], g + n * t[6], h + n * t[7]
    return a, b, c, d, e, f, g, h


@njit(cache=True, nogil=True, inline="always")
def add_log(p, times, floor, total, product):  # type: ignore[no-untyped-def]
    """Add times * ln max(p, floor) to total + ln product: one logarithm for many factors, before they underflow."""
    p = max(p, floor)
    if times > 1:
        total += times * np.log(p)
    else:
        product *= p
        if product < 1e-200:
            total += np.log(product)
            product = 1.0
    return total, product


@njit(cache=True, nogil=True, parallel=True)
def _log_probabilities(  # type: ignore[no-untyped-def]
    q_offsets, q_tokens, repeats, c_offsets, c_docs, lengths, starts, sums, background, smoothing, floor
):
    scores = np.zeros(len(c_docs), np.float64)
    for q in prange(len(q_offsets) - 1):
        k = starts[q]
        for pair in range(c_offsets[q], c_offsets[q + 1]):
            scale = (1.0 - smoothing) / max(1, lengths[c_docs[pair]])
            for start in range(q_offsets[q], q_offsets[q + 1], LANES):
                total, product = 0.0, 1.0
                for i in range(start, min(start + LANES, q_offsets[q + 1])):
                    prior = background[q_tokens[i]] if 0 <= q_tokens[i] < len(background) else UNSEEN
                    p = scale * sums[k] + smoothing * prior
                    total, product = add_log(p, repeats[i], floor, total, product)
                    k += 1
                scores[pair] += total + np.log(product)
    return scores.astype(np.float32)
