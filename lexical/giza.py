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
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

from lexical.errors import ArgumentParser, UserError, run_script
from lexical.model1.table import (
    Translations,
    TranslationTable,
    by_document_token,
    others_rescaled,
    rows_of_entries,
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
    form = "`source_id target_id probability` in numbers (GIZA has that in NAME.t3.final)"
    entries = _read_columns(table_path, form, source=pa.int64(), target=pa.int64(), probability=pa.float64())
    source = source_numbers.reindex(entries.source, fill_value=UNKNOWN_ID).to_numpy()
    target = target_numbers.reindex(entries.target, fill_value=UNKNOWN_ID).to_numpy()
    _check_lines(table_path, "source id", entries.source, source != UNKNOWN_ID, f"is not in {source_vcb}")
    _check_lines(table_path, "target id", entries.target, target != UNKNOWN_ID, f"is not in {target_vcb}")
    valid = entries.probability.between(0, 1)
    _check_lines(table_path, "probability", entries.probability, valid, "is not between 0 and 1")
    ids = entries[["source", "target"]]
    _check_lines(
        table_path, "source id", ids.source, ~ids.duplicated(), "has the same target on an earlier line already"
    )
    kept = (source >= 0) & (target >= 0)
    if dropped := int((~kept).sum()):
        say(f"{table_path}: entries of the NULL word and of unknown words dropped: {dropped:,}")
    rows = rows_of_entries(source[kept], target[kept], entries.probability.to_numpy()[kept], len(numbers))
    return Translations(*rows), list(numbers)


def _read_vocabulary(path: Path, numbers: dict[str, int], not_words: Sequence[int]) -> pd.Series:
    """Return the token number of each id of a .vcb file; its words get the next free ones in `numbers`."""
    entries = _read_columns(path, "`id token count` in UTF-8", id=pa.uint32(), word=pa.string(), count=pa.float64())
    for name, values in (("id", entries.id), ("word", entries.word.map(repr))):
        _check_lines(path, name, values, ~values.duplicated(), "is on an earlier line already")
    words = entries[entries.id >= FIRST_WORD]  # `1 UNK 0` heads the files that Moses writes
    if words.empty:
        raise UserError(f"{path} is empty: it has no words")
    known = {number: number - FIRST_WORD for number in not_words}
    for number, word in zip(words.id, words.word, strict=True):
        known[number] = numbers.setdefault(word, len(numbers))
    return pd.Series(known)


def _read_columns(path: Path, form: str, **types: pa.DataType) -> pd.DataFrame:
    """Read columns between blanks; a `UserError` names the first line that does not have the `form`."""
    try:
        with path.open("rb") as file:
            data = pa.input_stream(file, compression="gzip" if path.suffix == ".gz" else None).read()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not data:
        raise UserError(f"{path} is empty")
    data = re.sub(rb"[ \t]{2,}|\t", b" ", data)
    data = re.sub(rb" (?=\r?\n|\Z)", b"", data)
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=list(types), use_threads=False),  # errors of threads have no line number
            csv.ParseOptions(delimiter=" ", quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types=types, null_values=[]),
        )
    except pa.ArrowInvalid as error:
        row = re.search(r"Row #(\d+)", str(error))
        line = int(row[1]) if row else 1
        text = data.splitlines()[line - 1][:50].decode("utf-8", "replace")
        raise UserError(f"{path}, line {line:,}: {text!r} is not {form}") from error
    return table.to_pandas()


def _check_lines(path: Path, name: str, values: pd.Series, valid: pd.Series | np.ndarray, problem: str) -> None:
    """Raise a `UserError` for the first line whose value is not valid."""
    if not valid.all():
        line = int(valid.argmin())
        raise UserError(f"{path}, line {line + 1:,}: the {name} {values[line]} {problem}")


def write_giza(table: TranslationTable, vocabulary: Sequence[str], folder: Path) -> None:
    """Write source.vcb, target.vcb (the same words) and table.t into `folder`; `read_giza` returns the same table."""
    for token in vocabulary:
        if token.encode().split() != [token.encode()]:
            raise UserError(f"the token {token!r} is empty or contains a blank: the GIZA form cannot hold it")
    transposed = by_document_token(table)
    ids = [transposed.rows.row_numbers() + FIRST_WORD, transposed.rows.values + FIRST_WORD]
    entries = pa.table([*ids, transposed.probabilities.astype(np.float32)], names=["source", "target", "probability"])
    folder.mkdir(parents=True, exist_ok=True)
    options = csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
    beside = folder / f".{TABLE}.writing"
    with beside.open("wb") as file:
        csv.write_csv(entries, file, options)
    beside.replace(folder / TABLE)
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
