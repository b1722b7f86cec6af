"""TREC runs: ``qid Q0 docid rank score tag``, sorted by the project's tie rule, scores with all digits of a float32."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

from lexical.errors import UserError

LARGEST = float(np.finfo(np.float32).max) * (1 + 2.0**-26)  # smaller values are finite as float32


class Run(NamedTuple):
    """A ranking of several queries, best first inside each query."""

    query_ids: Sequence[str]  # (queries,)
    offsets: np.ndarray  # (queries + 1,) int64
    document_ids: pa.Array  # (pairs,) strings
    scores: np.ndarray  # (pairs,) float32


def write_run(run: Run, path: Path, tag: str, leaderboard: bool = False) -> None:
    """Write the run beside `path` and rename it into place; `leaderboard`: as ``qid \\t docid \\t rank`` instead."""
    beside = path.with_name(f".{path.name}.writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = np.diff(run.offsets)
    queries = pa.array(run.query_ids, pa.string()).take(pa.array(np.repeat(np.arange(len(lengths)), lengths)))
    ranks = pa.array(np.arange(len(run.scores)) - np.repeat(run.offsets[:-1], lengths) + 1)
    columns = [queries, run.document_ids, ranks]
    if not leaderboard:
        zero, tags = (pa.repeat(text, len(ranks)) for text in ("Q0", tag))
        columns = [queries, zero, run.document_ids, ranks, pa.array(run.scores.astype(np.float32)), tags]
    table = pa.table(columns, names=[str(i) for i in range(len(columns))])
    options = csv.WriteOptions(include_header=False, delimiter="\t" if leaderboard else " ", quoting_style="none")
    try:
        with beside.open("wb") as file:
            csv.write_csv(table, file, options)
    except pa.ArrowInvalid:  # an id with a quotation mark, which Arrow would only write in quotes
        with beside.open("w", encoding="utf-8") as file:
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                values = (str(np.float32(value)) if isinstance(value, float) else str(value) for value in row)
                file.write(options.delimiter.join(values) + "\n")
    beside.replace(path)


def read_run(path: Path, queries: Container[str] | None = None) -> dict[str, tuple[list[str], np.ndarray]]:
    """Return query id -> (document ids, float64 scores), in the order of the file; of `queries` only, if given."""
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
