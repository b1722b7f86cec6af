"""The strongest translations of a word, both ways.

    python -m lexical.show TABLE WORD [WORD ...] [--top 10]

TABLE is the folder of a translation table, or of a run that has one in table/.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from rich.cells import cell_len

from lexical.errors import UserError, run_script
from lexical.model1.table_files import SavedTable, load_table

MOST_COMPARED = 200_000  # words that a mistyped one is compared with: a vocabulary starts with its most frequent ones
LONGEST = 60  # characters of a word that are shown


def translations(saved: SavedTable, word: str, top: int) -> Iterator[str]:
    """Lines: T(q | word) over the query tokens q, then T(word | d) over the document tokens d."""
    number, table = saved.vocabulary.index(word), saved.table
    said_by_word = np.flatnonzero(table.rows.values == number)
    query_tokens = np.searchsorted(table.rows.offsets, said_by_word, side="right") - 1
    row = slice(table.rows.offsets[number], table.rows.offsets[number + 1])
    yield f"documents that say {printable(word)} speak of query words:"
    yield from _strongest(saved.vocabulary, query_tokens, table.probabilities[said_by_word], number, top)
    yield f"a query for {printable(word)} is answered by document words:"
    yield from _strongest(saved.vocabulary, table.rows.values[row], table.probabilities[row], number, top)


def _strongest(
    vocabulary: list[str], tokens: np.ndarray, probabilities: np.ndarray, itself: int, top: int
) -> Iterator[str]:
    best = np.argsort(-probabilities, kind="stable")[:top]
    words = [printable(vocabulary[token]) for token in tokens[best]]
    width = max(map(cell_len, words), default=0)
    for word, token, probability in zip(words, tokens[best], probabilities[best], strict=True):
        mark = "  itself" if token == itself else ""
        yield f"  {word}{' ' * (width - cell_len(word))}  {probability:.6f}{mark}"
    if more := len(tokens) - len(best):
        yield f"  and {more:,} more"
    if not len(tokens):
        yield "  none"


def printable(word: str) -> str:
    """The word without anything that a terminal would obey: control, direction and line characters are escaped."""
    cut = word if len(word) <= LONGEST else word[: LONGEST - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut)


def unknown_word(word: str, vocabulary: list[str]) -> str:
    close = difflib.get_close_matches(word, vocabulary[:MOST_COMPARED])
    near = f"; close to it: {', '.join(map(printable, close))}" if close else ""
    return f"{printable(word)} is not in the vocabulary of {len(vocabulary):,} words{near}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def main(argv: Sequence[str]) -> None:
    parser = _Parser("lexical.show", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("words", nargs="+", metavar="word")
    parser.add_argument("--top", type=int, default=10, help="translations that are shown each way (10)")
    arguments = parser.parse_args(argv)
    if arguments.top < 1:
        raise UserError(f"--top must be 1 or more, not {arguments.top}")
    inside = arguments.table / "table"
    saved = load_table(inside if inside.is_dir() else arguments.table)
    known, encoding = set(saved.vocabulary), sys.stdout.encoding
    for word in filter(known.__contains__, arguments.words):
        for line in translations(saved, word, arguments.top):
            print(line.encode(encoding, "backslashreplace").decode(encoding))
    if unknown := [unknown_word(word, saved.vocabulary) for word in arguments.words if word not in known]:
        raise UserError("; ".join(unknown))


if __name__ == "__main__":
    sys.exit(run_script(main))
