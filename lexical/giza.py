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
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, NoReturn, cast

import numpy as np
import pyarrow as pa
from pyarrow import csv

from lexical.errors import UserError, run_script
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.table import (
    Translations,
    TranslationTable,
    by_document_token,
    others_rescaled,
    with_self_translation,
)
from lexical.model1.table_files import load_table, save_table
from lexical.terminal import say

SOURCE, TARGET, TABLE = "source.vcb", "target.vcb", "table.t"
FIRST_WORD = 2  # smaller ids are no words
BLOCK = 1 << 24  # bytes of a t-table that are parsed at once


class _Ids(NamedTuple):
    """The ids of one .vcb file, and what number each has in the vocabulary of both (from 2 as well)."""

    ids: np.ndarray  # ascending
    numbers: np.ndarray

    def numbers_of(self, ids: np.ndarray) -> np.ndarray:
        """-1 for an id that the file does not have."""
        at = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        return np.where(self.ids[at] == ids, self.numbers[at], -1)


class _Lines(NamedTuple):
    """Consecutive lines of a t-table, one entry a line, NULL and all."""

    source: np.ndarray
    target: np.ndarray
    probabilities: np.ndarray  # float64


# ------------------------------------------------------------------------------------------------- reading


def read_giza(table_path: Path, source_vcb: Path, target_vcb: Path) -> tuple[Translations, list[str]]:
    """The t-table by document token, and its vocabulary: the words of the source, then those that only the target has.

    Entries of the ids 0 and 1, which are no words, are dropped; a `UserError` names the file and line of a mistake.
    """
    numbers: dict[str, int] = {}
    source_ids = _read_vocabulary(source_vcb, numbers, no_words=(0, 1))
    target_ids = _read_vocabulary(target_vcb, numbers, no_words=(1,))
    blocks: list[_Lines] = []
    line = 1
    for block in _read_blocks(table_path):
        source, target = source_ids.numbers_of(block.source), target_ids.numbers_of(block.target)
        sound = (block.probabilities >= 0) & (block.probabilities <= 1)  # not where it is nan
        for what, values, right, where in (
            ("source id", block.source, source >= 0, f"in {source_vcb}"),
            ("target id", block.target, target >= 0, f"in {target_vcb}"),
            ("probability", block.probabilities, sound, "between 0 and 1"),
        ):
            if not right.all():
                first = int(right.argmin())
                raise UserError(f"{table_path}, line {line + first:,}: the {what} {values[first]} is not {where}")
        blocks.append(_Lines(source.astype(np.int32), target.astype(np.int32), block.probabilities))
        line += len(source)
    if not blocks:
        raise UserError(f"{table_path} is empty")
    lines = _Lines(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))
    return _by_source(lines, len(numbers), table_path), list(numbers)


def _by_source(lines: _Lines, words: int, path: Path) -> Translations:
    """Sorted by source and target, without the ids that are no words."""
    key = lines.source.astype(np.int64) * (words + FIRST_WORD) + lines.target
    order = np.argsort(key, kind="stable")
    again = key[order[1:]] == key[order[:-1]]
    if again.any():
        raise UserError(f"{path}, line {order[1:][again].min() + 1:,}: this pair of ids has come before")
    kept = order[(lines.source[order] >= FIRST_WORD) & (lines.target[order] >= FIRST_WORD)]
    if dropped := len(order) - len(kept):
        say(f"{path}: entries of the NULL word and of unknown words, which are dropped: {dropped:,}")
    source, target = lines.source[kept] - FIRST_WORD, lines.target[kept] - FIRST_WORD
    offsets = offsets_of(np.bincount(source, minlength=words))
    return Translations(Ragged(offsets, target), lines.probabilities[kept])


def _read_vocabulary(path: Path, numbers: dict[str, int], no_words: Sequence[int]) -> _Ids:
    """The ids of a .vcb file; its words get the next free numbers in `numbers`."""
    found: dict[int, str] = {}
    words: set[str] = set()
    with _reading(path) as file:
        for line, raw in enumerate(file, start=1):
            parts = raw.split()  # at ASCII blanks only: words may have others inside
            if len(parts) != 3:
                raise UserError(f"{path}, line {line:,}: three columns (id token count) wanted, here are {len(parts)}")
            number, count = _id(parts[0]), _number(parts[2])
            if number is None or count is None:
                wrong = f"id {_shown(parts[0])}" if number is None else f"count {_shown(parts[2])}"
                raise UserError(f"{path}, line {line:,}: the {wrong} is no number")
            try:
                word = parts[1].decode()
            except UnicodeDecodeError as error:
                raise UserError(f"{path}, line {line:,}: not UTF-8 ({error.reason})") from error
            if number in found or word in words:
                again = f"id {number}" if number in found else f"word {word!r}"
                raise UserError(f"{path}, line {line:,}: the {again} has come before")
            found[number] = word
            words.add(word)
    mapped = {number: number for number in no_words}
    for number, word in found.items():
        if number >= FIRST_WORD:  # `1 UNK 0` heads the files that Moses writes
            mapped[number] = numbers.setdefault(word, len(numbers) + FIRST_WORD)
    if len(mapped) == len(no_words):
        raise UserError(f"{path} is empty: it has no words")
    ids = np.array(sorted(mapped), np.int64)
    return _Ids(ids, np.array([mapped[number] for number in ids.tolist()], np.int64))


def _read_blocks(path: Path) -> Iterator[_Lines]:
    line = 1
    with _reading(path) as file:
        while block := file.read(BLOCK) + file.readline():
            if (lines := _parse(block)) is None:
                texts = [b" ".join(text.split()) for text in block.removesuffix(b"\n").split(b"\n")]
                if (lines := _parse(b"\n".join(texts) + b"\n")) is None:
                    broken = _first_broken(texts)
                    raise UserError(f"{path}, line {line + broken:,}: {_what_is_wrong(texts[broken])}")
            yield lines
            line += len(lines.source)


def _parse(block: bytes) -> _Lines | None:
    """None where a line is not `id id probability`, with one blank between them."""
    types = {"source": pa.int64(), "target": pa.int64(), "probability": pa.float64()}
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(column_names=list(types)),
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(column_types=types, null_values=[]),
        )
    except pa.ArrowInvalid:
        return None
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    return _Lines(*(column.to_numpy() for column in table.columns)) if len(table) == lines else None


def _first_broken(texts: list[bytes]) -> int:
    """Where the first line is that cannot be parsed, by halving."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        if _parse(b"\n".join(texts[low:middle]) + b"\n") is None:
            high = middle
        else:
            low = middle
    return low


def _what_is_wrong(text: bytes) -> str:
    if (columns := len(text.split())) != 3:
        return f"a t-table has three columns (source_id target_id probability), here are {columns}"
    return f"{_shown(text)} is not `source_id target_id probability` in numbers (GIZA has that in NAME.t3.final)"


def _id(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= 18 else None  # fits into 64 bits


def _number(text: bytes) -> float | None:
    try:
        return float(text) if b"_" not in text else None
    except ValueError:
        return None


def _shown(text: bytes) -> str:
    return repr(text[:50].decode("utf-8", "replace"))


@contextmanager
def _reading(path: Path) -> Iterator[BufferedReader]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as opened:
            file = cast(BufferedReader, opened)
            if file.peek(3).startswith(codecs.BOM_UTF8):
                file.read(3)
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


# ------------------------------------------------------------------------------------------------- writing


def write_giza(table: TranslationTable, vocabulary: Sequence[str], folder: Path) -> None:
    """source.vcb, target.vcb (the same words) and table.t in `folder`; `read_giza` finds the same table in them."""
    for token in vocabulary:
        if token.encode().split() != [token.encode()]:
            raise UserError(f"the token {token!r} is empty or has a blank inside: the GIZA form cannot hold it")
    turned = by_document_token(table)
    columns = [turned.rows.row_numbers() + FIRST_WORD, turned.rows.values + FIRST_WORD]
    entries = pa.table([*columns, turned.probabilities.astype(np.float32)], names=["source", "target", "probability"])
    words = "".join(f"{number} {token} 1\n" for number, token in enumerate(vocabulary, start=FIRST_WORD)).encode()
    folder.mkdir(parents=True, exist_ok=True)
    beside = {name: folder / f".{name}.{os.getpid()}" for name in (SOURCE, TARGET, TABLE)}
    try:
        for name in (SOURCE, TARGET):
            beside[name].write_bytes(words)
        with beside[TABLE].open("wb") as file:
            csv.write_csv(entries, file, csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none"))
        for name, path in beside.items():
            path.replace(folder / name)
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------- command line


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def _share(text: str) -> float:
    value = _number(text.encode(errors="replace"))
    if value is None or not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return value


def main(argv: Sequence[str]) -> None:
    parser = _Parser("lexical.giza", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser("import", help="GIZA's files -> a table folder")
    for name in ("t_table", "source_vcb", "target_vcb", "table_folder"):
        importing.add_argument(name, type=Path)
    importing.add_argument("--threshold", type=_share, help="smaller probabilities are dropped (0.001)")
    importing.add_argument("--p_self", type=_share, help="self-translation T(t|t) (0.1)")
    importing.add_argument("--as_it_is", action="store_true", help="every probability as it is in the t-table")
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
        turned = by_document_token(TranslationTable(*learned))  # turning round is its own inverse
        table = TranslationTable(turned.rows, turned.probabilities.astype(np.float32))
    else:
        table = with_self_translation(others_rescaled(learned.pruned(threshold)), p_self)
    name = os.fsencode(arguments.t_table.name).decode("utf-8", "replace")
    parameters = {"as_it_is": True} if arguments.as_it_is else {"threshold": threshold, "p_self": p_self}
    save_table(table, vocabulary, {"source": f"GIZA t-table {name}", "parameters": parameters}, arguments.table_folder)
    say(f"{arguments.table_folder}: {table.entries:,} entries of {len(vocabulary):,} words")


if __name__ == "__main__":
    sys.exit(run_script(main))
