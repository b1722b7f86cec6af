"""A translation table on disk: a folder that is checked before it is trusted.

    table.safetensors   offsets (vocabulary + 1, int64), document_tokens (entries, int32), probabilities (entries,
                        float32): row i = query token i, its document tokens ascending
    vocab.txt           line i = token i
    meta.json           format, sizes, SHA-256 of both files, what made the table, parameters, versions

The hash finds damage; the checks of shapes, order and range hold for a hostile file too, whose hash may well be right.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lexical.ragged import Ragged
from lexical.translation_table import TranslationTable
from user_error import UserError

TABLE, VOCABULARY, META = "table.safetensors", "vocab.txt", "meta.json"
FORMAT = 1
_TYPES = {"offsets": "I64", "document_tokens": "I32", "probabilities": "F32"}


class SavedTable(NamedTuple):
    table: TranslationTable
    vocabulary: list[str]
    meta: dict[str, Any]


def save_table(table: TranslationTable, vocabulary: Sequence[str], meta: dict[str, Any], folder: Path) -> None:
    """Writes the table beside `folder` and renames it into place; `meta` says what made it and how."""
    if len(set(vocabulary)) != len(vocabulary):
        raise ValueError("the vocabulary has a token twice")
    if broken := next((token for token in vocabulary if "\n" in token), None):
        raise ValueError(f"the token {broken!r} has a line feed and cannot stand in {VOCABULARY}")
    if problem := _problem(*table.rows, table.probabilities, len(vocabulary)):
        raise ValueError(f"this is no valid table: {problem}")
    folder = Path(folder).resolve()
    if folder.is_dir() and (others := {path.name for path in folder.iterdir()} - {TABLE, VOCABULARY, META}):
        raise UserError(f"{folder} has {min(others)!r} in it: a translation table wants a folder of its own")
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    old = beside.with_name(f"{beside.name}.old")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        arrays: dict[str, np.ndarray] = {
            "offsets": np.ascontiguousarray(table.rows.offsets, np.int64),
            "document_tokens": np.ascontiguousarray(table.rows.values, np.int32),
            "probabilities": np.ascontiguousarray(table.probabilities, np.float32),
        }
        (beside / TABLE).write_bytes(save(arrays))  # `save_file` hides a full disk and lets nobody else read
        (beside / VOCABULARY).write_bytes("".join(f"{token}\n" for token in vocabulary).encode())
        content = {
            **meta,
            "format": FORMAT,
            "rows": "query tokens; T(row | document token)",
            "vocabulary": table.vocabulary_size,
            "entries": table.entries,
            "sha256": {name: _sha256(beside / name) for name in (TABLE, VOCABULARY)},
            "versions": {name: version(name) for name in ("numpy", "safetensors")},
        }
        (beside / META).write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
        if folder.is_dir():
            folder.rename(old)
        beside.rename(folder)
    except BaseException:
        if old.is_dir() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def load_table(folder: Path) -> SavedTable:
    """The table of `folder`, every check passed; a `UserError` of one line otherwise."""
    folder = Path(folder)
    for name in (TABLE, VOCABULARY, META):
        if not (folder / name).is_file():
            raise UserError(f"{folder} is no translation table: it has no {name}")
    meta = _read_meta(folder)
    for name in (TABLE, VOCABULARY):
        if _sha256(folder / name) != meta["sha256"].get(name):
            raise UserError(f"{folder / name} is damaged: its SHA-256 is not the one in {META}")
    try:
        vocabulary = (folder / VOCABULARY).read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{folder / VOCABULARY} is no UTF-8 text ({error.reason})") from error
    if vocabulary.pop() != "":
        raise UserError(f"{folder / VOCABULARY} is cut short: its last line has no end")
    if len(set(vocabulary)) != len(vocabulary):
        raise UserError(f"{folder / VOCABULARY} has a token twice")
    table = _read_arrays(folder / TABLE, len(vocabulary))
    for key, found in (("vocabulary", len(vocabulary)), ("entries", table.entries)):
        if meta.get(key) != found:
            raise UserError(f"{folder}: {META} says {key} {reprlib.repr(meta.get(key))}, the files have {found:,}")
    return SavedTable(table, vocabulary, meta)


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        meta = json.loads((folder / META).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder / META} cannot be read ({error})") from error
    if not isinstance(meta, dict) or not isinstance(meta.get("sha256"), dict):
        raise UserError(f"{folder / META} is not the description of a translation table")
    if meta.get("format") != FORMAT:
        raise UserError(
            f"{folder}: table format {reprlib.repr(meta.get('format'))} is unknown, this version reads {FORMAT}"
        )
    return meta


def _read_arrays(path: Path, vocabulary_size: int) -> TranslationTable:
    try:
        with safe_open(path, framework="numpy") as file:
            if set(file.keys()) != set(_TYPES):
                raise UserError(
                    f"{path} has the arrays {reprlib.repr(sorted(file.keys()))} instead of {sorted(_TYPES)}"
                )
            for name, kind in _TYPES.items():
                found = file.get_slice(name)
                dtype, shape = found.get_dtype(), found.get_shape()
                if dtype != kind or len(shape) != 1:
                    raise UserError(f"{path}: {name} is {dtype} {reprlib.repr(shape)}, not {kind} of one dimension")
            offsets, tokens, probabilities = (file.get_tensor(name) for name in _TYPES)
    except (SafetensorError, OSError, MemoryError, OverflowError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({str(error)[:200]!r})") from error
    if problem := _problem(offsets, tokens, probabilities, vocabulary_size):
        raise UserError(f"{path} is no valid table: {problem}")
    return TranslationTable(Ragged(offsets, tokens), probabilities)


def _problem(offsets: np.ndarray, tokens: np.ndarray, probabilities: np.ndarray, vocabulary_size: int) -> str | None:
    if len(offsets) != vocabulary_size + 1:
        return f"{len(offsets) - 1:,} rows for {vocabulary_size:,} tokens"
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any() or offsets[-1] != len(tokens):
        return "the offsets of its rows are out of order"
    if len(tokens) != len(probabilities):
        return f"{len(tokens):,} tokens and {len(probabilities):,} probabilities"
    if not len(tokens):
        return None
    if tokens.min() < 0 or tokens.max() >= vocabulary_size:
        return "it has token ids outside of its vocabulary"
    descends = tokens[1:] <= tokens[:-1]
    descends[offsets[1:-1][(offsets[1:-1] > 0) & (offsets[1:-1] < len(tokens))] - 1] = False  # a new row may start low
    if descends.any():
        return "the tokens of a row are not ascending"
    if not np.isfinite(probabilities).all() or probabilities.min() < 0 or probabilities.max() > 1:
        return "it has probabilities that are not between 0 and 1"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
