"""TREC runs: ``qid Q0 docid rank score tag``, sorted by the project's tie rule, scores with all digits of a float32.

A large run is gzipped, NAME.run.gz instead of NAME.run. Readers take the name NAME.run for both.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

from lexical.errors import UserError
from lexical.index.ragged import offsets_of

LARGEST = float(np.finfo(np.float32).max) * (1 + 2.0**-26)  # smaller values are finite as float32
GZIPPED_FROM = 100_000  # lines, about 4 MB; the file of a run that has as many is gzipped
GZIP_LEVEL = 3  # of 2.6 million lines, 127 MB: 29 MB in a second; level 6 makes 28 MB in three


class Run(NamedTuple):
    """A ranking of several queries, best first inside each query."""

    query_ids: Sequence[str]  # (queries,)
    offsets: np.ndarray  # (queries + 1,) int64
    document_ids: pa.Array  # (pairs,) strings
    scores: np.ndarray  # (pairs,) float32

    def head(self, depth: int) -> Run:
        """Return the best `depth` documents of each query."""
        lengths = np.diff(self.offsets)
        kept = np.arange(len(self.scores)) - np.repeat(self.offsets[:-1], lengths) < depth
        offsets = offsets_of(np.minimum(lengths, depth))
        return Run(self.query_ids, offsets, self.document_ids.filter(pa.array(kept)), self.scores[kept])


def write_run(run: Run, path: Path, tag: str) -> None:
    """Write the run to `path`, or gzipped to `path`.gz if it is large; the other form of an earlier run is removed."""
    zero, tags = (pa.repeat(text, len(run.scores)) for text in ("Q0", tag))
    queries, documents, ranks = _ranked(run)
    columns = [queries, zero, documents, ranks, pa.array(run.scores.astype(np.float32)), tags]
    forms = path, _gzipped(path)
    large = len(run.scores) >= GZIPPED_FROM
    _write(columns, forms[large], " ")
    forms[not large].unlink(missing_ok=True)


def write_leaderboard(run: Run, path: Path) -> None:
    """Write the run in the form of the MS MARCO leaderboards, ``qid \\t docid \\t rank``."""
    _write(_ranked(run), path, "\t")


def run_file(path: Path) -> Path:
    """Return the file of the run that was written to `path`: that one, or the gzipped `path`.gz."""
    return path if path.is_file() or not _gzipped(path).is_file() else _gzipped(path)


def _gzipped(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def _ranked(run: Run) -> list[pa.Array]:
    """Return query id, document id and rank of each line."""
    lengths = np.diff(run.offsets)
    queries = pa.array(run.query_ids, pa.string()).take(pa.array(np.repeat(np.arange(len(lengths)), lengths)))
    ranks = np.arange(len(run.scores)) - np.repeat(run.offsets[:-1], lengths) + 1
    return [queries, run.document_ids, pa.array(ranks)]


def _write(columns: Sequence[pa.Array], path: Path, delimiter: str) -> None:
    """Write the columns beside `path` and rename the file into place."""
    beside = path.with_name(f".{path.name}.writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(list(columns), names=[str(i) for i in range(len(columns))])
    options = csv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none")
    try:
        with _open(beside, path.suffix == ".gz") as file:
            csv.write_csv(table, file, options)
    except pa.ArrowInvalid:  # an id with a quotation mark, which Arrow would only write in quotes
        with _open(beside, path.suffix == ".gz") as file:
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                values = (str(np.float32(value)) if isinstance(value, float) else str(value) for value in row)
                file.write(f"{delimiter.join(values)}\n".encode())
    beside.replace(path)


@contextmanager
def _open(path: Path, gzipped: bool) -> Iterator[IO[bytes]]:
    """Open a file to write; a gzipped one has neither time nor name in its header, so equal runs are equal bytes."""
    with path.open("wb") as file:
        if not gzipped:
            yield file
            return
        with gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as compressed:
            yield compressed  # type: ignore[misc]  # a binary file in all but name


def read_run(path: Path, queries: Container[str] | None = None) -> dict[str, tuple[list[str], np.ndarray]]:
    """Return query id -> (document ids, float64 scores), in the order of the file; of `queries` only, if given.

    Of a large run `path` may be the name without .gz.
    """
    path = run_file(path)
    ranked: dict[str, tuple[list[str], list[float]]] = {}
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = f"{path}, line {number:,}"
                try:
                    columns = raw.decode("utf-8-sig" if number == 1 else "utf-8").split()
                except UnicodeDecodeError as error:
                    raise UserError(f"{line}: not UTF-8 ({error.reason})") from error
                if len(columns) != 6:
                    raise UserError(f"{line}: {len(columns)} columns instead of six (qid Q0 docid rank score tag)")
                try:
                    score = float(columns[4])
                except ValueError:
                    score = float("nan")
                if not abs(score) <= LARGEST:  # true for NaN too
                    raise UserError(f"{line}: the score {columns[4]!r} is not a finite number")
                if queries is None or columns[0] in queries:
                    documents, scores = ranked.setdefault(columns[0], ([], []))
                    documents.append(columns[2])
                    scores.append(score)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return {query: (documents, np.array(scores)) for query, (documents, scores) in ranked.items()}
