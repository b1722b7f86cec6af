"""Translations without training: T(q|d) from the cosine of token embeddings (Zuccon et al. 2015).

    T(q|d) = cos(q, d) / sum over the k nearest tokens q' of d of cos(q', d)

d itself is not among its neighbours: tables store self-translation separately. Neighbours are searched with faiss; a
negative cosine counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np

from lexical.encoders import load_encoder, read_tokenizer
from lexical.errors import UserError
from lexical.model1.table import Translations, rows_of_entries

EXACT_UP_TO = 200_000  # vectors; more are searched with an HNSW graph
BLOCK = 4096


class TokenVectors(NamedTuple):
    tokens: np.ndarray  # (n,) int32 token ids of the field, ascending
    vectors: np.ndarray  # (n, dimensions) float32


def nearest_translations(
    given: TokenVectors, sources: np.ndarray, neighbours: int, on_block: Callable[[int], None] = lambda tokens: None
) -> Translations:
    """Return T(q|d) for the nearest tokens q of each document token d that has a vector and is in `sources` (bool)."""
    unit = given.vectors / np.maximum(np.linalg.norm(given.vectors, axis=1, keepdims=True), 1e-12)
    unit = np.ascontiguousarray(unit, np.float32)
    kind = "Flat" if len(unit) <= EXACT_UP_TO else "HNSW32"
    index = faiss.index_factory(unit.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    index.add(unit)
    searched = np.flatnonzero(sources[given.tokens])
    k = min(neighbours + 1, len(unit))  # the token itself is the nearest
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for start in range(0, len(searched), BLOCK):
        rows = searched[start : start + BLOCK]
        cosines, near = index.search(unit[rows], k)
        parts.append(_normalised(rows, np.maximum(cosines, 0).astype(np.float64), near, neighbours))
        on_block(len(rows))
    d, q, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Translations(*rows_of_entries(given.tokens[d], given.tokens[q], values, len(sources)))


def _normalised(
    rows: np.ndarray, cosines: np.ndarray, near: np.ndarray, neighbours: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (row, neighbour, cosine divided by the sum of the row's cosines) of all neighbours."""
    cosines[(near == rows[:, None]) | (near < 0)] = 0.0
    cosines *= np.cumsum(cosines > 0, axis=1) <= neighbours  # one too many where the token itself is not among them
    sums = cosines.sum(axis=1, keepdims=True)
    values = cosines / np.where(sums > 0, sums, 1.0)
    i, column = np.nonzero(values)
    return rows[i], near[i, column], values[i, column]


def encoder_vectors(name: str, vocabulary: Sequence[str]) -> TokenVectors:
    """Read the input embeddings of an encoder by name, see `lexical.encoders`."""
    numbers = read_tokenizer(name).get_vocab()
    matrix = load_encoder("--model.vectors", name).get_input_embeddings().weight.numpy(force=True)
    pairs = [(i, numbers[token]) for i, token in enumerate(vocabulary) if _is_word(token) and token in numbers]
    tokens, rows = np.array(pairs, np.int64).reshape(-1, 2).T
    if not len(tokens):
        raise UserError(f"{name} has no vector for any token of the field")
    if rows.max() >= len(matrix) or not np.isfinite(matrix[rows]).all():
        raise UserError(f"{name}: the input embeddings do not fit the tokenizer, or are not finite")
    return TokenVectors(tokens.astype(np.int32), matrix[rows])


def file_vectors(path: Path, vocabulary: Sequence[str]) -> TokenVectors:
    """Read a text file of vectors, ``word number number ...`` per line; skip word2vec's first line of two numbers."""
    numbers = {token: i for i, token in enumerate(vocabulary)}
    vectors: dict[int, np.ndarray] = {}
    dimensions = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line_number, line in enumerate(file, start=1):
                word, *values = line.rstrip("\r\n ").split(" ")
                if line_number == 1 and len(values) == 1:
                    continue
                dimensions = dimensions or len(values)
                if len(values) != dimensions or not values:
                    raise UserError(f"{path}:{line_number}: {len(values)} numbers instead of {dimensions}")
                if word in numbers:
                    vector = vectors[numbers[word]] = np.array(values, np.float32)
                    if not np.isfinite(vector).all():
                        raise UserError(f"{path}:{line_number}: a number is not finite")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: word vectors cannot be read ({error})") from error
    except ValueError as error:
        raise UserError(f"{path}:{line_number}: not a line of numbers ({error})") from error
    if not vectors:
        raise UserError(f"{path} has no vector for any token of the field")
    tokens = np.array(sorted(vectors), np.int32)
    return TokenVectors(tokens, np.stack([vectors[token] for token in tokens.tolist()]))


def _is_word(token: str) -> bool:
    """Return False for special tokens such as [CLS] or [unused7]."""
    return not (len(token) > 2 and token.startswith("[") and token.endswith("]"))
