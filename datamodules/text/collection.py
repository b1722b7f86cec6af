"""The collection as an Arrow table (id, text) that is read memory-mapped, with a look-up from document id to row.

Written in one stream, whatever the size: only one 64-bit hash per id is kept in memory, to find duplicates and rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from datamodules.text.lines import DUPLICATE, LineReport, TextLine
from lexical.errors import UserError
from lexical.index.array_file import map_array

SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])
ROWS_PER_BATCH = 4096
TABLE = "documents.arrow"


class Collection:
    """Documents by row number; nothing is loaded before it is used."""

    def __init__(self, folder: Path) -> None:
        self._table = open_table(folder / TABLE)
        self.id_order = map_array(folder / "id_order.npy")
        self._hashes = map_array(folder / "id_hashes.npy")
        self._rows = map_array(folder / "id_rows.npy")

    def __len__(self) -> int:
        return len(self.id_order)

    def text(self, row: int) -> str:
        return self._table["text"][int(row)].as_py()

    def ids(self, rows: np.ndarray) -> pa.Array:
        """Return the ids of document rows as an Arrow string array."""
        return self._table["id"].take(pa.array(np.asarray(rows))).combine_chunks()

    def rows(self, ids: list[str]) -> np.ndarray:
        """Return (ids,) the row of each document id, -1 for an unknown id."""
        if not ids:
            return np.zeros(0, np.int64)
        unique, inverse = np.unique(np.array(ids, dtype=object), return_inverse=True)
        hashes = np.array([_hash(document_id) for document_id in unique], np.uint64)
        slots = np.searchsorted(self._hashes, hashes)
        rows = np.full(len(hashes), -1, np.int64)
        pending = np.arange(len(hashes))
        while len(pending):  # one round, unless ids have equal hashes
            pending = pending[slots[pending] < len(self._hashes)]
            pending = pending[self._hashes[slots[pending]] == hashes[pending]]
            candidates = self._rows[slots[pending]]
            same = np.array(self.ids(candidates).to_pylist(), dtype=object) == unique[pending]
            rows[pending[same]] = candidates[same]
            pending = pending[~same]
            slots[pending] += 1
        return rows[inverse]


def open_table(path: Path) -> pa.Table:
    """Return an Arrow table, memory-mapped."""
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


def read_texts(table: Path, start: int, end: int) -> list[str]:
    """Read the texts of some rows; the file is mapped only meanwhile, so its pages do not pile up in a worker."""
    return open_table(table)["text"].slice(start, end - start).to_pylist()


def write_collection(documents: Iterable[TextLine], report: LineReport, folder: Path) -> Collection:
    """Write `documents` to `folder`; of several documents with the same id the first is kept, the others are counted in
    `report`."""
    folder.mkdir(parents=True, exist_ok=True)
    id_hashes, line_numbers = array("Q"), array("q")
    path = folder / TABLE
    remaining = iter(documents)
    with pa.ipc.new_stream(str(path), SCHEMA) as writer:
        while batch := list(islice(remaining, ROWS_PER_BATCH)):
            ids = [document.id for document in batch]
            id_hashes.extend(map(_hash, ids))
            line_numbers.extend(document.line for document in batch)
            writer.write_batch(pa.record_batch([ids, [document.text for document in batch]], schema=SCHEMA))
    if not id_hashes:
        raise UserError(f"{report.file} has no sound document line. {report.summary() or ''}")
    hashes = np.frombuffer(id_hashes, np.uint64)
    hashes = hashes[_drop_duplicates(path, hashes, np.frombuffer(line_numbers, np.int64), report)]
    report.refuse_if_mostly_broken()
    order = np.argsort(hashes, kind="stable")
    np.save(folder / "id_hashes.npy", hashes[order])
    np.save(folder / "id_rows.npy", order.astype(np.int64))
    np.save(folder / "id_order.npy", _id_order(path))
    return Collection(folder)


def _drop_duplicates(path: Path, hashes: np.ndarray, lines: np.ndarray, report: LineReport) -> np.ndarray:
    """Rewrite the table without later rows of an id, if there are any; return (rows,) bool, the kept rows."""
    keep = np.ones(len(hashes), bool)
    order = np.argsort(hashes, kind="stable")
    equal = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if len(equal) == 0:
        return keep
    suspects = np.unique(np.concatenate([order[equal], order[equal + 1]]))
    table, seen = open_table(path), set()
    for row, document_id in zip(suspects, table["id"].take(pa.array(suspects)).to_pylist(), strict=True):
        if document_id in seen:
            keep[row] = False
            report.add(DUPLICATE, int(lines[row]))
        seen.add(document_id)
    rewritten = path.with_suffix(".unique")
    with pa.ipc.new_stream(str(rewritten), SCHEMA) as writer:
        start = 0
        for batch in table.to_batches():
            writer.write_batch(batch.filter(pa.array(keep[start : start + len(batch)])))
            start += len(batch)
    rewritten.replace(path)
    return keep


def _id_order(path: Path) -> np.ndarray:
    """Return (rows,) int32 rank of each row's id among the sorted ids (by bytes: the same on every machine)."""
    order = pc.sort_indices(open_table(path)["id"]).to_numpy()
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())
