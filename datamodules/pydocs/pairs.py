"""From docstrings to queries and their relevant passages, in query sets without leaks.

A query is a docstring's summary, its relevant passage the rest of that docstring. Every docstring gets a fate, `KEPT`
or the reason why not, so that nothing is dropped in silence.

Queries that resemble one another, or whose passages do, form a group, and a whole group goes into one query set. A hash
of the group's first query decides which one: the split is fixed, apart from any training seed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from datamodules.pydocs.docstring_text import without_placeholders
from datamodules.pydocs.mining import Docstring
from datamodules.pydocs.near_duplicates import connected_groups, near_duplicate_groups
from datamodules.text.query_sets import DEVELOPMENT, TEST, TRAIN_FUSION, TRAIN_MODELING

SHORTEST_QUERY = 3  # words
LONGEST_QUERY = 30
SHORTEST_PASSAGE = 12
MAX_RELEVANT = 5  # a summary shared by more passages is too general to be a query
SAME_PASSAGE = 0.7  # Jaccard similarity of word triples from which two passages are duplicates

SPLIT_SEED = "pydocs-split-1"
EVALUATION_SHARE = 0.09  # of all queries, for development and for test each
FUSION_SHARE = 0.1  # of the training queries
LARGEST_EVALUATED_GROUP = 20  # a larger family of look-alikes would dominate an evaluation: it is trained on
SIMILAR_QUERY = 0.6  # Jaccard similarity of the words: one word in four exchanged
SIMILAR_PASSAGE = 0.5  # Jaccard similarity of the word triples

KEPT = "kept"
NO_SUMMARY = "no summary"
QUERY_TOO_SHORT = f"summary under {SHORTEST_QUERY} words"
QUERY_TOO_LONG = f"summary over {LONGEST_QUERY} words"
PASSAGE_TOO_SHORT = f"passage under {SHORTEST_PASSAGE} words"
BOILERPLATE = "boilerplate"
SIGNATURE = "signature or code as summary"
TEMPLATE = "template with placeholders"
REPEATED = "summary repeated in its passage"
DUPLICATE = "duplicate passage"
NEAR_DUPLICATE = "near-duplicate passage"
GENERIC = f"summary of more than {MAX_RELEVANT} passages"

_WORD = re.compile(r"[^\W_]+(?:['’][a-z]+)?")
_BOILERPLATE = re.compile(
    r"""(?: see\s+(?:the\s+)?(?:base|parent|super|class|docs?|documentation|also|\S+$) | refer\s+to\b
    | deprecated\b | \W*copyright | licensed?\b | inherit | (?:an?\s+)?alias(?:es)?\s+(?:for|of|to)\b
    | overrid(?:e|es|den|ing)\s+(?:this|to|by|in|from|method|the\s+\S+\s+method)\b | same\s+as\s+\S+$
    | initiali[sz]es?\s+self | auto-?generated | (?:this\s+file\s+(?:was|is)\s+)?automatically\s+generated
    | (?:todo|fixme|xxx)\b | not\s+implemented | internal\s+use\s+only | do\s+not\s+edit
    | private\s+(?:method|function)$ | placeholder\b )""",
    re.IGNORECASE | re.VERBOSE,
)
_CODE = re.compile(
    r"[\w.]+\(.*\)\s*(?:->.*)?$|.*(?:\s->\s|:=|==\s|\s=\s|>>>)|(?:from\s+[\w.]+\s+)?import\s+\w|https?://\S+$"
)


class Query(NamedTuple):
    """A query and the positions of the docstrings whose rest is a relevant passage."""

    text: str
    relevant: tuple[int, ...]


class Pairs(NamedTuple):
    """The queries in source order, and the fate of every docstring."""

    queries: list[Query]
    fates: list[str]


def select_pairs(docstrings: Sequence[Docstring]) -> Pairs:
    """Filter, collapse duplicate passages, and join the passages that share a summary under one query."""
    fates = [fate_of(docstring) for docstring in docstrings]
    _mark_duplicates(docstrings, fates)
    passages_of: dict[str, list[int]] = {}
    for position, docstring in enumerate(docstrings):
        if fates[position] == KEPT:
            passages_of.setdefault(" ".join(words(docstring.summary)), []).append(position)
    queries = []
    for relevant in passages_of.values():
        text = docstrings[relevant[0]].summary
        fate = GENERIC if len(relevant) > MAX_RELEVANT else KEPT
        # The first spelling of the summary is the query, so it must be absent from all the passages.
        if any(text.lower() in docstrings[position].rest.lower() for position in relevant):
            fate = REPEATED
        for position in relevant:
            fates[position] = fate
        if fate == KEPT:
            queries.append(Query(text, tuple(relevant)))
    return Pairs(queries, fates)


def fate_of(docstring: Docstring) -> str:
    """Return `KEPT` or why this docstring, considered alone, gives no pair."""
    summary, rest = docstring.summary, docstring.rest
    length = len(words(summary))
    checks = (
        (NO_SUMMARY, not summary),
        (BOILERPLATE, _BOILERPLATE.match(summary) is not None),
        (TEMPLATE, without_placeholders(summary) != summary),
        (SIGNATURE, _CODE.match(summary) is not None or _mostly_symbols(summary)),
        (QUERY_TOO_SHORT, length < SHORTEST_QUERY),
        (QUERY_TOO_LONG, length > LONGEST_QUERY),
        (PASSAGE_TOO_SHORT, len(words(without_placeholders(rest))) < SHORTEST_PASSAGE),
        (REPEATED, summary.lower() in rest.lower()),
    )
    return next((reason for reason, applies in checks if applies), KEPT)


def words(text: str) -> list[str]:
    """Return lower-cased words and numbers."""
    return _WORD.findall(text.lower())


def _mark_duplicates(docstrings: Sequence[Docstring], fates: list[str]) -> None:
    """Keep one docstring of each group of near-identical passages: the first that gives a pair."""
    long_enough = [i for i, docstring in enumerate(docstrings) if len(words(docstring.rest)) >= SHORTEST_PASSAGE]
    groups = near_duplicate_groups([docstrings[i].rest for i in long_enough], SAME_PASSAGE)
    kept: dict[int, int] = {}
    for position, group in sorted(zip(long_enough, groups.tolist(), strict=True), key=lambda x: fates[x[0]] != KEPT):
        first = kept.setdefault(group, position)
        if first != position:
            exact = words(docstrings[first].rest) == words(docstrings[position].rest)
            fates[position] = DUPLICATE if exact else NEAR_DUPLICATE


def _mostly_symbols(text: str) -> bool:
    """Return whether under two thirds are letters and blanks: a formula, a path or a table, not a sentence."""
    return sum(char.isalpha() or char == " " for char in text) * 3 < len(text) * 2


def split_queries(queries: Sequence[str], relevant: Sequence[Sequence[str]]) -> list[str]:
    """Return the query set of each query. `relevant` holds the texts of each query's relevant passages."""
    members: dict[int, list[int]] = {}
    for query, group in enumerate(look_alike_groups(queries, relevant).tolist()):
        members.setdefault(group, []).append(query)
    shuffled = sorted(members, key=lambda group: hashlib.sha256(f"{SPLIT_SEED}\n{queries[group]}".encode()).digest())
    evaluation_size = round(EVALUATION_SHARE * len(queries))
    fusion_size = round(FUSION_SHARE * (len(queries) - 2 * evaluation_size))
    room = {DEVELOPMENT: evaluation_size, TEST: evaluation_size, TRAIN_FUSION: fusion_size}
    query_sets = [TRAIN_MODELING] * len(queries)
    for group in shuffled:
        size = len(members[group])
        # The first set with room for the whole group: sizes come out exact as long as singletons remain.
        query_set = next((name for name in room if room[name] >= size), None)
        if query_set is not None and size <= LARGEST_EVALUATED_GROUP:
            room[query_set] -= size
            for query in members[group]:
                query_sets[query] = query_set
    return query_sets


def look_alike_groups(queries: Sequence[str], relevant: Sequence[Sequence[str]]) -> np.ndarray:
    """Return (queries,) the group of each query: connected through similar queries or similar (or shared) passages."""
    owner = np.repeat(np.arange(len(queries)), [len(passages) for passages in relevant])
    similar_queries = near_duplicate_groups(queries, SIMILAR_QUERY, shingle=1)
    passage_groups = near_duplicate_groups([text for passages in relevant for text in passages], SIMILAR_PASSAGE)
    first = np.concatenate([np.arange(len(queries)), owner])
    second = np.concatenate([similar_queries, owner[passage_groups]])
    return connected_groups(first, second, len(queries))
