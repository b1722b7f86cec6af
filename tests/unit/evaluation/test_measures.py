"""Measures by hand and by ``pytrec_eval``; every judged query counts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.measures import MRR, NDCG, measure
from lexical.index.ragged import offsets_of
from lexical.ranking.trec_run import Run

Qrels = list[tuple[str, str, int]]


def run_of(text: str) -> Run:
    """A run from lines ``query: document document ...``, best first, all scores equal."""
    rows = [line.split(":") for line in text.split("\n") if line.strip()]
    documents = [row[1].split() for row in rows]
    flat = [document for row in documents for document in row]
    offsets = offsets_of(np.array([len(row) for row in documents], np.int64))
    return Run([row[0].strip() for row in rows], offsets, pa.array(flat, pa.string()), np.ones(len(flat), np.float32))


def qrels_of(text: str) -> Qrels:
    """Judgements from TREC lines ``query 0 document grade``."""
    lines = [line.split() for line in text.split("\n") if line.strip()]
    return [(query, document, int(grade)) for query, _, document, grade in lines]


def values(run: Run, qrels: Qrels, name: str) -> dict[str, float]:
    measured = measure(run, qrels, [name])
    assert list(measured) == [name]
    return measured[name]


def test_a_grade_below_the_relevant_one_counts_for_ndcg_only() -> None:
    """TREC's passages: relevant from grade 2, so the first relevant one is the second of three."""
    run, qrels = run_of("q: d1 d2 d3"), qrels_of("q 0 d1 1\nq 0 d2 2\nq 0 d3 3")
    measured = measure(run, qrels, [MRR, NDCG, "recall@1", "recall@2"], relevant_from=2)
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert measured[NDCG]["q"] == pytest.approx((1 + 2 / math.log2(3) + 3 / 2) / ideal)
    assert (measured[MRR]["q"], measured["recall@1"]["q"], measured["recall@2"]["q"]) == (0.5, 0, 0.5)
    assert measure(run, qrels, [MRR, "recall@1"]) == {MRR: {"q": 1}, "recall@1": {"q": pytest.approx(1 / 3)}}


QRELS = qrels_of("""
    first   0 d1 1
    third   0 d1 1
    third   0 d9 1
    graded0 0 d1 0
    unfound 0 d8 1
    empty   0 d1 1
    missing 0 d1 1
""")
RUN = run_of("""
    first: d1 d2 d3
    third: d3 d2 d1
    graded0: d1 d2
    unfound: d1 d2 d3
    empty:
    unjudged: d1
""")


def test_reciprocal_ranks_by_hand() -> None:
    """Not relevant, not found, an empty list and a missing query are all 0; queries without judgements do not count."""
    assert values(RUN, QRELS, MRR) == pytest.approx(
        {"first": 1.0, "third": 1 / 3, "graded0": 0.0, "unfound": 0.0, "empty": 0.0, "missing": 0.0}
    )


def test_recall_by_hand() -> None:
    expected = {"first": 1.0, "third": 0.5, "graded0": 0.0, "unfound": 0.0, "empty": 0.0, "missing": 0.0}
    assert values(RUN, QRELS, "recall@3") == pytest.approx(expected)
    assert values(RUN, QRELS, "recall@1000") == pytest.approx(expected)
    assert values(RUN, QRELS, "recall@2") == pytest.approx({**expected, "third": 0.0})


def test_graded_ndcg_by_hand() -> None:
    """Gain = grade, discount = log2(1 + rank); the grade-1 document that is not found is part of the ideal."""
    qrels = qrels_of("""
        q 0 d1 2
        q 0 d2 0
        q 0 d3 3
        q 0 d4 1
    """)
    gain = 2 / math.log2(2) + 3 / math.log2(4)
    ideal = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert values(run_of("q: d1 d2 d3"), qrels, NDCG) == pytest.approx({"q": gain / ideal})
    assert values(run_of("q: d3 d1 d4 d2"), qrels, NDCG) == pytest.approx({"q": 1.0})


def test_ndcg_ends_at_rank_10_and_mrr_does_not() -> None:
    run, qrels = run_of("q: " + " ".join(f"d{rank}" for rank in range(1, 1001))), [("q", "d11", 1)]
    assert values(run, qrels, NDCG) == {"q": 0.0}
    assert values(run, qrels, MRR) == pytest.approx({"q": 1 / 11})
    assert values(run, [("q", "d1000", 1)], MRR) == pytest.approx({"q": 0.001})


@pytest.mark.parametrize("order", ["a b c d", "d c b a", "b d a c"])
def test_equal_scores_are_ranked_as_the_run_lists_them(order: str) -> None:
    """trec_eval would sort ties by id downwards, ir-measures' RR@10 another way; the run's own order stands."""
    run = run_of(f"q: {order}")
    for document in "abcd":
        rank = 1 + order.split().index(document)
        assert values(run, [("q", document, 1)], MRR) == pytest.approx({"q": 1 / rank})
        assert values(run, [("q", document, 1)], NDCG) == pytest.approx({"q": 1 / math.log2(1 + rank)})


def test_several_measures_come_in_the_given_order() -> None:
    assert list(measure(RUN, QRELS, ["recall@2", MRR, NDCG])) == ["recall@2", "MRR", "nDCG@10"]


def test_a_run_that_finds_nothing_at_all_is_0_for_every_query() -> None:
    for per_query in measure(run_of("first:\nthird:"), QRELS, [MRR, NDCG, "recall@10"]).values():
        assert per_query == dict.fromkeys(["first", "third", "graded0", "unfound", "empty", "missing"], 0.0)


class Judged(NamedTuple):
    scores: dict[str, dict[str, float]]  # query -> document -> score, without ties
    grades: dict[str, dict[str, int]]


@st.composite
def judged_runs(draw: st.DrawFn) -> Judged:
    documents = [f"d{number}" for number in range(30)]
    scores, grades = {}, {}
    for query in ("q1", "q2", "q3"):
        listed = draw(st.lists(st.sampled_from(documents), min_size=1, max_size=25, unique=True))
        ranks = draw(st.permutations(range(len(listed))))
        scores[query] = {document: rank / 4 for document, rank in zip(listed, ranks, strict=True)}
        grades[query] = draw(st.dictionaries(st.sampled_from(documents), st.integers(0, 3), min_size=1, max_size=12))
    return Judged(scores, grades)


@settings(deadline=None, max_examples=40)
@given(judged=judged_runs())
def test_values_equal_those_of_pytrec_eval(judged: Judged) -> None:
    ranked = {query: sorted(row, key=row.__getitem__, reverse=True) for query, row in judged.scores.items()}
    run = run_of("\n".join(f"{query}: {' '.join(documents)}" for query, documents in ranked.items()))
    qrels = [(query, document, grade) for query, row in judged.grades.items() for document, grade in row.items()]
    names = {MRR: "recip_rank", NDCG: "ndcg_cut_10", "recall@5": "recall_5", "recall@20": "recall_20"}
    reference = pytrec_eval.RelevanceEvaluator(judged.grades, set(names.values())).evaluate(judged.scores)
    for name, per_query in measure(run, qrels, list(names)).items():
        assert per_query == pytest.approx({query: row[names[name]] for query, row in reference.items()}, abs=1e-6)
