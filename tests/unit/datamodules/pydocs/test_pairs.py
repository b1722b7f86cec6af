"""Which docstrings become queries with passages, and how queries are divided."""

from __future__ import annotations

from collections import Counter

from datamodules.pydocs.mining import Docstring
from datamodules.pydocs.pairs import (
    BOILERPLATE,
    GENERIC,
    KEPT,
    PASSAGE_TOO_SHORT,
    SIGNATURE,
    look_alike_groups,
    select_pairs,
    split_queries,
)


def docstring(name: str, summary: str, rest: str) -> Docstring:
    return Docstring("pkg.mod", "", name, summary, rest)


def distinct_rest(number: int, length: int = 20) -> str:
    return " ".join(f"word{number}x{i}" for i in range(length))


def test_fates_and_shared_summaries() -> None:
    rows = [
        docstring("a", "Read the numbers", distinct_rest(1)),
        docstring("b", "read the Numbers", distinct_rest(2)),
        docstring("c", "Write the numbers", distinct_rest(1) + " more"),  # near-duplicate of a
        docstring("d", "Sort the numbers", "Too short."),
        docstring("e", "sort(a, b) -> c", distinct_rest(3)),
        docstring("f", "See base class", distinct_rest(4)),
        *(docstring(f"g{i}", "Run this thing now", distinct_rest(10 + i)) for i in range(6)),
    ]
    pairs = select_pairs(rows)
    assert [(query.text, query.relevant) for query in pairs.queries] == [("Read the numbers", (0, 1))]
    assert pairs.fates[:6] == [
        KEPT,
        KEPT,
        "near-duplicate passage",
        PASSAGE_TOO_SHORT,
        SIGNATURE,
        BOILERPLATE,
    ]
    assert pairs.fates[6:] == [GENERIC] * 6


def test_look_alikes_stay_in_one_set_and_a_giant_family_is_trained_on() -> None:
    alike = [f"Return the {word} of all the given numbers" for word in ("sum", "mean", "product")]
    giant = [f"{distinct_rest(0, 9)} variant{i}" for i in range(60)]
    single = [distinct_rest(100 + i, 6) for i in range(900)]
    queries = alike + giant + single
    passages = [[distinct_rest(5000 + i)] for i in range(len(queries))]
    passages[500] = [passages[700][0] + " and one more"]
    query_sets, groups = split_queries(queries, passages), look_alike_groups(queries, passages)
    assert len(set(query_sets[:3])) == 1
    assert set(query_sets[3:63]) == {"train_modeling"}
    assert query_sets[500] == query_sets[700] and groups[500] == groups[700]
    sizes = Counter(query_sets)
    assert sizes["development"] == sizes["test"] == round(0.09 * len(queries))
    assert sizes["train_fusion"] == round(0.1 * (sizes["train_fusion"] + sizes["train_modeling"]))
