"""The strongest translations: which words are shown, and their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexical.model1.table_files import SavedTable
from pipeline.report.translations import TOP, WORDS, content_words, min_documents, strongest, strongest_translations
from pipeline.run_folder import RunFolder
from tests.fixtures.small_report import data_of, table_of, write_table

RARE = "alberta"  # in too few documents to be shown


def shown(rows: dict[str, float], vocabulary: list[str] | None = None) -> dict[str, float]:
    """Return the translations of `graph` in a table with these entries."""
    tokens = vocabulary or sorted({"graph", *rows})
    saved = SavedTable(table_of(tokens, {"graph": rows}), tokens, {})
    return strongest(saved, "graph", np.array([token != RARE for token in tokens]))


# --- the query words


def test_content_words_by_hand() -> None:
    """array 3, zebra and graph 2 (equal: by word), [UNK] is not a word, the others are stop words or too short."""
    vocabulary = ["the", "zebra", "##ing", "array", "no", "123", "graph", "[UNK]", "with", "x2y", "a_"]
    tokens = np.array([3, 0, 0, 0, 3, 1, 2, 2, 2, 6, 4, 4, -1, -1, 5, 5, 5, 5, 1, 6, 3, 7, 7, 7, 8, 9, 10], np.int32)
    assert list(content_words(tokens, vocabulary)) == [("array", 3), ("graph", 2), ("zebra", 2), ("x2y", 1)]


def test_no_query_has_no_words() -> None:
    assert list(content_words(np.zeros(0, np.int32), ["array"])) == []


# --- their translations


def test_translations_by_hand() -> None:
    """Strongest first, equal ones by word, the word itself apart; a probability of 0 is no translation."""
    rows = {"graph": 0.5, "node": 0.25, "tree": 0.125, "edge": 0.25, "##s": 0.0625, "the": 0.75, "zero": 0.0}
    expected = [("the", 0.75), ("edge", 0.25), ("node", 0.25), ("tree", 0.125), ("##s", 0.0625)]
    assert list(shown(rows).items()) == expected


def test_words_that_equal_the_last_one_are_chosen_by_word() -> None:
    """One word ahead of nine equal ones, whose numbers are against the alphabet."""
    letters = "ihgfedcba"
    rows = {"node": 0.5} | {letter * 3: 0.125 for letter in letters}
    words = list(shown(rows, ["graph", *(c * 3 for c in letters), "node"]))
    assert words == ["node", "aaa", "bbb", "ccc", "ddd", "eee"] and len(words) == TOP


def test_words_of_few_documents_are_not_shown() -> None:
    assert shown({RARE: 0.75, "order": 0.125}) == {"order": 0.125}
    assert [min_documents(count) for count in (0, 400, 30_909)] == [1, 4, 20]


def test_against_a_plain_sort(tmp_path: Path) -> None:
    """Random rows with many equal values, in two tables whose vocabularies have another order."""
    rng = np.random.default_rng(4)
    vocabulary = [f"word{number}" for number in rng.permutation(60)]
    rows = [
        {q: {d: rng.integers(1, 9) / 16 for d in vocabulary if rng.random() < 0.5} for q in vocabulary}
        for _ in range(2)
    ]
    runs = [
        write_table(tmp_path / "model1_bwps" / "seed-1", "bwps", vocabulary, rows[0]),
        write_table(tmp_path / "nn_model1_exp" / "seed-1", "bwps", vocabulary[::-1], rows[1]),
    ]
    words = strongest_translations(runs, data_of({}, vocabulary, np.arange(60, dtype=np.int32)))
    assert [word.word for word in words] == sorted(vocabulary)[:WORDS]
    for word in words:
        for probabilities, table in zip(rows, word.tables.values(), strict=True):
            others = sorted((-p, d) for d, p in probabilities[word.word].items() if d != word.word)
            assert list(table.items()) == [(d, -p) for p, d in others[:TOP]]


VOCABULARY = ["the", "graph", "node", "##s", "tree"]
TOKENS = np.array([0, 1, 3, 4, 0, 1, -1], np.int32)  # graph 2, tree 1


def table_with(folder: Path, field: str, d: str) -> RunFolder:
    """Write a table that translates graph and tree into `d`."""
    rows = {"graph": {"graph": 0.35, d: 0.25}, "tree": {"tree": 0.35, d: 0.125}, "the": {d: 0.5}}
    return write_table(folder, field, [*VOCABULARY, d], rows)


def data_with(field: str) -> Any:
    """Development queries in one field only."""
    return data_of({}, [*VOCABULARY, "mouse"], TOKENS, field)


def test_one_table_of_each_kind_is_shown(tmp_path: Path) -> None:
    """Words are counted in the field of the first table."""
    word = table_with(tmp_path / "model1_word" / "seed-1", "word_all", "of-words")
    pieces = table_with(tmp_path / "model1_bwps" / "seed-1", "bwps", "of-pieces")
    network = table_with(tmp_path / "nn_model1_exp" / "seed-2", "bwps", "of-network")
    words = strongest_translations([word, pieces, network], data_with("bwps"))
    assert [(shown.word, shown.times) for shown in words] == [("graph", 2), ("tree", 1)]
    assert words[1].tables == {
        "EM: model1_bwps, seed 1": {"of-pieces": 0.125}, "neural: nn_model1_exp, seed 2": {"of-network": 0.125}
    }  # fmt: skip
    without = strongest_translations([word, network], data_with("word_all"))
    assert list(without[0].tables) == ["EM: model1_word, seed 1", "neural: nn_model1_exp, seed 2"]
    assert strongest_translations([RunFolder(tmp_path / "bm25_lemm" / "seed-1")], data_with("bwps")) == []


def test_only_words_that_all_tables_translate_are_shown(tmp_path: Path) -> None:
    """alone is not in the second vocabulary, lonely has only itself there, empty has nothing."""
    vocabulary = ["alone", "lonely", "empty", "graph", "mouse", "node"]
    first = {word: {"mouse": 0.5} for word in vocabulary[:4]}
    second = {"graph": {"node": 0.25}, "lonely": {"lonely": 0.5}}
    runs = [
        write_table(tmp_path / "model1_bwps" / "seed-1", "bwps", vocabulary, first),
        write_table(tmp_path / "nn_model1_exp" / "seed-1", "bwps", vocabulary[:0:-1], second),
    ]
    data = data_of({}, vocabulary, np.arange(4, dtype=np.int32))
    (word,) = strongest_translations(runs, data)
    assert word.word == "graph" and [list(table) for table in word.tables.values()] == [["mouse"], ["node"]]


@pytest.mark.parametrize("broken", ["table.safetensors", "meta.json", "missing"])
def test_a_damaged_table_is_named_in_one_line_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    good = table_with(tmp_path / "model1_bwps" / "seed-1", "bwps", "mouse")
    bad = table_with(tmp_path / "nn_model1_exp" / "seed-1", "bwps", "mouse")
    if broken == "missing":
        bad.table.rename(tmp_path / "elsewhere")
    else:
        path = bad.table / broken
        path.write_bytes(path.read_bytes()[:-9])
    assert strongest_translations([good, bad], data_with("bwps")) == []
    line = capsys.readouterr().err
    assert line.startswith("results.html does not show translations: ") and str(bad.table) in line
    assert line.count("\n") == 1
