"""Translations without training: T(q|d) from the cosine of token embeddings (Zuccon et al. 2015).

    T(q|d) = cos(q, d) / sum over the k nearest tokens q' of d of cos(q', d)

d itself is not among its neighbours: self-translation is set apart, as in every table. Neighbours are found with
faiss; a negative cosine counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
from safetensors import SafetensorError, safe_open

from lexical.errors import UserError
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.table import Translations

EXACT_UP_TO = 200_000  # vectors; more are searched by an HNSW graph
BLOCK = 4096
_INPUT_EMBEDDINGS = "embeddings.word_embeddings.weight"


class TokenVectors(NamedTuple):
    tokens: np.ndarray  # (n,) int32 token ids of the field, ascending
    vectors: np.ndarray  # (n, dimensions) float32


def nearest_translations(
    found: TokenVectors, sources: np.ndarray, neighbours: int, on_block: Callable[[int], None] = lambda done: None
) -> Translations:
    """Row = document token: its nearest tokens with T(q|d); only tokens with a vector that `sources` (bool) allows."""
    unit = found.vectors / np.maximum(np.linalg.norm(found.vectors, axis=1, keepdims=True), 1e-12)
    unit = np.ascontiguousarray(unit, np.float32)
    kind = "Flat" if len(unit) <= EXACT_UP_TO else "HNSW32"
    index = faiss.index_factory(unit.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    index.add(unit)
    asking = np.flatnonzero(sources[found.tokens])
    k = min(neighbours + 1, len(unit))  # the token itself is the nearest
    parts = []
    for start in range(0, len(asking), BLOCK):
        rows = asking[start : start + BLOCK]
        cosines, near = index.search(unit[rows], k)
        parts.append(_normalised(rows, np.maximum(cosines, 0).astype(np.float64), near, neighbours))
        on_block(len(rows))
    d, q, values = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else _nothing()
    d, q = found.tokens[d].astype(np.int64), found.tokens[q]
    order = np.lexsort((q, d))
    offsets = offsets_of(np.bincount(d, minlength=len(sources)))
    return Translations(Ragged(offsets, q[order].astype(np.int32)), values[order])


def _normalised(
    rows: np.ndarray, cosines: np.ndarray, near: np.ndarray, neighbours: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cosines[(near == rows[:, None]) | (near < 0)] = 0.0
    kept = np.cumsum(cosines > 0, axis=1) <= neighbours  # where the token itself was not found there is one too many
    cosines *= kept
    sums = cosines.sum(axis=1, keepdims=True)
    values = cosines / np.where(sums > 0, sums, 1.0)
    at, column = np.nonzero(values)
    return rows[at], near[at, column], values[at, column]


def _nothing() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)


def encoder_vectors(folder: Path, vocabulary: Sequence[str]) -> TokenVectors:
    """Input embeddings of a BERT-like encoder (``model.safetensors``, ``tokenizer.json``) for the tokens it knows."""
    from tokenizers import Tokenizer

    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    for path in (weights, tokenizer):
        if not path.is_file():
            raise UserError(f"{folder} has no {path.name}: input embeddings cannot be read from it")
    try:
        numbers = Tokenizer.from_file(str(tokenizer)).get_vocab()
    except Exception as error:  # the library has no class of its own for a damaged file
        raise UserError(f"{tokenizer} cannot be read ({str(error)[:200]!r})") from error
    try:
        with safe_open(weights, framework="numpy") as file:
            name = next((key for key in file.keys() if key.endswith(_INPUT_EMBEDDINGS)), None)  # noqa: SIM118
            if name is None:
                raise UserError(f"{weights} has no {_INPUT_EMBEDDINGS}")
            matrix = file.get_tensor(name).astype(np.float32)
    except (SafetensorError, OSError, ValueError, TypeError) as error:  # TypeError: numpy has no bfloat16
        raise UserError(f"{weights} cannot be read ({str(error)[:200]!r})") from error
    pairs = [(i, numbers[token]) for i, token in enumerate(vocabulary) if _is_word(token) and token in numbers]
    tokens, rows = np.array(pairs, np.int64).reshape(-1, 2).T
    if not len(tokens):
        raise UserError(f"{folder} has no vector for any token of the field")
    if matrix.ndim != 2 or rows.max() >= len(matrix) or not np.isfinite(matrix[rows]).all():
        raise UserError(f"{weights}: the input embeddings do not fit the tokenizer, or are not finite")
    return TokenVectors(tokens.astype(np.int32), matrix[rows])


def file_vectors(path: Path, vocabulary: Sequence[str]) -> TokenVectors:
    """Vectors of a text file, ``word number number ...`` a line (word2vec's first line with two numbers is skipped)."""
    numbers = {token: i for i, token in enumerate(vocabulary)}
    found: dict[int, np.ndarray] = {}
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
                    found[numbers[word]] = _numbers(values, path, line_number)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: word vectors cannot be read ({error})") from error
    if not found:
        raise UserError(f"{path} has no vector for any token of the field")
    tokens = np.array(sorted(found), np.int32)
    return TokenVectors(tokens, np.stack([found[token] for token in tokens.tolist()]))


def _numbers(values: list[str], path: Path, line_number: int) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError as error:
        raise UserError(f"{path}:{line_number}: not a line of numbers ({error})") from error
    if not np.isfinite(vector).all():
        raise UserError(f"{path}:{line_number}: a number is not finite")
    return vector


def _is_word(token: str) -> bool:
    """No special token such as [CLS] or [unused7]."""
    return not (len(token) > 2 and token.startswith("[") and token.endswith("]"))
