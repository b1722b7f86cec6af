"""A ranking score taken apart: what each query token adds to it, and which document tokens that comes from.

Model 1 is a product over query tokens of sums over document tokens (equations 1 and 2 of the paper), so its explanation
is the computation itself:

    ln P(Q|D) = sum over q of ln P(q|D)
    P(q|D)    = sum over i of (1 - lambda) T(q|d_i) / |D|  +  lambda P(q|C),  at the least `floor`

A place i of the document has the share (1 - lambda) T(q|d_i) / |D| of P(q|D); what smoothing and floor add is known as
theirs. BM25 is a sum over query tokens; a token's part belongs to the places where it stands, to each alike.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from lexical.bm25 import BM25Parameters
from lexical.index.forward_index import ForwardIndex
from lexical.model1.table import TranslationTable

Kind = Literal["model1", "bm25"]


class TokenSpan(NamedTuple):
    """A token and the characters of the text that it was made of."""

    token: str
    start: int
    end: int


class Evidence(NamedTuple):
    """One score of one document. Query and document tokens in the order of the text, as far as the ranker reads them.

    Of every query token `shares.sum(axis=1) + smoothing + floor` is P(q|D); for BM25 it is 1 where the token was found.
    """

    values: np.ndarray  # (query tokens,) float64 what each adds to the score: values.sum() is the score
    shares: np.ndarray  # (query tokens, document tokens) float64 part of P(q|D) that comes from a place
    smoothing: np.ndarray  # (query tokens,) float64 part that comes from the collection
    floor: np.ndarray  # (query tokens,) float64 part that is added because the rest is below the floor
    kind: Kind = "model1"
    normaliser: int = 1  # of Model 1: values times this are ln P(q|D)
    chunks: tuple[int, ...] = (0,)  # document tokens that a chunk begins with

    @property
    def score(self) -> float:
        return float(self.values.sum())

    @property
    def probabilities(self) -> np.ndarray:
        """(query tokens,) P(q|D)."""
        return self.shares.sum(axis=1) + self.smoothing + self.floor

    def fractions(self) -> Evidence:
        """The same with all parts divided by P(q|D): what a query token rests on, summing to 1 (0 if on nothing)."""
        whole = self.probabilities
        whole = np.where(whole > 0, whole, 1.0)
        return self._replace(
            shares=self.shares / whole[:, None], smoothing=self.smoothing / whole, floor=self.floor / whole
        )


def model1_evidence(
    translation: np.ndarray, smoothing: np.ndarray, floor: float, normaliser: int, chunks: tuple[int, ...] = (0,)
) -> Evidence:
    """Evidence of a Model 1 score.

    Args:
        translation: (query tokens, document tokens) (1 - lambda) T(q|d_i).
        smoothing: (query tokens,) lambda P(q|C).
        floor: P(q|D) at the least.
        normaliser: what ln P(Q|D) is divided by.
        chunks: document tokens that a chunk begins with.
    """
    shares = translation.astype(np.float64) / max(1, translation.shape[1])
    known = shares.sum(axis=1) + smoothing
    added = np.maximum(0.0, floor - known)
    normaliser = max(1, normaliser)
    values = np.log(known + added) / normaliser
    return Evidence(values, shares, np.asarray(smoothing, np.float64), added, "model1", normaliser, chunks)


def table_translation(table: TranslationTable, query: np.ndarray, document: np.ndarray) -> np.ndarray:
    """(query tokens, document tokens) T(q|d_i) of a table; 0 for unknown tokens."""
    distinct, place = np.unique(document, return_inverse=True)
    found = np.zeros((len(query), len(document)))
    for number, token in enumerate(query):
        if not 0 <= token < table.vocabulary_size:
            continue
        begin, end = table.rows.offsets[token], table.rows.offsets[token + 1]
        row, values = table.rows.values[begin:end], table.probabilities[begin:end]
        at = np.searchsorted(row, distinct)
        at = np.minimum(at, max(0, len(row) - 1))
        known = row[at] == distinct if len(row) else np.zeros(len(distinct), bool)
        found[number] = np.where(known, values[at] if len(row) else 0.0, 0.0)[place]
    return found


def bm25_evidence(index: ForwardIndex, query: np.ndarray, document: np.ndarray, parameters: BM25Parameters) -> Evidence:
    """Evidence of the normalised BM25 score (`lexical.bm25`) of a document of the index, given by its tokens."""
    k1, b = parameters
    norm = k1 * (1 - b + b * len(document) / max(index.mean_length, 1e-9))
    match = (np.asarray(query)[:, None] == np.asarray(document)[None, :]) & (np.asarray(query) >= 0)[:, None]
    tf = match.sum(axis=1).astype(np.float64)
    known = np.asarray(query)[np.asarray(query) >= 0]
    whole = float(index.idf[np.unique(known)].sum()) or 1.0
    idf = np.array([index.idf[token] if token >= 0 else 0.0 for token in query])
    values = idf * tf / np.where(tf > 0, tf + norm, 1.0) / whole
    shares = match / np.maximum(1.0, tf)[:, None]
    nothing = np.zeros(len(query))
    return Evidence(values, shares, nothing, nothing, "bm25")
