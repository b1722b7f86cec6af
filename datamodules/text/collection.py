"""The collection as an Arrow table (id, text) that is read memory-mapped, with a look-up from document id to row.

Written in one pass, whatever the size: only one 64-bit hash per id is kept in memory, to find duplicates and rows.
Opening a few rows costs the same in a collection of any size: all batches of the table but the last have
`ROWS_PER_BATCH` rows, and the ids are in a table of their own, in one piece.
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
TABLE, IDS = "documents.arrow", "ids.arrow"


class Collection:
    """Documents by row number; nothing is loaded before it is used."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TABLE
        self._table, self._ids = open_table(self.path), open_table(folder / IDS)["id"]
        self.id_order = map_array(folder / "id_order.npy")  # (rows,) int32 rank of a row's id among the sorted ids
        self._hashes = map_array(folder / "id_hashes.npy")
        self._rows = map_array(folder / "id_rows.npy")

    def __len__(self) -> int:
        return len(self.id_order)

    def text(self, row: int) -> str:
        return self._table["text"][int(row)].as_py()

    def ids(self, rows: np.ndarray) -> pa.Array:
        """Return the ids of document rows as an Arrow string array."""
        return self._ids.take(pa.array(np.asarray(rows))).combine_chunks()

    def rows(self, ids: list[str]) -> np.ndarray:
        """Return (ids,) the row of each document id, -1 for an unknown id."""
        slots = np.searchsorted(self._hashes, np.array([*map(_hash, ids)], np.uint64))
        rows = self._rows[np.minimum(slots, len(self) - 1)]
        same = pc.equal(self.ids(rows), pa.array(ids, pa.string()))
        return np.where(same.to_numpy(zero_copy_only=False), rows, -1)


def open_table(path: Path) -> pa.Table:
    """Return an Arrow table, memory-mapped."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def read_texts(table: Path, start: int, end: int) -> list[str]:
    """Read the texts of some rows; the file is mapped only meanwhile, so its pages do not pile up in a worker."""
    reader = pa.ipc.open_file(pa.memory_map(str(table)))
    first, last = start // ROWS_PER_BATCH, min(-(-end // ROWS_PER_BATCH), reader.num_record_batches)
    batches = pa.Table.from_batches([reader.get_batch(i) for i in range(first, last)], SCHEMA)
    return batches["text"].slice(start - first * ROWS_PER_BATCH, end - start).to_pylist()


def write_collection(documents: Iterable[TextLine], report: LineReport, folder: Path) -> Collection:
    """Write `documents` to `folder`; of several documents with the same id the first is kept, the others are counted in
    `report`."""
    folder.mkdir(parents=True, exist_ok=True)
    id_hashes, line_numbers = array("Q"), array("q")
    path = folder / TABLE
    remaining = iter(documents)
    with pa.ipc.new_file(str(path), SCHEMA) as writer:
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
    ids = open_table(path).select(["id"]).combine_chunks()
    with pa.ipc.new_file(str(folder / IDS), ids.schema) as writer:
        writer.write_table(ids)
    ranks = pc.rank(ids["id"]).to_numpy()  # by bytes: the same on every machine
    np.save(folder / "id_order.npy", (ranks - 1).astype(np.int32))
    return Collection(folder)


def _drop_duplicates(path: Path, hashes: np.ndarray, lines: np.ndarray, report: LineReport) -> np.ndarray:
    """Rewrite the table without later rows of an id, if there are any; return (rows,) bool, the kept rows."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    keep = np.zeros(len(hashes), bool)
    keep[first] = True
    if keep.all():
        return keep
    table, repeated = open_table(path), np.flatnonzero(~keep)
    ids, first_ids = (table["id"].take(pa.array(rows)) for rows in (repeated, first[inverse[repeated]]))
    for row, same in zip(repeated, pc.equal(ids, first_ids).to_pylist(), strict=True):
        if not same:  # among 10 million documents with a probability of 3 in a million
            raise UserError(f"{report.file}, line {lines[row]:,}: the id has the hash of another one: change it")
        report.add(DUPLICATE, int(lines[row]))
    rewritten = path.with_suffix(".unique")
    with pa.ipc.new_file(str(rewritten), SCHEMA) as writer:
        start, kept = 0, SCHEMA.empty_table()
        for batch in table.to_batches():
            mask = pa.array(keep[start : start + len(batch)])
            kept = pa.concat_tables([kept, pa.Table.from_batches([batch.filter(mask)])])
            start += len(batch)
            while len(kept) >= ROWS_PER_BATCH or (start == len(table) and len(kept)):
                writer.write_table(kept.slice(0, ROWS_PER_BATCH).combine_chunks())
                kept = kept.slice(ROWS_PER_BATCH)
    rewritten.replace(path)
    return keep


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())
