"""Where text comes from: folders in the MS MARCO layout, the official files, and the real ``ir_datasets``."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from datamodules.text.collection import Collection
from datamodules.text.query_sets import QuerySet, SplitSizes
from datamodules.text.sources import FileTexts, SplitTexts, existing_path, folder_texts, official_texts
from lexical.errors import UserError
from tests import ROOT
from tests.fixtures.official_files import (
    DEV,
    DOCUMENTS,
    OFFICIAL,
    TRAIN,
    document_id,
    pack,
    passage,
    qrel_lines,
    query_lines,
    write_official,
)
from tests.fixtures.small_folder import write_lines, write_small_folder


class Written(NamedTuple):
    """What `SplitTexts` wrote."""

    folder: Path
    collection: Collection
    sets: dict[str, QuerySet]
    notes: list[str]


def write_texts(texts: FileTexts, folder: Path, sizes: SplitSizes | None = None) -> Written:
    folder.mkdir(parents=True)
    SplitTexts(texts, sizes or SplitSizes()).write(folder)
    written = json.loads((folder / "query_sets.json").read_text())
    sets = {name: QuerySet(folder / "query_sets", name, **settings) for name, settings in written.items()}
    return Written(folder, Collection(folder / "collection"), sets, json.loads((folder / "notes.json").read_text()))


def bytes_of(folder: Path, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in but)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# ------------------------------------------------------------------------------------- a folder of one's own


def test_a_folder_is_read_split_and_accounted_for(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "data", documents=50, train=40, dev=10, test=0)
    with (folder / "collection.tsv").open("ab") as file:
        file.write(b"D3\tanother D3\nbroken line\nD99\t\n")
    with (folder / "qrels.dev.tsv").open("ab") as file:
        file.write(b"dev1 0 D1234 1\nnobody 0 D1 1\ndev1 0 D2 yes\n")
    with (folder / "queries.dev.tsv").open("ab") as file:
        file.write(b"lonely\ta query that nobody judged\n")
    write_lines(folder / "queries.hard.tsv", ["h1\tthe hardest question", "h2\tanother one"])
    write_lines(folder / "qrels.hard.tsv", ["h1 0 D1 2", "h2 0 D2 1"])
    found = write_texts(folder_texts(folder), tmp_path / "texts")
    assert len(found.collection) == 50
    assert {name: len(raw_set) for name, raw_set in found.sets.items()} == {
        "train_modeling": 36,
        "train_fusion": 4,
        "development": 5,
        "test": 5,
        "hard": 2,
    }
    assert [found.sets["hard"].graded, found.sets["test"].graded] == [True, False]
    assert found.notes == [
        "collection.tsv: left out 3 of 53 lines: 1 with the wrong number of columns (first: line 52), "
        "1 with an empty text (first: line 53), 1 with a duplicate id (first: line 51)",
        "qrels.dev.tsv: left out 3 of 13 lines: 1 whose grade is not a whole number (first: line 13), "
        "1 that point to a document that is not in the collection (first: line 11), "
        "1 that point to a query that is not in the query file (first: line 12)",
        "queries.dev.tsv: 1 of 11 queries have no relevant document and are left out",
        "no query text is in two query sets (checked): "
        "train_modeling 36, train_fusion 4, development 5, test 5, hard 2",
    ]


def test_judgements_point_to_the_documents_they_name(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "data", documents=30, train=20, dev=5, test=5)
    found = write_texts(folder_texts(folder), tmp_path / "texts")
    texts = dict(line.split("\t") for line in (folder / "collection.tsv").read_text().splitlines())
    queries = dict(line.split("\t") for line in (folder / "queries.test.tsv").read_text().splitlines())
    wanted = {line.split()[0]: line.split()[2] for line in (folder / "qrels.test.tsv").read_text().splitlines()}
    test = found.sets["test"]
    assert sorted(test.ids) == sorted(wanted)
    for i, query_id in enumerate(test.ids):
        (row,) = test.relevant.row(i)
        assert found.collection.ids(test.relevant.row(i)).to_pylist() == [wanted[query_id]]
        assert found.collection.text(row) == texts[wanted[query_id]]
        assert test.texts[i] == queries[query_id]


def test_gz_and_plain_folders_give_the_same_bytes(tmp_path: Path) -> None:
    plain, packed = (write_small_folder(tmp_path / name, 40, 30, 10, 5) for name in ("plain", "packed"))
    pack(packed)
    first = write_texts(folder_texts(plain), tmp_path / "first").folder
    second = write_texts(folder_texts(packed), tmp_path / "second").folder
    assert bytes_of(first) == bytes_of(second)


def test_plain_wins_over_gz_and_other_files_are_no_query_sets(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "data", 20, 20, 4, 0)
    for name in ("queries.dev.tsv.gz", "queries.dev.tsv.bak", "queries.old.txt", "collection.tsv.gz"):
        (folder / name).write_bytes(b"not read")
    source = folder_texts(folder)
    assert source.collection == folder / "collection.tsv"
    assert {name: queries.name for name, (queries, _) in source.sets.items()} == {
        "dev": "queries.dev.tsv",
        "train": "queries.train.tsv",
    }


def test_queries_without_qrels_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_small_folder(tmp_path / "data", 20, 20, 4, 0)
    write_lines(folder / "queries.eval.tsv", ["e1\tnobody knows"])
    assert sorted(folder_texts(folder).sets) == ["dev", "train"]
    said = capsys.readouterr().err.splitlines()
    assert said == [f"queries.eval.tsv is left out: there is no qrels.eval.tsv beside it in {folder}"]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("collection.tsv", "{0} has no collection.tsv (or collection.tsv.gz)"),
        ("queries.train.tsv", "{0} has no queries.train.tsv (or .tsv.gz) with qrels.train.tsv"),
        ("qrels.dev.tsv", "{0} has no queries.dev.tsv (or .tsv.gz) with qrels.dev.tsv"),
    ],
)
def test_a_missing_file_is_one_clear_line(tmp_path: Path, missing: str, message: str) -> None:
    folder = write_small_folder(tmp_path / "data", 20, 20, 4, 0)
    (folder / missing).unlink()
    with pytest.raises(UserError) as error:
        folder_texts(folder)
    assert str(error.value) == message.format(folder)


@pytest.mark.parametrize("name", ["train_modeling", "train_fusion", "development"])
def test_a_further_set_may_not_take_the_name_of_one_of_ours(tmp_path: Path, name: str) -> None:
    """It would silently replace the set that was made from train or dev."""
    folder = write_small_folder(tmp_path / "data", 20, 20, 6, 0)
    write_lines(folder / f"queries.{name}.tsv", ["x\tsome other text"])
    write_lines(folder / f"qrels.{name}.tsv", ["x 0 D1 1"])
    with pytest.raises(UserError, match=name):
        write_texts(folder_texts(folder), tmp_path / "texts")


def test_a_grade_that_no_one_can_mean_is_one_clear_line_or_a_counted_one(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "data", 20, 20, 6, 0)
    lines = (folder / "qrels.dev.tsv").read_text().splitlines()
    write_lines(folder / "qrels.dev.tsv", [lines[0].removesuffix("1") + "99999999999", *lines[1:]])
    try:
        found = write_texts(folder_texts(folder), tmp_path / "texts")
    except UserError:
        return
    assert any("qrels.dev.tsv: left out 1 of 6 lines" in note for note in found.notes)


def test_the_data_path_is_asked_for_and_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^give the folder of the data with --data\.path DIR$"):
        existing_path("--data.path", None)
    with pytest.raises(UserError, match=r"^--data\.path: there is no folder .*/nowhere$"):
        existing_path("--data.path", tmp_path / "nowhere")
    assert existing_path("--data.path", str(tmp_path)) == tmp_path


def test_identity_follows_the_files(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "data", 20, 20, 4, 0)
    before = folder_texts(folder).identity()
    assert folder_texts(folder).identity() == before
    with (folder / "qrels.dev.tsv").open("a") as file:
        file.write("dev0 0 D1 1\n")
    assert folder_texts(folder).identity() != before


# ------------------------------------------------------------------------------------------- the official files


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("kind", ["passage", "document"])
def test_the_official_files_under_their_own_names(tmp_path: Path, kind: str, packed: bool) -> None:
    folder = write_official(tmp_path / "msmarco", kind)
    if packed:
        pack(folder)
    found = write_texts(official_texts(folder, kind), tmp_path / "texts", SplitSizes(4, 5, 3))
    assert len(found.collection) == DOCUMENTS
    title = "Title 7 " if kind == "document" else ""
    assert found.collection.text(found.collection.rows([document_id(kind, 7)])[0]) == title + passage(7)
    sizes = {name: len(raw_set) for name, raw_set in found.sets.items()}
    assert sizes == {"train_modeling": 16, "train_fusion": 4, "development": 5, "test": 3, "trec2019": 2, "trec2020": 2}
    trec = found.sets["trec2019"]
    assert trec.ids == ["1108939", "1112389"] and trec.texts[0] == "what slows down the flow of blood"
    assert trec.judged.row(1).tolist() == [4, 5, 6, 7] and trec.grades.tolist() == [0, 1, 2, 3] * 2
    assert [name for name, raw_set in found.sets.items() if raw_set.graded] == ["trec2019", "trec2020"]
    from_grade_2 = kind == "passage"
    assert trec.relevant.row(1).tolist() == ([6, 7] if from_grade_2 else [5, 6, 7])
    assert found.sets["test"].relevant_from == 1
    assert f"trec2020: 2 judged queries; the official set has {54 if from_grade_2 else 45}" in found.notes
    unjudged = f"msmarco-test2019-queries.tsv{'.gz' if packed else ''}"
    assert f"{unjudged}: 1 of 3 queries have no relevant document and are left out" in found.notes
    assert set(found.sets["development"].ids) | set(found.sets["test"].ids) <= set(DEV)


@pytest.mark.parametrize(("kind", "judged"), [("passage", (43, 54)), ("document", (43, 45))])
def test_all_judged_queries_of_trec_come_through(tmp_path: Path, kind: str, judged: tuple[int, int]) -> None:
    """200 queries in a file, some of them judged; texts of development and training queries are among them."""
    folder = write_official(tmp_path / "msmarco", kind)
    shared = [*list(DEV.values())[:3], *list(TRAIN.values())[:3]]
    for year, count, offset in ((2019, judged[0], 0), (2020, judged[1], 1)):
        texts = [*shared[offset::2], *(f"what is question {year} {i}" for i in range(197))]
        write_lines(
            folder / OFFICIAL[kind][f"trec{year}"][0], (f"{year}{i:03d}\t{text}" for i, text in enumerate(texts))
        )
        lines = (f"{year}{i:03d} Q0 {document_id(kind, d)} {(i + d) % 4}" for i in range(count) for d in range(4))
        write_lines(folder / OFFICIAL[kind][f"trec{year}"][1], lines)
    found = write_texts(official_texts(folder, kind), tmp_path / "texts", SplitSizes(2, 3, 2))
    assert [len(found.sets[name]) for name in ("trec2019", "trec2020")] == list(judged)
    assert not [note for note in found.notes if "the official set has" in note]
    assert "development: " in " ".join(found.notes) or "test: " in " ".join(found.notes)
    least = 2 if kind == "passage" else 1
    for name in ("trec2019", "trec2020"):
        queries = found.sets[name]
        assert queries.relevant.values.tolist() == queries.judged.values[queries.grades >= least].tolist()
    texts_of = [{text.casefold() for text in queries.texts} for queries in found.sets.values()]
    assert sum(map(len, texts_of)) == len(set().union(*texts_of))


@pytest.mark.parametrize("kind", ["passage", "document"])
@pytest.mark.parametrize("name", ["train", "dev"])
@pytest.mark.parametrize("part", [0, 1], ids=["queries", "qrels"])
def test_a_missing_official_file_is_one_clear_line(tmp_path: Path, kind: str, name: str, part: int) -> None:
    folder = write_official(tmp_path / "msmarco", kind)
    (folder / OFFICIAL[kind][name][part]).unlink()
    queries, qrels = OFFICIAL[kind][name]
    with pytest.raises(UserError) as error:
        official_texts(folder, kind)
    assert str(error.value) == f"{folder} lacks {queries} or {qrels} (plain or .gz) of MS MARCO {kind} ranking"


def test_a_missing_official_collection_is_one_clear_line(tmp_path: Path) -> None:
    folder = write_official(tmp_path / "msmarco", "document")
    (folder / "msmarco-docs.tsv").unlink()
    with pytest.raises(UserError, match=r"/msmarco has no msmarco-docs\.tsv \(or msmarco-docs\.tsv\.gz\)$"):
        official_texts(folder, "document")


def test_trec_sets_may_be_missing_but_not_half_of_one(tmp_path: Path) -> None:
    folder = write_official(tmp_path / "msmarco", "passage")
    for file in OFFICIAL["passage"]["trec2020"]:
        (folder / file).unlink()
    assert sorted(official_texts(folder, "passage").sets) == ["dev", "train", "trec2019"]
    (folder / "2019qrels-pass.txt").unlink()
    with pytest.raises(UserError, match=r"has one file of trec2019 but lacks 2019qrels-pass\.txt \(plain or \.gz\)$"):
        official_texts(folder, "passage")


def test_queries_and_qrels_of_dev_belong_to_each_other(tmp_path: Path) -> None:
    """``collectionandqueries.tar.gz`` holds the small dev set; qrels.dev.tsv (all of dev) is a file of its own."""
    folder = write_official(tmp_path / "msmarco", "passage")
    small = query_lines("dev")[:3], qrel_lines("passage", "dev")[:3]
    write_lines(folder / "queries.dev.small.tsv", small[0])
    write_lines(folder / "qrels.dev.small.tsv", small[1])
    both = official_texts(folder, "passage").sets["dev"]
    assert (both[0].name, both[1].name) == ("queries.dev.tsv", "qrels.dev.tsv")
    (folder / "queries.dev.tsv").unlink()
    pair = official_texts(folder, "passage").sets["dev"]
    assert (pair[0].name, pair[1].name) == ("queries.dev.small.tsv", "qrels.dev.small.tsv")


@pytest.mark.parametrize("kind", ["passage", "document"])
def test_the_paper_s_sizes_shrink_with_the_small_files(tmp_path: Path, kind: str) -> None:
    """20 training and 10 dev queries, as with the official small dev set alone."""
    found = write_texts(official_texts(write_official(tmp_path / "msmarco", kind), kind), tmp_path / "texts")
    development, test = (8, 1) if kind == "passage" else (4, 5)
    sizes = [len(found.sets[name]) for name in ("train_modeling", "train_fusion", "development", "test")]
    assert sizes == [18, 2, development, test]
    wanted = ("20,000", "20,000", "3,000") if kind == "passage" else ("10,000", "2,500", "2,693")
    assert found.notes[:2] == [
        f"train has 20 judged queries; sizes shrink in proportion: train_fusion {wanted[0]} -> 2",
        "dev has 10 judged queries; sizes shrink in proportion: "
        f"development {wanted[1]} -> {development}, test {wanted[2]} -> {test}",
    ]


@pytest.mark.parametrize("sizes", [SplitSizes(development=10), SplitSizes(test=11), SplitSizes(train_fusion=20)])
def test_sizes_that_cannot_be_met_are_refused_before_the_collection_is_read(tmp_path: Path, sizes: SplitSizes) -> None:
    texts = official_texts(write_official(tmp_path / "msmarco", "passage"), "passage")
    with pytest.raises(UserError, match=r"^--data\.\w+_queries \d+: too many, (dev|train) has \d+ judged queries"):
        write_texts(texts, tmp_path / "texts", sizes)
    assert not list((tmp_path / "texts").iterdir())


def test_an_empty_query_set_is_reported_before_the_collection_is_read(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "data", documents=50, train=3, dev=10, test=0)
    with pytest.raises(UserError, match=r"^query set train_fusion is empty"):
        write_texts(folder_texts(folder), tmp_path / "texts")
    assert not list((tmp_path / "texts").iterdir())


# ---------------------------------------------------------------------------------------------- ir_datasets


def fill_ir_datasets_home(home: Path, kind: str) -> None:
    """The files of a kind where ``ir_datasets`` keeps what it has downloaded, so that it downloads nothing."""
    base = home / f"msmarco-{kind}"
    for name, irds in (("train", "train"), ("dev", "dev"), ("trec2019", "trec-dl-2019"), ("trec2020", "trec-dl-2020")):
        (base / irds).mkdir(parents=True)
        queries = write_lines(base / irds / "queries.tsv", query_lines(name))
        qrels = write_lines(base / irds / "qrels", qrel_lines(kind, name))
        if kind == "document" or name == "trec2020":
            (base / irds / "queries.tsv.gz").write_bytes(gzip.compress(queries.read_bytes()))
        if kind == "document" and name in ("train", "dev"):
            (base / irds / "qrels.gz").write_bytes(gzip.compress(qrels.read_bytes()))
    if kind == "passage":
        write_lines(base / "collection.tsv", (f"{document_id(kind, i)}\t{passage(i)}" for i in range(DOCUMENTS)))
        (base / "irds_version.txt").write_text("v2")  # of the format that it expects: nothing to migrate
    else:
        record = "<DOC>\n<DOCNO>{0}</DOCNO>\n<TEXT>\nhttp://x.org/{1}\nTitle {1}\n{2}\n</TEXT>\n</DOC>\n"
        text = "".join(record.format(document_id(kind, i), i, passage(i)) for i in range(DOCUMENTS))
        (base / "collection.tsv.gz").write_bytes(gzip.compress(text.encode()))


SCRIPT = """
import json, sys
from pathlib import Path
from datamodules.text.query_sets import SplitSizes
from datamodules.text.sources import IrDatasetsTexts, SplitTexts
from lexical.errors import UserError
try:
    SplitTexts(IrDatasetsTexts(sys.argv[1]), SplitSizes(4, 5, 3)).write(Path(sys.argv[2]))
except UserError as error:
    print("UserError:", error)
"""


def write_with_ir_datasets(home: Path, base: str, texts: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the library reads its environment when it is imported. There is no network for it."""
    texts.mkdir()
    environment: dict[str, Any] = {
        **{key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")},
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"),
        "IR_DATASETS_HOME": str(home),
        "IR_DATASETS_TMP": str(home / "tmp"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", SCRIPT, base, str(texts)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("kind", ["passage", "document"])
def test_ir_datasets_and_the_official_files_give_the_same_texts(tmp_path: Path, kind: str) -> None:
    fill_ir_datasets_home(tmp_path / "home", kind)
    done = write_with_ir_datasets(tmp_path / "home", f"msmarco-{kind}", tmp_path / "theirs")
    assert done.returncode == 0, done.stderr
    folder = write_official(tmp_path / "msmarco", kind)
    write_texts(official_texts(folder, kind), tmp_path / "ours", SplitSizes(4, 5, 3))
    theirs, ours = (bytes_of(tmp_path / name, ("notes.json",)) for name in ("theirs", "ours"))
    assert theirs == ours and len(ours) > 20


@pytest.mark.parametrize("kind", ["passage", "document"])
def test_without_network_ir_datasets_ends_in_one_line_that_names_the_way_out(tmp_path: Path, kind: str) -> None:
    done = write_with_ir_datasets(tmp_path / "home", f"msmarco-{kind}", tmp_path / "texts")
    assert done.stdout.startswith("UserError: "), done.stderr[-2000:]
    assert "--data.path" in done.stdout and done.stdout.count("\n") == 1
