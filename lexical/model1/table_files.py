"""A translation table on disk: a folder whose files are checked when they are loaded.

    table.safetensors   offsets (vocabulary + 1, int64), document_tokens (entries, int32), probabilities (entries,
                        float32): row i = query token i, its document tokens ascending
    vocab.txt           line i = token i
    meta.json           format, sizes, SHA-256 of both files, what produced the table, parameters, versions

The hash detects damage; the checks of shapes, order and range also protect from a hostile file with the right hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from lexical.errors import UserError
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.table import TranslationTable
from lexical.small_files import read_json

FILES = TABLE, VOCABULARY, META = "table.safetensors", "vocab.txt", "meta.json"
FORMAT = 1
ARRAYS = {"offsets": "int64", "document_tokens": "int32", "probabilities": "float32"}  # of one dimension


class SavedTable(NamedTuple):
    table: TranslationTable
    vocabulary: list[str]
    meta: dict[str, Any]


class TableWriter:
    """Writes a table row by row, beside `folder`; after `finish` the context renames it into place.

    After an error or Ctrl-C nothing is left.
    """

    def __init__(self, folder: Path, vocabulary: Sequence[str]) -> None:
        if len(set(vocabulary)) != len(vocabulary):
            raise ValueError("the vocabulary has a token twice")
        if broken := next((token for token in vocabulary if "\n" in token), None):
            raise ValueError(f"the token {broken!r} contains a line feed: {VOCABULARY} cannot hold it")
        self.folder, self.vocabulary = folder, vocabulary
        self.lengths: list[int] = []
        self._opened = ExitStack()

    def __enter__(self) -> TableWriter:
        self.beside = self._opened.enter_context(_replaced(self.folder))
        names = ("document_tokens", "probabilities")
        self._parts = {name: self._opened.enter_context((self.beside / name).open("w+b")) for name in names}
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def append(self, document_tokens: np.ndarray, probabilities: np.ndarray) -> None:
        """Write the row of the next query token; document tokens ascending."""
        if len(document_tokens) != len(probabilities):
            raise ValueError(f"{len(document_tokens):,} tokens and {len(probabilities):,} probabilities")
        self.lengths.append(len(document_tokens))
        self._parts["document_tokens"].write(np.ascontiguousarray(document_tokens, np.int32).data)
        self._parts["probabilities"].write(np.ascontiguousarray(probabilities, np.float32).data)

    def finish(self, meta: dict[str, Any]) -> None:
        """Complete the table; `meta` describes what produced it."""
        if len(self.lengths) != len(self.vocabulary):
            raise ValueError(f"{len(self.lengths):,} rows for {len(self.vocabulary):,} tokens")
        self._assemble(offsets_of(np.array(self.lengths, np.int64)))
        (self.beside / VOCABULARY).write_bytes("".join(f"{token}\n" for token in self.vocabulary).encode())
        content = {
            **meta,
            "format": FORMAT,
            "rows": "query tokens; T(row | document token)",
            "vocabulary": len(self.vocabulary),
            "entries": sum(self.lengths),
            "sha256": {name: _sha256(self.beside / name) for name in (TABLE, VOCABULARY)},
            "versions": {name: version(name) for name in ("numpy", "safetensors")},
        }
        _write_meta(self.beside, content)

    def _assemble(self, offsets: np.ndarray) -> None:
        """Write the safetensors file: length of the header, header (JSON), the arrays one after the other."""
        entries, start = int(offsets[-1]), 8 * len(offsets)
        middle, end = start + 4 * entries, start + 8 * entries
        header = {
            "offsets": {"dtype": "I64", "shape": [len(offsets)], "data_offsets": [0, start]},
            "document_tokens": {"dtype": "I32", "shape": [entries], "data_offsets": [start, middle]},
            "probabilities": {"dtype": "F32", "shape": [entries], "data_offsets": [middle, end]},
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (self.beside / TABLE).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.write(np.ascontiguousarray(offsets, np.int64).data)
            for name, part in self._parts.items():
                part.seek(0)
                shutil.copyfileobj(part, file, 1 << 20)
                part.close()
                (self.beside / name).unlink()


def save_table(table: TranslationTable, vocabulary: Sequence[str], meta: dict[str, Any], folder: Path) -> None:
    """Write the table beside `folder` and rename it into place; `meta` describes what produced it."""
    if problem := _problem(*table.rows, table.probabilities, len(vocabulary)):
        raise ValueError(f"not a valid table: {problem}")
    with TableWriter(folder, vocabulary) as writer:
        for start, end in pairwise(table.rows.offsets):
            writer.append(table.rows.values[start:end], table.probabilities[start:end])
        writer.finish(meta)


def link_table(source: Path, folder: Path, **changes: Any) -> None:
    """Put the table of `source` into `folder` too, by hard links where the disk allows that; `changes` of meta.json."""
    with _replaced(folder) as beside:
        for name in (TABLE, VOCABULARY):
            try:
                os.link(source / name, beside / name)
            except OSError:  # another disk, or one without links
                shutil.copyfile(source / name, beside / name)
        _write_meta(beside, {**read_meta(source), **changes})


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    text = json.dumps(meta, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / META).write_text(text, "utf-8")


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder`, which takes its place if it has a complete table in the end."""
    folder = Path(folder).resolve()
    if folder.is_dir() and (others := {path.name for path in folder.iterdir()} - set(FILES)):
        raise UserError(f"{folder} contains {min(others)!r}: a translation table needs a folder of its own")
    beside, old = (folder.with_name(f".{folder.name}.{os.getpid()}{suffix}") for suffix in ("", ".old"))
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        if (beside / META).is_file():
            if folder.is_dir():
                folder.rename(old)
            beside.rename(folder)
    finally:
        if old.is_dir() and not folder.exists():
            old.rename(folder)
        for path in (beside, old):
            shutil.rmtree(path, ignore_errors=True)


def load_table(folder: Path) -> SavedTable:
    """Load and check the table of `folder`; a `UserError` describes any damage."""
    folder = Path(folder)
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(f"{folder} is not a translation table: it has no {name}")
    meta = read_meta(folder)
    for name in (TABLE, VOCABULARY):
        if _sha256(folder / name) != meta["sha256"].get(name):
            raise UserError(f"{folder / name} is damaged: its SHA-256 is not the one in {META}")
    try:
        vocabulary = (folder / VOCABULARY).read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{folder / VOCABULARY} is not UTF-8 text ({error.reason})") from error
    if vocabulary.pop() != "":
        raise UserError(f"{folder / VOCABULARY} is truncated: its last line has no line feed")
    if len(set(vocabulary)) != len(vocabulary):
        raise UserError(f"{folder / VOCABULARY} has a token twice")
    table = _read_arrays(folder / TABLE, len(vocabulary))
    for key, size in (("vocabulary", len(vocabulary)), ("entries", table.entries)):
        if meta.get(key) != size:
            raise UserError(f"{folder}: {META} has {key} {reprlib.repr(meta.get(key))}, the files have {size:,}")
    return SavedTable(table, vocabulary, meta)


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the description of a table; a `UserError` if it is not one that this version reads."""
    meta = read_json(folder / META, "copy or make the table again")
    if not isinstance(meta, dict) or not isinstance(meta.get("sha256"), dict):
        raise UserError(f"{folder / META} is not the description of a translation table")
    if meta.get("format") != FORMAT:
        raise UserError(f"{folder}: table format {reprlib.repr(meta.get('format'))}; this version reads {FORMAT}")
    return meta


def scored_with(meta: dict[str, Any]) -> dict[str, float]:
    """Return the recorded lambda and floor that a table is best scored with: arguments of `model1_scores`."""
    recorded = meta.get("scored_with", {})
    least = {"smoothing": 1e-6, "floor": 1e-30}
    if not isinstance(recorded, dict) or not all(
        (name, value) == ("smoothing", 0)
        or (name in least and isinstance(value, float | int) and least[name] <= value <= 1)
        for name, value in recorded.items()
    ):
        raise UserError(f"{META} has scored_with {reprlib.repr(recorded)}: it must be a lambda and a floor, at most 1")
    return dict(recorded)


def _read_arrays(path: Path, vocabulary_size: int) -> TranslationTable:
    try:
        arrays = load_file(path)
    except (SafetensorError, OSError, MemoryError, OverflowError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read ({str(error)[:200]!r})") from error
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    if dtypes != ARRAYS or any(array.ndim != 1 for array in arrays.values()):
        kinds = {name: f"{array.dtype} {array.shape}" for name, array in arrays.items()}
        raise UserError(f"{path} has the arrays {reprlib.repr(kinds)}, not those of a table")
    offsets, tokens, probabilities = (arrays[name] for name in ARRAYS)
    if problem := _problem(offsets, tokens, probabilities, vocabulary_size):
        raise UserError(f"{path} is not a valid table: {problem}")
    return TranslationTable(Ragged(offsets, tokens), probabilities)


def _problem(offsets: np.ndarray, tokens: np.ndarray, probabilities: np.ndarray, vocabulary_size: int) -> str | None:
    """Return why the arrays are not a table, or None."""
    if len(offsets) != vocabulary_size + 1:
        return f"{len(offsets) - 1:,} rows for {vocabulary_size:,} tokens"
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any() or offsets[-1] != len(tokens):
        return "the offsets of its rows are out of order"
    if len(tokens) != len(probabilities):
        return f"{len(tokens):,} tokens and {len(probabilities):,} probabilities"
    if tokens.min(initial=0) < 0 or tokens.max(initial=-1) >= vocabulary_size:
        return "it has token ids outside of its vocabulary"
    descends, bounds = tokens[1:] <= tokens[:-1], offsets[1:-1]
    descends[bounds[(bounds > 0) & (bounds < len(tokens))] - 1] = False  # a new row may start with any token
    if descends.any():
        return "the tokens of a row are not ascending"
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        return "it has probabilities that are not between 0 and 1"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
