"""The collection on disk: ids and rows, duplicates, the order of ids, memory-mapping."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.text import collection as collection_module
from datamodules.text.collection import ROWS_PER_BATCH, TABLE, Collection, read_texts, write_collection
from datamodules.text.lines import LineReport, TextLine, read_documents
from lexical.errors import UserError

# Arranged by nothing; by UTF-8 bytes "10" < "9" < "D1" < "Z" < "a" < "é" < "ß"... and U+FFFF before U+10000.
ODD_IDS = ["9", "10", "é", "a", "Z", "z", "日本", "\U00010000", "￿", "D10", "D1", "ß", "e\u0301", "😀", "_"]


def write(folder: Path, documents: list[tuple[str, str]]) -> tuple[Collection, LineReport]:
    folder.mkdir(parents=True, exist_ok=True)
    report = LineReport("collection.tsv", lines=len(documents))
    write_collection((TextLine(i, *document) for i, document in enumerate(documents, start=1)), report, folder)
    return Collection(folder), report


def test_ids_rows_and_texts_belong_together(tmp_path: Path) -> None:
    found, report = write(tmp_path, [("D5", "five"), ("é", "accent"), ("D1", "one")])
    assert len(found) == 3 and report.summary() is None
    assert found.rows(["D1", "é", "nowhere", "D5", "D1", ""]).tolist() == [2, 1, -1, 0, 2, -1]
    assert found.ids(np.array([2, 0, 2])).to_pylist() == ["D1", "D5", "D1"]
    assert found.rows([]).tolist() == [] and found.ids(np.array([], np.int32)).to_pylist() == []
    assert read_texts(tmp_path / TABLE, 1, 3) == ["accent", "one"] and found.text(0) == "five"


def test_round_trip_over_several_batches(tmp_path: Path) -> None:
    rng = random.Random(5)
    names = rng.sample([f"{kind}{i}" for kind in ("D", "日本", "") for i in range(4000)], 2 * ROWS_PER_BATCH + 7)
    found, _ = write(tmp_path, [(name, f"text of {name}") for name in names])
    rows = np.array(rng.sample(range(len(names)), len(names)))
    assert found.ids(rows).to_pylist() == [names[row] for row in rows]
    assert np.array_equal(found.rows([names[row] for row in rows]), rows)
    assert read_texts(tmp_path / TABLE, ROWS_PER_BATCH - 1, ROWS_PER_BATCH + 1) == [
        f"text of {names[ROWS_PER_BATCH - 1]}",
        f"text of {names[ROWS_PER_BATCH]}",
    ]


@settings(max_examples=20, deadline=None)
@given(names=st.lists(st.one_of(st.sampled_from(ODD_IDS), st.text(min_size=1, max_size=4)), min_size=1))
def test_id_order_is_the_order_of_the_utf8_bytes(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    names = list(dict.fromkeys(names))
    found, _ = write(tmp_path_factory.mktemp("order"), [(name, "text") for name in names])
    in_order = sorted(names, key=lambda name: name.encode())
    assert found.id_order.tolist() == [in_order.index(name) for name in names]


def test_id_order_of_the_odd_ids(tmp_path: Path) -> None:
    found, _ = write(tmp_path, [(name, "text") for name in ODD_IDS])
    by_place = sorted(range(len(ODD_IDS)), key=lambda row: found.id_order[row])
    assert [ODD_IDS[row] for row in by_place] == (
        ["10", "9", "D1", "D10", "Z", "_", "a", "e\u0301", "z", "ß", "é", "日本", "￿", "\U00010000", "😀"]
    )


# -------------------------------------------------------------------------------------------------- duplicates


def test_the_first_document_of_an_id_is_kept_and_the_others_are_counted(tmp_path: Path) -> None:
    documents = [("b", "first b"), ("a", "first a"), ("b", "second b"), ("c", "c"), ("a", "second a"), ("b", "third b")]
    found, report = write(tmp_path, documents)
    assert read_texts(tmp_path / TABLE, 0, 3) == ["first b", "first a", "c"] and len(found) == 3
    assert found.rows(["a", "b", "c"]).tolist() == [1, 0, 2]
    assert found.id_order.tolist() == [1, 0, 2]
    assert report.summary() == "collection.tsv: left out 3 of 6 lines: 3 with a duplicate id (first: line 3)"


def test_duplicates_are_found_across_batches(tmp_path: Path) -> None:
    documents = [(f"D{i}", f"text {i}") for i in range(ROWS_PER_BATCH + 5)]
    found, report = write(tmp_path, [*documents, ("D3", "again"), ("new", "the last"), ("D4098", "again")])
    assert len(found) == ROWS_PER_BATCH + 6
    assert found.text(3) == "text 3" and found.text(found.rows(["new"])[0]) == "the last"
    assert report.broken == {"with a duplicate id": 2}
    assert report.first == {"with a duplicate id": ROWS_PER_BATCH + 6}


def test_rows_are_read_where_they_are_after_duplicates_have_been_left_out(tmp_path: Path) -> None:
    """Every third document repeats an id: the batches of the table are filled again."""
    documents = [(f"D{i if i % 3 else 0}", f"text {i}") for i in range(3 * ROWS_PER_BATCH)]
    found, _ = write(tmp_path, documents)
    expected = [f"text {i}" for i in range(3 * ROWS_PER_BATCH) if i % 3 or i == 0]
    assert len(found) == len(expected) == 2 * ROWS_PER_BATCH + 1
    for start, end in ((0, 3), (ROWS_PER_BATCH - 2, ROWS_PER_BATCH + 2), (2 * ROWS_PER_BATCH - 1, 9 * ROWS_PER_BATCH)):
        assert read_texts(tmp_path / TABLE, start, end) == expected[start:end]
    assert found.ids(np.array([2 * ROWS_PER_BATCH])).to_pylist() == [f"D{3 * ROWS_PER_BATCH - 1}"]


def test_reading_a_few_rows_does_not_open_the_whole_table(tmp_path: Path) -> None:
    """Batches that are not read are not looked at: here the head of the second of three is damaged."""
    write(tmp_path, [(f"D{i}", f"text {i}") for i in range(2 * ROWS_PER_BATCH + 1)])
    content = (tmp_path / TABLE).read_bytes()
    head = content.rindex(b"\xff\xff\xff\xff", 0, content.index(f"text {ROWS_PER_BATCH}".encode()))
    (tmp_path / TABLE).write_bytes(content[:head] + b"\x7f" * 32 + content[head + 32 :])
    assert read_texts(tmp_path / TABLE, 0, 2) == ["text 0", "text 1"]
    assert read_texts(tmp_path / TABLE, 2 * ROWS_PER_BATCH, 2 * ROWS_PER_BATCH + 1) == [f"text {2 * ROWS_PER_BATCH}"]
    with pytest.raises((pa.ArrowInvalid, OSError)):
        read_texts(tmp_path / TABLE, ROWS_PER_BATCH, ROWS_PER_BATCH + 1)


def test_an_id_with_the_hash_of_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_module, "_hash", len)
    documents = [("a", "text"), ("bb", "text"), ("a", "the same id"), ("ccc", "text")]
    found, report = write(tmp_path / "sound", documents)
    assert report.broken == {"with a duplicate id": 1}
    assert found.rows(["a", "bb", "ccc"]).tolist() == [0, 1, 2]
    assert found.rows(["b", "cc", "", "four"]).tolist() == [-1, -1, -1, -1]
    with pytest.raises(UserError, match=r"^collection\.tsv, line 5: the id has the hash of another one: change it$"):
        write(tmp_path / "equal", [*documents, ("b", "another id")])


def test_plain_and_gz_files_give_the_same_bytes(tmp_path: Path) -> None:
    content = b"".join(b"D%d\ttext number %d\n" % (i % 900, i) for i in range(1000))
    (tmp_path / "collection.tsv").write_bytes(content)
    (tmp_path / "collection.tsv.gz").write_bytes(gzip.compress(content))
    written = []
    for name in ("collection.tsv", "collection.tsv.gz"):
        folder, report = tmp_path / f"from {name}", LineReport(name)
        folder.mkdir()
        write_collection(read_documents(tmp_path / name, report), report, folder)
        assert report.summary() == f"{name}: left out 100 of 1,000 lines: 100 with a duplicate id (first: line 901)"
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1] and len(written[0]) == 5


# ------------------------------------------------------------------------------------------------------ refused


def test_mostly_duplicates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        write(tmp_path, [("a", "one"), ("a", "two"), ("a", "three")])
    assert str(error.value) == (
        "collection.tsv is refused: most of its lines are broken. "
        "collection.tsv: left out 2 of 3 lines: 2 with a duplicate id (first: line 2)"
    )


def test_no_document_at_all_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^collection\.tsv has no sound document line"):
        write(tmp_path, [])
    (tmp_path / "broken.tsv").write_bytes(b"one\ntwo\n")
    report = LineReport("broken.tsv")
    with pytest.raises(UserError, match=r"^broken\.tsv has no sound document line\. .* 2 with the wrong number of col"):
        write_collection(read_documents(tmp_path / "broken.tsv", report), report, tmp_path)


# ------------------------------------------------------------------------------------------------- memory-mapped


def test_opening_and_reading_a_row_copies_nothing_into_memory(tmp_path: Path) -> None:
    write(tmp_path, [(f"D{i}", "word " * 200) for i in range(20_000)])  # 20 MB of text
    before = pa.total_allocated_bytes()
    found = Collection(tmp_path)
    assert found.text(19_999).startswith("word word") and found.rows(["D7"]).tolist() == [7]
    assert pa.total_allocated_bytes() - before < 2_000_000
    assert all(isinstance(array, np.memmap) for array in (found.id_order, found._hashes, found._rows))
    with pytest.raises(ValueError, match="read-only"):
        found.id_order[0] = 1
