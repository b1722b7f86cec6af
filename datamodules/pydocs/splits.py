"""Query sets without leaks: near-identical queries or passages never fall into two sets.

Queries that resemble one another, or whose passages do, form a group, and a group goes into one set as a
whole. A hash of the group's first query decides which one: the split is fixed, apart from any training seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from datamodules.pydocs.near_duplicates import near_duplicate_groups

QUERY_SETS = ("train_modeling", "train_fusion", "development", "test")
SPLIT_SEED = "pydocs-split-1"
EVALUATION_SHARE = 0.09  # of all queries, for development and for test each
FUSION_SHARE = 0.1  # of the training queries
LARGEST_EVALUATED_GROUP = 20  # a larger family of look-alikes would weigh too much in an evaluation: it is trained on
SIMILAR_QUERY = 0.6  # Jaccard similarity of the words: one word in four exchanged
SIMILAR_PASSAGE = 0.5  # Jaccard similarity of the word triples


class Split(NamedTuple):
    """The set of each query, and the group that it shares with its look-alikes."""

    query_sets: list[str]
    groups: np.ndarray  # (queries,) position of the group's first query


def split_queries(queries: Sequence[str], relevant: Sequence[Sequence[str]]) -> Split:
    """Assign each query to a set. `relevant` holds the texts of each query's relevant passages."""
    groups = look_alike_groups(queries, relevant)
    members: dict[int, list[int]] = {}
    for query, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(query)
    shuffled = sorted(members, key=lambda group: hashlib.sha256(f"{SPLIT_SEED}\n{queries[group]}".encode()).digest())
    evaluation_size = round(EVALUATION_SHARE * len(queries))
    fusion_size = round(FUSION_SHARE * (len(queries) - 2 * evaluation_size))
    wanted = {"development": evaluation_size, "test": evaluation_size, "train_fusion": fusion_size}
    query_sets = ["train_modeling"] * len(queries)
    for group in shuffled:
        size = len(members[group])
        if size > LARGEST_EVALUATED_GROUP:
            continue
        # The first set with room for the whole group: sizes come out exact as long as singletons remain.
        chosen = next((name for name, room in wanted.items() if room >= size), None)
        if chosen is None:
            continue
        wanted[chosen] -= size
        for query in members[group]:
            query_sets[query] = chosen
    return Split(query_sets, groups)


def look_alike_groups(queries: Sequence[str], relevant: Sequence[Sequence[str]]) -> np.ndarray:
    """Group of each query, (queries,): connected through similar queries or similar (or shared) passages."""
    owner = np.repeat(np.arange(len(queries)), [len(passages) for passages in relevant])
    passage_groups = near_duplicate_groups([text for passages in relevant for text in passages], SIMILAR_PASSAGE)
    links = [
        (np.arange(len(queries)), near_duplicate_groups(queries, SIMILAR_QUERY, shingle=1)),
        (owner, owner[passage_groups]),
    ]
    rows, columns = (np.concatenate(ends) for ends in zip(*links, strict=True))
    graph = sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(queries), len(queries)))
    component = connected_components(graph, directed=False)[1]
    _, first, inverse = np.unique(component, return_index=True, return_inverse=True)
    return first[inverse]
