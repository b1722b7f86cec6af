"""The translation table T(q|d): how likely a document token d says the query token q.

A table is final: pruned, rescaled, with its self-translations; the scorer only reads it. It is kept by query token,
because a query asks "which document tokens say this?" for its few tokens.

The paper's measures for a table that EM has learned (section "Non-parametric Model 1"):

    T(q|d) below a threshold is dropped,
    T(t|t) = p_self,
    the other T(q|d) of a document token d are rescaled to sum to 1 - p_self.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from lexical.index.ragged import Ragged, offsets_of


class TranslationTable(NamedTuple):
    """Row = query token, values = the document tokens that translate to it, ascending."""

    rows: Ragged  # (vocabulary) rows of document tokens (int32)
    probabilities: np.ndarray  # (entries,) float32 T(row | value)

    @property
    def vocabulary_size(self) -> int:
        return self.rows.rows

    @property
    def entries(self) -> int:
        return len(self.rows.values)


class Translations(NamedTuple):
    """What a model has learned, by document token, before it is made a table: row = document token, values = query
    tokens, ascending."""

    rows: Ragged
    probabilities: np.ndarray  # (entries,) float64

    def pruned(self, threshold: float) -> Translations:
        """Only the probabilities that reach `threshold`."""
        keep = self.probabilities >= threshold
        return Translations(self.rows.select(keep), self.probabilities[keep])


def others_rescaled(learned: Translations, mass: float = 1.0) -> TranslationTable:
    """The table without self-translations: the other probabilities of each document token sum to `mass`."""
    rescaled = _others_rescaled(*learned.rows, learned.probabilities, mass)
    vocabulary_size = learned.rows.rows
    d_of_entry = learned.rows.row_numbers().astype(np.int32)
    keep = learned.rows.values != d_of_entry
    q, d, rescaled = learned.rows.values[keep], d_of_entry[keep], rescaled[keep]
    order = np.argsort(q, kind="stable")  # entries come by document token, so they stay ascending inside a row
    offsets = offsets_of(np.bincount(q, minlength=vocabulary_size))
    return TranslationTable(Ragged(offsets, d[order]), rescaled[order].astype(np.float32))


def with_self_translation(others: TranslationTable, p_self: float) -> TranslationTable:
    """`others` (that sum to 1 for each document token) times 1 - p_self, and T(t|t) = p_self for every token."""
    if p_self == 0:
        return others
    vocabulary_size = others.vocabulary_size
    offsets = others.rows.offsets + np.arange(vocabulary_size + 1)
    values, probabilities = _insert_diagonal(*others.rows, others.probabilities, p_self)
    return TranslationTable(Ragged(offsets, values), probabilities)


def by_document_token(table: TranslationTable) -> Translations:
    """The table turned round: row = document token."""
    order = np.argsort(table.rows.values, kind="stable")
    q = table.rows.row_numbers()[order].astype(np.int32)
    offsets = offsets_of(np.bincount(table.rows.values, minlength=table.vocabulary_size))
    return Translations(Ragged(offsets, q), table.probabilities[order].astype(np.float64))


def renumbered(
    table: TranslationTable, vocabulary: Sequence[str], wanted: Sequence[str]
) -> tuple[TranslationTable, int]:
    """The table with the token numbers of another vocabulary, and how many tokens both have; others are left out."""
    number = {token: i for i, token in enumerate(wanted)}
    new = np.array([number.get(token, -1) for token in vocabulary], np.int64)
    q, d = new[table.rows.row_numbers()], new[table.rows.values]
    keep = (q >= 0) & (d >= 0)
    order = np.lexsort((d[keep], q[keep]))
    offsets = offsets_of(np.bincount(q[keep], minlength=len(wanted)))
    rows = Ragged(offsets, d[keep][order].astype(np.int32))
    return TranslationTable(rows, table.probabilities[keep][order]), int((new >= 0).sum())


@njit(cache=True, nogil=True, parallel=True)
def _others_rescaled(offsets, targets, values, mass):  # type: ignore[no-untyped-def]
    out = np.zeros(len(values), np.float64)
    for d in prange(len(offsets) - 1):
        total = 0.0
        for k in range(offsets[d], offsets[d + 1]):
            if targets[k] != d:
                total += values[k]
        if total > 0:
            for k in range(offsets[d], offsets[d + 1]):
                out[k] = values[k] * mass / total
    return out


@njit(cache=True, nogil=True, parallel=True)
def _insert_diagonal(offsets, tokens, probabilities, p_self):  # type: ignore[no-untyped-def]
    rows = len(offsets) - 1
    new_tokens = np.empty(len(tokens) + rows, np.int32)
    new_values = np.empty(len(tokens) + rows, np.float32)
    for q in prange(rows):
        at = offsets[q] + q
        placed = False
        for k in range(offsets[q], offsets[q + 1]):
            if not placed and tokens[k] > q:
                new_tokens[at], new_values[at] = q, p_self
                at += 1
                placed = True
            new_tokens[at], new_values[at] = tokens[k], probabilities[k] * (1.0 - p_self)
            at += 1
        if not placed:
            new_tokens[at], new_values[at] = q, p_self
    return new_tokens, new_values
