"""Where a collection and its queries come from: a folder in the MS MARCO layout, the official files of MS MARCO, or
``ir_datasets``.

A source is written into the folder ``texts`` of the cache: the collection, the query sets, and notes on what was left
out.
"""

from __future__ import annotations

import errno
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from datamodules.cached_step import code_version
from datamodules.text.collection import write_collection
from datamodules.text.lines import (
    Judgement,
    LineReport,
    TextLine,
    find_file,
    read_documents,
    read_qrels,
    read_queries,
)
from datamodules.text.query_sets import (
    DEVELOPMENT,
    TRAIN_FUSION,
    TRAIN_MODELING,
    JudgedQuery,
    RawSet,
    SplitSizes,
    join_judgements,
    judged_queries,
    planned_sizes,
    split,
    write_query_set,
)
from lexical.errors import UserError
from lexical.terminal import say, track

TEXT_CODE = [f"datamodules.text.{name}" for name in ("sources", "collection", "query_sets", "lines")]


class TextSource(Protocol):
    """Writes the folder ``texts``."""

    def identity(self) -> Any:
        """Return everything that determines the content (JSON-able)."""
        ...

    def write(self, folder: Path) -> None: ...


def write_query_sets(
    sets: dict[str, list[JudgedQuery]], notes: list[str], folder: Path, relevant_from: Mapping[str, int] = {}
) -> None:
    """Write the final query sets and all notes; `relevant_from`: the lowest relevant grade of a set, if it is not 1."""
    for name, queries in sets.items():
        write_query_set(queries, name, folder / "query_sets")
    sizes = ", ".join(f"{name} {len(sets[name]):,}" for name in sets)
    notes.append(f"no query text is in two query sets (checked): {sizes}")
    settings = {name: {"relevant_from": relevant_from.get(name, 1)} for name in sets}
    (folder / "query_sets.json").write_text(json.dumps(settings) + "\n")
    (folder / "notes.json").write_text(json.dumps(notes, indent=1) + "\n")


class SplitTexts(NamedTuple):
    """A collection with its raw query sets (train, dev, perhaps test, further judged sets) split as in the paper."""

    raw: RawTexts
    sizes: SplitSizes = SplitSizes()  # exactly these, where given

    def identity(self) -> Any:
        sizes = {"sizes": self.sizes, "default_sizes": self.raw.default_sizes}
        return {"source": self.raw.identity(), **sizes, "code": code_version(TEXT_CODE)}

    def write(self, folder: Path) -> None:
        raw_sets, notes = self.raw.query_sets(), list[str]()
        unjoined = {name: judged_queries(raw) for name, raw in raw_sets.items()}
        sizes = planned_sizes(unjoined, self.sizes, self.raw.default_sizes, notes)
        split(unjoined, sizes, [])  # an empty set is reported before hours go into the collection
        report = LineReport(self.raw.label)
        documents = track(self.raw.documents(report), f"read {self.raw.label}")
        collection = write_collection(documents, report, folder / "collection")
        notes += filter(None, [report.summary()])
        judged = {name: join_judgements(raw, collection, notes) for name, raw in raw_sets.items()}
        sets = split(judged, sizes, notes)
        for name, expected in self.raw.judged_queries.items():
            if name in sets and len(sets[name]) != expected:
                notes.append(f"{name}: {len(sets[name]):,} judged queries; the official set has {expected:,}")
        write_query_sets(sets, notes, folder, self.raw.relevant_from)


class FileTexts(NamedTuple):
    """Files of a folder: one collection, and two files for each query set."""

    label: str  # name of the collection in messages
    collection: Path
    sets: dict[str, tuple[Path, Path]]  # name -> (queries, qrels)
    relevant_from: Mapping[str, int] = {}  # set -> lowest grade of a relevant document, if it is not 1
    judged_queries: Mapping[str, int] = {}  # set -> how many there are, where that is known
    default_sizes: SplitSizes = SplitSizes()  # of sets whose size is not given, or less where there are fewer queries

    def identity(self) -> Any:
        files = [self.collection, *(path for pair in self.sets.values() for path in pair)]
        stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return {"sets": sorted(self.sets), "files": stats, "relevant_from": self.relevant_from}

    def documents(self, report: LineReport) -> Iterator[TextLine]:
        return read_documents(self.collection, report)

    def query_sets(self) -> dict[str, RawSet]:
        sets = {}
        for name, (queries, qrels) in self.sets.items():
            reports = LineReport(queries.name), LineReport(qrels.name)
            sets[name] = RawSet(list(read_queries(queries, reports[0])), list(read_qrels(qrels, reports[1])), *reports)
        return sets


def folder_texts(folder: Path) -> FileTexts:
    """Return the texts of a folder with ``collection.tsv``, ``queries.NAME.tsv`` and ``qrels.NAME.tsv``.

    ``test`` may be missing; sets of other names are evaluated too.
    """
    sets = {}
    for path in sorted(folder.glob("queries.*.tsv*")):
        name = path.name.removeprefix("queries.").removesuffix(".gz").removesuffix(".tsv")
        qrels = find_file(folder, f"qrels.{name}.tsv")
        if not path.name.endswith((".tsv", ".tsv.gz")) or name in sets:
            continue
        if not re.fullmatch(r"[\w-]+", name):
            raise UserError(f"{path}: the name of a query set may have letters, digits, '-' and '_' only")
        if name in (TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT):
            raise UserError(f"{path}: the set {name} is drawn from train or dev; rename the file")
        if qrels is None:
            say(f"{path.name} is left out: there is no qrels.{name}.tsv beside it in {folder}")
        else:
            sets[name] = path, qrels
    for name in ("train", "dev"):
        if name not in sets:
            raise UserError(f"{folder} has no queries.{name}.tsv (or .tsv.gz) with qrels.{name}.tsv")
    return FileTexts("collection.tsv", _collection_file(folder, "collection.tsv"), sets)


# TREC's Deep Learning tracks: a passage counts as relevant from grade 2 ("highly relevant") where a measure knows
# relevant and not relevant only; a document from grade 1. nDCG uses all grades.
TREC_RELEVANT_FROM = {"passage": {"trec2019": 2, "trec2020": 2}, "document": {}}
TREC_JUDGED = {"passage": {"trec2019": 43, "trec2020": 54}, "document": {"trec2019": 43, "trec2020": 45}}
PAPER_SIZES = {  # the paper's data table
    "passage": SplitSizes(train_fusion=20_000, development=20_000, test=3_000),
    "document": SplitSizes(train_fusion=10_000, development=2_500, test=2_693),
}
# kind -> (collection, set -> alternatives of (queries, qrels))
OFFICIAL_FILES: dict[str, tuple[str, dict[str, list[tuple[str, str]]]]] = {
    "passage": (
        "collection.tsv",
        {
            "train": [("queries.train.tsv", "qrels.train.tsv")],
            "dev": [("queries.dev.tsv", "qrels.dev.tsv"), ("queries.dev.small.tsv", "qrels.dev.small.tsv")],
            "trec2019": [("msmarco-test2019-queries.tsv", "2019qrels-pass.txt")],
            "trec2020": [("msmarco-test2020-queries.tsv", "2020qrels-pass.txt")],
        },
    ),
    "document": (
        "msmarco-docs.tsv",
        {
            "train": [("msmarco-doctrain-queries.tsv", "msmarco-doctrain-qrels.tsv")],
            "dev": [("msmarco-docdev-queries.tsv", "msmarco-docdev-qrels.tsv")],
            "trec2019": [("msmarco-test2019-queries.tsv", "2019qrels-docs.txt")],
            "trec2020": [("msmarco-test2020-queries.tsv", "2020qrels-docs.txt")],
        },
    ),
}


def official_texts(folder: Path, kind: str) -> FileTexts:
    """Return the official MS MARCO v1 files of `kind` ("passage" or "document"), plain or gzipped."""
    collection, official_sets = OFFICIAL_FILES[kind]
    sets = {}
    for name, alternatives in official_sets.items():
        pairs = [(find_file(folder, queries), find_file(folder, qrels)) for queries, qrels in alternatives]
        queries, qrels = min(pairs, key=lambda pair: pair.count(None))
        first = alternatives[0]
        if queries and qrels:
            sets[name] = queries, qrels
        elif name in ("train", "dev"):
            raise UserError(f"{folder} lacks {first[0]} or {first[1]} (plain or .gz) of MS MARCO {kind} ranking")
        elif queries or qrels:
            missing = first[1] if queries else first[0]
            raise UserError(f"{folder} has one file of {name} but lacks {missing} (plain or .gz)")
    label, file = f"MS MARCO {kind} collection", _collection_file(folder, collection)
    return FileTexts(label, file, sets, TREC_RELEVANT_FROM[kind], TREC_JUDGED[kind], PAPER_SIZES[kind])


IRDS_SUBSETS = {"train": "train", "dev": "dev", "trec2019": "trec-dl-2019/judged", "trec2020": "trec-dl-2020/judged"}


class IrDatasetsTexts:
    """MS MARCO from ``ir_datasets``, which downloads it on first use; `base` is, for example, ``msmarco-passage``."""

    def __init__(self, base: str) -> None:
        self.base, self.label = base, f"{base} of ir_datasets"
        kind = base.removeprefix("msmarco-")
        self.relevant_from, self.judged_queries = TREC_RELEVANT_FROM[kind], TREC_JUDGED[kind]
        self.default_sizes = PAPER_SIZES[kind]

    def identity(self) -> Any:
        import ir_datasets

        version, relevant_from = ir_datasets.__version__, self.relevant_from
        return {"ir_datasets": self.base, "version": version, "subsets": IRDS_SUBSETS, "relevant_from": relevant_from}

    def documents(self, report: LineReport) -> Iterator[TextLine]:
        for number, document in enumerate(self._rows(self.base, "docs_iter"), start=1):
            report.lines = number
            fields = [getattr(document, name, "") for name in ("title", "body", "text")]
            line = TextLine(number, document.doc_id, " ".join(" ".join(fields).split()))
            if report.accepts(line):
                yield line

    def query_sets(self) -> dict[str, RawSet]:
        return {name: self._query_set(f"{self.base}/{subset}") for name, subset in IRDS_SUBSETS.items()}

    def _query_set(self, name: str) -> RawSet:
        texts, judgements = self._rows(name, "queries_iter"), self._rows(name, "qrels_iter")
        queries = [TextLine(i, query.query_id, query.text) for i, query in enumerate(texts, start=1)]
        qrels = [Judgement(i, row.query_id, row.doc_id, int(row.relevance)) for i, row in enumerate(judgements, 1)]
        reports = LineReport(f"{name} queries", len(queries)), LineReport(f"{name} qrels", len(qrels))
        return RawSet(queries, qrels, *reports)

    def _rows(self, name: str, part: str) -> Iterator[Any]:
        """Yield the rows of a part of a data set; a `UserError` if it cannot be downloaded or is damaged."""
        import ir_datasets

        try:
            yield from getattr(ir_datasets.load(name), part)()
        except (OSError, EOFError, RuntimeError, zlib.error, tarfile.TarError) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            raise UserError(
                f"ir_datasets cannot get {name} ({type(error).__name__}: {error}); "
                "download the official files elsewhere and give their folder with --data.path DIR"
            ) from error


RawTexts = FileTexts | IrDatasetsTexts


def existing_path(flag: str, path: str | Path | None, kind: str = "folder") -> Path:
    """Return the existing folder or file that a setting names."""
    if not path:
        raise UserError(f"give the {kind} of the data with {flag} DIR")
    expanded = Path(path).expanduser()
    if not (expanded.is_dir() if kind == "folder" else expanded.is_file()):
        raise UserError(f"{flag}: there is no {kind} {expanded}")
    return expanded


def _collection_file(folder: Path, name: str) -> Path:
    path = find_file(folder, name)
    if path is None:
        raise UserError(f"{folder} has no {name} (or {name}.gz)")
    return path
