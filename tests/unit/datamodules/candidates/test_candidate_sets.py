"""Candidates: the first stage against BM25 in plain Python, runs made elsewhere, sampled negatives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.candidates.candidate_sets import (
    CandidateSet,
    external_candidates,
    open_candidates,
    retrieve,
    sample_negatives,
    write_candidates,
)
from datamodules.preparation import Preparation, PreparationSettings
from datamodules.text.collection import Collection, write_collection
from datamodules.text.lines import LineReport, TextLine
from datamodules.text.query_sets import JudgedQuery, QuerySet, write_query_set
from datamodules.text.sources import SplitTexts, folder_texts
from lexical.bm25 import BM25Parameters
from lexical.errors import UserError
from lexical.index.ragged import Ragged, ragged
from lexical.index.retrieval import RetrievalIndex
from lexical.ranking.trec_run import read_run
from tests.fixtures.plain_reference import plain_bm25
from tests.fixtures.small_folder import write_lines
from tests.fixtures.tiny_collections import forward_index_of

IDS = ["D2", "D10", "D1", "é", "Z"]  # as text: D1, D10, D2, Z, é


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    folder = tmp_path_factory.mktemp("collection")
    write_collection((TextLine(i, name, "text") for i, name in enumerate(IDS, start=1)), LineReport("c", 5), folder)
    return Collection(folder)


@pytest.fixture
def queries(tmp_path: Path) -> QuerySet:
    """Queries q1, q2, q3 of the set `test`."""
    write_query_set([JudgedQuery(f"q{i}", f"query {i}", [("D1", 2, 1)]) for i in (1, 2, 3)], "test", tmp_path / "sets")
    return QuerySet(tmp_path / "sets", "test")


def run_file(path: Path, rows: Iterable[tuple[str, str, float]]) -> Path:
    return write_lines(path, (f"{query} Q0 {document} 1 {score} tag" for query, document, score in rows))


def as_lists(found: CandidateSet, collection: Collection) -> list[list[tuple[str, float]]]:
    """Query -> (document id, score), in order."""
    pairs = list(zip(collection.ids(found.candidates.values).to_pylist(), map(float, found.scores), strict=True))
    return [
        pairs[start:end] for start, end in zip(found.candidates.offsets[:-1], found.candidates.offsets[1:], strict=True)
    ]


# ------------------------------------------------------------------------------------------------ written, opened


def test_candidates_are_written_best_first_and_the_run_says_the_same(
    collection: Collection, queries: QuerySet, tmp_path: Path
) -> None:
    rows = ragged([[0, 1, 2, 3, 4], [], [4, 3]], np.int32)
    scores = np.array([1.5, 2.25, 1.5, 1.5, 0.1, 3.0, 3.0], np.float32)
    write_candidates(CandidateSet(rows, scores), queries, collection, "bm25", tmp_path / "out")
    found = open_candidates(tmp_path / "out", "test")
    assert as_lists(found, collection) == [
        [("D10", 2.25), ("D1", 1.5), ("D2", 1.5), ("é", 1.5), ("Z", np.float32(0.1))],
        [],
        [("Z", 3.0), ("é", 3.0)],
    ]
    assert (tmp_path / "out" / "test.run").read_text(encoding="utf-8").splitlines() == [
        "q1 Q0 D10 1 2.25 bm25",
        "q1 Q0 D1 2 1.5 bm25",
        "q1 Q0 D2 3 1.5 bm25",
        "q1 Q0 é 4 1.5 bm25",
        "q1 Q0 Z 5 0.1 bm25",
        "q3 Q0 Z 1 3 bm25",
        "q3 Q0 é 2 3 bm25",
    ]
    assert isinstance(found.candidates.values, np.memmap) and found.scores.dtype == np.float32


def test_the_run_keeps_every_digit_of_a_score(collection: Collection, queries: QuerySet, tmp_path: Path) -> None:
    scores = np.array([1 / 3, np.nextafter(np.float32(1 / 3), np.float32(1)), 1e-30, 1e30, 7.0], np.float32)
    write_candidates(
        CandidateSet(ragged([[0, 1, 2, 3, 4], [], []], np.int32), scores), queries, collection, "bm25", tmp_path / "out"
    )
    found = open_candidates(tmp_path / "out", "test")
    documents, values = read_run(tmp_path / "out" / "test.run")["q1"]
    assert documents == collection.ids(found.candidates.values).to_pylist() == ["é", "Z", "D10", "D2", "D1"]
    assert np.array_equal(values.astype(np.float32), found.scores)


# ------------------------------------------------------------------------------------------------- the first stage

DOCUMENTS = [[0, 1, 1], [1], [2, 2, 2, 0], [], [1], [3, 1], [1], [2]]
QUERIES = [[1], [2, 0], [-1, 1, 1], [], [-1], [4], [3, 2, 1, 0]]
VOCABULARY = 5  # token 4 is in no document


def plain_first_stage(query: list[int], depth: int, k1: float, b: float) -> list[tuple[int, float]]:
    """(document, score) of the `depth` best by score down, then number up; never one that has no word of the query."""
    scored = [(number, plain_bm25(DOCUMENTS, query, number, k1, b)) for number in range(len(DOCUMENTS))]
    return sorted((pair for pair in scored if pair[1] > 0), key=lambda pair: (-pair[1], pair[0]))[:depth]


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.4, 0.0), (2.0, 1.0)])
def test_the_first_stage_finds_what_plain_bm25_finds(tmp_path: Path, k1: float, b: float) -> None:
    index = RetrievalIndex.build(forward_index_of(DOCUMENTS, VOCABULARY), BM25Parameters(k1, b))
    index.save(tmp_path / "index")
    for searched in (index, RetrievalIndex.load(tmp_path / "index")):
        found = retrieve(searched, ragged(QUERIES, np.int32), "test", depth=100, threads=1)
        for i, query in enumerate(QUERIES):
            expected = plain_first_stage(query, 100, k1, b)
            got = dict(
                zip(found.candidates.row(i).tolist(), found.scores[found.candidates.row_numbers() == i], strict=True)
            )
            assert got == pytest.approx(dict(expected), rel=1e-5)


def test_documents_without_a_word_of_the_query_are_never_candidates() -> None:
    index = RetrievalIndex.build(forward_index_of(DOCUMENTS, VOCABULARY), BM25Parameters())
    found = retrieve(index, ragged(QUERIES, np.int32), "test", depth=len(DOCUMENTS), threads=1)
    assert [sorted(found.candidates.row(i).tolist()) for i in range(len(QUERIES))] == [
        [0, 1, 4, 5, 6],
        [0, 2, 7],
        [0, 1, 4, 5, 6],  # the unknown word changes nothing
        [],
        [],
        [],
        [0, 1, 2, 4, 5, 6, 7],
    ]
    assert (found.scores > 0).all()


def test_more_threads_than_cores_is_no_mistake() -> None:
    """``--data.workers 64`` is written for one machine and run on another."""
    index = RetrievalIndex.build(forward_index_of(DOCUMENTS, VOCABULARY), BM25Parameters())
    one, many = (retrieve(index, ragged(QUERIES, np.int32), "test", 5, threads) for threads in (1, 64))
    assert one.scores.tolist() == many.scores.tolist()
    assert one.candidates.values.tolist() == many.candidates.values.tolist()


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 documents that all say the same, one that says more."""
    folder = tmp_path_factory.mktemp("tied")
    write_lines(
        folder / "collection.tsv", [*(f"D{i}\tviolin concert" for i in range(30)), "best\tviolin violin concert"]
    )
    for name, count in (("train", 10), ("dev", 4)):
        write_lines(folder / f"queries.{name}.tsv", (f"{name}{i}\tviolin {name}{i}" for i in range(count)))
        write_lines(folder / f"qrels.{name}.tsv", (f"{name}{i} 0 D{i} 1" for i in range(count)))
    return folder


def prepare(folder: Path, cache: Path, **settings: object) -> Preparation:
    texts = SplitTexts(folder_texts(folder))
    return Preparation("tied", texts, PreparationSettings(workers=1, k1=1.2, b=0.75, **settings), cache)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 5, 1000])
def test_ties_are_ranked_and_cut_by_id(tied: Path, tmp_path: Path, depth: int) -> None:
    prepared = prepare(tied, tmp_path, depth=depth)
    found = prepared.candidates("development")
    by_id = ["best", *sorted(f"D{i}" for i in range(30))][:depth]
    for i in range(found.candidates.rows):
        assert prepared.collection.ids(found.candidates.row(i)).to_pylist() == by_id


# --------------------------------------------------------------------------------------------- a run made elsewhere


def test_an_external_run_is_read_by_score_then_id(collection: Collection, queries: QuerySet, tmp_path: Path) -> None:
    rows = [
        ("q2", "Z", -1.0),
        ("q1", "é", 2.0),
        ("q1", "D2", 2.0),
        ("q1", "D10", 9.5),
        ("q1", "D1", 2.0),
        ("q3", "Z", 0.0),
    ]
    run_file(tmp_path / "any.run", rows)
    found, _ = external_candidates(tmp_path / "any.run", queries, collection, 1000)
    write_candidates(found, queries, collection, "external", tmp_path / "out")
    assert as_lists(open_candidates(tmp_path / "out", "test"), collection) == [
        [("D10", 9.5), ("D1", 2.0), ("D2", 2.0), ("é", 2.0)],
        [("Z", -1.0)],
        [("Z", 0.0)],
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_an_external_run_is_cut_by_score_then_id(
    collection: Collection, queries: QuerySet, tmp_path: Path, order: int
) -> None:
    rows = [
        ("q1", "D10", 9.5),
        *(("q1", name, 2.0) for name in ("é", "D2", "D1", "Z")),
        ("q2", "Z", 1.0),
        ("q3", "Z", 1.0),
    ]
    run_file(tmp_path / "any.run", rows[::order])
    found, _ = external_candidates(tmp_path / "any.run", queries, collection, depth=3)
    write_candidates(found, queries, collection, "external", tmp_path / "out")
    assert as_lists(open_candidates(tmp_path / "out", "test"), collection)[0] == [
        ("D10", 9.5),
        ("D1", 2.0),
        ("D2", 2.0),
    ]


def test_a_folder_holds_one_run_a_query_set(collection: Collection, queries: QuerySet, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    run_file(tmp_path / "runs" / "test.run", [("q1", "D1", 1.0), ("q2", "D2", 1.0), ("q3", "Z", 1.0)])
    run_file(tmp_path / "runs" / "development.run", [("q1", "Z", 1.0)])
    found, _ = external_candidates(tmp_path / "runs", queries, collection, 10)
    assert as_lists(found, collection) == [[("D1", 1.0)], [("D2", 1.0)], [("Z", 1.0)]]
    (tmp_path / "runs" / "test.run").unlink()
    with pytest.raises(UserError, match=r"^--data\.candidates: there is no file .*/runs/test\.run$"):
        external_candidates(tmp_path / "runs", queries, collection, 10)


def test_missing_queries_unknown_documents_and_repeats_are_counted_and_said(
    collection: Collection, queries: QuerySet, tmp_path: Path
) -> None:
    rows = [
        ("q3", "D1", 3.0),
        ("q3", "nowhere", 2.5),
        ("q3", "D2", 2.0),
        ("q3", "D1", 1.0),
        ("q3", "D1", 4.0),
        ("other", "Z", 1.0),
    ]
    path = run_file(tmp_path / "any.run", rows)
    found, notes = external_candidates(path, queries, collection, 10)
    assert as_lists(found, collection) == [[], [], [("D1", 4.0), ("D2", 2.0)]]
    assert notes == [
        f"{path}: test: 2 of 3 queries are not in it and count as 0 (first: q1)",
        f"{path}: test: 2 lines name a document a second time for the same query and are left out",
        f"{path}: test: 1 lines name documents that are not in the collection and are left out",
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["other Q0 D1 1 1.0 tag"], r"has no line for any query of test \(the first is q1\)$"),
        ([], r"has no line for any query of test \(the first is q1\)$"),
        (
            ["q1 Q0 X1 1 2 tag", "q1 Q0 X2 2 1 tag", "q1 Q0 D1 3 0 tag"],
            r"most of its documents are not in the collection",
        ),
        (["q1 D1 1 1.0"], r"line 1: 4 columns instead of six \(qid Q0 docid rank score tag\)$"),
        (["q1 Q0 D1 1 1.0 tag", "q1 Q0 D1 1 high tag"], r"line 2: the score 'high' is not a finite number$"),
        (["q1 Q0 D1 1 nan tag"], r"line 1: the score 'nan' is not a finite number$"),
    ],
)
def test_an_unusable_run_is_one_clear_line(
    collection: Collection, queries: QuerySet, tmp_path: Path, lines: list[str], message: str
) -> None:
    path = write_lines(tmp_path / "any.run", lines)
    with pytest.raises(UserError, match=message) as error:
        external_candidates(path, queries, collection, 10)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_score_beyond_float32_is_one_clear_line(collection: Collection, queries: QuerySet, tmp_path: Path) -> None:
    path = run_file(tmp_path / "any.run", [("q1", "D1", 1e300), ("q2", "D1", 1.0), ("q3", "D1", 1.0)])
    with pytest.raises(UserError):
        write_candidates(
            external_candidates(path, queries, collection, 10)[0], queries, collection, "x", tmp_path / "out"
        )


# ------------------------------------------------------------------------------------------------------- negatives


@settings(max_examples=50, deadline=None)
@given(
    pools=st.lists(st.lists(st.integers(0, 60), unique=True, max_size=40), min_size=1, max_size=5),
    relevant=st.sets(st.integers(0, 60), max_size=20),
    count=st.integers(1, 20),
)
def test_negatives_are_candidates_that_are_not_relevant(pools: list[list[int]], relevant: set[int], count: int) -> None:
    judged = ragged([sorted(relevant)] * len(pools), np.int64)
    drawn = sample_negatives(ragged(pools, np.int32), judged, seed=1, count=count)
    assert drawn.shape == (len(pools), count) and drawn.dtype == np.int32
    for row, pool in zip(drawn.tolist(), pools, strict=True):
        allowed = set(pool) - relevant
        chosen = [number for number in row if number >= 0]
        assert len(set(chosen)) == len(chosen) == min(count, len(allowed)) and set(chosen) <= allowed
        assert row[len(chosen) :] == [-1] * (count - len(chosen))


def _candidates(*rows: list[int]) -> Ragged:
    return ragged(list(rows), np.int32)


def _none(rows: int) -> Ragged:
    return ragged([[]] * rows, np.int64)


def test_negatives_are_a_pure_function_of_seed_and_query_number() -> None:
    pool = list(range(100))
    whole = sample_negatives(_candidates(pool, pool, pool), _none(3), seed=7, count=20)
    assert np.array_equal(whole, sample_negatives(_candidates(pool, pool, pool), _none(3), seed=7, count=20))
    other_company = sample_negatives(_candidates([1, 2], pool[::-1], []), _none(3), seed=7, count=20)
    assert np.array_equal(whole[1], other_company[1])  # neither the other queries nor the order of the pool matter
    assert len({tuple(row) for row in whole.tolist()}) == 3  # but each query has its own draw
    assert not np.array_equal(whole, sample_negatives(_candidates(pool, pool, pool), _none(3), seed=8, count=20))


def test_negatives_are_drawn_evenly_from_the_pool() -> None:
    pool = list(range(40))
    drawn = sample_negatives(_candidates(*[pool] * 2000), _none(2000), seed=3, count=20)
    share = np.bincount(drawn.ravel(), minlength=40) / 2000
    assert np.abs(share - 0.5).max() < 0.06  # 5 standard deviations
