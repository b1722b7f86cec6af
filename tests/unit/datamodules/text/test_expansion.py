"""Documents expanded with predicted queries: what is indexed has them, what BERT reads has not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from datamodules import Folder
from datamodules.text.expansion import REPEATED, UNKNOWN
from datamodules.text.lines import COLUMNS, EMPTY
from lexical.batches import DataNeeds
from lexical.errors import UserError
from tests.fixtures.small_folder import serve, write_lines

LINES = [
    "D3\tzebra crossing", "D1\tquagga", "broken line", "D3\tzebra stripes", "NOWHERE\tzebra", "D3\tzebra crossing",
    "D5\t ", "D399\tquagga zebra",
]  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def opened(folder: Path, cache: Path, expansion: Path | None = None) -> Folder:
    given = None if expansion is None else str(expansion)
    return Folder(str(folder), cache_dir=str(cache), workers=1, k1=1.2, b=0.75, expansion=given)


@pytest.fixture(scope="module")
def expansion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("expansion") / "predicted.tsv.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES).encode()))
    return path


def words_of(data: Folder, field: str, document: str) -> list[str]:
    prepared = data.prepared.field(field)
    names, (row,) = prepared.vocabulary(), data.prepared.collection.rows([document])
    return [names[token] for token in prepared.sequences.row(row)]


def test_lines_of_a_document_are_joined_behind_it_and_the_others_stay(
    small_folder: Path, cache: Path, expansion: Path
) -> None:
    plain, expanded = opened(small_folder, cache), opened(small_folder, cache, expansion)
    before, after = (data.prepared.collection for data in (plain, expanded))
    added = {"D1": " quagga", "D3": " zebra crossing zebra stripes", "D399": " quagga zebra"}
    assert len(before) == len(after) == 400
    for row in range(400):
        (document,) = before.ids(np.array([row])).to_pylist()
        assert after.text(row) == before.text(row) + added.get(document, "")
    assert after.rows(["D3", "D399", "NOWHERE"]).tolist() == before.rows(["D3", "D399", "NOWHERE"]).tolist()


def test_what_is_left_out_is_counted_and_said(
    small_folder: Path, cache: Path, expansion: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = opened(small_folder, cache, expansion).prepared.texts
    said = capsys.readouterr().err
    assert "predicted.tsv.gz: left out 4 of 8 lines" in said
    for kind, line in ((COLUMNS, 3), (UNKNOWN, 5), (REPEATED, 6), (EMPTY, 7)):
        assert f"1 {kind} (first: line {line})" in said
    assert f"3 of 400 documents are expanded, by 4 lines of {expansion}" in said
    assert json.loads((texts / "query_sets.json").read_text())
    assert not (texts / "expansion.arrow").exists()


def test_the_index_has_the_expansion_and_the_encoder_reads_without_it(
    small_folder: Path, cache: Path, expansion: Path
) -> None:
    plain, expanded = opened(small_folder, cache), opened(small_folder, cache, expansion)
    assert words_of(expanded, "lemm", "D3") == [*words_of(plain, "lemm", "D3"), "zebra", "cross", "zebra", "stripe"]
    assert words_of(expanded, "bwps", "D3")[-1] == "stripes"
    for data in (plain, expanded):
        serve(data, DataNeeds(("bwps",), train="candidates"))
        data.prepare_data()
    ours, theirs = (next(iter(data.test_dataloader()[0])).ranking for data in (expanded, plain))
    (row,) = expanded.prepared.collection.rows(["D3"])
    assert ours.forward.lengths[row] > theirs.forward.lengths[row]
    assert ours.sequences is not None and theirs.sequences is not None
    assert np.array_equal(ours.sequences.values, theirs.sequences.values)
    assert ours.sequences.lengths()[row] == theirs.forward.lengths[row]
    assert plain.sequences("bwps") is plain.prepared.field("bwps").sequences  # nothing is made twice


def test_documents_expanded_with_their_queries_are_found(small_folder: Path, cache: Path, tmp_path: Path) -> None:
    """The query itself behind its relevant document puts that one first."""
    texts = dict(line.split("\t") for line in (small_folder / "queries.test.tsv").read_text().splitlines())
    relevant = [line.split()[::2] for line in (small_folder / "qrels.test.tsv").read_text().splitlines()]
    path = write_lines(tmp_path / "oracle.tsv", [f"{document}\t{texts[query]}" for query, document in relevant])
    plain, expanded = opened(small_folder, cache), opened(small_folder, cache, path)
    found = []
    for data in (plain, expanded):
        task = data.ranked_task("test", 1)
        found.append(int(task.relevant.sum()))
    assert found[1] > 35 > found[0]
    assert plain.fingerprint() != expanded.fingerprint() and plain.prepared.folder != expanded.prepared.folder


def test_another_file_makes_another_preparation(small_folder: Path, cache: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tsv", ["D1\tquagga"])
    first = opened(small_folder, cache, path).prepared.folder
    write_lines(path, ["D1\tquagga zebra"])
    assert opened(small_folder, cache, path).prepared.folder != first


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("X1\tzebra\nX2\tzebra\nD1\tzebra\n", "most of its lines are broken.*2 of documents that are not in the col"),
        ("no tab\n", "most of its lines are broken"),
    ],
)
def test_a_file_that_is_no_expansion_of_this_collection_is_refused(
    small_folder: Path, cache: Path, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "wrong.tsv"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        _ = opened(small_folder, cache, path).prepared.texts


def test_a_missing_file_gets_one_line(small_folder: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--data\.expansion: there is no file"):
        opened(small_folder, cache, tmp_path / "none.tsv")
