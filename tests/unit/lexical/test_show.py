"""The strongest translations of a word, as a person at a terminal sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lexical.errors import UserError
from lexical.index.ragged import ragged
from lexical.model1.table import TranslationTable
from lexical.model1.table_files import save_table
from lexical.show import main, shown
from tests import ROOT

WORDS = ["car", "automobile", "fast", "日本", "alone", "\x1b[31mred", "a\u2028\u202e\x9b\r\tb"]
# Row = query token; values = the document tokens that say it.
TABLE = TranslationTable(
    ragged([[0, 1, 2], [0, 1], [0, 2, 3], [0, 3], [], [0, 5], [0, 6]], np.int32),
    np.array([0.5, 0.25, 0.0625, 0.125, 0.5, 0.03, 0.5, 0.2, 0.02, 0.5, 0.01, 0.5, 0.005, 0.5], np.float32),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show") / "seed-1" / "table"
    save_table(TABLE, WORDS, {}, folder)
    return folder


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lexical.show", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", **environment},
        capture_output=True, text=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip


def test_a_word_in_both_directions(table: Path) -> None:
    done = command(table, "car", "--top", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "car in a document translates to the query words:\n"
        "  car         0.500000  itself\n"
        "  automobile  0.125000\n"
        "  fast        0.030000\n"
        "  and 3 more\n"
        "car in a query is translated from the document words:\n"
        "  car         0.500000  itself\n"
        "  automobile  0.250000\n"
        "  fast        0.062500\n"
    )


def test_a_run_folder_several_words_and_wide_characters(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(table.parent), "fast", "alone"])
    assert capsys.readouterr().out == (
        "fast in a document translates to the query words:\n"
        "  fast  0.500000  itself\n"
        "  car   0.062500\n"
        "fast in a query is translated from the document words:\n"
        "  fast  0.500000  itself\n"
        "  日本  0.200000\n"
        "  car   0.030000\n"
        "alone in a document translates to the query words:\n"
        "  none\n"
        "alone in a query is translated from the document words:\n"
        "  none\n"
    )


def test_equal_probabilities_come_in_the_order_of_the_vocabulary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ragged([list(range(12))] + [[0]] * 11, np.int32)
    words = [f"w{number:02}" for number in range(12)]
    save_table(TranslationTable(rows, np.full(23, 0.5, np.float32)), words, {}, tmp_path / "table")
    main([str(tmp_path / "table"), "w00"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:11]] == [line.split()[0] for line in lines[13:23]] == words[:10]
    assert lines[11] == lines[23] == "  and 2 more"


def test_hostile_words_send_nothing_that_a_terminal_obeys(table: Path) -> None:
    done = command(table, "car", WORDS[5], "red\x1b[0m")
    assert done.returncode == 2
    assert "\\x1b[31mred" in done.stdout and "a\\u2028\\u202e\\x9b\\r\\tb" in done.stdout
    assert "red\\x1b[0m is not in the vocabulary" in done.stderr
    assert all(line.isprintable() for line in (done.stdout + done.stderr).split("\n"))


@pytest.mark.parametrize(
    ("word", "printed"),
    [
        ("wine", "wine"),
        ("日本é", "日本é"),
        ("\x00\x07\x1b\x7f", "\\x00\\x07\\x1b\\x7f"),
        ("\x85\xa0\u200b\u2066\ufeff\U000e0001", "\\x85\\xa0\\u200b\\u2066\\ufeff\\U000e0001"),
        ("\ud800", "\\ud800"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
    ],
)
def test_what_is_printable_stays(word: str, printed: str) -> None:
    assert shown(word) == printed
    assert printed.isprintable()


def test_an_unknown_word_is_reported_with_similar_ones_after_the_known_words(table: Path) -> None:
    done = command(table, "automobil", "fast", "zzzzz")
    assert done.returncode == 2
    assert done.stdout.startswith("fast in a document")
    assert done.stderr == (
        "show.py: automobil is not in the vocabulary of 7 words; similar words: automobile; "
        "zzzzz is not in the vocabulary of 7 words\n"
    )


def test_a_pipe_may_close_early(tmp_path: Path) -> None:
    """More text than a pipe holds, so that the writer must notice."""
    size = 3000
    words = [f"{number:050}" for number in range(size)]
    rows = ragged([list(range(size))] + [[0]] * (size - 1), np.int32)
    save_table(TranslationTable(rows, np.full(2 * size - 1, 0.5, np.float32)), words, {}, tmp_path / "table")
    shell = f"'{sys.executable}' -m lexical.show '{tmp_path / 'table'}' {words[0]} --top {size} | head -1"
    done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == f"{words[0]} in a document translates to the query words:\n"
    assert done.stderr == ""


def test_a_terminal_without_unicode_gets_escapes(table: Path) -> None:
    done = command(table, "fast", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  \\u65e5\\u672c  0.200000\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["car", "--top", "0"], "--top must be 1 or more, not 0"),
        (["car", "--top", "many"], "--top"),
        ([], "required: word"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], reason: str, table: Path) -> None:
    with pytest.raises(UserError, match=reason):
        main([str(table), *arguments])


def test_a_folder_without_a_table_is_one_line(tmp_path: Path) -> None:
    done = command(tmp_path, "car")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"show.py: {tmp_path} is not a translation table: it has no table.safetensors\n"
