"""Model 1 over the forward index (equations 1 and 2 of the paper): re-scoring of given candidates on the CPU.

    P(q|D)    = (1 - lambda) * sum over unique d in D of T(q|d) * tf(d, D) / |D|  +  lambda * P(q|C)
    score     = sum over q in Q of ln P(q|D)          (a repeated query token counts each time)

P(q|C) is the share of q among the collection's tokens, 1e-9 for a token that the collection does not have. Without
smoothing (lambda = 0, for exported networks) it is ln max(P(q|D), floor), by default 1e-8. For fusion the score is
divided by the number of query tokens.

Speed: up to eight query tokens at a time, their rows of the table are laid out as (document token -> a short vector
with T of each of them), behind an array over the vocabulary that says where a document token has its vector, if any.
Of a candidate the tokens that have one are listed first, without a branch (the processor would guess it wrong), then
their vectors are summed in registers. A query of any length needs no more memory than one of eight tokens.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, njit, prange

from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged
from lexical.model1.table import TranslationTable

UNSEEN = 1e-9  # P(q|C) of a token that the collection does not have
FLOOR = 1e-8  # P(q|D) at the least, without smoothing
LANES = 8  # query tokens that are scored together: as many as `translated` has sums
PARTS_PER_THREAD = 4


def collection_probability(index: ForwardIndex) -> np.ndarray:
    """(vocabulary,) float64 P(q|C)."""
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
    """(pairs,) float32 ln P(Q|D) of the candidate documents, row i of `candidates` belonging to row i of `queries`.

    Query tokens below 0 are unknown words. `smoothing` is the paper's lambda; `background` is P(q|C), computed when
    not given. Without smoothing P(q|D) is `floor` at the least. Uses all numba threads; the result does not depend on
    their number.
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
    if background is None:
        background = collection_probability(index)
    return _score(
        queries.offsets, queries.values, candidates.offsets, candidates.values,
        index.offsets, index.tokens, index.counts, index.lengths, background,
        *table.rows, table.probabilities, float(smoothing), 0.0 if smoothing else float(floor),
        PARTS_PER_THREAD * get_num_threads(),
    )  # fmt: skip


def per_query_token(scores: np.ndarray, queries: Ragged, candidates: Ragged) -> np.ndarray:
    """Scores divided by the number of tokens of their query: ready for fusion."""
    return (scores / np.repeat(np.maximum(1, queries.lengths()), candidates.lengths())).astype(np.float32)


@njit(cache=True, nogil=True)
def unique_tokens(tokens, unique, repeats):  # type: ignore[no-untyped-def]
    """Distinct tokens in the order of their first place, and how often each comes; how many there are."""
    n = 0
    for token in tokens:
        known = False
        for i in range(n):
            if unique[i] == token:
                repeats[i] += 1
                known = True
                break
        if not known:
            unique[n], repeats[n] = token, 1
            n += 1
    return n


@njit(cache=True, nogil=True)
def roomy(vectors, lanes, t_offsets):  # type: ignore[no-untyped-def]
    """`vectors`, or larger ones if the document tokens that translate to `lanes` may need them; all zeros."""
    rows = 1  # the first one is nobody's: place 0 means "has no vector"
    for q in lanes:
        if 0 <= q < len(t_offsets) - 1:
            rows += t_offsets[q + 1] - t_offsets[q]
    size = min(rows, len(t_offsets)) * len(lanes) + LANES  # `translated` reads `LANES` values wherever a vector begins
    return vectors if size <= len(vectors) else np.zeros(size, np.float32)


@njit(cache=True, nogil=True)
def lay_out(lanes, t_offsets, t_tokens, t_values, places, vectors, touched):  # type: ignore[no-untyped-def]
    """vectors[places[d] + i] = T(lanes[i] | d); `touched` lists the d that have a vector. Their number."""
    used, width = np.int32(0), np.int32(len(lanes))
    for i in range(len(lanes)):
        q = lanes[i]
        if not 0 <= q < len(t_offsets) - 1:
            continue
        row, values = t_tokens[t_offsets[q] : t_offsets[q + 1]], t_values[t_offsets[q] : t_offsets[q + 1]]
        for k in range(len(row)):
            d = row[k]
            new = np.int32(places[d] == 0)  # 1 or 0, added instead of branched on: half of the guesses would be wrong
            touched[used] = d
            used += new
            places[d] += new * used * width
            vectors[places[d] + i] = values[k]
    return used


@njit(cache=True, nogil=True)
def clear(places, vectors, touched, used, width):  # type: ignore[no-untyped-def]
    """Undoes `lay_out` of so many document tokens and query tokens."""
    for i in range(used):
        places[touched[i]] = 0
    vectors[: (used + 1) * width] = 0


@njit(cache=True, nogil=True)
def translating(tokens, counts, places, found, tf):  # type: ignore[no-untyped-def]
    """The tokens of a document that have a vector: its place and the count into `found` and `tf`. Their number."""
    n = 0
    for k in range(len(tokens)):
        place = places[tokens[k]]
        found[n], tf[n] = place, counts[k]
        n += place != 0
    return n


@njit(cache=True, nogil=True, fastmath={"contract"})
def translated(found, tf, vectors):  # type: ignore[no-untyped-def]
    """(LANES,) sums of tf * vector, those beyond the query tokens without meaning. Names, as they stay in registers."""
    a = b = c = d = e = f = g = h = np.float32(0)
    for k in range(len(found)):
        v, n = vectors[found[k] : found[k] + LANES], tf[k]
        a, b, c, d = a + n * v[0], b + n * v[1], c + n * v[2], d + n * v[3]
        e, f, g, h = e + n * v[4], f + n * v[5], g + n * v[6], h + n * v[7]
    return a, b, c, d, e, f, g, h


@njit(cache=True, nogil=True)
def most_postings(offsets, docs):  # type: ignore[no-untyped-def]
    """Unique tokens of the document that has most of them: room for `translating`."""
    most = 0
    for doc in docs:
        most = max(most, offsets[doc + 1] - offsets[doc])
    return most


@njit(cache=True, nogil=True, inline="always")
def add_log(p, times, least, total, product):  # type: ignore[no-untyped-def]
    """Adds times * ln max(p, least) to total + ln product: one logarithm for many factors, before they underflow."""
    p = max(p, least)
    if times > 1:
        total += times * np.log(p)
    else:
        product *= p
        if product < 1e-200:
            total += np.log(product)
            product = 1.0
    return total, product


@njit(cache=True, nogil=True, parallel=True)
def _score(  # type: ignore[no-untyped-def]
    q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, lengths, background,
    t_offsets, t_tokens, t_values, smoothing, least, parts,
):  # fmt: skip
    queries = len(q_offsets) - 1
    scores = np.zeros(len(c_docs), np.float64)
    for part in prange(parts):
        _score_part(
            queries * part // parts, queries * (part + 1) // parts,
            q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, lengths, background,
            t_offsets, t_tokens, t_values, smoothing, least, scores,
        )  # fmt: skip
    return scores.astype(np.float32)


@njit(cache=True, nogil=True)
def _score_part(  # type: ignore[no-untyped-def]
    first, last, q_offsets, q_tokens, c_offsets, c_docs, offsets, tokens, counts, lengths, background,
    t_offsets, t_tokens, t_values, smoothing, least, scores,
):  # fmt: skip
    """The queries first..last. Not inside of `prange`, where numba takes the size of `vectors` to be fixed."""
    if c_offsets[first] == c_offsets[last]:
        return
    places, touched = np.zeros(len(t_offsets) - 1, np.int32), np.empty(len(t_offsets), np.int32)
    vectors = np.zeros(LANES, np.float32)
    room = most_postings(offsets, c_docs[c_offsets[first] : c_offsets[last]])
    found, tf = np.empty(room, np.int32), np.empty(room, np.float32)
    for q in range(first, last):
        length = q_offsets[q + 1] - q_offsets[q]
        unique, repeats = np.empty(length, np.int64), np.empty(length, np.int64)
        n = unique_tokens(q_tokens[q_offsets[q] : q_offsets[q + 1]], unique, repeats)
        for start in range(0, n, LANES):
            lanes = unique[start : min(start + LANES, n)]
            prior = np.empty(len(lanes), np.float64)
            for i in range(len(lanes)):
                prior[i] = smoothing * (background[lanes[i]] if 0 <= lanes[i] < len(background) else UNSEEN)
            vectors = roomy(vectors, lanes, t_offsets)
            used = lay_out(lanes, t_offsets, t_tokens, t_values, places, vectors, touched)
            for pair in range(c_offsets[q], c_offsets[q + 1]):
                doc = c_docs[pair]
                row = slice(offsets[doc], offsets[doc + 1])
                m = translating(tokens[row], counts[row], places, found, tf)
                sums = translated(found[:m], tf[:m], vectors)
                scale = (1.0 - smoothing) / max(1, lengths[doc])
                total, product = 0.0, 1.0
                for i in range(len(lanes)):
                    p = scale * sums[i] + prior[i]
                    total, product = add_log(p, repeats[start + i], least, total, product)
                scores[pair] += total + np.log(product)
            clear(places, vectors, touched, used, len(lanes))
