"""Model 1 over the forward index (equations 1 and 2 of the paper): scores of given candidates, on the CPU.

    P(q|D)    = (1 - lambda) * sum over unique d in D of T(q|d) * tf(d, D) / |D|  +  lambda * P(q|C)
    score     = sum over q in Q of ln P(q|D)          (a repeated query token counts each time)

P(q|C) is the share of q among the collection's tokens, 1e-9 for a token that the collection does not have. Without
smoothing (lambda = 0, for exported networks) it is ln max(P(q|D), floor), by default 1e-8. For fusion the score is
divided by the number of query tokens.

Speed: up to eight query tokens are processed together. Their rows of the table are laid out as one short vector for
each document token, with T of each query token; an array over the vocabulary holds the position of a token's vector,
0 if it has none. Of a candidate the tokens with a vector are listed first, without a branch (the processor would
mispredict it), then their vectors are summed in registers. A query of any length needs no more memory than one of
eight tokens.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, njit, prange

from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.table import TranslationTable

UNSEEN = 1e-9  # P(q|C) of a token that the collection does not have
FLOOR = 1e-8  # smallest P(q|D) without smoothing
LANES = 8  # query tokens that are processed together: the sums of `_sum_vectors`
PARTS_PER_THREAD = 4


def collection_probability(index: ForwardIndex) -> np.ndarray:
    """Return (vocabulary,) float64 P(q|C)."""
    frequency = np.asarray(index.collection_frequency, np.float64)
    return np.where(frequency > 0, frequency / max(1.0, frequency.sum()), UNSEEN)


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
    lengths, tokens, repeats = _distinct_tokens(*queries)
    return Ragged(offsets_of(lengths), tokens), repeats


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
        starts, PARTS_PER_THREAD * get_num_threads(),
    )  # fmt: skip
    return starts, sums


@njit(cache=True, nogil=True)
def _distinct_tokens(offsets, tokens):  # type: ignore[no-untyped-def]
    lengths = np.zeros(len(offsets) - 1, np.int64)
    distinct, repeats = np.empty(len(tokens), np.int64), np.zeros(len(tokens), np.int64)
    start = end = 0
    for row in range(len(lengths)):
        for token in tokens[offsets[row] : offsets[row + 1]]:
            i = start
            while i < end and distinct[i] != token:
                i += 1
            if i == end:
                distinct[i] = token
                end += 1
            repeats[i] += 1
        lengths[row] = end - start
        start = end
    return lengths, distinct[:end].copy(), repeats[:end].copy()


@njit(cache=True, nogil=True, parallel=True)
def _translation_sums(  # type: ignore[no-untyped-def]
    q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, t_offsets, t_tokens, t_values, starts, parts
):
    queries = len(q_offsets) - 1
    sums = np.zeros(starts[-1], np.float32)
    for part in prange(parts):
        _translation_sums_of_part(
            queries * part // parts, queries * (part + 1) // parts, q_offsets, q_tokens, c_offsets, c_docs,
            offsets, tokens, counts, t_offsets, t_tokens, t_values, starts, sums,
        )  # fmt: skip
    return sums


@njit(cache=True, nogil=True)
def _translation_sums_of_part(  # type: ignore[no-untyped-def]
    first, last, q_offsets, q_tokens, c_offsets, c_docs,
    offsets, tokens, counts, t_offsets, t_tokens, t_values, starts, sums,
):  # fmt: skip
    """Process the queries `first` to `last` - 1. Not inlined in `prange`, where numba takes `vectors` as fixed."""
    if starts[first] == starts[last]:
        return
    position, touched = np.zeros(len(t_offsets) - 1, np.int32), np.empty(len(t_offsets), np.int32)
    vectors = np.zeros(LANES, np.float32)
    most_tokens = 0
    for doc in c_docs[c_offsets[first] : c_offsets[last]]:
        most_tokens = max(most_tokens, offsets[doc + 1] - offsets[doc])
    positions, tf = np.empty(most_tokens, np.int32), np.empty(most_tokens, np.float32)
    for q in range(first, last):
        n = q_offsets[q + 1] - q_offsets[q]
        for start in range(0, n, LANES):
            lanes = q_tokens[q_offsets[q] + start : q_offsets[q] + min(start + LANES, n)]
            vectors = _with_room(vectors, lanes, t_offsets)
            used = _lay_out(lanes, t_offsets, t_tokens, t_values, position, vectors, touched)
            for pair in range(c_offsets[q], c_offsets[q + 1]):
                row = slice(offsets[c_docs[pair]], offsets[c_docs[pair] + 1])
                m = _list_translating(tokens[row], counts[row], position, positions, tf)
                of_lanes = _sum_vectors(positions[:m], tf[:m], vectors)
                k = starts[q] + (pair - c_offsets[q]) * n + start
                for i in range(len(lanes)):
                    sums[k + i] = of_lanes[i]
            for i in range(used):
                position[touched[i]] = 0
            vectors[: (used + 1) * len(lanes)] = 0


@njit(cache=True, nogil=True)
def _with_room(vectors, lanes, t_offsets):  # type: ignore[no-untyped-def]
    """Return `vectors`, or larger ones if the document tokens that translate to `lanes` may need them; all zeros."""
    rows = 1  # the first one stays empty: position 0 means "has no vector"
    for q in lanes:
        if 0 <= q < len(t_offsets) - 1:
            rows += t_offsets[q + 1] - t_offsets[q]
    size = min(rows, len(t_offsets)) * len(lanes) + LANES  # `_sum_vectors` reads LANES values of every vector
    return vectors if size <= len(vectors) else np.zeros(size, np.float32)


@njit(cache=True, nogil=True)
def _lay_out(lanes, t_offsets, t_tokens, t_values, position, vectors, touched):  # type: ignore[no-untyped-def]
    """Set vectors[position[d] + i] = T(lanes[i] | d); list the d with a vector in `touched`; return their number."""
    used, width = np.int32(0), np.int32(len(lanes))
    for i in range(len(lanes)):
        q = lanes[i]
        if not 0 <= q < len(t_offsets) - 1:
            continue
        row, values = t_tokens[t_offsets[q] : t_offsets[q + 1]], t_values[t_offsets[q] : t_offsets[q + 1]]
        for k in range(len(row)):
            d = row[k]
            new = np.int32(position[d] == 0)  # 1 or 0, added instead of branched on: half would be mispredicted
            touched[used] = d
            used += new
            position[d] += new * used * width
            vectors[position[d] + i] = values[k]
    return used


@njit(cache=True, nogil=True)
def _list_translating(tokens, counts, position, positions, tf):  # type: ignore[no-untyped-def]
    """List position and count of the document tokens that have a vector; return their number."""
    n = 0
    for k in range(len(tokens)):
        of_token = position[tokens[k]]
        positions[n], tf[n] = of_token, counts[k]
        n += of_token != 0
    return n


@njit(cache=True, nogil=True, fastmath={"contract"})
def _sum_vectors(positions, tf, vectors):  # type: ignore[no-untyped-def]
    """Return LANES sums of tf * vector, those beyond the query tokens without meaning; variables stay in registers."""
    a = b = c = d = e = f = g = h = np.float32(0)
    for k in range(len(positions)):
        v, n = vectors[positions[k] : positions[k] + LANES], tf[k]
        a, b, c, d = a + n * v[0], b + n * v[1], c + n * v[2], d + n * v[3]
        e, f, g, h = e + n * v[4], f + n * v[5], g + n * v[6], h + n * v[7]
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
