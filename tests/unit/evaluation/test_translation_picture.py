"""The picture of translation tables: which words it shows, their numbers, and where they come from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluation.report.report import page_data
from evaluation.report.translation_picture import (
    TOP,
    WORDS,
    QueryWord,
    ShownTable,
    Translation,
    WordTranslations,
    frequent_words,
    least_documents,
    translation_picture,
)
from lexical.index.ragged import Ragged, ragged
from lexical.model1.table import TranslationTable
from lexical.model1.table_files import save_table
from pipeline.report_data import SeedFolder, translations
from pipeline.run_folder import RunFolder
from tests.fixtures.small_report import small_report

HOSTILE = "<script>alert(1)</script>"
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
    """array 3, zebra and graph 2 (equal: by word), [UNK] no word, of the others one is a stop word, or too short."""
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
    (column,) = picture.columns
    assert (column.row, column.kind, column.seed) == ("a", "EM", 1)
    expected = [("the", 0.75), ("edge", 0.25), ("node", 0.25), ("tree", 0.125), ("##s", 0.0625)]
    assert column.words == [WordTranslations(0.5, [Translation(*one) for one in expected])]


def test_words_that_equal_the_last_one_are_chosen_by_word() -> None:
    """One word ahead of nine equal ones, whose numbers are against the alphabet."""
    letters = "ihgfedcba"
    rows = {"graph": {"node": 0.5} | {letter * 3: 0.125 for letter in letters}}
    picture = translation_picture([QueryWord("graph", 1)], [shown(rows, ["graph", *(c * 3 for c in letters), "node"])])
    assert picture is not None
    found = [one.word for one in picture.columns[0].words[0].strongest]
    assert found == ["node", "aaa", "bbb", "ccc", "ddd", "eee"] and len(found) == TOP
    assert picture.columns[0].words[0].itself == 0  # the table has none


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
    for mine, column in zip(rows, picture.columns, strict=True):
        for one, found in zip(picture.query_words, column.words, strict=True):
            others = sorted((-p, d) for d, p in mine[one.word].items() if d != one.word)
            assert found.strongest == [Translation(d, -p) for p, d in others[:TOP]]
            assert found.itself == mine[one.word].get(one.word, 0)


def test_only_words_that_all_tables_translate_are_shown() -> None:
    """alone is not in the second vocabulary, lonely has only itself there, empty has nothing."""
    other = {"mouse": 0.5}
    first = shown(dict.fromkeys(("alone", "lonely", "empty", "graph"), other))
    second = shown({"graph": {"node": 0.25}, "lonely": {"lonely": 0.5}, "empty": {}}, row="b")
    words = [QueryWord(word, 4) for word in ("alone", "lonely", "empty", "graph")]
    picture = translation_picture(words, [first, second])
    assert picture is not None and [one.word for one in picture.query_words] == ["graph"]
    assert [one.words[0].strongest[0].word for one in picture.columns] == ["mouse", "node"]
    assert translation_picture(words[:3], [first, second]) is None
    assert translation_picture(words, []) is None


def test_what_the_page_gets_is_rounded_and_shortened() -> None:
    rows = {"graph": {HOSTILE: 0.123456, "long" * 50: 0.1, "graph": 0.35}}
    report = small_report()._replace(translations=translation_picture([QueryWord("graph", 4)], [shown(rows)]))
    assert page_data(report)["translations"] == {
        "words": [{"word": "graph", "times": 4}],
        "columns": [
            {
                "row": "a",
                "kind": "EM",
                "seed": 1,
                "words": [{"itself": 0.35, "strongest": [[HOSTILE, 0.1235], ["long" * 19 + "lon…", 0.1]]}],
            }
        ],
        "least": 1,
    }
    assert page_data(small_report())["translations"] is None


# --- from the folders

VOCABULARY = ["the", "graph", "node", "##s", "tree"]
QUERIES = Ragged(np.array([0, 4, 7]), np.array([0, 1, 3, 4, 0, 1, -1], np.int32))


def data_of(field: str) -> Any:
    """Development queries in one field; another one would fail. All words are in enough documents."""
    tokens = {("development", field): QUERIES}
    query_tokens = lambda query_set, field: tokens[query_set, field]  # noqa: E731 - as short as the others
    forward = SimpleNamespace(document_frequency=np.ones(len(VOCABULARY) + 1, np.int64))
    known = SimpleNamespace(vocabulary=lambda: VOCABULARY, forward=forward)
    prepared = SimpleNamespace(query_tokens=query_tokens, field=lambda _: known, collection=range(50))
    return SimpleNamespace(prepared=prepared)


def write_table(folder: Path, field: str, d: str) -> SeedFolder:
    rows = {"graph": {"graph": 0.35, d: 0.25}, "tree": {"tree": 0.35, d: 0.125}, "the": {d: 0.5}}
    vocabulary = sorted({*VOCABULARY, d})
    run = RunFolder(folder)
    save_table(table_of(vocabulary, rows), vocabulary, {"field": field}, run.table)
    return SeedFolder(int(folder.name[-1]), run, {})


def test_the_tables_are_those_of_the_first_seeds(tmp_path: Path) -> None:
    """Words are counted in the field of the first table: graph 2, tree 1."""
    seeds = {
        "model1_word": [write_table(tmp_path / "word" / "seed-1", "word_all", "of-words")],
        "model1_bwps": [write_table(tmp_path / "bwps" / "seed-1", "bwps", "of-pieces")],
        "nn_model1_exp": [write_table(tmp_path / "nn" / f"seed-{n}", "bwps", f"of-seed-{n}") for n in (2, 3)],
    }
    picture = translations(seeds, data_of("bwps"))
    assert picture is not None and picture.query_words == [QueryWord("graph", 2), QueryWord("tree", 1)]
    expected = [("model1_bwps", "EM", 1, "of-pieces"), ("nn_model1_exp", "neural", 2, "of-seed-2")]
    assert [(*one[:3], one.words[1].strongest[0].word) for one in picture.columns] == expected
    without = translations(seeds | {"model1_bwps": []}, data_of("word_all"))
    assert without is not None and [one.row for one in without.columns] == ["model1_word", "nn_model1_exp"]
    alone = translations({"nn_model1_exp": seeds["nn_model1_exp"]}, data_of("bwps"))
    assert alone is not None and [one.row for one in alone.columns] == ["nn_model1_exp"]
    assert translations({"bm25_lemm": seeds["model1_bwps"]}, data_of("bwps")) is None


@pytest.mark.parametrize("broken", ["table.safetensors", "meta.json", "field", "gone"])
def test_a_damaged_table_is_said_in_one_line_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    good = write_table(tmp_path / "bwps" / "seed-1", "bwps", "mouse")
    bad = write_table(tmp_path / "nn" / "seed-1", "" if broken == "field" else "bwps", "mouse")
    if broken == "gone":
        bad.folder.table.rename(tmp_path / "elsewhere")
    elif broken != "field":
        path = bad.folder.table / broken
        path.write_bytes(path.read_bytes()[:-9])
    assert translations({"model1_bwps": [good], "nn_model1_exp": [bad]}, data_of("bwps")) is None
    line = capsys.readouterr().err
    assert line.startswith("results.html does not show translations: ") and str(bad.folder.table) in line
    assert line.count("\n") == 1


def test_words_of_few_documents_are_not_shown() -> None:
    picture = translation_picture([QueryWord("sort", 1)], [shown({"sort": {RARE: 0.9, "order": 0.1}})], least=3)
    assert picture is not None and picture.least_documents == 3
    assert [one.word for one in picture.columns[0].words[0].strongest] == ["order"]
    assert [least_documents(count) for count in (0, 400, 30_909)] == [1, 4, 20]
