"""From text to the tokens of a field.

| field    | tokens                                                             | stop list |
|----------|--------------------------------------------------------------------|-----------|
| word     | lower-cased spaCy tokens that contain a letter or a digit          | yes       |
| lemm     | their lemmas                                                       | yes       |
| word_all | as word                                                            | no        |
| bwps     | BERT word pieces                                                   | no        |

The three spaCy fields come from one pass over the text. Tokens are numbered per call ("local" ids, in the order of the
sorted strings); `fields` maps them to the vocabulary of the whole collection. Importing this module is cheap: worker
processes do it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexical.encoders import PACKAGED, read_tokenizer
from lexical.errors import UserError

if TYPE_CHECKING:
    from lexical.evidence import TokenSpan

SPACY_FIELDS = ("word", "lemm", "word_all")
WORD_PIECES = "bwps"
FIELDS = (*SPACY_FIELDS, WORD_PIECES)
LOOKUP = "lookup"  # spaCy's English tokenizer with the lemma table of spacy-lookups-data: no model needed
MAX_VOCABULARY = 5_000_000  # while a collection is counted, three fields with twice as many strings take some 3 GB
MAX_STRINGS = 400_000  # a spaCy pipeline never forgets a string; beyond this it is replaced, so that memory stays flat


class FieldTokens(NamedTuple):
    """Tokens of some texts in one field."""

    vocabulary: list[str] | None  # local id -> token; None: ids are those of a fixed vocabulary
    tokens: np.ndarray  # (tokens,) int32 ids, text after text
    lengths: np.ndarray  # (texts,) int64


class AnalysisSettings(NamedTuple):
    """Everything that decides which tokens a text gives (plain types: travels to worker processes)."""

    spacy_model: str = LOOKUP  # "lookup", or the name of an installed spaCy pipeline such as en_core_web_sm
    tokenizer: str = PACKAGED  # "packaged", a folder with tokenizer.json, or a Hugging Face model name
    max_doc_tokens: int | None = None  # tokens of a document that are indexed, per field
    max_vocabulary: int = MAX_VOCABULARY  # tokens of a spaCy field that are numbered: the most frequent


@cache
def stop_words() -> frozenset[str]:
    lines = Path(__file__).with_name("stop_words.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def analyser_of(field: str, settings: AnalysisSettings) -> Analyser:
    if field in SPACY_FIELDS:
        return SpacyAnalyser(settings.spacy_model)
    if field == WORD_PIECES:
        return WordPieceAnalyser(settings.tokenizer)
    raise UserError(f"there is no field {field!r}: choose one of {', '.join(FIELDS)}")


def analyser_identity(field: str, settings: AnalysisSettings) -> dict[str, Any]:
    """Return what the tokens of `field` depend on, for the cache."""
    if field in SPACY_FIELDS:
        versions = {name: importlib.metadata.version(name) for name in ("spacy", "spacy-lookups-data")}
        if settings.spacy_model != LOOKUP:
            versions[settings.spacy_model] = _installed_version(settings.spacy_model)
        return {"spacy_model": settings.spacy_model, "stop_words": sorted(stop_words()), **versions}
    return {"tokenizer": _tokenizer_digest(settings.tokenizer), "tokenizers": importlib.metadata.version("tokenizers")}


class SpacyAnalyser:
    """word, lemm and word_all by spaCy.

    With the look-up lemmatizer a lemma depends on the word alone, so each distinct word of a call is looked up once;
    with a statistical pipeline (`model` other than "lookup") each token has the lemma that the pipeline assigns.
    """

    def __init__(self, model: str = LOOKUP) -> None:
        from spacy.attrs import LEMMA, LOWER
        from spacy.lookups import load_lookups

        self._model = model
        self._lookup: Any = None
        if model == LOOKUP:
            self._lookup = load_lookups("en", tables=["lemma_lookup"]).get_table("lemma_lookup")
        self._attributes = [LOWER] if model == LOOKUP else [LOWER, LEMMA]
        self._nlp = self._new_pipeline()

    def _new_pipeline(self) -> Any:
        import spacy

        if self._model == LOOKUP:
            nlp: Any = spacy.blank("en")
            nlp.tokenizer.max_cache_size = MAX_STRINGS  # with spaCy's 10,000 every rarer word is slow
            return nlp
        _installed_version(self._model)
        return spacy.load(self._model, exclude=["ner", "parser"])

    def _documents(self, texts: list[str]) -> Any:
        if len(self._nlp.vocab.strings) > MAX_STRINGS:
            self._nlp = self._new_pipeline()  # spaCy's memory zones would clear the tokenizer's cache: a third as fast
        return map(self._nlp.tokenizer, texts) if self._lookup is not None else self._nlp.pipe(texts)

    def analyse(self, texts: list[str]) -> dict[str, FieldTokens]:
        width = len(self._attributes)
        arrays = [document.to_array(self._attributes).reshape(-1, width) for document in self._documents(texts)]
        lengths = np.array([len(array) for array in arrays], np.int64)
        hashes = np.concatenate(arrays) if arrays else np.zeros((0, width), np.uint64)
        types, inverse = _distinct_rows(hashes)
        owners = np.repeat(np.arange(len(texts)), lengths)
        strings = self._field_strings(types)
        return {field: _field_tokens(strings[field], inverse, owners, len(texts)) for field in SPACY_FIELDS}

    def spans(self, text: str, field: str) -> list[TokenSpan]:
        """Return the tokens of `analyse` in one field with their positions in the text, to highlight them."""
        from spacy.attrs import IDX, LENGTH

        from lexical.evidence import TokenSpan

        (document,) = self._documents([text])
        width = len(self._attributes)
        rows = document.to_array([*self._attributes, IDX, LENGTH]).reshape(-1, width + 2)
        types, inverse = _distinct_rows(rows[:, :width])
        strings = self._field_strings(types)[field]
        tokens = [strings[number] for number in inverse]
        ends = zip(tokens, rows[:, width].tolist(), rows[:, width + 1].tolist(), strict=True)
        return [TokenSpan(token, start, start + length) for token, start, length in ends if token is not None]

    def _field_strings(self, types: np.ndarray) -> dict[str, list[str | None]]:
        """Return field -> the token of each distinct word, None for a word that the field leaves out.

        Args:
            types: (distinct words, attributes) hashes in spaCy's string store.
        """
        store, stop = self._nlp.vocab.strings, stop_words()
        words = [_plain(store[int(row[0])]) for row in types]
        if self._lookup is not None:
            lemmas = [self._lookup.get(word, word) for word in words]
        else:
            lemmas = [_plain(store[int(row[1])]).lower() for row in types]
        fields: dict[str, list[str | None]] = {field: [] for field in SPACY_FIELDS}
        for word, lemma in zip(words, lemmas, strict=True):
            is_word = any(map(str.isalnum, word))
            is_content = is_word and word not in stop
            fields["word"].append(word if is_content else None)
            fields["lemm"].append(lemma if is_content and lemma not in stop else None)
            fields["word_all"].append(word if is_word else None)
        return fields


class WordPieceAnalyser:
    """bwps by a BERT tokenizer; token ids are the tokenizer's own."""

    def __init__(self, tokenizer: str = PACKAGED) -> None:
        self._tokenizer = read_tokenizer(tokenizer)

    @property
    def vocabulary(self) -> list[str]:
        by_id = sorted((number, piece) for piece, number in self._tokenizer.get_vocab().items())
        if [number for number, _ in by_id] != list(range(len(by_id))):
            raise UserError("the tokenizer's ids are not 0, 1, 2, ...: it cannot be used for the field bwps")
        return [piece for _, piece in by_id]

    def analyse(self, texts: list[str]) -> dict[str, FieldTokens]:
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        lengths = np.array([len(row) for row in rows], np.int64)
        tokens = np.concatenate([np.asarray(row, np.int32) for row in rows]) if rows else np.zeros(0, np.int32)
        return {WORD_PIECES: FieldTokens(None, tokens, lengths)}

    def spans(self, text: str, field: str) -> list[TokenSpan]:  # noqa: ARG002
        from lexical.evidence import TokenSpan

        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [TokenSpan(token, *span) for token, span in zip(encoding.tokens, encoding.offsets, strict=True)]


Analyser = SpacyAnalyser | WordPieceAnalyser


@cache
def _tokenizer_digest(name: str) -> str:
    return hashlib.sha256(read_tokenizer(name).to_str().encode()).hexdigest()


def _field_tokens(strings: list[str | None], inverse: np.ndarray, owners: np.ndarray, texts: int) -> FieldTokens:
    """Number the tokens of a field; two words with one string (function, functions) become one token.

    Args:
        strings: the token of each distinct word, None to leave it out.
        inverse: (words,) the distinct word of each word.
        owners: (words,) the text of each word.
        texts: number of texts.
    """
    vocabulary = sorted({string for string in strings if string is not None})
    ids = {string: i for i, string in enumerate(vocabulary)}
    local = np.array([-1 if string is None else ids[string] for string in strings], np.int32)
    tokens = local[inverse] if len(local) else np.zeros(0, np.int32)
    kept = tokens >= 0
    return FieldTokens(vocabulary, tokens[kept], np.bincount(owners[kept], minlength=texts).astype(np.int64))


def _distinct_rows(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, and for each row the number of its distinct one (column by column: sorting whole rows
    is slow)."""
    code = np.zeros(len(hashes), np.int64)
    for column in hashes.T:
        values, inverse = np.unique(column, return_inverse=True)
        code = code * len(values) + inverse
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return hashes[first], inverse


def _plain(word: str) -> str:
    return word.replace("’", "'")


def _installed_version(model: str) -> str:
    try:
        return importlib.metadata.version(model)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"the spaCy pipeline {model} is not installed; leave --data.spacy_model at {LOOKUP!r}, which needs none"
        ) from error
