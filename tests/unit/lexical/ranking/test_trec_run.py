"""Runs as TREC tools expect them, to the byte, and one clear line for a run that is broken."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.errors import UserError
from lexical.ranking.trec_run import GZIPPED_FROM, Run, read_run, run_file, write_leaderboard, write_run

RUN = Run(
    query_ids=["q1", "empty", "q2"],
    offsets=np.array([0, 2, 2, 3]),
    document_ids=pa.array(["d9", "d10", "007"]),
    scores=np.array([12.5, 0.1, -3.0], np.float32),
)


def with_ids(*ids: str) -> Run:
    return RUN._replace(document_ids=pa.array(ids))


def error_of(path: Path) -> str:
    with pytest.raises(UserError) as raised:
        read_run(path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# ------------------------------------------------------------------------------------------------- writing


def test_the_bytes_of_a_small_run(tmp_path: Path) -> None:
    write_run(RUN, tmp_path / "made" / "small.run", tag="bm25_lemm")
    assert (tmp_path / "made" / "small.run").read_bytes() == (
        b"q1 Q0 d9 1 12.5 bm25_lemm\n"
        b"q1 Q0 d10 2 0.1 bm25_lemm\n"
        b"q2 Q0 007 1 -3 bm25_lemm\n"
    )  # fmt: skip


def test_the_bytes_of_the_leaderboard_form(tmp_path: Path) -> None:
    write_leaderboard(RUN, tmp_path / "small.tsv")
    assert (tmp_path / "small.tsv").read_bytes() == b"q1\td9\t1\nq1\td10\t2\nq2\t007\t1\n"


def test_a_run_without_any_document_is_an_empty_file(tmp_path: Path) -> None:
    nothing = Run(["q1"], np.array([0, 0]), pa.array([], pa.string()), np.zeros(0, np.float32))
    write_run(nothing, tmp_path / "empty.run", tag="t")
    assert (tmp_path / "empty.run").read_bytes() == b""
    assert read_run(tmp_path / "empty.run") == {}


def test_ids_with_quotation_marks_commas_and_accents_are_written_as_they_are(tmp_path: Path) -> None:
    write_run(with_ids('say"hi"', "a,b", "é"), tmp_path / "odd.run", tag="t")
    lines = (tmp_path / "odd.run").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ")[2] for line in lines] == ['say"hi"', "a,b", "é"]
    assert [line.split(" ")[0] for line in lines] == ["q1", "q1", "q2"]
    assert [float(line.split(" ")[4]) for line in lines] == [12.5, pytest.approx(0.1), -3.0]
    write_leaderboard(with_ids('say"hi"', "a,b", "é"), tmp_path / "odd.tsv")
    assert (tmp_path / "odd.tsv").read_text(encoding="utf-8") == 'q1\tsay"hi"\t1\nq1\ta,b\t2\nq2\té\t1\n'


@settings(deadline=None, max_examples=100)
@given(
    scores=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    document=st.sampled_from(["d", 'd"']),
)
def test_scores_come_back_as_the_same_float32(
    scores: list[float], document: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("runs") / "scores.run"
    ids = [f"{document}{number}" for number in range(len(scores))]
    write_run(Run(["q"], np.array([0, len(scores)]), pa.array(ids), np.array(scores, np.float32)), path, "t")
    found_ids, actual = read_run(path)["q"]
    assert found_ids == ids
    assert actual.astype(np.float32).tolist() == scores


def test_a_run_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_text("q0 Q0 old 1 1 t\n")
    with path.open() as being_read:
        write_run(RUN, path, tag="t")
        assert being_read.read() == "q0 Q0 old 1 1 t\n"  # whoever has it open sees the old run, not half a new one
    write_run(with_ids('"', "b", "c"), path, tag="t")
    assert path.read_text().startswith('q1 Q0 " 1 12.5 t\n')
    assert [actual.name for actual in tmp_path.iterdir()] == ["a.run"]


def test_a_run_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_text("q0 Q0 old 1 1 t\n")
    with pytest.raises(pa.ArrowInvalid):
        write_run(with_ids("too", "few"), path, tag="t")
    assert path.read_text() == "q0 Q0 old 1 1 t\n"


# ------------------------------------------------------------------------------------------------- large runs


def large_run(documents: int = GZIPPED_FROM, quoted: bool = False) -> Run:
    """A run of two queries with random float32 scores; `quoted`: with an id that Arrow cannot write."""
    scores = np.random.default_rng(1).normal(size=documents).astype(np.float32)
    ids = [f"package-{number:05d}" for number in range(documents)]
    ids[0] += '"' if quoted else ""
    return Run(["q1", "q2"], np.array([0, 1000, documents]), pa.array(ids), scores)


@pytest.mark.parametrize("quoted", [False, True])
def test_a_large_run_is_a_quarter_of_its_text_and_keeps_every_bit(tmp_path: Path, quoted: bool) -> None:
    run = large_run(quoted=quoted)
    write_run(run, tmp_path / "test.run", tag="nn_model1")
    assert [path.name for path in tmp_path.iterdir()] == ["test.run.gz"]
    packed = (tmp_path / "test.run.gz").read_bytes()
    text = gzip.decompress(packed)
    assert text.count(b"\n") == GZIPPED_FROM and len(packed) < 0.27 * len(text)
    assert text.splitlines()[1].split()[:4] == [b"q1", b"Q0", b"package-00001", b"2"]
    for name in ("test.run", "test.run.gz"):  # both names are that run
        read = read_run(tmp_path / name)
        ids, scores = (np.concatenate([values[i] for values in read.values()]) for i in (0, 1))
        assert ids.tolist() == run.document_ids.to_pylist()
        assert np.array_equal(scores.astype(np.float32), run.scores)


def test_a_gzipped_run_has_no_time_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes 4 to 8 of a gzip header are the time; flag 8 is a file name."""
    write_run(large_run(), tmp_path / "one" / "a.run", tag="t")
    monkeypatch.setattr(time, "time", lambda: 1e9)
    write_run(large_run(), tmp_path / "two" / "b.run", tag="t")
    first, second = ((tmp_path / name).read_bytes() for name in ("one/a.run.gz", "two/b.run.gz"))
    assert first == second and first[3:8] == bytes(5)


def test_the_other_form_of_an_earlier_run_is_removed(tmp_path: Path) -> None:
    for run, name in ((RUN, "a.run"), (large_run(), "a.run.gz"), (RUN, "a.run")):
        write_run(run, tmp_path / "a.run", tag="t")
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert run_file(tmp_path / "a.run") == tmp_path / name


def test_a_run_that_is_not_there_has_its_plain_name(tmp_path: Path) -> None:
    assert run_file(tmp_path / "a.run") == tmp_path / "a.run"


def test_the_head_of_a_run_is_the_best_documents_of_each_query() -> None:
    head = RUN.head(1)
    assert head.offsets.tolist() == [0, 1, 1, 2] and head.document_ids.to_pylist() == ["d9", "007"]
    assert head.scores.tolist() == [12.5, -3.0] and head.query_ids == RUN.query_ids
    assert RUN.head(2).document_ids.equals(RUN.document_ids)


# ------------------------------------------------------------------------------------------------- reading


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_run(RUN, tmp_path / "a.run", tag="t")
    actual = read_run(tmp_path / "a.run")
    assert {query: (ids, scores.tolist()) for query, (ids, scores) in actual.items()} == {
        "q1": (["d9", "d10"], [12.5, 0.1]),
        "q2": (["007"], [-3.0]),
    }


def test_tabs_windows_lines_and_mixed_queries_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_bytes(b"q2\tQ0\td1\t1\t2e0\tt\r\nq1 Q0  d2 1 7 t\r\nq2 Q0 d3 2 1 t")
    actual = read_run(path)
    assert list(actual) == ["q2", "q1"]
    assert actual["q2"][0] == ["d1", "d3"] and actual["q2"][1].tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"q1 Q0 d2 2 0.5", "5 columns instead of six (qid Q0 docid rank score tag)"),
        (b"q1 Q0 two words 2 0.5 t", "7 columns instead of six"),
        (b"", "0 columns instead of six"),
        (b"q1 Q0 d2 2 NaN t", "score 'NaN' is not a finite number"),
        (b"q1 Q0 d2 2 -inf t", "score '-inf' is not a finite number"),
        (b"q1 Q0 d2 2 high t", "score 'high' is not a finite number"),
        (b"q1 Q0 d\xff 2 0.5 t", ""),  # Latin-1
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(line: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.run"
    path.write_bytes(b"q1 Q0 d1 1 1.5 t\n" + line + b"\nq1 Q0 d3 3 0.1 t\n")
    message = error_of(path)
    assert message.startswith(str(path))
    assert "line 2" in message and reason in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    message = error_of(tmp_path / "none.run")
    assert str(tmp_path / "none.run") in message and "No such file" in message
