"""Why a document has its score: the parts of the computation, with the words that they belong to.

A row's score is a weighted sum of features (BM25 and a Model 1, or one of them alone); a feature's score is a sum over
query tokens; what a query token adds comes from document tokens (`lexical.evidence`). Nothing is estimated: the parts
add up to the score, or `Explanation.checked` says that they do not.

For reading, word pieces are put together to words. The value of a query word is the sum of its pieces'; what it rests
on is the mean over its pieces of what they rest on, summed over the pieces of a document word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from unicodedata import category

import numpy as np

from lexical.errors import UserError
from lexical.evidence import Evidence, TokenSpan

TOLERANCE = 2e-6  # between a score, summed in 32 bits, and the sum of its parts, for a score of about 1
ROUNDING = 2.0**-24  # further, for each document token
MOST_PLACES = 300  # document words of one query word that JSON lists: the strongest
LEAST_SHARE = 0.05  # of the strongest one's share; smaller ones are summed as "others", below 1 in 500 at the least
SMALL = 0.002
SMALLEST = 1e-5  # is written as 0
CONTINUES = "##"  # what a word piece that is no beginning of a word begins with


class Feature(NamedTuple):
    """A score that the row's score is made of."""

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
    rank: int | None = None  # among the candidates; None where it is none of them

    def checked(self) -> Explanation:
        """Itself, if the parts add up to the score."""
        parts = [(feature.value, feature.evidence.score) for feature in self.features]
        parts.append((self.score, sum(feature.weight * feature.evidence.score for feature in self.features)))
        longest = max(feature.evidence.shares.shape[1] for feature in self.features)
        for score, summed in parts:
            if not abs(score - summed) <= TOLERANCE * max(1.0, abs(score)) + ROUNDING * longest:
                raise UserError(f"{self.document}: the parts of the score {score} sum to {summed}")
        return self

    @property
    def main(self) -> Feature:
        """The feature that is shown first: the ranker's own, not the first stage's."""
        return self.features[-1]


class Word(NamedTuple):
    """Tokens that are read as one word: tokens[first:last]."""

    text: str
    start: int  # characters
    end: int
    first: int
    last: int


class QueryWord(NamedTuple):
    """A word of the query and what it rests on; the fractions sum to 1, or are all 0 where it rests on nothing."""

    word: Word
    value: float  # what it adds to the feature's score
    log_score: float  # of Model 1: sum of ln P(q|D) of its tokens
    fractions: np.ndarray  # (document words,)
    smoothing: float
    floor: float


class FeatureView(NamedTuple):
    """A feature for reading."""

    query: list[QueryWord]
    unread_query: list[Word]  # behind what the ranker reads
    document: list[Word]
    unread_from: int | None  # character of the text from which on it is not read
    chunks: list[int]  # numbers of the document words that a chunk begins with (or in), but the first


class WordShare(NamedTuple):
    """A document word, however often it comes, and its part of what a query word rests on."""

    text: str
    share: float
    times: int


def words_of(spans: Sequence[TokenSpan], text: str, pieces: bool = False) -> list[Word]:
    """Tokens as words; with `pieces` each token is its own."""
    found: list[Word] = []
    for number, span in enumerate(spans):
        joined = span.token.startswith(CONTINUES) and found and not pieces and _touch(text, found[-1].end, span.start)
        if joined:
            last = found[-1]
            end = max(last.end, span.end)  # a character may be several pieces
            found[-1] = Word(text[last.start : end], last.start, end, last.first, number + 1)
        else:
            shown = span.token if pieces else text[span.start : span.end]
            found.append(Word(shown, span.start, span.end, number, number + 1))
    return found


def _touch(text: str, end: int, start: int) -> bool:
    """Nothing lies between but what a tokenizer leaves out of words: marks and characters without width."""
    return all(category(character)[0] in "MC" for character in text[end:start])


def feature_view(feature: Feature, query: str, text: str, pieces: bool = False) -> FeatureView:
    evidence, parts = feature.evidence, feature.evidence.fractions()
    q_read, d_read = evidence.shares.shape
    query_words = words_of(feature.query[:q_read], query, pieces)
    document_words = words_of(feature.document[:d_read], text, pieces)
    edges, q_edges = (np.array([word.first for word in words], np.int64) for words in (document_words, query_words))
    by_word = np.add.reduceat(parts.shares, edges, axis=1) if len(edges) else np.zeros((q_read, 0))
    views = []
    if query_words:
        tokens = np.array([word.last - word.first for word in query_words])
        fractions = np.add.reduceat(by_word, q_edges, axis=0) / tokens[:, None]
        values, smoothing, floor = (
            np.add.reduceat(one, q_edges) for one in (evidence.values, parts.smoothing, parts.floor)
        )
        rests = zip(fractions, (smoothing / tokens).tolist(), (floor / tokens).tolist(), strict=True)
        for word, value, each in zip(query_words, values.tolist(), rests, strict=True):
            views.append(QueryWord(word, value, value * evidence.normaliser, *each))
    unread = feature.document[d_read].start if d_read < len(feature.document) else None
    starts = [int(np.searchsorted(edges, one, side="right")) - 1 for one in evidence.chunks[1:]]
    return FeatureView(views, words_of(feature.query[q_read:], query, pieces), document_words, unread, starts)


def strongest(view: FeatureView, word: QueryWord, most: int = 5) -> list[WordShare]:
    """What a query word rests on most, equal document words together."""
    shares: dict[str, WordShare] = {}
    for number in np.flatnonzero(word.fractions > 0):
        text = view.document[number].text.lower()
        known = shares.get(text, WordShare(text, 0.0, 0))
        shares[text] = WordShare(text, known.share + float(word.fractions[number]), known.times + 1)
    return sorted(shares.values(), key=lambda one: (-one.share, one.text))[:most]


def importance(view: FeatureView) -> np.ndarray:
    """(document words,) how much of the query rests on each: its share of every query word, summed."""
    whole = [word.fractions for word in view.query]
    return np.sum(whole, axis=0) if whole else np.zeros(len(view.document))


class Difference(NamedTuple):
    """What a query word adds to one document's score more than to another's."""

    text: str
    by_feature: tuple[float, ...]  # weights of the fusion included

    @property
    def total(self) -> float:
        return sum(self.by_feature)


def differences(one: Explanation, other: Explanation) -> list[Difference]:
    """Why `one` is above `other` (or below), by query word in the order of the query; the totals sum to the difference
    of the two scores."""
    if (one.model, one.query) != (other.model, other.query):
        raise ValueError("two documents can be compared for one query and one ranker only")
    found: dict[tuple[int, int], list[float]] = {}
    names: dict[tuple[int, int], str] = {}
    count = len(one.features)
    for number in reversed(range(count)):  # the ranker's own words first: the first stage's are put to them
        views = [feature_view(each.features[number], each.query, each.text) for each in (one, other)]
        for mine, theirs in zip(views[0].query, views[1].query, strict=True):
            word = mine.word
            key = next((known for known in found if word.start < known[1] and known[0] < word.end), None)
            if key is None:
                key = (word.start, word.end)
                found[key], names[key] = [0.0] * count, word.text
            found[key][number] += one.features[number].weight * (mine.value - theirs.value)
    return [Difference(names[key], tuple(found[key])) for key in sorted(found)]


def as_json(explanation: Explanation, pieces: bool = False) -> dict[str, Any]:
    """All of it in plain types; small fractions are left out of `rests_on` and summed in `others`."""
    return {
        "model": explanation.model,
        "query": explanation.query,
        "document": explanation.document,
        "rank": explanation.rank,
        "score": _rounded(explanation.score),
        "text": explanation.text,
        "features": [_feature_json(explanation, feature, pieces) for feature in explanation.features],
    }


def _feature_json(explanation: Explanation, feature: Feature, pieces: bool) -> dict[str, Any]:
    view = feature_view(feature, explanation.query, explanation.text, pieces)
    words = []
    for one in view.query:
        kept = _kept(one.fractions)
        shares = one.fractions[kept]
        others = max(0.0, float(one.fractions.sum() - shares.sum()))
        words.append(
            {
                "word": one.word.text,
                "start": one.word.start,
                "end": one.word.end,
                "value": _rounded(one.value),
                "log_score": _rounded(one.log_score),
                "rests_on": list(zip(kept.tolist(), np.round(shares, 5).tolist(), strict=True)),
                "others": _rounded(others, 4),
                "smoothing": _rounded(one.smoothing, 4),
                "floor": _rounded(one.floor, 4),
            }
        )
    return {
        "name": feature.name,
        "kind": feature.evidence.kind,
        "weight": _rounded(feature.weight),
        "value": _rounded(feature.value),
        "query_words": words,
        "unread_query_words": [word.text for word in view.unread_query],
        "document_words": [word[1:3] for word in view.document],  # start, end
        "unread_from": view.unread_from,
        "chunks": view.chunks,
    }


def _kept(fractions: np.ndarray) -> np.ndarray:
    """Numbers of the document words that are listed, in the order of the text."""
    least = max(min(SMALL, LEAST_SHARE * float(fractions.max(initial=0.0))), SMALLEST)
    kept = np.flatnonzero(fractions >= least)
    if len(kept) > MOST_PLACES:
        kept = np.sort(kept[np.argsort(-fractions[kept], kind="stable")[:MOST_PLACES]])
    return kept


def _rounded(value: float, digits: int = 9) -> float:
    return float(f"{value:.{digits}g}")
