"""From text to tokens: words and lemmas equal to spaCy's, word pieces equal to transformers'."""

from __future__ import annotations

import argparse
import collections
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from datamodules.text import analysis
from datamodules.text.analysis import (
    FIELDS,
    SPACY_FIELDS,
    AnalysisSettings,
    FieldTokens,
    SpacyAnalyser,
    WordPieceAnalyser,
    analyser_identity,
    analyser_of,
    stop_words,
)
from lexical.encoders import packaged_encoder, read_tokenizer
from lexical.errors import UserError
from tests.fixtures.small_folder import write_small_folder

ODD_TEXTS = [
    "",
    " \t\u2028 ",
    "🙂 emoji 🙂👍🏽 smile",
    "It’s the dogs’ bones; don’t touch John’s ‘old’ ones!",
    "a\x00b nul\x00 char",
    "<script>alert('x')</script> hello <b>bold</b>",
    "Straße İSTANBUL ﬁne naïve CAFÉ résumé… 日本語 текст",
    "C++ 3.14 e-mail x1 1,000 http://example.org/a?b=c me@example.org U.S.A.",
    "word" * 200,
]


@pytest.fixture(scope="module")
def words() -> SpacyAnalyser:
    return SpacyAnalyser()


@pytest.fixture(scope="module")
def pieces() -> WordPieceAnalyser:
    return WordPieceAnalyser()


@pytest.fixture(scope="module")
def real_texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """English prose of the standard library, and generated text with contractions."""
    folder = write_small_folder(tmp_path_factory.mktemp("texts"), documents=100)
    lines = (folder / "collection.tsv").read_text().splitlines()
    prose = [str(module.__doc__) for module in (argparse, collections.OrderedDict, statistics, statistics.NormalDist)]
    return [*prose, *(line.split("\t")[1] for line in lines), *ODD_TEXTS]


def token_lists(found: FieldTokens, vocabulary: list[str] | None = None) -> list[list[str]]:
    """Text -> its tokens as strings."""
    names = found.vocabulary or vocabulary or []
    bounds = np.concatenate([[0], np.cumsum(found.lengths)])
    return [[names[token] for token in found.tokens[s:e]] for s, e in pairwise(bounds)]


def tokens(analyser: SpacyAnalyser, text: str, field: str) -> list[str]:
    return token_lists(analyser.analyse([text])[field])[0]


# --------------------------------------------------------------------------------------- words, as spaCy has them


def test_words_are_the_lower_cased_tokens_of_spacy(words: SpacyAnalyser, real_texts: list[str]) -> None:
    nlp = spacy.blank("en")
    found = words.analyse(real_texts)
    every, content = token_lists(found["word_all"]), token_lists(found["word"])
    for i, text in enumerate(real_texts):
        expected = [token.lower_.replace("’", "'") for token in nlp(text) if any(c.isalnum() for c in token.text)]
        assert every[i] == expected
        assert content[i] == [token for token in expected if token not in stop_words()]
    assert sum(map(len, every)) > 3_000 and sum(map(len, content)) > 1_500


def test_lemmas_are_those_of_spacys_lookup_lemmatizer(words: SpacyAnalyser, real_texts: list[str]) -> None:
    nlp = spacy.blank("en")
    lemmatizer = nlp.add_pipe("lemmatizer", config={"mode": "lookup"})
    nlp.initialize()
    found = words.analyse(real_texts)
    content, lemmas = token_lists(found["word"]), token_lists(found["lemm"])
    changed = 0
    for i in range(len(real_texts)):
        document = lemmatizer(Doc(nlp.vocab, words=content[i]))
        expected = [token.lemma_ for token in document]
        assert lemmas[i] == [lemma for lemma in expected if lemma not in stop_words()]
        changed += sum(lemma != word for lemma, word in zip(expected, content[i], strict=True))
    assert changed > 200


def test_lemmas_by_hand(words: SpacyAnalyser) -> None:
    text = "The Geese were running, and she wrote better functions"
    assert tokens(words, text, "word") == ["geese", "running", "wrote", "better", "functions"]
    assert tokens(words, text, "lemm") == ["goose", "run", "write", "function"]  # better -> well, a stop word
    assert tokens(words, "uses of the used use", "lemm") == []


def test_a_token_needs_a_letter_or_a_digit(words: SpacyAnalyser) -> None:
    assert tokens(words, "— … !? 🙂 ( ) 7 x ½ 日", "word_all") == ["7", "x", "½", "日"]


def test_fields_of_empty_texts_are_empty(words: SpacyAnalyser, pieces: WordPieceAnalyser) -> None:
    for analyser in (words, pieces):
        for texts in ([], [""], ["", " \n\t", ""]):
            for found in analyser.analyse(texts).values():
                assert found.tokens.tolist() == [] and found.lengths.tolist() == [0] * len(texts)
                assert found.tokens.dtype == np.int32


# ------------------------------------------------------------------------------------- stop words, contractions


def test_the_stop_list_is_indris_418_words_and_the_contractions() -> None:
    contractions = set("n't 'll 're 've 'm 'd 's ca wo sha nt ll ve".split())
    assert contractions <= stop_words() and len(stop_words() - contractions) == 418
    assert all(word == word.lower().strip() for word in stop_words())


@pytest.mark.parametrize("apostrophe", ["'", "’"])
def test_contractions_are_in_word_all_only(words: SpacyAnalyser, apostrophe: str) -> None:
    text = "I'm he'd she'll it's we're they've don't can't won't shan't isn't wouldn't".replace("'", apostrophe)
    assert tokens(words, text, "word") == tokens(words, text, "lemm") == []
    everything = "i 'm he 'd she 'll it 's we 're they 've do n't ca n't wo n't sha n't is n't would n't"
    assert tokens(words, text, "word_all") == everything.split()


def test_stop_words_are_in_word_all_only(words: SpacyAnalyser) -> None:
    text = "How can the Doctor treat you without any of those?"
    assert tokens(words, text, "word") == ["doctor", "treat"]
    assert tokens(words, text, "word_all") == "how can the doctor treat you without any of those".split(" ")


def test_curly_and_straight_apostrophes_make_the_same_tokens(words: SpacyAnalyser) -> None:
    straight = "o'clock John's rock'n'roll d'accord"
    for field in ("word", "lemm", "word_all"):
        assert tokens(words, straight, field) == tokens(words, straight.replace("'", "’"), field)


# ----------------------------------------------------------------------------- word pieces, as transformers has them


def test_word_pieces_are_those_of_transformers(pieces: WordPieceAnalyser, real_texts: list[str]) -> None:
    from transformers import AutoTokenizer

    reference: Any = AutoTokenizer.from_pretrained(str(packaged_encoder()))
    found = pieces.analyse(real_texts)["bwps"]
    expected = [reference(text, add_special_tokens=False, truncation=False)["input_ids"] for text in real_texts]
    assert found.lengths.tolist() == [len(row) for row in expected]
    assert found.tokens.tolist() == [piece for row in expected for piece in row]
    assert found.lengths.max() > 512  # the tokenizer's own file says to cut at 128
    assert pieces.vocabulary == reference.convert_ids_to_tokens(list(range(len(reference))))


def test_there_are_30_522_pieces_and_the_well_known_ones_have_their_well_known_numbers(
    pieces: WordPieceAnalyser,
) -> None:
    vocabulary = pieces.vocabulary
    assert len(vocabulary) == 30_522
    assert [vocabulary[i] for i in (0, 100, 101, 102, 103, 1996)] == [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
    ]
    found = pieces.analyse(["The embeddings"])["bwps"]
    assert token_lists(found, vocabulary) == [["the", "em", "##bed", "##ding", "##s"]]


def test_special_pieces_written_in_a_text_are_plain_text(pieces: WordPieceAnalyser) -> None:
    """A page about BERT must not smuggle a separator into the model's input: specials are no document tokens."""
    found = pieces.analyse(["[CLS] reads the text [SEP] and [MASK] [PAD]"])["bwps"]
    assert not {0, 101, 102, 103} & set(found.tokens.tolist())


def test_nul_characters_and_emoji_do_not_stop_the_word_pieces(pieces: WordPieceAnalyser) -> None:
    found = token_lists(pieces.analyse(["a\x00b", "🙂 smile", "日本"])["bwps"], pieces.vocabulary)
    assert found == [["ab"], ["[UNK]", "smile"], ["日", "本"]]


# ----------------------------------------------------------------------------------------------- invariances


def test_a_text_has_the_same_tokens_alone_and_in_company(words: SpacyAnalyser, real_texts: list[str]) -> None:
    together = words.analyse(real_texts)
    for field in SPACY_FIELDS:
        alone = [token_lists(words.analyse([text])[field])[0] for text in real_texts]
        assert token_lists(together[field]) == alone
        assert together[field].vocabulary == sorted(set(together[field].vocabulary or []))


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.text(max_size=40), max_size=4))
def test_any_text_has_tokens_that_fit_on_one_line_of_a_vocabulary(texts: list[str]) -> None:
    for found in _shared_analyser().analyse(texts).values():
        assert len(found.lengths) == len(texts) and found.lengths.sum() == len(found.tokens)
        assert all(token and not set(token) & set("\n\r\t ") for token in found.vocabulary or [])


_analysers: list[SpacyAnalyser] = []


def _shared_analyser() -> SpacyAnalyser:
    if not _analysers:
        _analysers.append(SpacyAnalyser())
    return _analysers[0]


def test_a_pipeline_that_knows_many_strings_is_replaced_without_a_trace(
    words: SpacyAnalyser, real_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [token_lists(words.analyse([text])["lemm"]) for text in real_texts]
    monkeypatch.setattr(analysis, "MAX_STRINGS", 1_500)
    forgetful = SpacyAnalyser()
    pipelines = set()
    for text, lemmas in zip(real_texts, expected, strict=True):
        pipelines.add(id(forgetful._nlp))
        assert token_lists(forgetful.analyse([text])["lemm"]) == lemmas
    assert len(pipelines) > 1


# ------------------------------------------------------------------------------------ a spaCy pipeline of one's own


@pytest.fixture
def installed_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package `en_leaves`, installed: the lemma of "leaves" depends on the word before it."""
    nlp = spacy.blank("en")
    ruler: Any = nlp.add_pipe("attribute_ruler")
    ruler.add(patterns=[[{"LOWER": "leaves"}]], attrs={"LEMMA": "leaf"})
    ruler.add(patterns=[[{"LOWER": "he"}, {"LOWER": "leaves"}]], attrs={"LEMMA": "leave"}, index=1)
    ruler.add(patterns=[[{"IS_ALPHA": True, "LOWER": {"NOT_IN": ["leaves"]}}]], attrs={"LEMMA": "THING"})
    package = tmp_path / "en_leaves"
    nlp.to_disk(package)
    code = "from spacy.util import load_model_from_path\nfrom pathlib import Path\n\n\ndef load(**settings):\n"
    (package / "__init__.py").write_text(code + "    return load_model_from_path(Path(__file__).parent, **settings)\n")
    info = tmp_path / "en_leaves-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: en_leaves\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "en_leaves"


def test_an_installed_pipeline_gives_each_token_its_own_lemma(installed_pipeline: str) -> None:
    analyser = SpacyAnalyser(installed_pipeline)
    found = analyser.analyse(["Green leaves, he leaves", "LEAVES"])
    assert token_lists(found["word"]) == [["green", "leaves", "leaves"], ["leaves"]]
    assert token_lists(found["lemm"]) == [["thing", "leaf", "leave"], ["leaf"]]
    identity = analyser_identity("lemm", AnalysisSettings(spacy_model=installed_pipeline))
    assert identity["en_leaves"] == "1.2.3"


# --------------------------------------------------------------------------------------------------- mistakes


def test_settings_that_cannot_work_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^there is no field 'stems': choose one of word, lemm, word_all, bwps$"):
        analyser_of("stems", AnalysisSettings())
    with pytest.raises(
        UserError, match=r"^the spaCy pipeline en_nowhere_sm is not installed; leave --data\.spacy_model"
    ):
        SpacyAnalyser("en_nowhere_sm")
    with pytest.raises(UserError, match=r"has no tokenizer\.json: save the tokenizer there with save_pretrained$"):
        read_tokenizer(str(tmp_path))


def test_each_field_has_its_analyser_and_its_identity() -> None:
    assert isinstance(analyser_of("word_all", AnalysisSettings()), SpacyAnalyser)
    assert isinstance(analyser_of("bwps", AnalysisSettings()), WordPieceAnalyser)
    assert analyser_identity("lemm", AnalysisSettings()) == analyser_identity("word", AnalysisSettings(tokenizer="/x"))


def test_the_identity_of_word_pieces_is_the_tokenizers_content_not_its_name(tmp_path: Path) -> None:
    content = (packaged_encoder() / "tokenizer.json").read_text(encoding="utf-8")
    for name, text in (("same", content), ("other", content.replace('"bert"', '"tree"', 1))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(content if name == "same" else text, encoding="utf-8")
    packaged, same, other = (
        analyser_identity("bwps", AnalysisSettings(tokenizer=name))
        for name in ("packaged", str(tmp_path / "same"), str(tmp_path / "other"))
    )
    assert packaged == same
    assert (content != (tmp_path / "other" / "tokenizer.json").read_text(encoding="utf-8")) == (packaged != other)


# --------------------------------------------------------------------------------------------- tokens with positions

SPAN_TEXT = "The functions' résumé doesn’t SORT np.sort(axis=-1) – it’s 3.5x\nfaster, 😀 isn't it? <b>running</b> runs"


def tokens_of(text: str, field: str, words: SpacyAnalyser, pieces: WordPieceAnalyser) -> list[str]:
    vocabulary, tokens, _ = (pieces if field == "bwps" else words).analyse([text])[field]
    names = vocabulary or pieces.vocabulary
    return [names[token] for token in tokens]


@pytest.mark.parametrize("field", FIELDS)
def test_spans_stand_where_the_tokens_are(field: str, words: SpacyAnalyser, pieces: WordPieceAnalyser) -> None:
    spans = (pieces if field == "bwps" else words).spans(SPAN_TEXT, field)
    assert [span.token for span in spans] == tokens_of(SPAN_TEXT, field, words, pieces)
    assert all(0 <= span.start < span.end <= len(SPAN_TEXT) for span in spans)
    assert [span.start for span in spans] == sorted(span.start for span in spans)
    for span in spans:
        if field == "word" and span.token.isalpha():
            assert SPAN_TEXT[span.start : span.end].lower() == span.token


@pytest.mark.parametrize("field", FIELDS)
@settings(deadline=None, max_examples=30)
@given(text=st.text(max_size=60))
def test_spans_of_any_text_are_its_tokens(
    field: str, words: SpacyAnalyser, pieces: WordPieceAnalyser, text: str
) -> None:  # fmt: skip
    spans = (pieces if field == "bwps" else words).spans(text, field)
    assert [span.token for span in spans] == tokens_of(text, field, words, pieces)
