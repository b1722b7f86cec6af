"""The strongest translations of a word, in both directions.

    python -m lexical.show TABLE WORD [WORD ...] [--top 10]

TABLE is the folder of a translation table, or a run folder with one in table/.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.cells import cell_len

from lexical.errors import ArgumentParser, UserError, run_script
from lexical.model1.table import by_document_token
from lexical.model1.table_files import SavedTable, load_table
from lexical.terminal import printable

MOST_COMPARED = 200_000  # words that a mistyped one is compared with: a vocabulary starts with its most frequent ones
LONGEST = 60  # characters of a word that are shown


def translations(saved: SavedTable, word: str, top: int) -> Iterator[str]:
    """Yield lines: T(q | word) over the query tokens q, then T(word | d) over the document tokens d."""
    table, transposed = saved.table, by_document_token(saved.table)
    for title, rows, probabilities in (
        (f"{shown(word)} in a document translates to the query words:", transposed.rows, transposed.probabilities),
        (f"{shown(word)} in a query is translated from the document words:", table.rows, table.probabilities),
    ):
        token = saved.vocabulary.index(word)
        row = slice(rows.offsets[token], rows.offsets[token + 1])
        tokens, values = rows.values[row], probabilities[row]
        best = np.argsort(-values, kind="stable")[:top]
        words = [shown(saved.vocabulary[other]) for other in tokens[best]]
        width = max(map(cell_len, words), default=0)
        yield title
        for other, text, value in zip(tokens[best], words, values[best], strict=True):
            yield f"  {text}{' ' * (width - cell_len(text))}  {value:.6f}{'  itself' if other == token else ''}"
        if len(tokens) > len(best):
            yield f"  and {len(tokens) - len(best):,} more"
        if not len(tokens):
            yield "  none"


def shown(word: str) -> str:
    """Return the word as it is printed: at most `LONGEST` characters, none of which a terminal would obey."""
    return printable(word if len(word) <= LONGEST else word[: LONGEST - 1] + "…")


def unknown_word(word: str, vocabulary: list[str]) -> str:
    similar = difflib.get_close_matches(word, vocabulary[:MOST_COMPARED])
    advice = f"; similar words: {', '.join(map(shown, similar))}" if similar else ""
    return f"{shown(word)} is not in the vocabulary of {len(vocabulary):,} words{advice}"


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser("lexical.show", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("words", nargs="+", metavar="word")
    parser.add_argument("--top", type=int, default=10, help="translations that are shown in each direction (10)")
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
