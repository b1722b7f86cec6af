"""Documents expanded with further text, such as queries that a model has predicted for them (doc2query).

The expansion is a file of lines ``document id \\t text``, possibly several for one document. Its text is appended to
the document's own, and everything lexical is computed from both: the index and its candidates, the fields that rankers
score, the bitext of EM. BERT rankers and the pretraining of their encoder read documents without it. A dense first
stage reads the first pieces of both.

Expanded texts have a fingerprint of their own, so nothing that was prepared, trained or measured without the expansion
is mistaken for them. Results go to the same folder as those without: give another --output_dir to keep both.
"""

from __future__ import annotations

import json
import shutil
from array import array
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from datamodules.cached_step import MANIFEST, code_version
from datamodules.text.collection import ROWS_PER_BATCH, SCHEMA, TABLE, Collection, open_table
from datamodules.text.lines import LineReport, read_documents
from lexical.index.ragged import Ragged, offsets_of
from lexical.terminal import track

if TYPE_CHECKING:
    from datamodules.preparation import Preparation

UNKNOWN = "of documents that are not in the collection"
REPEATED = "that repeat an earlier line"
SPOOL = "expansion.arrow"


class ExpandedTexts:
    """The texts of `unexpanded`, each with its lines of `file` appended; the query sets are the same."""

    def __init__(self, unexpanded: Preparation, file: Path) -> None:
        self.unexpanded, self.file = unexpanded, file

    def identity(self) -> Any:
        state = self.file.stat()
        return {
            "texts": self.unexpanded.source.identity(),
            "expansion": [str(self.file.resolve()), state.st_size, state.st_mtime_ns],
            "code": code_version(["datamodules.text.expansion"]),
        }

    def write(self, folder: Path) -> None:
        texts, collection = self.unexpanded.texts, self.unexpanded.collection
        unchanged = shutil.ignore_patterns(TABLE, MANIFEST)  # rows, ids and query sets are copied
        shutil.copytree(texts, folder, dirs_exist_ok=True, ignore=unchanged)
        report = LineReport(self.file.name)
        additions = _spool_lines(self.file, collection, report, folder / SPOOL)
        report.refuse_if_mostly_broken()
        tables = [path / "collection" / TABLE for path in (texts, folder)]
        _write_expanded(tables[0], folder / SPOOL, additions, tables[1])
        (folder / SPOOL).unlink()
        notes = json.loads((folder / "notes.json").read_text())
        expanded = f"{np.count_nonzero(additions.lengths()):,} of {len(collection):,} documents are expanded"
        notes += [*filter(None, [report.summary()]), f"{expanded}, by {len(additions.values):,} lines of {self.file}"]
        (folder / "notes.json").write_text(json.dumps(notes, indent=1) + "\n")


def _spool_lines(file: Path, collection: Collection, report: LineReport, spool: Path) -> Ragged:
    """Write the texts of sound lines to the table `spool`; only numbers and a hash of each line are kept in memory.

    Returns, for each document, its rows of `spool`: in the order of the file, without repetitions.
    """
    rows, numbers, hashes = array("q"), array("q"), array("Q")
    lines = track(read_documents(file, report), f"read {file.name}")
    schema = pa.schema([SCHEMA.field("text")])
    with pa.ipc.new_file(str(spool), schema) as writer:
        while batch := list(islice(lines, ROWS_PER_BATCH)):
            texts = []
            for row, line in zip(collection.rows([line.id for line in batch]).tolist(), batch, strict=True):
                if row < 0:
                    report.add(UNKNOWN, line.line)
                    continue
                texts.append(line.text)
                rows.append(row)
                numbers.append(line.line)
                hashes.append(xxhash.xxh3_64_intdigest(f"{row}\t{line.text}".encode()))
            writer.write_batch(pa.record_batch([texts], schema=schema))
    first = np.sort(np.unique(np.frombuffer(hashes, np.uint64), return_index=True)[1])
    for repeated in np.setdiff1d(np.arange(len(hashes)), first):
        report.add(REPEATED, numbers[repeated])
    documents = np.frombuffer(rows, np.int64)[first]
    offsets = offsets_of(np.bincount(documents, minlength=len(collection)))
    return Ragged(offsets, first[np.argsort(documents, kind="stable")])


def _write_expanded(table: Path, spool: Path, additions: Ragged, expanded: Path) -> None:
    """Copy the table of documents with the `additions` of each document appended to its text."""
    lines, start = open_table(spool)["text"], 0
    with pa.ipc.new_file(str(expanded), SCHEMA) as writer:
        for batch in open_table(table).to_batches():
            texts = batch.column("text").to_pylist()
            of_batch = additions.rows_between(start, start + len(texts))
            added = lines.take(pa.array(of_batch.values)).to_pylist()
            for row, text in zip(of_batch.row_numbers(), added, strict=True):
                texts[row] += f" {text}"
            writer.write_batch(pa.record_batch([batch.column("id"), texts], schema=SCHEMA))
            start += len(texts)
