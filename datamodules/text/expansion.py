"""Documents expanded with further text, such as queries that a model has predicted for them (doc2query).

The expansion is a file of lines ``document id \\t text``, several for one document if need be. Its text is put behind
the document's own, and everything lexical is made of both: the index and its candidates, the fields that rankers
score, the bitext of EM. What BERT rankers read, and what their encoder is pretrained on, is without it. A dense first
stage reads the first pieces of both.

It makes other ``texts`` with another fingerprint: nothing that was prepared, trained or measured without it is taken
for it. Results go to the same folder as those without: give an --output_dir of its own to have both.
"""

from __future__ import annotations

import json
import shutil
from array import array
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from datamodules.cached_step import MANIFEST, code_version
from datamodules.text.collection import ROWS_PER_BATCH, SCHEMA, TABLE, Collection
from datamodules.text.line_report import LineReport
from datamodules.text.lines import read_documents
from datamodules.text.prepared_fields import PreparedFields
from lexical.errors import UserError
from lexical.terminal import track

UNKNOWN = "of documents that are not in the collection"
REPEATED = "that are there already"
SPOOL = "expansion.arrow"


class ExpandedTexts:
    """The texts of another source with the lines of `file` behind the documents; the query sets are the same."""

    def __init__(self, plain: PreparedFields, file: Path) -> None:
        self.plain, self.file = plain, file

    def identity(self) -> Any:
        state = self.file.stat()
        return {
            "texts": self.plain.source.identity(),
            "expansion": [str(self.file.resolve()), state.st_size, state.st_mtime_ns],
            "code": code_version(["datamodules.text.expansion"]),
        }

    def write(self, folder: Path) -> None:
        shutil.copytree(
            self.plain.texts, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(TABLE, MANIFEST)
        )  # rows, ids and query sets stay as they are
        report = LineReport(self.file.name)
        lines = _read_lines(self.file, self.plain.collection, report, folder / SPOOL)
        report.refuse_if_mostly_broken()
        _write_expanded(self.plain.texts / "collection" / TABLE, lines, folder / SPOOL, folder / "collection" / TABLE)
        (folder / SPOOL).unlink()
        notes = json.loads((folder / "notes.json").read_text())
        expanded = f"{len(np.unique(lines.rows)):,} of {len(self.plain.collection):,} documents are expanded"
        notes += [*filter(None, [report.summary()]), f"{expanded}, by {len(lines.rows):,} lines of {self.file}"]
        (folder / "notes.json").write_text(json.dumps(notes, indent=1) + "\n")


class _Lines(NamedTuple):
    """Sound lines, ordered by document, those of one document as in the file."""

    rows: np.ndarray  # (lines,) int64 document row, ascending
    places: np.ndarray  # (lines,) int64 row of the spooled table that holds the text


def existing_file(flag: str, path: str) -> Path:
    """The file that a setting names, if there is one."""
    found = Path(path).expanduser()
    if not found.is_file():
        raise UserError(f"{flag}: there is no file {found}")
    return found


def _read_lines(file: Path, collection: Collection, report: LineReport, spool: Path) -> _Lines:
    """Texts go to the table `spool`; of a line only its document row and a hash are kept in memory."""
    rows, numbers, hashes = array("q"), array("q"), array("Q")
    sound = track(read_documents(file, report), f"read {file.name}")
    schema = pa.schema([SCHEMA.field("text")])
    with pa.OSFile(str(spool), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        while batch := list(islice(sound, ROWS_PER_BATCH)):
            texts = []
            found = collection.rows([line.id for line in batch]).tolist()
            for row, line in zip(found, batch, strict=True):
                if row < 0:
                    report.add(UNKNOWN, line.line)
                    continue
                texts.append(line.text)
                rows.append(row)
                numbers.append(line.line)
                hashes.append(xxhash.xxh3_64_intdigest(f"{row}\t{line.text}".encode()))
            writer.write_batch(pa.record_batch([texts], schema=schema))
    first = np.sort(np.unique(np.frombuffer(hashes, np.uint64), return_index=True)[1])
    for place in np.setdiff1d(np.arange(len(hashes)), first):
        report.add(REPEATED, numbers[place])
    places = first[np.argsort(np.frombuffer(rows, np.int64)[first], kind="stable")]
    return _Lines(np.frombuffer(rows, np.int64)[places], places)


def _write_expanded(documents: Path, lines: _Lines, spool: Path, expanded: Path) -> None:
    """The table of documents again, each with its lines behind its text."""
    with (
        pa.memory_map(str(documents)) as source,
        pa.memory_map(str(spool)) as further,
        pa.OSFile(str(expanded), "wb") as sink,
        pa.ipc.new_stream(sink, SCHEMA) as writer,
    ):
        added = pa.ipc.open_stream(further).read_all().column("text")
        start = 0
        for batch in pa.ipc.open_stream(source):
            texts = batch.column("text").to_pylist()
            mine = slice(*np.searchsorted(lines.rows, [start, start + len(texts)]))
            for row, text in zip(lines.rows[mine], added.take(pa.array(lines.places[mine])).to_pylist(), strict=True):
                texts[row - start] += f" {text}"
            writer.write_batch(pa.record_batch([batch.column("id"), texts], schema=SCHEMA))
            start += len(texts)
