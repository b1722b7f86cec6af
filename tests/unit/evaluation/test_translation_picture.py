"""The picture of translation tables: which words it shows, and their numbers."""

from __future__ import annotations

import numpy as np

from evaluation.report.translation_picture import (
    TOP,
    WORDS,
    QueryWord,
    ShownTable,
    Translation,
    frequent_words,
    min_documents,
    translation_picture,
)
from lexical.index.ragged import ragged
from lexical.model1.table import TranslationTable

STOP = frozenset({"the", "with"})
RARE = "alberta"  # in too few documents to be shown


def table_of(vocabulary: list[str], rows: dict[str, dict[str, float]]) -> TranslationTable:
    """T(q|d) from {q: {d: probability}}."""
    number = {token: i for i, token in enumerate(vocabulary)}
    entries = [sorted((number[d], p) for d, p in rows.get(q, {}).items()) for q in vocabulary]
    probabilities = np.array([p for row in entries for _, p in row], np.float32)
    return TranslationTable(ragged([[d for d, _ in row] for row in entries], np.int32), probabilities)


def shown(rows: dict[str, dict[str, float]], vocabulary: list[str] | None = None, row: str = "a") -> ShownTable:
    tokens = vocabulary or sorted({*rows, *(d for of_q in rows.values() for d in of_q)})
    return ShownTable(row, "EM", 1, table_of(tokens, rows), tokens, np.array([token != RARE for token in tokens]))


# --- the query words


def test_frequent_words_by_hand() -> None:
    """array 3, zebra and graph 2 (equal: by word), [UNK] is not a word, the others are stop words or too short."""
    vocabulary = ["the", "zebra", "##ing", "array", "no", "123", "graph", "[UNK]", "never", "x2y", "a_"]
    tokens = np.array([3, 0, 0, 0, 3, 1, 2, 2, 2, 6, 4, 4, -1, -1, 5, 5, 5, 5, 1, 6, 3, 7, 7, 7, 9, 10], np.int32)
    assert frequent_words(tokens, vocabulary, STOP) == [
        QueryWord("array", 3), QueryWord("graph", 2), QueryWord("zebra", 2), QueryWord("x2y", 1)
    ]  # fmt: skip


def test_no_query_has_no_words() -> None:
    assert frequent_words(np.zeros(0, np.int32), ["array"], STOP) == []


# --- their translations


def test_translations_by_hand() -> None:
    """Strongest first, equal ones by word, the word itself apart; a probability of 0 is no translation."""
    rows = {"graph": {"graph": 0.5, "node": 0.25, "tree": 0.125, "edge": 0.25, "##s": 0.0625, "the": 0.75, "zero": 0.0}}
    picture = translation_picture([QueryWord("graph", 4)], [shown(rows)])
    assert picture is not None and picture.query_words == [QueryWord("graph", 4)]
    (table,) = picture.tables
    assert (table.row, table.kind, table.seed) == ("a", "EM", 1)
    expected = [("the", 0.75), ("edge", 0.25), ("node", 0.25), ("tree", 0.125), ("##s", 0.0625)]
    assert table.strongest == [[Translation(*entry) for entry in expected]]


def test_words_that_equal_the_last_one_are_chosen_by_word() -> None:
    """One word ahead of nine equal ones, whose numbers are against the alphabet."""
    letters = "ihgfedcba"
    rows = {"graph": {"node": 0.5} | {letter * 3: 0.125 for letter in letters}}
    picture = translation_picture([QueryWord("graph", 1)], [shown(rows, ["graph", *(c * 3 for c in letters), "node"])])
    assert picture is not None
    words = [entry.word for entry in picture.tables[0].strongest[0]]
    assert words == ["node", "aaa", "bbb", "ccc", "ddd", "eee"] and len(words) == TOP


def test_against_a_plain_sort() -> None:
    """Random rows with many equal values, both tables."""
    rng = np.random.default_rng(4)
    vocabulary = [f"word{rng.integers(10**9)}" for _ in range(60)]
    words = [QueryWord(token, 9) for token in vocabulary]
    rows = [
        {q: {d: rng.integers(1, 9) / 16 for d in vocabulary if rng.random() < 0.5} for q in vocabulary}
        for _ in range(2)
    ]
    picture = translation_picture(words, [shown(rows[0], vocabulary), shown(rows[1], vocabulary[::-1])])
    assert picture is not None and picture.query_words == words[:WORDS]
    for probabilities, table in zip(rows, picture.tables, strict=True):
        for (q, _), strongest in zip(picture.query_words, table.strongest, strict=True):
            others = sorted((-p, d) for d, p in probabilities[q].items() if d != q)
            assert strongest == [Translation(d, -p) for p, d in others[:TOP]]


def test_only_words_that_all_tables_translate_are_shown() -> None:
    """alone is not in the second vocabulary, lonely has only itself there, empty has nothing."""
    other = {"mouse": 0.5}
    first = shown(dict.fromkeys(("alone", "lonely", "empty", "graph"), other))
    second = shown({"graph": {"node": 0.25}, "lonely": {"lonely": 0.5}, "empty": {}}, row="b")
    words = [QueryWord(word, 4) for word in ("alone", "lonely", "empty", "graph")]
    picture = translation_picture(words, [first, second])
    assert picture is not None and [word.word for word in picture.query_words] == ["graph"]
    assert [table.strongest[0][0].word for table in picture.tables] == ["mouse", "node"]
    assert translation_picture(words[:3], [first, second]) is None
    assert translation_picture(words, []) is None


def test_words_of_few_documents_are_not_shown() -> None:
    picture = translation_picture([QueryWord("sort", 1)], [shown({"sort": {RARE: 0.9, "order": 0.1}})], min_documents=3)
    assert picture is not None and picture.min_documents == 3
    assert [entry.word for entry in picture.tables[0].strongest[0]] == ["order"]
    assert [min_documents(count) for count in (0, 400, 30_909)] == [1, 4, 20]
