"""Tokens with their places are the tokens of the fields, and stand where they are said to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.text.analysis import FIELDS, AnalysisSettings, analyser_of
from datamodules.text.token_spans import SpanFinder

SETTINGS = AnalysisSettings()
FINDERS = {field: SpanFinder(field, SETTINGS) for field in FIELDS}
ANALYSERS = {"bwps": analyser_of("bwps", SETTINGS), "word": analyser_of("word", SETTINGS)}
TEXT = "The functions' résumé doesn’t SORT np.sort(axis=-1) – it’s 3.5x\nfaster, 😀 isn't it? <b>running</b> runs"


def tokens_of(text: str, field: str) -> list[str]:
    found = ANALYSERS["bwps" if field == "bwps" else "word"].analyse([text])[field]
    if found.vocabulary is not None:
        return [found.vocabulary[token] for token in found.tokens]
    return [ANALYSERS["bwps"].vocabulary[token] for token in found.tokens]  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", FIELDS)
def test_a_text_with_all_kinds_of_words(field: str) -> None:
    spans = FINDERS[field].spans(TEXT)
    assert [span.token for span in spans] == tokens_of(TEXT, field)
    assert all(0 <= span.start < span.end <= len(TEXT) for span in spans)
    assert [span.start for span in spans] == sorted(span.start for span in spans)
    for span in spans:
        if field == "word" and span.token.isalpha():
            assert TEXT[span.start : span.end].lower() == span.token


@pytest.mark.parametrize("field", FIELDS)
@settings(deadline=None, max_examples=40)
@given(text=st.text(max_size=60))
def test_any_text(field: str, text: str) -> None:
    assert [span.token for span in FINDERS[field].spans(text)] == tokens_of(text, field)
