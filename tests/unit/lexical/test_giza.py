"""Tables in the text form of GIZA: read to the digit, written so that they come back, a mistake named by its line."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lexical.errors import UserError
from lexical.giza import main, read_giza, write_giza
from lexical.index.ragged import ragged
from lexical.model1.table import Translations, TranslationTable, by_document_token
from lexical.model1.table_files import load_table, save_table
from tests import ROOT

SOURCE = "1\tUNK\t0\n2\tcar\t5\n7\tfast\t2\n"  # as Moses writes it; ids need not be dense
TARGET = "2 auto 3\n3 car 1\n4 rapid 1\n"
TABLE = "0 2 0.3\n2 2 0.25\n2 3 0.7\n2 4 0.05\n7 4 6e-4\n7 2 1\n"
VOCABULARY = ["car", "fast", "auto", "rapid"]


def written(
    folder: Path, table: str | bytes = TABLE, source: str | bytes = SOURCE, target: str | bytes = TARGET
) -> list:
    folder.mkdir(exist_ok=True)
    paths = [folder / "x.t3.final", folder / "s.vcb", folder / "t.vcb"]
    for path, text in zip(paths, (table, source, target), strict=True):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return paths


def rows_of(translations: Translations) -> list[dict[int, float]]:
    bounds = zip(translations.rows.offsets[:-1], translations.rows.offsets[1:], strict=True)
    return [
        dict(zip(translations.rows.values[a:b].tolist(), translations.probabilities[a:b].tolist(), strict=True))
        for a, b in bounds
    ]


def error_of(paths: list[Path]) -> str:
    with pytest.raises(UserError) as raised:
        read_giza(*paths)
    assert str(raised.value).isprintable()
    return str(raised.value)


# ------------------------------------------------------------------------------------------------- reading


def test_a_table_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    translations, vocabulary = read_giza(*written(tmp_path))
    assert vocabulary == VOCABULARY
    assert rows_of(translations) == [{0: 0.7, 2: 0.25, 3: 0.05}, {2: 1.0, 3: 6e-4}, {}, {}]
    assert [list(row) for row in rows_of(translations)] == [[0, 2, 3], [2, 3], [], []]  # ascending
    dtypes = (translations.rows.offsets.dtype, translations.rows.values.dtype, translations.probabilities.dtype)
    assert dtypes == (np.int64, np.int32, np.float64)
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and output.err.rstrip().endswith("dropped: 1")


def test_entries_of_ids_that_are_no_words_are_dropped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    translations, _ = read_giza(*written(tmp_path, "0 1 0.5\n0 2 0.5\n1 2 1\n2 1 0.5\n2 2 0.5\n"))
    assert rows_of(translations) == [{2: 0.5}, {}, {}, {}]
    assert capsys.readouterr().err.rstrip().endswith("dropped: 4")


@pytest.mark.parametrize(
    "odd",
    [
        TABLE.replace(" ", "\t"),
        TABLE.replace(" ", "  \t "),
        TABLE.replace("\n", "\r\n"),
        TABLE.replace("\n", " \n"),
        TABLE.removesuffix("\n"),
        "\ufeff" + TABLE,
        "\n".join(reversed(TABLE.splitlines())),
        TABLE.replace("0.25", "2.5E-1").replace("0.7", "+.70"),
    ],
)
def test_odd_blanks_and_line_ends_change_nothing(odd: str, tmp_path: Path) -> None:
    expected = [{0: 0.7, 2: 0.25, 3: 0.05}, {2: 1.0, 3: 6e-4}, {}, {}]
    for change in (lambda text: text, lambda text: "\ufeff" + text.replace("\n", "\r\n").removesuffix("\r\n")):
        translations, vocabulary = read_giza(*written(tmp_path, odd, change(SOURCE), change(TARGET)))
        assert (rows_of(translations), vocabulary) == (expected, VOCABULARY)


def test_gzipped_files_are_read(tmp_path: Path) -> None:
    zipped = []
    for path in written(tmp_path):
        zipped.append(path.with_name(f"{path.name}.gz"))
        zipped[-1].write_bytes(gzip.compress(path.read_bytes()))
    translations, vocabulary = read_giza(*zipped)
    assert (rows_of(translations)[1], vocabulary) == ({2: 1.0, 3: 6e-4}, VOCABULARY)
    zipped[0].write_bytes(zipped[0].read_bytes()[:-9])
    assert f"{zipped[0]} cannot be read" in error_of(zipped)
    zipped[0].write_bytes(TABLE.encode())
    assert f"{zipped[0]} cannot be read" in error_of(zipped)


def test_words_may_have_any_sign_but_a_blank(tmp_path: Path) -> None:
    words = ['"', "'", "#", "NA", "null", "é", "\u00a0", "a\u2028b", "\x85", "\x1c", "0", "日本"]
    target = "".join(f"{number} {word} 1\n" for number, word in enumerate(words, start=2))
    assert read_giza(*written(tmp_path, "2 2 1\n", target=target))[1] == ["car", "fast", *words]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"2 3", "'2 3' is not `source_id target_id probability`"),
        (b"2 3 0.5 x", "is not `source_id"),
        (b"", "'' is not `source_id"),
        (b"car auto 0.5", "'car auto 0.5' is not `source_id"),
        (b"2 x 0.5", "'2 x 0.5' is not `source_id"),
        (b"2.0 3 0.5", "is not `source_id"),
        (b"99999999999999999999 3 0.5", "is not `source_id"),
        (b'2 "3" 0.5', "is not `source_id"),
        (b"2 3 0,5", "is not `source_id"),
        (b"2 3 1_0", "is not `source_id"),
        (b"2 3 \xff\x1b[31m", "is not `source_id"),
        (b"2 " + b"3" * 100_000 + b" 1", "is not `source_id"),
        (b"2 3 nan", "probability nan is not between 0 and 1"),
        (b"2 3 -0.01", "probability -0.01 is not"),
        (b"2 3 1.01", "probability 1.01 is not"),
        (b"2 3 inf", "probability inf is not"),
        (b"2 3 1e400", "probability inf is not"),
        (b"5 3 0.5", "source id 5 is not in"),
        (b"-2 3 0.5", "source id -2 is not in"),
        (b"2 0 0.5", "target id 0 is not in"),  # NULL is never a target
        (b"2 7 0.5", "target id 7 is not in"),
        (b"2 2 0.1", "the source id 2 has the same target on an earlier line already"),
        (b"0 2 0.1", "the source id 0 has the same target on an earlier line already"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(line: bytes, reason: str, tmp_path: Path) -> None:
    paths = written(tmp_path, b"0 2 1\n2 2 0.5\n2 4 0.5\n" + line + b"\n7 2 0.5\n7 4 0.5\n")
    message = error_of(paths)
    assert message.startswith(f"{paths[0]}, line 4: ") and reason in message
    assert len(message) < 500


@pytest.mark.parametrize("line", [0, 1, 511, 999])
def test_a_broken_line_is_found_among_many(line: int, tmp_path: Path) -> None:
    words = "".join(f"{number} w{number} 1\n" for number in range(2, 1002))
    lines = [f"2  {number} 0.5" for number in range(2, 1002)]
    lines[line] = "2 broken 0.5"
    assert f"line {line + 1:,}:" in error_of(written(tmp_path, "\n".join(lines), words, words))


def test_the_first_repeated_pair_is_named(tmp_path: Path) -> None:
    lines = "7 2 0.5\n2 4 0.5\n2 2 0.5\n7 2 0.4\n2 4 0.4\n2 2 0.4\n"
    assert "line 4: the source id 7 has the same target" in error_of(written(tmp_path, lines))


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"9 word", "'9 word' is not `id token count`"),
        (b"9 two words 1", "'9 two words 1' is not `id token count`"),
        (b"", "'' is not `id token count`"),
        (b"nine word 1", "'nine word 1' is not `id token count`"),
        (b"-9 word 1", "'-9 word 1' is not `id token count`"),
        (b"9.5 word 1", "'9.5 word 1' is not `id token count`"),
        (b"9" * 5000 + b" word 1", "is not `id token count`"),
        (b"9 word many", "'9 word many' is not `id token count`"),
        (b"9 w\xf6rd 1", "is not `id token count` in UTF-8"),
        (b"2 word 1", "the id 2 is on an earlier line already"),
        (b"9 auto 1", "the word 'auto' is on an earlier line already"),
    ],
)
def test_a_broken_line_of_a_vocabulary_is_named(line: bytes, reason: str, side: str, tmp_path: Path) -> None:
    paths = written(tmp_path, **{side: b"2 auto 1\n3 car 1\n" + line + b"\n4 rapid 1\n"})  # type: ignore[arg-type]
    message = error_of(paths)
    assert message.startswith(f"{paths[1 if side == 'source' else 2]}, line 3: ") and reason in message


@pytest.mark.parametrize("name", ["table", "source", "target"])
def test_an_empty_file_is_named(name: str, tmp_path: Path) -> None:
    paths = written(tmp_path, **{name: b""})  # type: ignore[arg-type]
    assert f"{paths[('table', 'source', 'target').index(name)]} is empty" in error_of(paths)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for position, path in enumerate(written(tmp_path)):
        paths = written(tmp_path)
        paths[position] = path.with_name("none")
        assert f"{tmp_path / 'none'} cannot be read" in error_of(paths)


def test_only_the_null_word_is_a_table_without_entries(tmp_path: Path) -> None:
    translations, vocabulary = read_giza(*written(tmp_path, "0 2 1\n"))
    assert rows_of(translations) == [{}, {}, {}, {}] and vocabulary == VOCABULARY


# ------------------------------------------------------------------------------------------------- writing


def seeded_table(words: int, seed: int) -> TranslationTable:
    rng = np.random.default_rng(seed)
    rows = ragged([np.flatnonzero(rng.random(words) < 0.4) for _ in range(words)], np.int32)
    return TranslationTable(rows, (rng.random(len(rows.values)) ** rng.integers(1, 40)).astype(np.float32))


def read_again(folder: Path) -> tuple[Translations, list[str]]:
    return read_giza(folder / "table.t", folder / "source.vcb", folder / "target.vcb")


def test_the_bytes_of_a_small_table(tmp_path: Path) -> None:
    table = TranslationTable(ragged([[0, 1], [0]], np.int32), np.array([0.1, 1.0, 3e-8], np.float32))
    write_giza(table, ["red", "rouge"], tmp_path / "made" / "here")
    assert {path.name: path.read_text() for path in (tmp_path / "made" / "here").iterdir()} == {
        "source.vcb": "2 red 1\n3 rouge 1\n",
        "target.vcb": "2 red 1\n3 rouge 1\n",
        "table.t": "2 2 0.1\n2 3 3e-8\n3 2 1\n",
    }


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.integers(2, 12), seed=st.integers(0, 10_000))
def test_what_is_written_is_read(words: int, seed: int, tmp_path: Path) -> None:
    table, vocabulary = seeded_table(words, seed), [f"w{number}" for number in range(words)]
    assume(table.entries)
    write_giza(table, vocabulary, tmp_path)
    translations, same_vocabulary = read_again(tmp_path)
    expected = by_document_token(table)
    assert same_vocabulary == vocabulary
    np.testing.assert_array_equal(translations.rows.offsets, expected.rows.offsets)
    np.testing.assert_array_equal(translations.rows.values, expected.rows.values)
    np.testing.assert_allclose(translations.probabilities, expected.probabilities, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(
        translations.probabilities.astype(np.float32), expected.probabilities.astype(np.float32)
    )


@pytest.mark.parametrize("token", ["two words", "tab\tinside", "", " ", "end\r", "\x0b"])
def test_a_word_with_a_blank_cannot_be_written(token: str, tmp_path: Path) -> None:
    table = TranslationTable(ragged([[0], [1]], np.int32), np.ones(2, np.float32))
    with pytest.raises(UserError, match="the GIZA form cannot hold it") as raised:
        write_giza(table, ["red", token], tmp_path / "out")
    assert repr(token) in str(raised.value) and str(raised.value).isprintable()
    assert not (tmp_path / "out").exists()


def test_other_files_of_the_folder_stay_and_nothing_is_left_beside(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for seed in (0, 1):
        write_giza(seeded_table(5, seed), list("abcde"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"letter.txt", "source.vcb", "target.vcb", "table.t"}


# -------------------------------------------------------------------------------------------- command line


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lexical.giza", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def dense(folder: Path) -> np.ndarray:
    """(document tokens, query tokens)."""
    translations = by_document_token(load_table(folder).table)
    matrix = np.zeros((translations.rows.rows, translations.rows.rows))
    matrix[translations.rows.row_numbers(), translations.rows.values] = translations.probabilities
    return matrix


def test_an_import_prunes_rescales_and_sets_self_translation(tmp_path: Path) -> None:
    """car says auto 0.25 and rapid 0.05 (and itself, which p_self replaces); fast says auto, rapid is pruned."""
    done = command("import", *written(tmp_path), tmp_path / "table")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.splitlines()[-1].endswith("table: 7 entries of 4 words")
    assert dense(tmp_path / "table") == pytest.approx(np.array([
        [0.1, 0.0, 0.75, 0.15],
        [0.0, 0.1, 0.90, 0.00],
        [0.0, 0.0, 0.10, 0.00],
        [0.0, 0.0, 0.00, 0.10],
    ]))  # fmt: skip
    saved = load_table(tmp_path / "table")
    assert saved.vocabulary == VOCABULARY
    assert saved.meta["source"] == "GIZA t-table x.t3.final"
    assert saved.meta["parameters"] == {"threshold": 0.001, "p_self": 0.1}


def test_an_import_with_other_settings(tmp_path: Path) -> None:
    main(["import", *map(str, written(tmp_path)), str(tmp_path / "table"), "--threshold", "0.1", "--p_self", "0"])
    expected = np.zeros((4, 4))
    expected[0, 2] = expected[1, 2] = 1.0
    assert dense(tmp_path / "table") == pytest.approx(expected)
    assert load_table(tmp_path / "table").meta["parameters"] == {"threshold": 0.1, "p_self": 0.0}


def test_an_import_as_it_is_changes_nothing(tmp_path: Path) -> None:
    main(["import", *map(str, written(tmp_path)), str(tmp_path / "table"), "--as_it_is"])
    assert dense(tmp_path / "table") == pytest.approx(np.array([
        [0.7, 0.0, 0.25, 0.05],
        [0.0, 0.0, 1.00, 6e-4],
        [0.0, 0.0, 0.00, 0.00],
        [0.0, 0.0, 0.00, 0.00],
    ]))  # fmt: skip
    assert load_table(tmp_path / "table").meta["parameters"] == {"as_it_is": True}


def test_export_and_import_as_it_is_give_the_same_table_to_the_bit(tmp_path: Path) -> None:
    table, words = seeded_table(30, seed=3), [f"w{number}" for number in range(30)]
    save_table(table, words, {}, tmp_path / "one")
    done = command("export", tmp_path / "one", tmp_path / "text")
    assert done.returncode == 0, done.stderr
    names = ("table.t", "source.vcb", "target.vcb")
    main(["import", *(str(tmp_path / "text" / name) for name in names), str(tmp_path / "two"), "--as_it_is"])
    saved = load_table(tmp_path / "two")
    assert saved.vocabulary == words
    for left, right in zip(
        (*saved.table.rows, saved.table.probabilities), (*table.rows, table.probabilities), strict=True
    ):
        np.testing.assert_array_equal(left, right)


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    paths = written(tmp_path, TABLE + "2 car 0.5\n")
    hostile = tmp_path / "hostile"
    save_table(seeded_table(3, seed=0), ["a", "b", "c"], {}, hostile)
    (hostile / "vocab.txt").write_text("a\nb\nd\n")
    for arguments, reason in (
        (("import", *paths, tmp_path / "table"), "x.t3.final, line 7: "),
        (("import", *paths), "required: table_folder"),
        (("export", hostile, tmp_path / "out"), "vocab.txt is damaged"),
    ):
        done = command(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert done.stderr.startswith("giza.py: ") and reason in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"x.t3.final", "s.vcb", "t.vcb", "hostile"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "required: command"),
        (["convert"], "invalid choice: 'convert'"),
        (["import", "a", "b", "c", "d", "--p_self", "1.5"], "--p_self: '1.5' is not a number from 0 to 1"),
        (["import", "a", "b", "c", "d", "--p_self", "nan"], "--p_self: 'nan' is not a number"),
        (["import", "a", "b", "c", "d", "--threshold", "-1"], "--threshold"),
        (["import", "a", "b", "c", "d", "--threshold", "low"], "--threshold: invalid probability value: 'low'"),
        (["import", "a", "b", "c", "d", "--as_it_is", "--p_self", "0.1"], "leave out --threshold and --p_self"),
        (["export", "none", "out"], "none is not a translation table"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], reason: str) -> None:
    with pytest.raises(UserError) as raised:
        main(arguments)
    assert reason in str(raised.value)


def test_braces_in_a_file_name_do_no_harm(tmp_path: Path) -> None:
    paths = written(tmp_path / "{x}{}", TABLE + "9 2 0.5\n")
    assert f"line 7: the source id 9 is not in {paths[1]}" in error_of(paths)


def test_a_file_name_that_is_no_text_does_no_harm(tmp_path: Path) -> None:
    table, source, target = written(tmp_path)
    odd = table.rename(os.fsdecode(os.fsencode(tmp_path) + b"/t\xe4ble"))
    main(["import", str(odd), str(source), str(target), str(tmp_path / "table")])
    assert load_table(tmp_path / "table").meta["source"] == "GIZA t-table t\ufffdble"
