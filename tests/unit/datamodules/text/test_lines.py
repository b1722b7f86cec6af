"""Lines of documents, queries and qrels: what is sound is read, what is not is counted and named."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.text.lines import (
    Judgement,
    LineReport,
    TextLine,
    find_file,
    read_documents,
    read_qrels,
    read_queries,
)
from lexical.errors import UserError

Reader = Callable[[Path, LineReport], Iterable[Any]]
READERS = pytest.mark.parametrize("reader", [read_documents, read_queries, read_qrels])


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., tuple[list[Any], LineReport]]:
    """(what a reader yields, its report) for the bytes of a file."""

    def read_bytes(reader: Reader, content: bytes, name: str = "file.tsv") -> tuple[list[Any], LineReport]:
        (tmp_path / name).write_bytes(content)
        report = LineReport(name)
        return list(reader(tmp_path / name, report)), report

    return read_bytes


# --------------------------------------------------------------------------------------------- sound lines


def test_two_columns_are_id_and_text(read: Any) -> None:
    found, report = read(read_documents, b"0\tThe presence of communication\n1\t  Caf\xc3\xa9 \xf0\x9f\x99\x82 \n")
    assert found == [TextLine(1, "0", "The presence of communication"), TextLine(2, "1", "Café 🙂")]
    assert (report.lines, report.summary()) == (2, None)


def test_four_columns_are_id_url_title_body_and_the_url_is_no_text(read: Any) -> None:
    lines = b"D1\thttp://a.org\tA title\tA body\nD2\thttp://b.org\t\tOnly a body\nD3\t\tOnly a title\t\n"
    found, report = read(read_documents, lines)
    texts = [("D1", "A title A body"), ("D2", "Only a body"), ("D3", "Only a title")]
    assert [(document.id, document.text) for document in found] == texts
    assert report.summary() is None


def test_qrels_are_separated_by_blanks_or_tabs_and_grades_may_be_negative(read: Any) -> None:
    found, report = read(read_qrels, b"q1 0 D1 1\nq1\t0\tD2\t3\nq2 Q0  D1\t0 \nq2 0 D3 -2\n")
    assert found == [
        Judgement(1, "q1", "D1", 1),
        Judgement(2, "q1", "D2", 3),
        Judgement(3, "q2", "D1", 0),
        Judgement(4, "q2", "D3", -2),
    ]
    assert report.summary() is None


def test_the_first_query_of_an_id_counts(read: Any) -> None:
    found, report = read(read_queries, b"7\tfirst\n8\tother\n7\tsecond\n7\tthird\n")
    assert found == [TextLine(1, "7", "first"), TextLine(2, "8", "other")]
    assert report.summary() == "file.tsv: left out 2 of 4 lines: 2 with a duplicate id (first: line 3)"


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        (read_documents, b"a\tone text\nb\t\nc\tother text\n"),
        (read_queries, b"a\tone query\nb\nc\tother query\n"),
        (read_qrels, b"q 0 a 1\nq 0 b high\nq 0 c 2\n"),
    ],
)
def test_line_ends_compression_and_a_missing_last_line_feed_change_nothing(
    read: Any, reader: Reader, content: bytes
) -> None:
    expected, plain = read(reader, content)
    assert len(expected) == 2 and plain.lines == 3
    windows = content.replace(b"\n", b"\r\n")
    for variant, name in (
        (windows, "windows.tsv"),
        (content.rstrip(b"\n"), "open.tsv"),
        (gzip.compress(content), "packed.tsv.gz"),
        (gzip.compress(windows[:20]) + gzip.compress(windows[20:]), "two_members.tsv.gz"),
    ):
        found, report = read(reader, variant, name)
        assert found == expected
        assert (report.lines, report.broken, report.first) == (plain.lines, plain.broken, plain.first)


def test_a_byte_order_mark_is_no_part_of_the_first_id(read: Any) -> None:
    assert read(read_documents, b"\xef\xbb\xbfD1\ttext\n")[0] == [TextLine(1, "D1", "text")]
    assert read(read_queries, b"\xef\xbb\xbfq1\ttext\n")[0] == [TextLine(1, "q1", "text")]
    assert read(read_qrels, b"\xef\xbb\xbfq1 0 D1 1\n")[0] == [Judgement(1, "q1", "D1", 1)]


# -------------------------------------------------------------------------------------------- broken lines


def test_broken_documents_are_counted_by_kind_with_the_first_line_of_each(read: Any) -> None:
    lines = [
        b"only one column",
        b"D1\tsound",
        b"D2\tthree\tcolumns",
        b"D3\tnot \xff UTF-8",
        b"D4\t",
        b"D5\t \xe2\x80\x83 ",  # blanks alone, one of them wide
        b"\tno id",
        b"D 6\tblank in the id",
        b"D7\tsound\t\tsince four columns are not two",
        b"",
        b"D8\tsound",
        *(b"E%d\tsound" % i for i in range(6)),
    ]
    found, report = read(read_documents, b"\n".join(lines) + b"\n", "collection.tsv")
    assert [document.line for document in found] == [2, 11, 12, 13, 14, 15, 16, 17]
    assert report.summary() == (
        "collection.tsv: left out 9 of 17 lines: 4 with the wrong number of columns (first: line 1), "
        "1 that are not UTF-8 (first: line 4), 2 with an empty text (first: line 5), "
        "2 with an empty or blank-containing id (first: line 7)"
    )


def test_the_first_sound_line_decides_how_many_columns_there_are(read: Any) -> None:
    content = b"header\t\t\t\nD1\tsound\nD2\tsound too\n"  # four columns, but no text in them: not sound
    found, report = read(read_documents, content)
    assert [document.id for document in found] == ["D1", "D2"]
    assert report.broken == {"with an empty text": 1}


def test_broken_queries_are_counted(read: Any) -> None:
    content = b"q1\tsound\nq2\nq3\t \nq 4\tblank\n\xa0q5\tlatin1\n\tno id\nq6\ta\tb\nq1\tagain\nq7\tsound\n"
    found, report = read(read_queries, content, "queries.dev.tsv")
    assert [query.id for query in found] == ["q1", "q7"]
    assert report.summary() == (
        "queries.dev.tsv: left out 7 of 9 lines: 2 with the wrong number of columns (first: line 2), "
        "1 with an empty text (first: line 3), 2 with an empty or blank-containing id (first: line 4), "
        "1 that are not UTF-8 (first: line 5), 1 with a duplicate id (first: line 8)"
    )


def test_broken_qrels_are_counted(read: Any) -> None:
    content = b"q1 0 D1 1\nq1 D2 1\nq1 0 D3 1.0\nq1 0 D4 relevant\nq1 0 D5 1 extra\n\nq1 0 D\xff 1\nq1 0 D6 2\n"
    found, report = read(read_qrels, content, "qrels.dev.tsv")
    assert [judgement.document_id for judgement in found] == ["D1", "D6"]
    assert report.summary() == (
        "qrels.dev.tsv: left out 6 of 8 lines: 3 with the wrong number of columns (first: line 2), "
        "2 whose grade is not a whole number (first: line 3), 1 that are not UTF-8 (first: line 7)"
    )


@READERS
@settings(deadline=None, max_examples=50)
@given(
    content=st.lists(st.sampled_from([b"q", b" ", b"\t", b"\n", b"\r", b"0", b"1", b"\xff", b"\xc3\xa9"])).map(b"".join)
)
def test_every_line_is_read_or_counted(reader: Reader, content: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(content)
    report = LineReport("file")
    found = list(reader(path, report))
    lines = content.split(b"\n")
    assert report.lines == len(lines) - (lines[-1] == b"")
    assert len(found) + sum(report.broken.values()) == report.lines
    assert all(1 <= first <= report.lines for first in report.first.values())


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(
        st.tuples(
            st.from_regex(r"\A[\w.:/-]{1,9}\Z"),
            st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r")).map(str.strip).filter(bool),
        ),
        unique_by=lambda row: row[0],
    )
)
def test_sound_lines_come_back_as_they_were(rows: list[tuple[str, str]], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("sound") / "file.tsv"
    path.write_bytes("".join(f"{name}\t{text}\n" for name, text in rows).encode())
    for reader in (read_documents, read_queries):
        report = LineReport("file.tsv")
        assert [(row.id, row.text) for row in reader(path, report)] == rows
        assert report.summary() is None


# ------------------------------------------------------------------------------------------- unusable files


def _truncated(content: bytes) -> bytes:
    return gzip.compress(content)[:-9]


def _flipped(content: bytes) -> bytes:
    packed = bytearray(gzip.compress(content))
    packed[len(packed) // 2] ^= 0xFF
    return bytes(packed)


@READERS
@pytest.mark.parametrize("damage", [_truncated, _flipped, bytes], ids=["truncated", "flipped byte", "not gzip at all"])
def test_a_damaged_gz_is_one_clear_line(tmp_path: Path, reader: Reader, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "file.tsv.gz"
    path.write_bytes(damage(b"".join(b"q%d 0 D%d 1\n" % (i, i * i) for i in range(2000))))
    with pytest.raises(
        UserError, match=r"file\.tsv\.gz is truncated or not a gzip file \(after line [\d,]+\): download"
    ) as error:
        list(reader(path, LineReport("file")))
    assert "\n" not in str(error.value)


@READERS
def test_an_empty_file_is_refused_by_name(read: Any, reader: Reader) -> None:
    for content, name in ((b"", "plain.tsv"), (gzip.compress(b""), "packed.tsv.gz")):
        found, report = read(reader, content, name)
        assert found == [] and report.lines == 0
        with pytest.raises(UserError, match=f"^{name} is empty$"):
            report.refuse_if_mostly_broken()


def test_a_file_is_refused_when_more_than_half_of_its_lines_are_broken(read: Any) -> None:
    _, half = read(read_qrels, b"q 0 D1 1\nbroken\n", "qrels.tsv")
    half.refuse_if_mostly_broken()
    _, most = read(read_qrels, b"q 0 D1 1\nbroken\nq 0 D2 x\n", "qrels.tsv")
    with pytest.raises(UserError) as error:
        most.refuse_if_mostly_broken()
    assert str(error.value) == (
        "qrels.tsv is refused: most of its lines are broken. qrels.tsv: left out 2 of 3 lines: "
        "1 with the wrong number of columns (first: line 2), 1 whose grade is not a whole number (first: line 3)"
    )


# ----------------------------------------------------------------------------------------------- the report


def test_report_sums_kinds_keeps_the_lowest_line_and_separates_thousands() -> None:
    report = LineReport("huge.tsv", lines=8_841_823)
    report.add("with an empty text", 12_345)
    for line in range(2_000, 3_499):
        report.add("with an empty text", line)
    report.add("with a duplicate id", 7)
    assert report.summary() == (
        "huge.tsv: left out 1,501 of 8,841,823 lines: 1,500 with an empty text (first: line 2,000), "
        "1 with a duplicate id (first: line 7)"
    )


# --------------------------------------------------------------------------------------------- finding files


def test_a_plain_file_is_preferred_to_a_gz_file(tmp_path: Path) -> None:
    for name in ("a.tsv.gz", "b.tsv", "b.tsv.gz"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "c.tsv").mkdir()
    assert find_file(tmp_path, "b.tsv") == tmp_path / "b.tsv"
    assert find_file(tmp_path, "a.tsv") == tmp_path / "a.tsv.gz"
    assert find_file(tmp_path, "c.tsv") is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_utf_16_is_named_instead_of_blaming_other_files(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "collection.tsv").write_bytes("D1\tsome text\nD2\tmore text\n".encode(encoding))
    with pytest.raises(UserError, match=r"collection\.tsv is UTF-16: save it as UTF-8$"):
        list(read_documents(tmp_path / "collection.tsv", LineReport("collection.tsv")))
