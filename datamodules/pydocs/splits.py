"""Query sets without leaks: near-identical queries or passages are never in two sets.

Queries that resemble one another, or whose passages do, form a group, and a whole group goes into one set. A hash of
the group's first query decides which one: the split is fixed, apart from any training seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from datamodules.pydocs.near_duplicates import connected_groups, first_of_group, near_duplicate_groups
from datamodules.text.query_sets import DEVELOPMENT, TEST, TRAIN_FUSION, TRAIN_MODELING

QUERY_SETS = (TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT, TEST)
SPLIT_SEED = "pydocs-split-1"
EVALUATION_SHARE = 0.09  # of all queries, for development and for test each
FUSION_SHARE = 0.1  # of the training queries
LARGEST_EVALUATED_GROUP = 20  # a larger family of look-alikes would dominate an evaluation: it is trained on
SIMILAR_QUERY = 0.6  # Jaccard similarity of the words: one word in four exchanged
SIMILAR_PASSAGE = 0.5  # Jaccard similarity of the word triples


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
    return first_of_group(connected_groups(first, second, len(queries)))
