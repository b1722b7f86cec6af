"""Where a collection and its queries come from: a folder in the MS MARCO layout, the official files, or
``ir_datasets``.

A source yields documents in a stream and the raw query sets ``train``, ``dev``, perhaps ``test``, and further judged
ones.
"""

from __future__ import annotations

import errno
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from datamodules.text.line_report import LineReport
from datamodules.text.lines import (
    EMPTY,
    NO_ID,
    Document,
    Judgement,
    Query,
    find_file,
    is_id,
    read_documents,
    read_qrels,
    read_queries,
)
from datamodules.text.query_sets import DEVELOPMENT, TRAIN_FUSION, TRAIN_MODELING, RawSet
from lexical.errors import UserError
from lexical.terminal import say


class Source(Protocol):
    def identity(self) -> Any:
        """JSON-able: everything that determines the content."""

    def documents(self, report: LineReport) -> Iterator[Document]: ...

    def query_sets(self) -> dict[str, RawSet]: ...


class SetFiles(NamedTuple):
    queries: Path
    qrels: Path


class FileSource:
    """Files of a folder: one collection, and a pair (queries, qrels) a query set."""

    def __init__(self, collection: Path, sets: dict[str, SetFiles]) -> None:
        self.collection, self.sets = collection, sets

    def identity(self) -> Any:
        files = [self.collection, *(path for pair in self.sets.values() for path in pair)]
        return {
            "sets": sorted(self.sets),
            "files": [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files],
        }

    def documents(self, report: LineReport) -> Iterator[Document]:
        return read_documents(self.collection, report)

    def query_sets(self) -> dict[str, RawSet]:
        return {name: _read_set(pair) for name, pair in self.sets.items()}


def _read_set(files: SetFiles) -> RawSet:
    query_report, qrel_report = LineReport(files.queries.name), LineReport(files.qrels.name)
    queries, qrels = (
        list(read_queries(files.queries, query_report)),
        list(read_qrels(files.qrels, qrel_report)),
    )
    return RawSet(queries, qrels, query_report, qrel_report)


def existing_folder(path: str | Path | None, flag: str = "--data.path") -> Path:
    if not path:
        raise UserError(f"give the folder of the data with {flag} DIR")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"{flag}: there is no folder {folder}")
    return folder


def folder_source(folder: Path) -> FileSource:
    """``collection.tsv``, ``queries.NAME.tsv`` and ``qrels.NAME.tsv``.

    ``test`` may be missing, further names are evaluated too.
    """
    sets = {}
    for path in sorted(folder.glob("queries.*.tsv*")):
        name = path.name.removeprefix("queries.").removesuffix(".gz").removesuffix(".tsv")
        qrels = find_file(folder, f"qrels.{name}.tsv")
        if not path.name.endswith((".tsv", ".tsv.gz")) or name in sets:
            continue
        if not re.fullmatch(r"[\w-]+", name):
            raise UserError(f"{path}: the name of a query set is made of letters, digits, '-' and '_'")
        if name in RESERVED:
            raise UserError(f"{path}: {name} is a set that is made from train or dev; give the file another name")
        if qrels is None:
            say(f"{path.name} is left out: there is no qrels.{name}.tsv beside it in {folder}")
        else:
            sets[name] = SetFiles(path, qrels)
    for name in ("train", "dev"):
        if name not in sets:
            raise UserError(f"{folder} has no queries.{name}.tsv (or .tsv.gz) with qrels.{name}.tsv")
    return FileSource(_required(folder, "collection.tsv"), sets)


RESERVED = (TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT)


class OfficialSet(NamedTuple):
    name: str
    queries: tuple[str, ...]  # official file names, the first that is there counts
    qrels: tuple[str, ...]
    required: bool = False


OFFICIAL_FILES: dict[str, tuple[str, list[OfficialSet]]] = {
    "passage": (
        "collection.tsv",
        [
            OfficialSet("train", ("queries.train.tsv",), ("qrels.train.tsv",), required=True),
            OfficialSet(
                "dev",
                ("queries.dev.tsv", "queries.dev.small.tsv"),
                ("qrels.dev.tsv", "qrels.dev.small.tsv"),
                required=True,
            ),
            OfficialSet("trec2019", ("msmarco-test2019-queries.tsv",), ("2019qrels-pass.txt",)),
            OfficialSet("trec2020", ("msmarco-test2020-queries.tsv",), ("2020qrels-pass.txt",)),
        ],
    ),
    "document": (
        "msmarco-docs.tsv",
        [
            OfficialSet("train", ("msmarco-doctrain-queries.tsv",), ("msmarco-doctrain-qrels.tsv",), required=True),
            OfficialSet("dev", ("msmarco-docdev-queries.tsv",), ("msmarco-docdev-qrels.tsv",), required=True),
            OfficialSet("trec2019", ("msmarco-test2019-queries.tsv",), ("2019qrels-docs.txt",)),
            OfficialSet("trec2020", ("msmarco-test2020-queries.tsv",), ("2020qrels-docs.txt",)),
        ],
    ),
}


def official_source(folder: Path, kind: str) -> FileSource:
    """The official MS MARCO v1 files of `kind` ("passage" or "document"), under their own names, plain or gzipped."""
    collection, sets = OFFICIAL_FILES[kind]
    found = {}
    for wanted in sets:
        pairs = [
            (find_file(folder, queries), find_file(folder, qrels))
            for queries, qrels in zip(wanted.queries, wanted.qrels, strict=True)
        ]
        queries, qrels = max(pairs, key=lambda pair: (None not in pair, pair != (None, None)))
        if queries is not None and qrels is not None:
            found[wanted.name] = SetFiles(queries, qrels)
        elif wanted.required:
            raise UserError(
                f"{folder} lacks {wanted.queries[0]} or {wanted.qrels[0]} (plain or .gz) of MS MARCO {kind} ranking"
            )
        elif queries is not None or qrels is not None:
            missing = wanted.qrels[0] if qrels is None else wanted.queries[0]
            raise UserError(f"{folder} has one file of {wanted.name} but lacks {missing} (plain or .gz)")
    return FileSource(_required(folder, collection), found)


class IrDatasetsSource:
    """A data set of ``ir_datasets`` (downloaded by it on first use), e.g. base ``msmarco-passage``."""

    SUBSETS: ClassVar = {
        "train": "train",
        "dev": "dev",
        "trec2019": "trec-dl-2019/judged",
        "trec2020": "trec-dl-2020/judged",
    }

    def __init__(self, base: str) -> None:
        self.base = base

    def identity(self) -> Any:
        import ir_datasets

        return {"ir_datasets": self.base, "version": ir_datasets.__version__, "subsets": self.SUBSETS}

    def documents(self, report: LineReport) -> Iterator[Document]:
        for number, document in enumerate(self._fetched(self.base, "docs_iter"), start=1):
            report.lines = number
            fields = [getattr(document, name, "") for name in ("title", "body", "text")]
            text = " ".join(" ".join(field.split()) for field in fields if field).strip()
            if not is_id(document.doc_id):
                report.add(NO_ID, number)
            elif not text:
                report.add(EMPTY, number)
            else:
                yield Document(number, document.doc_id, text)

    def query_sets(self) -> dict[str, RawSet]:
        return {name: self._read_set(f"{self.base}/{subset}") for name, subset in self.SUBSETS.items()}

    def _read_set(self, name: str) -> RawSet:
        texts, judged = self._fetched(name, "queries_iter"), self._fetched(name, "qrels_iter")
        queries = [Query(i, query.query_id, query.text) for i, query in enumerate(texts, start=1)]
        qrels = [Judgement(i, q.query_id, q.doc_id, int(q.relevance)) for i, q in enumerate(judged, start=1)]
        return RawSet(
            queries,
            qrels,
            LineReport(f"{name} queries", len(queries)),
            LineReport(f"{name} qrels", len(qrels)),
        )

    def _fetched(self, name: str, part: str) -> Iterator[Any]:
        """The rows of a part of a data set; one clear line where it cannot be downloaded or its files are damaged."""
        data = self._load(name)
        try:
            yield from getattr(data, part)()
        except (OSError, EOFError, RuntimeError, zlib.error, tarfile.TarError) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            raise UserError(
                f"ir_datasets cannot get {name} ({type(error).__name__}: {error}); "
                "fetch the official files elsewhere and give their folder with --data.path DIR"
            ) from error

    def _load(self, name: str) -> Any:
        import ir_datasets

        try:
            return ir_datasets.load(name)
        except KeyError as error:
            raise UserError(f"ir_datasets knows no data set {name}") from error


def _required(folder: Path, name: str) -> Path:
    path = find_file(folder, name)
    if not path:
        raise UserError(f"{folder} has no {name} (or {name}.gz)")
    return path
