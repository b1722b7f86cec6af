"""Why a document has its score: the parts of the computation, with the words that they belong to.

A row's score is a weighted sum of features (BM25 and a Model 1, or one of them alone); a feature's score is a sum over
query tokens; what a query token adds comes from document tokens (`lexical.evidence`). Nothing is estimated: the parts
add up to the score, or `Explanation.checked` raises.

For reading, word pieces are joined into words. The value of a query word is the sum of its pieces' values. The evidence
of a query word is the mean over its pieces of the shares of P(q|D), summed over the pieces of a document word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from unicodedata import category

import numpy as np

from lexical.errors import UserError
from lexical.evidence import Evidence, TokenSpan

TOLERANCE = 2e-6  # between a score, summed in 32 bits, and the sum of its parts, for a score of about 1
ROUNDING = 2.0**-24  # added to the tolerance for each document token
CONTINUES = "##"  # prefix of a word piece inside a word
LEAST = 0.01  # smaller shares of a query word are not listed


class Feature(NamedTuple):
    """A score that is a summand of the row's score."""

    name: str
    weight: float  # in the fusion; 1 where nothing is fused
    value: float  # as the ranker computes it
    evidence: Evidence
    query: list[TokenSpan]  # tokens of the query text
    document: list[TokenSpan]  # tokens of the document text


class Explanation(NamedTuple):
    """One document and its score for one query."""

    model: str
    query: str
    document: str  # id
    text: str
    score: float  # of the row, as the ranker computes it
    features: tuple[Feature, ...]
    rank: int | None = None  # among the candidates; None for a document that is not a candidate

    def checked(self) -> Explanation:
        """Return the explanation if its parts add up to the score."""
        parts = [(feature.value, feature.evidence.score) for feature in self.features]
        parts.append((self.score, sum(feature.weight * feature.evidence.score for feature in self.features)))
        longest = max(feature.evidence.shares.shape[1] for feature in self.features)
        for score, total in parts:
            if not abs(score - total) <= TOLERANCE * max(1.0, abs(score)) + ROUNDING * longest:
                raise UserError(f"{self.document}: the parts of the score {score} sum to {total}")
        return self

    @property
    def main(self) -> Feature:
        """The feature that is shown first: the ranker's own, not the first stage's."""
        return self.features[-1]


class Word(NamedTuple):
    """Tokens that are read as one word."""

    text: str
    start: int  # characters
    end: int
    tokens: slice


class QueryWord(NamedTuple):
    """A word of the query and its evidence.

    `fractions`, `smoothing` and `floor` sum to 1, or are all 0 where the word has no evidence.
    """

    text: str
    start: int  # characters
    end: int
    value: float  # what it adds to the feature's score
    log_score: float  # of Model 1: sum of ln P(q|D) of its tokens
    fractions: np.ndarray  # (document words,)
    smoothing: float
    floor: float


class WordShare(NamedTuple):
    """A distinct document word and its share of the evidence of a query word."""

    text: str
    share: float
    times: int  # occurrences in the document


class FeatureView(NamedTuple):
    """A feature for reading."""

    query: list[QueryWord]
    unread_query: list[Word]  # words beyond those that the ranker reads
    document: list[Word]
    unread_from: int | None  # first character of the text that is not read
    chunks: list[int]  # document words in which a chunk begins, except the first chunk

    def strongest(self, word: QueryWord, most: int = 5) -> list[WordShare]:
        """Return the strongest evidence of a query word, best first, then the rest in parentheses."""
        shares: dict[str, WordShare] = {}
        for number in np.flatnonzero(word.fractions > 0):
            text = self.document[number].text.lower()
            previous = shares.get(text, WordShare(text, 0.0, 0))
            shares[text] = WordShare(text, previous.share + float(word.fractions[number]), previous.times + 1)
        listed = sorted(shares.values(), key=lambda item: (-item.share, item.text))[:most]
        listed = [item for item in listed if item.share >= LEAST]
        others = float(word.fractions.sum()) - sum(item.share for item in listed)
        rest = (("other words", others), ("the collection", word.smoothing), ("the floor", word.floor))
        return [*listed, *(WordShare(f"({name})", share, 1) for name, share in rest if share >= LEAST)]

    def importance(self) -> np.ndarray:
        """Return (document words,) the share of each in the evidence of the query words, summed over these."""
        return sum((word.fractions for word in self.query), np.zeros(len(self.document)))


def words_of(spans: Sequence[TokenSpan], text: str, pieces: bool = False) -> list[Word]:
    """Join tokens into words; with `pieces` each token stays on its own."""
    words: list[Word] = []
    for number, span in enumerate(spans):
        if span.token.startswith(CONTINUES) and words and not pieces and _adjacent(text, words[-1].end, span.start):
            last = words[-1]
            end = max(last.end, span.end)  # a character may be several pieces
            words[-1] = Word(text[last.start : end], last.start, end, slice(last.tokens.start, number + 1))
        else:
            shown = span.token if pieces else text[span.start : span.end]
            words.append(Word(shown, span.start, span.end, slice(number, number + 1)))
    return words


def _adjacent(text: str, end: int, start: int) -> bool:
    """Return whether only characters lie between that a tokenizer leaves out of words: marks and zero-width ones."""
    return all(category(character)[0] in "MC" for character in text[end:start])


def feature_view(feature: Feature, query: str, text: str, pieces: bool = False) -> FeatureView:
    """Sum the evidence of tokens to that of words."""
    evidence = feature.evidence
    q_read, d_read = evidence.shares.shape
    scale = 1 / np.where(evidence.probabilities > 0, evidence.probabilities, 1.0)  # shares of P(q|D): they sum to 1
    document_words = words_of(feature.document[:d_read], text, pieces)
    first_tokens = np.array([word.tokens.start for word in document_words], np.int64)
    by_word = np.add.reduceat(evidence.shares, first_tokens, axis=1) if document_words else np.zeros((q_read, 0))
    query_words = []
    for word in words_of(feature.query[:q_read], query, pieces):
        tokens, value = word.tokens, float(evidence.values[word.tokens].sum())
        fractions = (by_word[tokens] * scale[tokens, None]).mean(axis=0)
        smoothing, floor = (float((part * scale)[tokens].mean()) for part in (evidence.smoothing, evidence.floor))
        query_words.append(QueryWord(*word[:3], value, value * evidence.normaliser, fractions, smoothing, floor))
    unread_from = feature.document[d_read].start if d_read < len(feature.document) else None
    chunks = [int(np.searchsorted(first_tokens, start, side="right")) - 1 for start in evidence.chunks[1:]]
    return FeatureView(
        query_words, words_of(feature.query[q_read:], query, pieces), document_words, unread_from, chunks
    )


class Difference(NamedTuple):
    """How much more a query word adds to one document's score than to another's."""

    word: str
    by_feature: tuple[float, ...]  # weights of the fusion included


def differences(first: Explanation, second: Explanation) -> list[Difference]:
    """Compare two documents by query word, in the order of the query.

    All values together sum to the difference of the two scores.
    """
    if (first.model, first.query) != (second.model, second.query):
        raise ValueError("two documents can be compared for one query and one ranker only")
    values: dict[tuple[int, int, str], list[float]] = {}  # (start, end, text) of a query word -> by feature
    for number in reversed(range(len(first.features))):  # the ranker's own words; the first stage's are added to them
        views = [feature_view(item.features[number], item.query, item.text) for item in (first, second)]
        for word, other in zip(views[0].query, views[1].query, strict=True):
            overlapping = (key for key in values if word.start < key[1] and key[0] < word.end)
            key = next(overlapping, (word.start, word.end, word.text))
            row = values.setdefault(key, [0.0] * len(first.features))
            row[number] += first.features[number].weight * (word.value - other.value)
    return [Difference(key[2], tuple(values[key])) for key in sorted(values)]
