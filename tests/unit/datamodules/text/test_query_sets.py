"""Query sets: judgements joined to documents, splits without a text in two sets, what is left out is said."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.text import query_sets
from datamodules.text.collection import Collection, write_collection
from datamodules.text.lines import Judgement, LineReport, TextLine
from datamodules.text.query_sets import (
    DEVELOPMENT,
    TEST,
    TRAIN_FUSION,
    TRAIN_MODELING,
    JudgedQuery,
    QuerySet,
    RawSet,
    SplitSizes,
    join_judgements,
    planned_sizes,
    same_text,
    split,
    write_query_set,
)
from lexical.errors import UserError

ALL_FOUR = (TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT, TEST)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Documents D0 to D9."""
    folder = tmp_path_factory.mktemp("collection")
    write_collection((TextLine(i + 1, f"D{i}", "text") for i in range(10)), LineReport("c", 10), folder)
    return Collection(folder)


def raw_set(queries: dict[str, str], qrels: list[tuple[str, str, int]]) -> RawSet:
    return RawSet(
        [TextLine(i, *query) for i, query in enumerate(queries.items(), start=1)],
        [Judgement(i, *qrel) for i, qrel in enumerate(qrels, start=1)],
        LineReport("queries.dev.tsv", len(queries)),
        LineReport("qrels.dev.tsv", len(qrels)),
    )


def judged(name: str, texts: list[str]) -> list[JudgedQuery]:
    return [JudgedQuery(f"{name}{i}", text, [("D1", 1, 1)]) for i, text in enumerate(texts)]


def numbered(name: str, count: int) -> list[JudgedQuery]:
    return judged(name, [f"{name} question {i}" for i in range(count)])


def ids(queries: list[JudgedQuery]) -> list[str]:
    return [query.id for query in queries]


# --------------------------------------------------------------------------------------------- judgements


def test_judgements_are_joined_to_rows_of_the_collection(collection: Collection) -> None:
    notes: list[str] = []
    raw = raw_set(
        {"q1": "first", "q2": "the \u2028second\x85 one"},
        [("q2", "D9", 3), ("q1", "D0", 1), ("q2", "D4", 0), ("q2", "D5", -1)],
    )
    assert join_judgements(raw, collection, notes) == [
        JudgedQuery("q1", "first", [("D0", 0, 1)]),
        JudgedQuery("q2", "the second one", [("D9", 9, 3), ("D4", 4, 0), ("D5", 5, -1)]),
    ]
    assert notes == []


def test_what_points_nowhere_and_what_is_not_judged_is_left_out_and_said(collection: Collection) -> None:
    notes: list[str] = []
    raw = raw_set(
        {"q1": "one", "q2": "judged as not relevant", "q3": "not judged", "q4": "four"},
        [
            ("q1", "D1", 1),
            ("q1", "D77", 1),
            ("q9", "D1", 1),
            ("q2", "D2", 0),
            ("q4", "D88", 1),
            ("q4", "D3", 2),
            ("q1", "D5", 1),
        ],
    )
    assert ids(join_judgements(raw, collection, notes)) == ["q1", "q4"]
    assert notes == [
        "qrels.dev.tsv: left out 3 of 7 lines: "
        "2 that point to a document that is not in the collection (first: line 2), "
        "1 that point to a query that is not in the query file (first: line 3)",
        "queries.dev.tsv: 2 of 4 queries have no relevant document and are left out",
    ]


def test_the_first_of_two_judgements_of_a_pair_counts(collection: Collection) -> None:
    raw = raw_set({"q": "text"}, [("q", "D1", 2), ("q", "D1", 0), ("q", "D2", 1)])
    assert join_judgements(raw, collection, [])[0].documents == [("D1", 1, 2), ("D2", 2, 1)]


@pytest.mark.parametrize(
    ("qrels", "kind"),
    [
        ([("q", "D1", 1), ("q", "X1", 1), ("q", "X2", 1)], "2 that point to a document that is not in the collection"),
        ([("q", "D1", 1), ("x", "D1", 1), ("y", "D1", 1)], "2 that point to a query that is not in the query file"),
    ],
)
def test_qrels_of_another_collection_are_refused(
    collection: Collection, qrels: list[tuple[str, str, int]], kind: str
) -> None:
    with pytest.raises(UserError, match=rf"^qrels\.dev\.tsv is refused: .*{kind} \(first: line 2\)$"):
        join_judgements(raw_set({"q": "text"}, qrels), collection, [])


def test_an_empty_query_file_or_qrels_file_is_refused(collection: Collection) -> None:
    with pytest.raises(UserError, match=r"^queries\.dev\.tsv is empty$"):
        join_judgements(raw_set({}, [("q", "D1", 1)]), collection, [])
    with pytest.raises(UserError, match=r"^qrels\.dev\.tsv is empty$"):
        join_judgements(raw_set({"q": "text"}, []), collection, [])


# -------------------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize(("train", "fusion"), [(1000, 100), (14, 1), (16, 2), (5000, 300)])
def test_fusion_has_a_tenth_of_the_training_queries_up_to_a_maximum(
    train: int, fusion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert query_sets.MAX_FUSION == 20_000
    monkeypatch.setattr(query_sets, "MAX_FUSION", 300)
    sets = split({"train": numbered("t", train), "dev": numbered("d", 2)}, SplitSizes(), [])
    assert (len(sets[TRAIN_FUSION]), len(sets[TRAIN_MODELING])) == (fusion, train - fusion)


def test_dev_is_halved_where_there_is_no_test_set() -> None:
    notes: list[str] = []
    sets = split({"train": numbered("t", 20), "dev": numbered("d", 11)}, SplitSizes(), notes)
    assert (len(sets[DEVELOPMENT]), len(sets[TEST])) == (5, 6)
    assert sorted(ids(sets[DEVELOPMENT]) + ids(sets[TEST])) == sorted(f"d{i}" for i in range(11))
    assert ids(sets[TEST]) != [f"d{i}" for i in range(5, 11)]  # at random, not the end of the file
    assert notes == []


def test_dev_and_test_are_used_whole_where_both_are_there() -> None:
    sets = {"train": numbered("t", 20), "dev": numbered("d", 7), "test": numbered("e", 4), "trec2019": numbered("x", 3)}
    found = split(sets, SplitSizes(), [])
    assert list(found) == [*ALL_FOUR, "trec2019"]
    assert sorted(ids(found[DEVELOPMENT])) == sorted(ids(sets["dev"]))
    assert sorted(ids(found[TEST])) == sorted(ids(sets["test"]))
    assert found["trec2019"] == sets["trec2019"]  # as given, in its own order


@pytest.mark.parametrize("with_test", [False, True])
def test_given_sizes_are_obeyed(with_test: bool) -> None:
    sets = {"train": numbered("t", 50), "dev": numbered("d", 30)}
    if with_test:
        sets["test"] = numbered("e", 30)
    found = split(sets, SplitSizes(train_fusion=7, development=9, test=11), [])
    assert [len(found[name]) for name in ALL_FOUR] == [43, 7, 9, 11]
    assert {query.id[0] for query in found[TEST]} == ({"e"} if with_test else {"d"})


def test_the_split_never_changes() -> None:
    """Whoever changes it changes every published number. Queries are drawn at random and keep their order."""
    found = split({"train": numbered("t", 30), "dev": numbered("d", 8)}, SplitSizes(), [])
    assert ids(found[TRAIN_FUSION]) == ["t2", "t11", "t26"]
    assert ids(found[DEVELOPMENT]) == ["d0", "d2", "d3", "d7"]
    assert ids(found[TEST]) == ["d1", "d4", "d5", "d6"]


PAPER = SplitSizes(20_000, 20_000, 3_000)


@pytest.mark.parametrize(
    ("queries", "given", "sizes", "shrunk"),
    [
        ((502_939, 55_578), SplitSizes(), (20_000, 20_000, 3_000), []),
        ((502_939, 6_980), SplitSizes(), (20_000, 6_069, 910), ["development 20,000 -> 6,069, test 3,000 -> 910"]),
        ((30_000, 55_578), SplitSizes(), (3_000, 20_000, 3_000), ["train_fusion 20,000 -> 3,000"]),
        ((502_939, 6_980), SplitSizes(development=5_000), (20_000, 5_000, 1_980), ["test 3,000 -> 1,980"]),
        ((502_939, 6_980), SplitSizes(test=980), (20_000, 6_000, 980), ["development 20,000 -> 6,000"]),
        ((502_939, 6_980), SplitSizes(25_000, 6_000, 980), (25_000, 6_000, 980), []),
        ((20, 10, 4), SplitSizes(), (2, 10, 4), ["train_fusion 20,000 -> 2", "development 20,000 -> 10", "3,000 -> 4"]),
        ((20, 10, 4), SplitSizes(3, 9, 4), (3, 9, 4), []),
    ],
)  # fmt: skip
def test_default_sizes_shrink_in_proportion_and_given_ones_do_not(
    queries: tuple[int, ...], given: SplitSizes, sizes: tuple[int, ...], shrunk: list[str]
) -> None:
    sets = {name: numbered(name, count) for name, count in zip(("train", "dev", "test"), queries, strict=False)}
    notes: list[str] = []
    assert planned_sizes(sets, given, PAPER, notes) == sizes
    assert len(notes) == len(shrunk)
    assert all(note.endswith(end) for note, end in zip(notes, shrunk, strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (SplitSizes(train_fusion=20), "--data.train_fusion_queries 20: too many, train has 20 judged queries"),
        (SplitSizes(development=10), "--data.development_queries 10: too many, dev has 10 judged queries"),
        (
            SplitSizes(development=6, test=5),
            "--data.development_queries 6 and --data.test_queries 5: too many, dev has 10 judged queries",
        ),
    ],
)
def test_given_sizes_that_cannot_be_met_are_one_clear_line(given: SplitSizes, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)} for all its sets$"):
        planned_sizes({"train": numbered("t", 20), "dev": numbered("d", 10)}, given, SplitSizes(), [])


# ------------------------------------------------------------------------------- no text in two query sets


@pytest.mark.parametrize(
    "variant",
    ["What is BM25?", "what is bm25", "WHAT  is\tbm25 !", "What is BM25...", " what is bm25 ?!", "What Is Bm25"],
)
def test_case_blanks_and_final_punctuation_make_no_other_text(variant: str) -> None:
    assert same_text(variant) == same_text("what is bm25?")


def test_other_words_are_another_text() -> None:
    texts = ["what is bm25", "what was bm25", "bm25 what is", "what is bm 25", "what is bm25 for"]
    assert len({same_text(text) for text in texts}) == len(texts)


def test_evaluation_sets_keep_a_shared_text_and_the_others_lose_it() -> None:
    notes: list[str] = []
    sets = {
        "train": [*numbered("t", 20), *judged("shared", ["In trec?", "IN TEST", "in dev.", "in DEV"])],
        "dev": judged("d", ["in dev", "in Test!", "only in dev"]),
        "test": judged("e", ["in test", "only in test"]),
        "trec2019": judged("x", ["in trec"]),
    }
    found = split(sets, SplitSizes(train_fusion=6), notes)
    assert sorted(ids(found[DEVELOPMENT])) == ["d0", "d2"]
    assert sorted(ids(found[TEST])) == ["e0", "e1"] and ids(found["trec2019"]) == ["x0"]
    training = ids(found[TRAIN_MODELING]) + ids(found[TRAIN_FUSION])
    assert sorted(training) == sorted(f"t{i}" for i in range(20))
    said = {note.split(":")[0]: note for note in notes}
    assert said[DEVELOPMENT] == "development: 1 queries have the text of a query of another set, left out"
    lost = [
        int(re.findall(r": (\d+) queries", said[name])[0]) for name in (TRAIN_FUSION, TRAIN_MODELING) if name in said
    ]
    assert sum(lost) == 4


def test_equal_texts_stay_together_in_a_split() -> None:
    texts = [f"{text}{end}" for text in map(str, range(50)) for end in ("", "?", " !")]
    notes: list[str] = []
    found = split(
        {"train": judged("t", texts), "dev": judged("d", [f"d{text}" for text in texts])}, SplitSizes(), notes
    )
    assert [len(found[name]) for name in ALL_FOUR] == [135, 15, 75, 75]
    assert notes == []


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(
        st.lists(st.sampled_from(["A", "a", "a ?", "B", "b.", "c", "d", "D  d", "d d!", "e", "f", "g"]), max_size=9),
        min_size=4,
        max_size=4,
    ),
    with_test=st.booleans(),
)
def test_no_text_is_in_two_sets_and_every_query_is_kept_or_said(texts: list[list[str]], with_test: bool) -> None:
    sets = {
        "train": [*numbered("t", 200), *judged("T", texts[0])],
        "dev": [*numbered("d", 20), *judged("D", texts[1])],  # more than all that may be shared
        "further": judged("F", texts[3]),
    }
    if with_test:
        sets["test"] = [*numbered("e", 2), *judged("E", texts[2])]
    notes: list[str] = []
    found = split(sets, SplitSizes(), notes)
    seen: dict[str, str] = {}
    for name, queries in found.items():
        for query in queries:
            plain = re.sub(r"\s+", " ", query.text).strip().lower().rstrip("?!. ")
            assert seen.setdefault(plain, name) == name
    left_out = sum(int(count) for note in notes for count in re.findall(r": (\d+) queries", note))
    assert sum(map(len, found.values())) + left_out == sum(map(len, sets.values()))


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("sets", "sizes", "empty"),
    [
        ({"train": numbered("t", 3), "dev": numbered("d", 9)}, SplitSizes(), TRAIN_FUSION),
        ({"train": numbered("t", 3), "dev": numbered("d", 9)}, SplitSizes(train_fusion=3), TRAIN_MODELING),
        ({"train": numbered("t", 30), "dev": numbered("d", 1)}, SplitSizes(), DEVELOPMENT),
        ({"train": numbered("t", 30), "dev": numbered("d", 9)}, SplitSizes(development=9), TEST),
    ],
)
def test_an_empty_set_is_named_with_a_setting_that_exists(
    sets: dict[str, list[JudgedQuery]], sizes: SplitSizes, empty: str
) -> None:
    with pytest.raises(UserError, match=f"^query set {empty} is empty: ") as error:
        split(sets, sizes, [])
    flags = re.findall(r"--data\.(\w+)", str(error.value))
    assert set(flags) <= {f"{field}_queries" for field in SplitSizes._fields}


# ------------------------------------------------------------------------------------------------- on disk


def test_a_set_comes_back_from_disk(tmp_path: Path) -> None:
    queries = [
        JudgedQuery("q1", "first query", [("D7", 7, 0), ("D2", 2, 1)]),
        JudgedQuery("é", "zweite Anfrage, größer", [("D9", 9, 2)]),
        JudgedQuery("q3", "none relevant", [("D1", 1, 0)]),
    ]
    write_query_set(queries, "trec2019", tmp_path / "sets")
    found = QuerySet(tmp_path / "sets", "trec2019")
    assert len(found) == 3 and found.ids == ["q1", "é", "q3"]
    assert found.texts == ["first query", "zweite Anfrage, größer", "none relevant"]
    assert [found.judged.row(i).tolist() for i in range(3)] == [[7, 2], [9], [1]]
    assert found.grades.tolist() == [0, 1, 2, 0]
    assert [found.relevant.row(i).tolist() for i in range(3)] == [[2], [9], []]
    assert found.qrels() == [("q1", "D7", 0), ("q1", "D2", 1), ("é", "D9", 2), ("q3", "D1", 0)]
    assert found.graded
    lines = (tmp_path / "sets" / "trec2019.qrels.tsv").read_text(encoding="utf-8").splitlines()
    assert lines == ["q1 0 D7 0", "q1 0 D2 1", "é 0 D9 2", "q3 0 D1 0"]


def test_a_set_without_grades_above_one_is_not_graded(tmp_path: Path) -> None:
    write_query_set([JudgedQuery("q", "text", [("D1", 1, 1), ("D2", 2, 0), ("D3", 3, -1)])], "dev", tmp_path)
    assert not QuerySet(tmp_path, "dev").graded
    assert isinstance(QuerySet(tmp_path, "dev").grades, np.memmap)
