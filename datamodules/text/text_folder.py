"""Sources of text written into the folder ``texts`` of the cache.

Collection, query sets, and notes on what was left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from datamodules.cached_step import code_version
from datamodules.pydocs.embedded_data import Granularity, content_hash, load_embedded_data
from datamodules.pydocs.sources import installed_sources
from datamodules.text.collection import Collection, write_collection
from datamodules.text.line_report import LineReport
from datamodules.text.lines import Document
from datamodules.text.query_sets import (
    JudgedQuery,
    SplitSizes,
    join_judgements,
    split,
    without_shared_texts,
    write_query_set,
)
from datamodules.text.sources import Source
from lexical.terminal import track

_CODE = [
    "datamodules.text.text_folder",
    "datamodules.text.collection",
    "datamodules.text.query_sets",
    "datamodules.text.lines",
]

_PYDOCS_CODE = ["embedded_data", "sources", "mining", "pairs", "pages", "splits", "docstring_text", "near_duplicates"]


class FileTexts:
    """A collection and raw query sets from files or ``ir_datasets``, split as in the paper."""

    def __init__(self, source: Source, label: str, sizes: SplitSizes) -> None:
        self.source, self.label, self.sizes = source, label, sizes

    def identity(self) -> Any:
        return {
            "source": self.source.identity(),
            "sizes": self.sizes,
            "code": code_version([*_CODE, "datamodules.text.sources"]),
        }

    def write(self, folder: Path) -> None:
        notes: list[str] = []
        report = LineReport(self.label)
        documents = track(self.source.documents(report), f"read {self.label}")
        collection = _write_collection(documents, report, folder)
        notes.extend(filter(None, [report.summary()]))
        raw = self.source.query_sets()
        judged = {name: join_judgements(one, collection, notes) for name, one in raw.items()}
        _write_query_sets(split(judged, self.sizes, notes), notes, folder)
        reports = [report, *(part for one in raw.values() for part in (one.query_report, one.qrel_report))]
        (folder / "line_reports.json").write_text(json.dumps([one.as_dict() for one in reports], indent=1) + "\n")


class PyDocsTexts:
    """The embedded data: docstrings of the pinned packages."""

    def __init__(self, granularity: Granularity, workers: int) -> None:
        self.granularity, self.workers = granularity, workers

    def identity(self) -> Any:
        modules = [f"datamodules.pydocs.{name}" for name in _PYDOCS_CODE]
        versions = _mined_versions()
        return {"granularity": self.granularity, "packages": versions, "code": code_version([*_CODE, *modules])}

    def write(self, folder: Path) -> None:
        data = load_embedded_data(self.granularity, self.workers or None)
        documents = (Document(i, *document) for i, document in enumerate(data.documents, start=1))
        report = LineReport("the mined docstrings", len(data.documents))
        collection = _write_collection(documents, report, folder)
        rows = dict(zip((one for one, _ in data.documents), range(len(collection)), strict=True))
        notes: list[str] = [line for line in [report.summary()] if line]
        sets: dict[str, list[JudgedQuery]] = {}
        for name, queries in data.queries.items():
            relevant: dict[str, list[tuple[str, int, int]]] = {}
            for query_id, document_id in data.qrels[name]:
                relevant.setdefault(query_id, []).append((document_id, rows[document_id], 1))
            sets[name] = [JudgedQuery(query_id, text, relevant[query_id]) for query_id, text in queries]
        _write_query_sets(without_shared_texts(sets, notes), notes, folder)
        with (folder / "names.tsv").open("w", encoding="utf-8") as file:
            file.writelines(f"{document_id}\t{name}\n" for document_id, name in data.names)
        origin = {
            "content_hash": content_hash(data),
            "sources": [one._asdict() for one in data.sources],
            "left_out": data.drops,
        }
        (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n")


def _write_collection(documents: Iterable[Document], report: LineReport, folder: Path) -> Collection:
    (folder / "collection").mkdir()
    write_collection(documents, report, folder / "collection")
    return Collection(folder / "collection")


def _write_query_sets(sets: dict[str, list[JudgedQuery]], notes: list[str], folder: Path) -> None:
    for name, queries in sets.items():
        write_query_set(queries, name, folder / "query_sets")
    notes.append(
        "no query text is in two query sets (checked): " + ", ".join(f"{name} {len(sets[name]):,}" for name in sets)
    )
    (folder / "query_sets.json").write_text(json.dumps(list(sets)) + "\n")
    (folder / "notes.json").write_text(json.dumps(notes, indent=1) + "\n")


@cache  # the files of many packages are looked at, which takes seconds; they do not change while we run
def _mined_versions() -> list[tuple[str, str]]:
    return [(one.package.distribution, one.version) for one in installed_sources()]
