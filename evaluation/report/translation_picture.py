"""The strongest translations T(q|d) of the most frequent query words q, one translation table beside the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lexical.model1.table import TranslationTable

WORDS = 16  # query words of a picture
TOP = 6  # document words of each
LEAST_DOCUMENTS = 20
SHORTEST = 3  # characters of a query word
PIECE = "##"  # starts a word piece that goes on with a word


class QueryWord(NamedTuple):
    word: str
    times: int  # its occurrences in the queries


class Translation(NamedTuple):
    word: str  # the document word d
    probability: float  # T(q|d)


class WordTranslations(NamedTuple):
    """Of one query word q."""

    itself: float  # T(q|q): set, not learned
    strongest: list[Translation]  # of the other document words; equal ones by word


class ShownTable(NamedTuple):
    """A table that is to be shown, and whose it is."""

    row: str  # of the results
    kind: str  # EM, neural
    seed: int
    table: TranslationTable
    vocabulary: Sequence[str]
    common: np.ndarray  # (vocabulary,) bool: document words that are shown; what rare ones say was learned from little


class TableColumn(NamedTuple):
    """What the picture shows of one table."""

    row: str
    kind: str
    seed: int
    words: list[WordTranslations]  # in the order of the query words


class TranslationPicture(NamedTuple):
    query_words: list[QueryWord]
    columns: list[TableColumn]
    least_documents: int  # documents that a document word stands in, at the least, to be shown


def frequent_words(tokens: np.ndarray, vocabulary: Sequence[str], stop: Collection[str]) -> list[QueryWord]:
    """The content words among the token ids of queries (-1: unknown), most frequent first, equal ones by word."""
    counts = np.bincount(tokens[tokens >= 0], minlength=len(vocabulary))
    found = [QueryWord(vocabulary[number], int(counts[number])) for number in np.flatnonzero(counts).tolist()]
    return sorted((one for one in found if _is_content(one.word, stop)), key=lambda one: (-one.times, one.word))


def _is_content(token: str, stop: Collection[str]) -> bool:
    """A whole word with a letter in it; [UNK] and its like are no words."""
    special = token.startswith("[") and token.endswith("]")
    whole = len(token) >= SHORTEST and not token.startswith(PIECE) and not special
    return whole and any(map(str.isalpha, token)) and token not in stop


def least_documents(documents: int) -> int:
    """Documents that a word must stand in to be shown, in a collection of so many."""
    return max(1, min(LEAST_DOCUMENTS, documents // 100))


def translation_picture(
    words: Sequence[QueryWord], tables: Sequence[ShownTable], least: int = 1
) -> TranslationPicture | None:
    """The first WORDS of `words` that every table translates; None where there is no such word, or no table."""
    numbers = [_numbers(words, one.vocabulary) for one in tables]
    shown: list[QueryWord] = []
    found: list[list[WordTranslations]] = []  # of each shown word, in the order of the tables
    for one in words if tables else ():
        if len(shown) == WORDS:
            break
        if any(one.word not in mine for mine in numbers):
            continue
        of_word = [_translations(t, mine[one.word]) for t, mine in zip(tables, numbers, strict=True)]
        if all(mine.strongest for mine in of_word):
            shown.append(one)
            found.append(of_word)
    if not shown:
        return None
    by_table = zip(*found, strict=True)
    columns = [TableColumn(t.row, t.kind, t.seed, list(mine)) for t, mine in zip(tables, by_table, strict=True)]
    return TranslationPicture(shown, columns, least)


def _numbers(words: Sequence[QueryWord], vocabulary: Sequence[str]) -> Mapping[str, int]:
    """Word -> its number in `vocabulary`, of those that are in it."""
    wanted = {one.word for one in words}
    return {token: number for number, token in enumerate(vocabulary) if token in wanted}


def _translations(shown: ShownTable, q: int) -> WordTranslations:
    """The row of the query token q: only this part of a large table is read."""
    rows, probabilities = shown.table
    row = slice(rows.offsets[q], rows.offsets[q + 1])
    d, translation_prob = rows.values[row], probabilities[row]
    itself = float(translation_prob[d == q].sum())
    others = (d != q) & (translation_prob > 0) & shown.common[d]
    d, translation_prob = d[others], translation_prob[others]
    if len(d) > TOP:
        reached = translation_prob >= np.partition(translation_prob, -TOP)[-TOP]  # with all that equal the last one
        d, translation_prob = d[reached], translation_prob[reached]
    pairs = [
        Translation(shown.vocabulary[token], float(value)) for token, value in zip(d, translation_prob, strict=True)
    ]
    return WordTranslations(itself, sorted(pairs, key=lambda one: (-one.probability, one.word))[:TOP])
