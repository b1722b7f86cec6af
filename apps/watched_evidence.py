"""Explanations of the same few queries, again and again while a ranker trains: as rows of a table and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from apps.explanation import Explanation, FeatureView, QueryWord, feature_view, strongest
from apps.explanation_page import explanation_page, explanations_json
from apps.explanation_text import LEAST

COLUMNS = ("step", "epoch", "query", "document", "relevant", "query word", "log_score", "rests on", "score")


class WatchedQuery(NamedTuple):
    """A query with a document that should be above another one."""

    relevant: Explanation
    wrong: Explanation | None  # None: there is no wrong candidate

    @property
    def explanations(self) -> list[Explanation]:
        return [self.relevant] if self.wrong is None else [self.relevant, self.wrong]


def word_rows(watched: Sequence[WatchedQuery], step: int, epoch: int) -> list[list[Any]]:
    """`COLUMNS` of every query word that is read, for every document.

    log_score is the word's ln P(q|D), score the ranker's own: the log-scores of a document sum to its score times what
    the ranker divides by (the query's tokens, or 1).
    """
    rows = []
    for query in watched:
        for one in query.explanations:
            view = feature_view(one.main, one.query, one.text)
            known = [step, epoch, one.query, one.document, one is query.relevant]
            rows += [[*known, word.word.text, word.log_score, rests_on(view, word), one.score] for word in view.query]
    return rows


def rests_on(view: FeatureView, word: QueryWord) -> str:
    """The strongest document words of a query word, such as "sort 61%, order 12%"."""
    shares = [(one.text, one.share) for one in strongest(view, word) if one.share >= LEAST]
    others = float(word.fractions.sum()) - sum(share for _, share in shares)
    shares += [("(other words)", others), ("(the collection)", word.smoothing), ("(the floor)", word.floor)]
    return ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares if share >= LEAST) or "nothing"


def watched_page(watched: Sequence[WatchedQuery], about: str) -> str:
    """All queries one below the other; the relevant document comes first."""
    contents = [explanations_json(one.explanations, about, compared=one.wrong is not None) for one in watched]
    return explanation_page(contents)
