"""The translation table T(q|d): the probability that the document token d translates to the query token q.

A table is final: pruned, rescaled, with its self-translations; the scorer only reads it. It is stored by query token,
because a query looks up the document tokens that translate to its few tokens.

The paper prepares a table that EM has learned like this (section "Non-parametric Model 1"):

    T(q|d) below a threshold is dropped,
    T(t|t) = p_self,
    the other T(q|d) of a document token d are rescaled to sum to 1 - p_self.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.sparse import coo_matrix

from lexical.index.ragged import Ragged


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

    def lookup(self, query_tokens: np.ndarray, document_tokens: np.ndarray) -> np.ndarray:
        """Return (pairs,) float32 T(q|d) of pairs of tokens, 0 where the table has no entry."""
        return _lookup(*self.rows, self.probabilities, query_tokens, document_tokens)


class Translations(NamedTuple):
    """Learned probabilities by document token, from which a table is made."""

    rows: Ragged  # row = document token, values = query tokens, ascending
    probabilities: np.ndarray  # (entries,) float64 T(value | row)

    def pruned(self, threshold: float) -> Translations:
        """Return only the probabilities that reach `threshold`."""
        keep = self.probabilities >= threshold
        return Translations(self.rows.select(keep), self.probabilities[keep])


def rows_of_entries(
    row: np.ndarray, value: np.ndarray, probability: np.ndarray, vocabulary_size: int
) -> tuple[Ragged, np.ndarray]:
    """Return (rows, probabilities) of entries in any order: values ascend inside a row."""
    matrix = coo_matrix((probability, (row, value)), (vocabulary_size, vocabulary_size)).tocsr()
    return Ragged(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)), matrix.data


def others_rescaled(learned: Translations, mass: float = 1.0) -> TranslationTable:
    """Return the table without self-translations: the probabilities of each document token sum to `mass`."""
    d = learned.rows.row_numbers().astype(np.int32)
    keep = learned.rows.values != d
    q, d, probabilities = learned.rows.values[keep], d[keep], learned.probabilities[keep]
    totals = np.bincount(d, probabilities, learned.rows.rows)[d]
    rescaled = (probabilities * mass / np.where(totals > 0, totals, 1.0)).astype(np.float32)
    return TranslationTable(*rows_of_entries(q, d, rescaled, learned.rows.rows))


def with_self_translation(others: TranslationTable, p_self: float) -> TranslationTable:
    """Multiply `others` by 1 - p_self and set T(t|t) = p_self for every token."""
    if p_self == 0:
        return others
    rows, tokens = others.rows, np.arange(others.vocabulary_size)
    smaller = np.bincount(rows.row_numbers()[rows.values <= rows.row_numbers()], minlength=len(tokens))
    before = rows.offsets[:-1] + smaller  # positions of the inserted entries: tokens stay ascending
    scaled = (others.probabilities.astype(np.float64) * (1.0 - p_self)).astype(np.float32)
    values = np.insert(rows.values, before, tokens.astype(np.int32))
    offsets = rows.offsets + np.arange(len(tokens) + 1)
    return TranslationTable(Ragged(offsets, values), np.insert(scaled, before, p_self))


def by_document_token(table: TranslationTable) -> Translations:
    """Transpose the table: row = document token."""
    d, q = table.rows.values, table.rows.row_numbers()
    return Translations(*rows_of_entries(d, q, table.probabilities.astype(np.float64), table.vocabulary_size))


def renumbered(
    table: TranslationTable, vocabulary: Sequence[str], new_vocabulary: Sequence[str]
) -> tuple[TranslationTable, int]:
    """Return the table with the token numbers of `new_vocabulary`, and how many tokens are in both vocabularies."""
    number = {token: i for i, token in enumerate(new_vocabulary)}
    new = np.array([number.get(token, -1) for token in vocabulary], np.int64)
    q, d = new[table.rows.row_numbers()], new[table.rows.values]
    keep = (q >= 0) & (d >= 0)
    entries = rows_of_entries(q[keep], d[keep], table.probabilities[keep], len(new_vocabulary))
    return TranslationTable(*entries), int((new >= 0).sum())


@njit(cache=True, nogil=True)
def _lookup(offsets, tokens, probabilities, query_tokens, document_tokens):  # type: ignore[no-untyped-def]
    values = np.zeros(len(query_tokens), np.float32)
    for i in range(len(query_tokens)):
        first, end = offsets[query_tokens[i]], offsets[query_tokens[i] + 1]
        k = first + np.searchsorted(tokens[first:end], document_tokens[i])
        if k < end and tokens[k] == document_tokens[i]:
            values[i] = probabilities[k]
    return values
