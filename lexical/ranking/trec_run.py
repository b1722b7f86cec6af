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

LARGEST = float(np.finfo(np.float32).max) * (1 + 2.0**-26)  # what lies below is still finite as a float32


class Run(NamedTuple):
    """A ranking of several queries, best first inside each query."""

    query_ids: Sequence[str]  # (queries,)
    offsets: np.ndarray  # (queries + 1,) int64
    document_ids: pa.Array  # (pairs,) strings
    scores: np.ndarray  # (pairs,) float32


def write_run(run: Run, path: Path, tag: str, leaderboard: bool = False) -> None:
    """Writes beside and renames into place; `leaderboard`: ``qid \\t docid \\t rank`` instead."""
    beside = path.with_name(f".{path.name}.writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = np.diff(run.offsets)
    query_column = pa.array(run.query_ids, pa.string()).take(pa.array(np.repeat(np.arange(len(lengths)), lengths)))
    ranks = np.arange(len(run.scores)) - np.repeat(run.offsets[:-1], lengths) + 1
    columns = [query_column, run.document_ids, pa.array(ranks)]
    if not leaderboard:
        constant = [pa.repeat(text, len(ranks)) for text in ("Q0", tag)]
        columns = [
            query_column,
            constant[0],
            run.document_ids,
            pa.array(ranks),
            pa.array(run.scores.astype(np.float32)),
            constant[1],
        ]
    table = pa.table(columns, names=[str(i) for i in range(len(columns))])
    options = csv.WriteOptions(include_header=False, delimiter="\t" if leaderboard else " ", quoting_style="none")
    try:
        with beside.open("wb") as file:
            csv.write_csv(table, file, options)
    except pa.ArrowInvalid:  # an id with a quotation mark: Arrow would quote it, TREC tools would not understand that
        with beside.open("w", encoding="utf-8") as file:
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                file.write(options.delimiter.join(map(_plain, row)) + "\n")
    beside.replace(path)


def _plain(value: object) -> str:
    return str(np.float32(value)) if isinstance(value, float) else str(value)


def read_run(path: Path, wanted: Container[str] | None = None) -> dict[str, tuple[list[str], np.ndarray]]:
    """query id -> (document ids, float64 scores), in the order of the file; one clear line for a broken file."""
    found: dict[str, tuple[list[str], list[float]]] = {}
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    parts = raw.decode("utf-8-sig" if number == 1 else "utf-8").split()
                except UnicodeDecodeError as error:
                    raise UserError(f"{path}, line {number:,}: not UTF-8 ({error.reason})") from error
                if len(parts) != 6:
                    raise UserError(
                        f"{path}, line {number:,}: a TREC run has six columns (qid Q0 docid rank score tag), "
                        f"here are {len(parts)}"
                    )
                try:
                    score = float(parts[4])
                except ValueError:
                    score = float("nan")
                if not abs(score) <= LARGEST:  # also where it is nan
                    raise UserError(f"{path}, line {number:,}: the score {parts[4]!r} is no finite number")
                if wanted is not None and parts[0] not in wanted:
                    continue
                documents, scores = found.setdefault(parts[0], ([], []))
                documents.append(parts[2])
                scores.append(score)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return {query: (documents, np.array(scores)) for query, (documents, scores) in found.items()}
