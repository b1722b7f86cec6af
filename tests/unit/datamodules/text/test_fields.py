"""The fields of a collection on disk: token sequences, vocabulary, forward index, the queries' tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from datamodules.text import fields as fields_module
from datamodules.text.analysis import SPACY_FIELDS, AnalysisSettings, SpacyAnalyser, WordPieceAnalyser
from datamodules.text.collection import write_collection
from datamodules.text.fields import Field, QueryTokeniser, build_fields
from datamodules.text.lines import LineReport, TextLine
from lexical.bm25 import BM25Parameters, bm25_scores
from lexical.index.ragged import Ragged, ragged
from lexical.model1.scorer import collection_probability, model1_scores
from lexical.model1.table import TranslationTable

TEXTS = [
    "Dogs chase the cat; the cat chases a dog.",
    "of the and",  # stop words alone
    "A bird sings. Birds sing, and the dog doesn't.",
    "Zebra",
]


def build(
    folder: Path, texts: Sequence[str], fields: tuple[str, ...] = SPACY_FIELDS, settings: AnalysisSettings | None = None
) -> dict[str, Field]:
    source = folder / "collection"
    source.mkdir(parents=True)
    documents = (TextLine(i, f"D{i}", text) for i, text in enumerate(texts, start=1))
    collection = write_collection(documents, LineReport("collection", len(texts)), source)
    build_fields(collection, fields, settings or AnalysisSettings(), 1, folder / "fields")
    return {name: Field(folder / "fields" / name) for name in fields}


def words(field: Field) -> list[list[str]]:
    """Document -> its tokens as strings."""
    names = field.vocabulary()
    return [[names[token] for token in field.sequences.row(i)] for i in range(field.sequences.rows)]


def test_documents_keep_their_tokens_in_order(tmp_path: Path) -> None:
    fields = build(tmp_path, TEXTS)
    assert words(fields["word"]) == [
        ["dogs", "chase", "cat", "cat", "chases", "dog"],
        [],
        ["bird", "sings", "birds", "sing", "dog"],
        ["zebra"],
    ]
    assert words(fields["lemm"]) == [
        ["dog", "chase", "cat", "cat", "chase", "dog"],
        [],
        ["bird", "sing", "bird", "sing", "dog"],
        ["zebra"],
    ]
    assert words(fields["word_all"])[1] == ["of", "the", "and"]


def test_the_vocabulary_is_sorted_by_frequency_then_text(tmp_path: Path) -> None:
    fields = build(tmp_path, TEXTS)
    assert fields["lemm"].vocabulary() == ["dog", "bird", "cat", "chase", "sing", "zebra"]
    for field in fields.values():
        counts = Counter(token for row in words(field) for token in row)
        assert field.vocabulary() == sorted(counts, key=lambda token: (-counts[token], token))


def test_the_forward_index_counts_the_tokens(tmp_path: Path) -> None:
    field = build(tmp_path, TEXTS)["lemm"]
    index, names = field.forward, field.vocabulary()
    for i, row in enumerate(words(field)):
        span = slice(index.offsets[i], index.offsets[i + 1])
        assert {names[t]: n for t, n in zip(index.tokens[span], index.counts[span], strict=True)} == Counter(row)
    assert index.lengths.tolist() == [6, 0, 5, 1]
    assert index.document_frequency.tolist() == [2, 1, 1, 1, 1, 1]
    assert index.collection_frequency.tolist() == [3, 2, 2, 2, 2, 1]
    assert all(isinstance(array, np.memmap) for array in (*field.sequences, *index))


def test_word_pieces_keep_the_numbers_of_the_tokenizer(tmp_path: Path) -> None:
    field = build(tmp_path, TEXTS, ("bwps",))["bwps"]
    expected = WordPieceAnalyser().analyse(TEXTS)["bwps"]
    assert field.sequences.values.tolist() == expected.tokens.tolist()
    assert field.sequences.lengths().tolist() == expected.lengths.tolist()
    assert len(field.vocabulary()) == field.forward.vocabulary_size == 30_522
    assert (field.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[1996] == "the"


@pytest.mark.parametrize("fields", [SPACY_FIELDS, ("bwps",)])
def test_max_doc_tokens_cuts_each_document_of_each_field(tmp_path: Path, fields: tuple[str, ...]) -> None:
    whole = build(tmp_path / "whole", TEXTS, fields)
    cut = build(tmp_path / "cut", TEXTS, fields, AnalysisSettings(max_doc_tokens=3))
    for name in fields:
        assert words(cut[name]) == [row[:3] for row in words(whole[name])]
        assert cut[name].forward.lengths.max() == 3
    if fields == SPACY_FIELDS:  # what is cut off is not in the vocabulary
        assert cut["lemm"].vocabulary() == ["bird", "cat", "chase", "dog", "sing", "zebra"]
        assert "chases" not in cut["word"].vocabulary()


def test_the_size_of_a_shard_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{TEXTS[i % 4]} number{i % 17} odd{i}" for i in range(100)]
    written = []
    for size in (4096, 7):
        monkeypatch.setattr(fields_module, "DOCUMENTS_PER_SHARD", size)
        for fields in (SPACY_FIELDS, ("bwps",)):
            build(tmp_path / f"{size}-{fields[0]}", texts, fields)
        written.append(
            {
                (fields[0], str(path.relative_to(tmp_path / f"{size}-{fields[0]}"))): path.read_bytes()
                for fields in (SPACY_FIELDS, ("bwps",))
                for path in (tmp_path / f"{size}-{fields[0]}" / "fields").rglob("*")
                if path.is_file()
            }
        )
    assert len(written[0]) == 40 and written[0] == written[1]


RARE = [f"common river number{i} common bank{i % 3}" for i in range(60)]


def test_rare_words_are_not_numbered_but_counted_in_the_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """common 120, river 60, bank0 20, bank1 20, bank2 20, and 60 others, one of each document."""
    whole = build(tmp_path / "whole", RARE)["word"]
    assert capsys.readouterr().err == "" and len(whole.vocabulary()) == 65
    field = build(tmp_path / "capped", RARE, settings=AnalysisSettings(max_vocabulary=4))["word"]
    assert field.vocabulary() == ["common", "river", "bank0", "bank1"] == whole.vocabulary()[:4]
    assert field.sequences.lengths().tolist() == [5] * 60
    assert field.sequences.row(1).tolist() == [0, 1, -1, 0, 3] and field.sequences.row(2).tolist() == [0, 1, -1, 0, -1]
    index = field.forward
    assert index.lengths.tolist() == [5] * 60 and index.mean_length == 5
    assert index.collection_frequency.tolist() == [120, 60, 20, 20]
    assert collection_probability(index).tolist() == [120 / 300, 60 / 300, 20 / 300, 20 / 300]
    assert [index.tokens[index.offsets[i] : index.offsets[i + 1]].tolist() for i in (1, 2)] == [[0, 1, 3], [0, 1]]
    assert QueryTokeniser({"word": field}, AnalysisSettings()).tokenise(["common bank2"])["word"].values.tolist() == [
        0, -1,
    ]  # fmt: skip
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("word: 80 of 300 tokens are not among the 4 most frequent words; they ")
    assert len(said) == 3 and all("--data.max_vocabulary" in line for line in said)


def test_scores_of_numbered_words_do_not_change_with_the_cap(tmp_path: Path) -> None:
    """BM25 and Model 1 read lengths, frequencies and totals: all as without a cap."""
    whole = build(tmp_path / "whole", RARE)["word"]
    capped = build(tmp_path / "capped", RARE, settings=AnalysisSettings(max_vocabulary=5))["word"]
    queries, candidates = ragged([[0, 2, 4], [1, 3]], np.int32), ragged([list(range(60))] * 2, np.int32)
    scores = [bm25_scores(field.forward, queries, candidates, BM25Parameters()) for field in (whole, capped)]
    translated = []
    for field in (whole, capped):
        size = field.forward.vocabulary_size
        own = TranslationTable(Ragged(np.arange(size + 1), np.arange(size, dtype=np.int32)), np.ones(size, np.float32))
        translated.append(model1_scores(own, field.forward, queries, candidates, 0.2))
    assert np.array_equal(scores[0], scores[1]) and np.array_equal(translated[0], translated[1])


def test_a_vocabulary_that_is_counted_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten documents a shard; every shard has more than twice as many words as are kept. Every occurrence of a word of
    the vocabulary is numbered, also those before it was dropped once."""
    monkeypatch.setattr(fields_module, "DOCUMENTS_PER_SHARD", 10)
    texts = [f"odd{i} odd{i}x common{i % 2} river late{i // 150}" for i in range(200)]
    field = build(tmp_path, texts, settings=AnalysisSettings(max_vocabulary=5))["word"]
    assert field.vocabulary() == ["river", "late0", "common0", "common1", "late1"]
    assert field.forward.collection_frequency.tolist() == [200, 150, 100, 100, 50]
    assert field.sequences.row(0).tolist() == [-1, -1, 2, 0, 1] and field.sequences.row(199).tolist() == [
        -1,
        -1,
        3,
        0,
        4,
    ]
    assert {path.name for path in field.folder.iterdir()} == {"offsets.npy", "tokens.npy", "vocab.txt", "forward"}


def test_a_collection_without_a_single_word_has_empty_fields(tmp_path: Path) -> None:
    field = build(tmp_path, ["the of", "!!!"])["lemm"]
    assert field.vocabulary() == [] and field.forward.lengths.tolist() == [0, 0]
    tokeniser = QueryTokeniser({"lemm": field}, AnalysisSettings())
    assert tokeniser.tokenise(["dog"])["lemm"].values.tolist() == [-1]


def test_one_document_of_200_000_words(tmp_path: Path) -> None:
    text = " ".join(f"river{i % 5000}" for i in range(200_000))
    field = build(tmp_path, ["a small river1", text])["word"]
    assert field.forward.lengths.tolist() == [2, 200_000]
    assert field.vocabulary()[0] == "river1" and field.forward.collection_frequency[0] == 41


# ----------------------------------------------------------------------------------------------------- queries


def test_queries_get_the_numbers_of_the_collection_and_minus_one_for_unknown_words(tmp_path: Path) -> None:
    fields = build(tmp_path, TEXTS)
    found = QueryTokeniser(fields, AnalysisSettings()).tokenise(
        ["Do dogs chase zebras?", "", "giraffe the giraffe dog"]
    )
    names = fields["lemm"].vocabulary()
    rows = [found["lemm"].row(i).tolist() for i in range(3)]
    assert rows == [[names.index("dog"), names.index("chase"), names.index("zebra")], [], [-1, -1, names.index("dog")]]
    every = fields["word_all"].vocabulary()
    assert found["word_all"].row(2).tolist() == [-1, every.index("the"), -1, every.index("dog")]
    assert found["word_all"].row(0).tolist() == [-1, every.index("dogs"), every.index("chase"), -1]


def test_queries_are_not_cut(tmp_path: Path) -> None:
    settings = AnalysisSettings(max_doc_tokens=2)
    pieces = build(tmp_path, TEXTS, ("bwps",), settings)
    found = QueryTokeniser(pieces, settings).tokenise([TEXTS[0]])
    assert found["bwps"].values.tolist() == WordPieceAnalyser().analyse([TEXTS[0]])["bwps"].tokens.tolist()


def test_many_queries_are_tokenised_as_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = build(tmp_path, TEXTS)
    queries = ["dog", "", "the cat sings", "unknown words", "Birds", "zebra zebra", ""]
    whole = QueryTokeniser(fields, AnalysisSettings()).tokenise(queries)
    monkeypatch.setattr(fields_module, "QUERIES_PER_SHARD", 2)
    in_parts = QueryTokeniser(fields, AnalysisSettings()).tokenise(queries)
    none = QueryTokeniser(fields, AnalysisSettings()).tokenise([])
    for name in fields:
        assert np.array_equal(whole[name].offsets, in_parts[name].offsets)
        assert np.array_equal(whole[name].values, in_parts[name].values)
        assert none[name].rows == 0
    alone = SpacyAnalyser().analyse(["zebra zebra"])["lemm"]
    assert whole["lemm"].row(5).tolist() == [fields["lemm"].vocabulary().index("zebra")] * len(alone.tokens)
