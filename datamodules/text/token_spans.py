"""Where the tokens of a field stand in a text: for whoever wants to show them there.

The tokens are those that `analysis` gives, one by one, in the same order (tested).
"""

from __future__ import annotations

from typing import Any

from spacy.attrs import IDX, LENGTH

from datamodules.text.analysis import (
    MOST_STRINGS,
    SPACY_FIELDS,
    AnalysisSettings,
    SpacyAnalyser,
    load_tokenizer,
    stop_words,
)
from lexical.evidence import TokenSpan


class SpanFinder:
    """Tokens of one field with their places."""

    def __init__(self, field: str, settings: AnalysisSettings) -> None:
        self.field = field
        self._spacy = _PlacedWords(settings.spacy_model) if field in SPACY_FIELDS else None
        self._pieces: Any = None if self._spacy else load_tokenizer(settings.tokenizer)

    def spans(self, text: str) -> list[TokenSpan]:
        if self._spacy is not None:
            return self._spacy.spans(text, self.field)
        found = self._pieces.encode(text, add_special_tokens=False)
        return [TokenSpan(token, *place) for token, place in zip(found.tokens, found.offsets, strict=True)]


class _PlacedWords(SpacyAnalyser):
    """The same rule as `analyse`, for one text, token by token."""

    def spans(self, text: str, field: str) -> list[TokenSpan]:
        if len(self._nlp.vocab.strings) > MOST_STRINGS:  # as in `analyse`: it never forgets a string
            self._nlp = self._fresh_pipeline()
        document = self._nlp.tokenizer(text) if self._lookup is not None else self._nlp(text)
        rows = document.to_array([*self._attributes, IDX, LENGTH]).reshape(-1, len(self._attributes) + 2)
        stop, strings = stop_words(), self._nlp.vocab.strings
        tokens: dict[tuple[int, ...], str | None] = {}  # what the field makes of a word; None: nothing
        found = []
        for *attributes, start, length in rows.tolist():
            key = tuple(attributes)
            if key not in tokens:
                word, *given = (strings[one].replace("’", "'") for one in key)
                lemma = given[0].lower() if given else self._lookup.get(word, word)
                spoken = any(map(str.isalnum, word))
                kept = spoken and (field == "word_all" or (word not in stop and (field != "lemm" or lemma not in stop)))
                tokens[key] = (lemma if field == "lemm" else word) if kept else None
            token = tokens[key]
            if token is not None:
                found.append(TokenSpan(token, start, start + length))
        return found
