"""The strongest translations T(q|d) of the most frequent query words q, one translation table beside the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from lexical.model1.table import TranslationTable

WORDS = 16  # query words of a picture
TOP = 6  # document words of each
MIN_DOCUMENTS = 20
MIN_CHARACTERS = 3  # of a query word
PIECE = "##"  # starts a word piece that continues a word


class QueryWord(NamedTuple):
    """A query word and how often the queries have it."""

    word: str
    times: int


class Translation(NamedTuple):
    """A document word d and T(q|d)."""

    word: str
    probability: float


class ShownTable(NamedTuple):
    """A translation table to be shown."""

    row: str  # of the results
    kind: str  # EM, neural
    seed: int
    table: TranslationTable
    vocabulary: Sequence[str]
    common: np.ndarray  # (vocabulary,) bool: document words that are shown; rare ones were learned from little


class TableTranslations(NamedTuple):
    """What the picture shows of one table."""

    row: str
    kind: str
    seed: int
    strongest: list[list[Translation]]  # of each query word, without the word itself; equal ones by word


class TranslationPicture(NamedTuple):
    """Query words and their strongest translations in each table."""

    query_words: list[QueryWord]
    tables: list[TableTranslations]
    min_documents: int  # a document word that fewer documents contain is not shown


def frequent_words(tokens: np.ndarray, vocabulary: Sequence[str], stop: Collection[str]) -> list[QueryWord]:
    """Return the content words of the token ids of queries (-1: unknown), most frequent first, equal ones by word."""
    counts = np.bincount(tokens[tokens >= 0], minlength=len(vocabulary))
    words = [QueryWord(vocabulary[number], int(counts[number])) for number in np.flatnonzero(counts).tolist()]
    return sorted((word for word in words if _is_content(word.word, stop)), key=lambda word: (-word.times, word.word))


def _is_content(token: str, stop: Collection[str]) -> bool:
    """Whether the token is a whole word with a letter in it; [UNK] and the like are not words."""
    special = token.startswith("[") and token.endswith("]")
    whole = len(token) >= MIN_CHARACTERS and not token.startswith(PIECE) and not special
    return whole and any(map(str.isalpha, token)) and token not in stop


def min_documents(documents: int) -> int:
    """Return how many documents must contain a word for it to be shown, in a collection of `documents`."""
    return max(1, min(MIN_DOCUMENTS, documents // 100))


def translation_picture(
    words: Sequence[QueryWord], tables: Sequence[ShownTable], min_documents: int = 1
) -> TranslationPicture | None:
    """Show the first WORDS of `words` that every table translates; None where there is no such word, or no table."""
    token_ids = [{token: number for number, token in enumerate(shown.vocabulary)} for shown in tables]
    query_words: list[QueryWord] = []
    columns: list[list[list[Translation]]] = [[] for _ in tables]
    for word in words if tables else ():
        if len(query_words) == WORDS:
            break
        if not all(word.word in ids for ids in token_ids):
            continue
        of_word = [_strongest(shown, ids[word.word]) for shown, ids in zip(tables, token_ids, strict=True)]
        if all(of_word):
            query_words.append(word)
            for column, strongest in zip(columns, of_word, strict=True):
                column.append(strongest)
    shown_tables = [TableTranslations(*shown[:3], column) for shown, column in zip(tables, columns, strict=True)]
    return TranslationPicture(query_words, shown_tables, min_documents) if query_words else None


def _strongest(shown: ShownTable, q: int) -> list[Translation]:
    """Return the TOP translations of the query token q: only this row of a large table is read."""
    rows, probabilities = shown.table
    row = slice(rows.offsets[q], rows.offsets[q + 1])
    d, translation_prob = rows.values[row], probabilities[row]
    others = (d != q) & (translation_prob > 0) & shown.common[d]
    entries = zip(d[others].tolist(), translation_prob[others].tolist(), strict=True)
    translations = [Translation(shown.vocabulary[token], probability) for token, probability in entries]
    return sorted(translations, key=lambda entry: (-entry.probability, entry.word))[:TOP]
