"""The parts of a ranking score: what each query token adds to it, and which document tokens that comes from.

Model 1 is a product over query tokens of sums over document tokens (equations 1 and 2 of the paper), so its explanation
is the computation itself:

    ln P(Q|D) = sum over q of ln P(q|D)
    P(q|D)    = sum over i of (1 - lambda) T(q|d_i) / |D|  +  lambda P(q|C),  but not less than `floor`

Document token i has the share (1 - lambda) T(q|d_i) / |D| of P(q|D); smoothing and floor have shares of their own. BM25
is a sum over query tokens; the part of a token is divided equally among its occurrences in the document.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from lexical.bm25 import BM25Parameters
from lexical.index.forward_index import ForwardIndex
from lexical.model1.table import TranslationTable

Kind = Literal["model1", "bm25"]


class TokenSpan(NamedTuple):
    """A token and its characters in the text."""

    token: str
    start: int
    end: int


class Evidence(NamedTuple):
    """The parts of one document's score; query and document tokens in the order of the text that the ranker reads.

    `shares.sum(axis=1) + smoothing + floor` is P(q|D) of each query token; for BM25 it is 1 if the document has it.
    """

    values: np.ndarray  # (query tokens,) float64 part of the score: values.sum() is the score
    shares: np.ndarray  # (query tokens, document tokens) float64 part of P(q|D) from each document token
    smoothing: np.ndarray  # (query tokens,) float64 part from the collection
    floor: np.ndarray  # (query tokens,) float64 part that raises the rest to the floor
    kind: Kind = "model1"
    normaliser: int = 1  # of Model 1: values times this are ln P(q|D)
    chunks: tuple[int, ...] = (0,)  # first document token of each chunk

    @property
    def score(self) -> float:
        return float(self.values.sum())

    @property
    def probabilities(self) -> np.ndarray:
        """Return (query tokens,) P(q|D)."""
        return self.shares.sum(axis=1) + self.smoothing + self.floor


def model1_evidence(
    translation: np.ndarray, smoothing: np.ndarray, floor: float, normaliser: int, chunks: tuple[int, ...] = (0,)
) -> Evidence:
    """Explain a Model 1 score.

    Args:
        translation: (query tokens, document tokens) (1 - lambda) T(q|d_i).
        smoothing: (query tokens,) lambda P(q|C).
        floor: smallest P(q|D).
        normaliser: divides ln P(Q|D).
        chunks: first document token of each chunk.
    """
    shares = translation.astype(np.float64) / max(1, translation.shape[1])
    unfloored = shares.sum(axis=1) + smoothing
    added = np.maximum(0.0, floor - unfloored)
    normaliser = max(1, normaliser)
    values = np.log(unfloored + added) / normaliser
    return Evidence(values, shares, np.asarray(smoothing, np.float64), added, "model1", normaliser, chunks)


def table_translation(table: TranslationTable, query: np.ndarray, document: np.ndarray) -> np.ndarray:
    """Return (query tokens, document tokens) T(q|d_i) of a table; 0 for unknown tokens (below 0)."""
    translation = np.zeros((len(query), len(document)))
    for i, token in enumerate(query):
        if 0 <= token < table.vocabulary_size:
            start, end = table.rows.offsets[token], table.rows.offsets[token + 1]
            of_vocabulary = np.zeros(table.vocabulary_size + 1)  # the last one is read for unknown tokens
            of_vocabulary[table.rows.values[start:end]] = table.probabilities[start:end]
            translation[i] = of_vocabulary[np.maximum(document, -1)]
    return translation


def bm25_evidence(index: ForwardIndex, query: np.ndarray, document: np.ndarray, parameters: BM25Parameters) -> Evidence:
    """Explain the normalised BM25 score (`lexical.bm25`) of a document of the index, given by its tokens."""
    k1, b = parameters
    query, document = np.asarray(query), np.asarray(document)
    norm = k1 * (1 - b + b * len(document) / max(index.mean_length, 1e-9))
    match = (query[:, None] == document[None, :]) & (query >= 0)[:, None]
    tf = match.sum(axis=1).astype(np.float64)
    idf_sum = float(index.idf[np.unique(query[query >= 0])].sum()) or 1.0
    idf = np.array([index.idf[token] if token >= 0 else 0.0 for token in query])
    values = idf * tf / np.where(tf > 0, tf + norm, 1.0) / idf_sum
    shares = match / np.maximum(1.0, tf)[:, None]
    nothing = np.zeros(len(query))
    return Evidence(values, shares, nothing, nothing, "bm25")
