"""Translation tables in the text form of GIZA++ and MGIZA: import and export.

    source.vcb   `id token count`: the document tokens, ids from 2 (0 is the NULL word, 1 stands for unknown words)
    target.vcb   `id token count`: the query tokens
    table.t      `source_id target_id probability`: P(target | source), here T(query token | document token)

GIZA itself names the t-table NAME.t3.final. Files that end in .gz are unpacked.

    python -m lexical.giza import T_TABLE SOURCE_VCB TARGET_VCB TABLE_FOLDER [--threshold 0.001] [--p_self 0.1]
    python -m lexical.giza import T_TABLE SOURCE_VCB TARGET_VCB TABLE_FOLDER --as_it_is
    python -m lexical.giza export TABLE_FOLDER OUT_FOLDER       # writes the three files above, every count 1

An import prunes, sets T(t|t) = p_self and rescales the others to 1 - p_self; --as_it_is changes no probability.
"""

from __future__ import annotations

import argparse
import codecs
import gzip
import os
import re
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from lexical.errors import ArgumentParser, UserError, run_script
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.table import (
    Translations,
    TranslationTable,
    by_document_token,
    others_rescaled,
    with_self_translation,
)
from lexical.model1.table_files import load_table, save_table
from lexical.small_files import write_text
from lexical.terminal import say

SOURCE, TARGET, TABLE = "source.vcb", "target.vcb", "table.t"
FIRST_WORD = 2  # smaller ids are not words; token number = id - FIRST_WORD for the ids of an export
UNKNOWN_ID = -FIRST_WORD - 1


def read_giza(table_path: Path, source_vcb: Path, target_vcb: Path) -> tuple[Translations, list[str]]:
    """Return the t-table by document token, and its vocabulary: the source's words, then those of the target alone.

    Entries of the ids 0 and 1, which are not words, are dropped; a `UserError` names the file and line of a mistake.
    """
    numbers: dict[str, int] = {}
    source_numbers = _read_vocabulary(source_vcb, numbers, not_words=(0, 1))
    target_numbers = _read_vocabulary(target_vcb, numbers, not_words=(1,))
    source_ids, target_ids, probabilities = _read_entries(table_path)
    source, target = _look_up(source_ids, source_numbers), _look_up(target_ids, target_numbers)
    for name, values, valid, expected in (
        ("source id", source_ids, source != UNKNOWN_ID, f"in {source_vcb}"),
        ("target id", target_ids, target != UNKNOWN_ID, f"in {target_vcb}"),
        ("probability", probabilities, (probabilities >= 0) & (probabilities <= 1), "between 0 and 1"),
    ):
        if not valid.all():
            line = int(valid.argmin())
            raise UserError(f"{table_path}, line {line + 1:,}: the {name} {values[line]} is not {expected}")
    order = np.lexsort((target, source))
    repeated = (np.diff(source[order]) == 0) & (np.diff(target[order]) == 0)
    if repeated.any():
        line = order[1:][repeated].min() + 1
        raise UserError(f"{table_path}, line {line:,}: this pair of ids is on an earlier line already")
    kept = order[(source[order] >= 0) & (target[order] >= 0)]
    if dropped := len(order) - len(kept):
        say(f"{table_path}: entries of the NULL word and of unknown words dropped: {dropped:,}")
    offsets = offsets_of(np.bincount(source[kept], minlength=len(numbers)))
    return Translations(Ragged(offsets, target[kept].astype(np.int32)), probabilities[kept]), list(numbers)


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not data:
        raise UserError(f"{path} is empty")
    return data.removeprefix(codecs.BOM_UTF8)


def _read_vocabulary(path: Path, numbers: dict[str, int], not_words: Sequence[int]) -> dict[int, int]:
    """Return the token number of each id of a .vcb file; its words get the next free ones in `numbers`."""
    words: dict[int, str] = {}
    seen: set[str] = set()
    for line, columns in enumerate(map(bytes.split, _read(path).splitlines()), start=1):  # words may hold other blanks
        try:
            number, word, _ = int(columns[0]), columns[1].decode(), float(columns[2])
        except (ValueError, IndexError):  # UnicodeDecodeError is a ValueError
            number, word = -1, ""
        if len(columns) != 3 or not 0 <= number < 2**63:
            raise UserError(f"{path}, line {line:,}: {_quoted(b' '.join(columns))} is not `id token count` in UTF-8")
        if number in words or word in seen:
            repeated = f"id {number}" if number in words else f"word {word!r}"
            raise UserError(f"{path}, line {line:,}: the {repeated} is on an earlier line already")
        words[number] = word
        seen.add(word)
    known = {number: number - FIRST_WORD for number in not_words}
    for number, word in words.items():
        if number >= FIRST_WORD:  # `1 UNK 0` heads the files that Moses writes
            known[number] = numbers.setdefault(word, len(numbers))
    if len(known) == len(not_words):
        raise UserError(f"{path} is empty: it has no words")
    return known


def _look_up(ids: np.ndarray, numbers: dict[int, int]) -> np.ndarray:
    """Return the token number of each id, or UNKNOWN_ID."""
    distinct, occurrence = np.unique(ids, return_inverse=True)
    return np.array([numbers.get(number, UNKNOWN_ID) for number in distinct.tolist()], np.int64)[occurrence]


def _read_entries(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the source ids, target ids and probabilities of a t-table, in the order of its lines."""
    data = re.sub(rb"[ \t]{2,}|\t", b" ", _read(path))
    data = re.sub(rb" (?=\r?\n|\Z)", b"", data)
    types = {"source": pa.int64(), "target": pa.int64(), "probability": pa.float64()}
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=list(types), use_threads=False),  # errors of threads have no line number
            csv.ParseOptions(delimiter=" ", quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types=types, null_values=[]),
        )
    except pa.ArrowInvalid as error:
        line = int(re.findall(r"Row #(\d+)", str(error))[0])
        raise UserError(
            f"{path}, line {line:,}: {_quoted(data.splitlines()[line - 1])} is not `source_id target_id probability` "
            "in numbers (GIZA has that in NAME.t3.final)"
        ) from error
    source, target, probabilities = (column.to_numpy() for column in table.columns)
    return source, target, probabilities


def _quoted(text: bytes) -> str:
    return repr(text[:50].decode("utf-8", "replace"))


def write_giza(table: TranslationTable, vocabulary: Sequence[str], folder: Path) -> None:
    """Write source.vcb, target.vcb (the same words) and table.t into `folder`; `read_giza` returns the same table."""
    for token in vocabulary:
        if token.encode().split() != [token.encode()]:
            raise UserError(f"the token {token!r} is empty or contains a blank: the GIZA form cannot hold it")
    transposed = by_document_token(table)
    ids = [transposed.rows.row_numbers() + FIRST_WORD, transposed.rows.values + FIRST_WORD]
    entries = pa.table([*ids, transposed.probabilities.astype(np.float32)], names=["source", "target", "probability"])
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{TABLE}.{os.getpid()}"
    try:
        with beside.open("wb") as file:
            csv.write_csv(entries, file, csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none"))
        beside.replace(folder / TABLE)
    finally:
        beside.unlink(missing_ok=True)
    for name in (SOURCE, TARGET):
        write_text(folder / name, "".join(f"{i} {token} 1\n" for i, token in enumerate(vocabulary, start=FIRST_WORD)))


def probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser("lexical.giza", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser("import", help="GIZA's files -> a table folder")
    for name in ("t_table", "source_vcb", "target_vcb", "table_folder"):
        importing.add_argument(name, type=Path)
    importing.add_argument("--threshold", type=probability, help="drop smaller probabilities (0.001)")
    importing.add_argument("--p_self", type=probability, help="self-translation T(t|t) (0.1)")
    importing.add_argument("--as_it_is", action="store_true", help="keep every probability of the t-table")
    exporting = commands.add_parser("export", help="a table folder -> GIZA's files")
    for name in ("table_folder", "out_folder"):
        exporting.add_argument(name, type=Path)
    arguments = parser.parse_args(argv)
    if arguments.command == "import":
        _import(arguments)
    else:
        saved = load_table(arguments.table_folder)
        write_giza(saved.table, saved.vocabulary, arguments.out_folder)
        say(f"{arguments.out_folder}: {saved.table.entries:,} entries in {TABLE}, {SOURCE} and {TARGET}")


def _import(arguments: argparse.Namespace) -> None:
    threshold = 0.001 if arguments.threshold is None else arguments.threshold
    p_self = 0.1 if arguments.p_self is None else arguments.p_self
    if arguments.as_it_is and (arguments.threshold, arguments.p_self) != (None, None):
        raise UserError("--as_it_is changes no probability: leave out --threshold and --p_self")
    learned, vocabulary = read_giza(arguments.t_table, arguments.source_vcb, arguments.target_vcb)
    if arguments.as_it_is:
        transposed = by_document_token(TranslationTable(*learned))  # transposing twice restores the rows
        table = TranslationTable(transposed.rows, transposed.probabilities.astype(np.float32))
    else:
        table = with_self_translation(others_rescaled(learned.pruned(threshold)), p_self)
    name = os.fsencode(arguments.t_table.name).decode("utf-8", "replace")
    parameters = {"as_it_is": True} if arguments.as_it_is else {"threshold": threshold, "p_self": p_self}
    save_table(table, vocabulary, {"source": f"GIZA t-table {name}", "parameters": parameters}, arguments.table_folder)
    say(f"{arguments.table_folder}: {table.entries:,} entries of {len(vocabulary):,} words")


if __name__ == "__main__":
    sys.exit(run_script(main))
