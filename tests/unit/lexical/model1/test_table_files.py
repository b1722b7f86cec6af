"""A table on disk comes back to the bit; damage and hostility are one clear line; a failed save harms nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from lexical.errors import UserError
from lexical.index.ragged import Ragged, ragged
from lexical.model1.table import TranslationTable
from lexical.model1.table_files import (
    META,
    TABLE,
    VOCABULARY,
    SavedTable,
    link_table,
    load_table,
    save_table,
    scored_with,
)

WORDS = ["red", "vin", "wine", "rouge"]
SMALL = TranslationTable(
    ragged([[0, 3], [1, 2], [], [0, 2, 3]], np.int32), np.array([0.5, 0.25, 0.5, 1.0, 0.125, 0.0, 0.75], np.float32)
)
ARRAYS = {"offsets": SMALL.rows.offsets, "document_tokens": SMALL.rows.values, "probabilities": SMALL.probabilities}


def write(
    folder: Path,
    table: bytes | dict[str, np.ndarray] = ARRAYS,
    vocabulary: bytes = b"red\nvin\nwine\nrouge\n",
    meta: dict[str, Any] | None = None,
) -> Path:
    """A table folder whose hashes are right, whatever its content is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLE).write_bytes(table if isinstance(table, bytes) else save(table))
    (folder / VOCABULARY).write_bytes(vocabulary)
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (TABLE, VOCABULARY)}
    content = {"format": 1, "vocabulary": 4, "entries": 7, "sha256": hashes, **(meta or {})}
    (folder / META).write_text(json.dumps(content), encoding="utf-8")
    return folder


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def error_of(folder: Path) -> str:
    with pytest.raises(UserError) as raised:
        load_table(folder)
    message = str(raised.value)
    assert message.isprintable() and len(message) < 1000  # one line, and nothing that a terminal would obey
    assert str(folder) in message
    return message


def assert_same(saved: TranslationTable, expected: TranslationTable) -> None:
    for left, right in zip((*saved.rows, saved.probabilities), (*expected.rows, expected.probabilities), strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# ---------------------------------------------------------------------------------------------- round trip


def test_a_table_comes_back_to_the_bit(tmp_path: Path) -> None:
    save_table(SMALL, WORDS, {"source": "by hand", "parameters": {"p_self": 0.5}}, tmp_path / "made" / "table")
    saved = load_table(tmp_path / "made" / "table")
    assert isinstance(saved, SavedTable)
    assert_same(saved.table, SMALL)
    assert saved.vocabulary == WORDS
    assert saved.meta["source"] == "by hand" and saved.meta["parameters"] == {"p_self": 0.5}
    assert (saved.meta["format"], saved.meta["vocabulary"], saved.meta["entries"]) == (1, 4, 7)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["table"]
    assert set(bytes_of(tmp_path / "made" / "table")) == {TABLE, VOCABULARY, META}


def test_the_plain_writer_of_these_tests_writes_a_sound_table(tmp_path: Path) -> None:
    """Else every test of hostility below would pass for the wrong reason."""
    assert_same(load_table(write(tmp_path / "table")).table, SMALL)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=5), max_size=8, unique=True
    ),
    seed=st.integers(0, 99),
)
def test_any_table_and_any_words_come_back(words: list[str], seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rows = ragged([np.flatnonzero(rng.random(len(words)) < 0.5) for _ in words], np.int32)
    table = TranslationTable(rows, rng.random(len(rows.values), np.float32))
    save_table(table, words, {}, tmp_path / "table")
    saved = load_table(tmp_path / "table")
    assert_same(saved.table, table)
    assert saved.vocabulary == words


def test_words_with_line_separators_survive(tmp_path: Path) -> None:
    words = ["line\u2028separator", "next\x85line", "carriage\rreturn", "\x0b\x0c\x1c\u2029"]
    save_table(SMALL, words, {}, tmp_path / "table")
    assert load_table(tmp_path / "table").vocabulary == words


def test_arrays_of_other_types_are_saved_as_the_right_ones(tmp_path: Path) -> None:
    wide = TranslationTable(
        Ragged(SMALL.rows.offsets.astype(np.int32), SMALL.rows.values.astype(np.int64)),
        np.repeat(SMALL.probabilities.astype(np.float64), 2)[::2],  # not contiguous
    )
    save_table(wide, WORDS, {}, tmp_path / "table")
    assert_same(load_table(tmp_path / "table").table, SMALL)


def test_what_the_files_say_of_themselves_cannot_be_overruled(tmp_path: Path) -> None:
    save_table(SMALL, WORDS, {"entries": 99, "format": 7, "sha256": {}}, tmp_path / "table")
    assert load_table(tmp_path / "table").meta["entries"] == 7


def test_whoever_may_read_the_words_may_read_the_table(tmp_path: Path) -> None:
    save_table(SMALL, WORDS, {}, tmp_path / "table")
    modes = {path.stat().st_mode for path in (tmp_path / "table").iterdir()}
    assert len(modes) == 1


# ------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("name", [TABLE, VOCABULARY, META])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    (write(tmp_path / "table") / name).unlink()
    assert name in error_of(tmp_path / "table")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "is not a translation table" in error_of(tmp_path / "none")


@pytest.mark.parametrize("name", [TABLE, VOCABULARY])
def test_no_cut_and_no_flipped_byte_goes_unseen(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "table") / name
    whole = path.read_bytes()
    for position in range(len(whole)):
        for damaged in (whole[:position], whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :]):
            path.write_bytes(damaged)
            assert f"{name} is damaged" in error_of(tmp_path / "table")


def test_a_cut_or_flipped_description_is_an_error_or_does_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path / "table", meta={"note": "x"}) / META
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position])
        error_of(tmp_path / "table")
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            assert_same(load_table(tmp_path / "table").table, SMALL)
        except UserError as error:
            assert str(error).isprintable()  # noqa: PT017


# --------------------------------------------------------------------------- hostile arrays, with the right hash


def changed(name: str, values: Any, dtype: Any = None) -> dict[str, np.ndarray]:
    return {**ARRAYS, name: np.array(values, dtype or ARRAYS[name].dtype)}


PROBABILITIES = SMALL.probabilities.tolist()
LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({name: ARRAYS[name] for name in ("offsets", "document_tokens")}, "has the arrays"),
        ({**ARRAYS, "more": np.zeros(1)}, "has the arrays"),
        ({**ARRAYS, "more" * 10_000: np.zeros(1)}, "has the arrays"),
        ({}, "has the arrays"),
        (changed("offsets", [0, 2, 4, 4, 7], np.int32), "'offsets': 'int32 (5,)'"),
        (changed("offsets", [0, 2, 4, 4, 7], np.uint64), "'offsets': 'uint64 (5,)'"),
        (changed("document_tokens", SMALL.rows.values, np.int64), "'document_tokens': 'int64 (7,)'"),
        (changed("probabilities", PROBABILITIES, np.float64), "'probabilities': 'float64 (7,)'"),
        (changed("probabilities", PROBABILITIES, np.float16), "'probabilities': 'float16 (7,)'"),
        (changed("probabilities", [PROBABILITIES]), "'probabilities': 'float32 (1, 7)'"),
        (changed("offsets", [[0], [2], [4], [4], [7]]), "'offsets': 'int64 (5, 1)'"),
        (changed("probabilities", 0.5), "'probabilities': 'float32 ()'"),
        (changed("probabilities", PROBABILITIES[1:]), "7 tokens and 6 probabilities"),
        (changed("document_tokens", [0, 3, 1, 2, 0, 2]), "the offsets of its rows are out of order"),
        (changed("offsets", []), "-1 rows for 4 tokens"),
        (changed("offsets", [0, 2, 4, 7]), "3 rows for 4 tokens"),
        (changed("offsets", [0, 2, 4, 4, 7, 7]), "5 rows for 4 tokens"),
        (changed("offsets", [1, 2, 4, 4, 7]), "out of order"),
        (changed("offsets", [0, 4, 2, 4, 7]), "out of order"),
        (changed("offsets", [0, -1, 4, 4, 7]), "out of order"),
        (changed("offsets", [0, 2, 9, 4, 7]), "out of order"),
        (changed("offsets", [0, 2, 4, 4, 6]), "out of order"),
        (changed("offsets", [0, 2, 4, 4, 8]), "out of order"),
        (changed("offsets", [0, LARGEST, -LARGEST, 4, 7]), "out of order"),
        (changed("offsets", [0, 2, 4, LARGEST, LARGEST]), "out of order"),
        (changed("document_tokens", [0, 3, 2, 1, 0, 2, 3]), "not ascending"),
        (changed("document_tokens", [0, 3, 1, 1, 0, 2, 3]), "not ascending"),
        (changed("document_tokens", [0, 3, 1, 2, 0, 3, 2]), "not ascending"),
        (changed("document_tokens", [3, 0, 1, 2, 0, 2, 3]), "not ascending"),
        (changed("document_tokens", [0, 4, 1, 2, 0, 2, 3]), "outside of its vocabulary"),
        (changed("document_tokens", [-1, 3, 1, 2, 0, 2, 3]), "outside of its vocabulary"),
        (changed("document_tokens", [0, 2**31 - 1, 1, 2, 0, 2, 3]), "outside of its vocabulary"),
        (changed("probabilities", [*PROBABILITIES[:-1], np.nan]), "not between 0 and 1"),
        (changed("probabilities", [*PROBABILITIES[:-1], np.inf]), "not between 0 and 1"),
        (changed("probabilities", [-np.inf, *PROBABILITIES[1:]]), "not between 0 and 1"),
        (changed("probabilities", [-1e-7, *PROBABILITIES[1:]]), "not between 0 and 1"),
        (changed("probabilities", [1.0001, *PROBABILITIES[1:]]), "not between 0 and 1"),
    ],
)
def test_hostile_arrays_are_refused(arrays: dict[str, np.ndarray], reason: str, tmp_path: Path) -> None:
    assert reason in error_of(write(tmp_path / "table", arrays))


def tensor(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        with_header(b""),
        with_header(b"{}"),
        with_header(b"[1, 2]"),
        with_header(b"\xff\xfe{}"),
        (2**63).to_bytes(8, "little") + b"{}",
        (200_000_000).to_bytes(8, "little") + b"{}",
        (2**64 - 1).to_bytes(8, "little"),
        with_header(b'{"offsets":' + b"[" * 100_000),
        with_header({"offsets": tensor(shape=[2**62, 4])}, b"\x00" * 4),
        with_header({"offsets": tensor(shape=[-1])}, b"\x00" * 4),
        with_header({"offsets": tensor(offsets=[4, 0])}, b"\x00" * 4),
        with_header({"offsets": tensor(offsets=[0, 2**63])}, b"\x00" * 4),
        with_header({"offsets": tensor()}),
        with_header({"offsets": tensor("F32\x1b[31m")}, b"\x00" * 4),
        with_header({"off\x1b[31msets": tensor()}, b"\x00" * 4),
        with_header({"offsets": tensor(), "document_tokens": tensor(), "probabilities": tensor()}, b"\x00" * 4),
        with_header(
            {
                "offsets": tensor("I64", [1] * 5000, [0, 8]),
                "document_tokens": tensor("I32", [1], [8, 12]),
                "probabilities": tensor("F32", [1], [12, 16]),
            },
            b"\x00" * 16,
        ),
        save(ARRAYS)[:-1],
        save(ARRAYS) + b"\x00",
        b"PK\x03\x04 a zip archive, or a pickle of long ago",
    ],
)
def test_hostile_safetensors_are_refused(content: bytes, tmp_path: Path) -> None:
    error_of(write(tmp_path / "table", content))


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_changed_bytes_with_the_right_hash_are_refused_or_a_sound_table(
    changes: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(save(ARRAYS))
    for position, value in changes:
        content[position % len(content)] = value
    try:
        table = load_table(write(tmp_path / "table", bytes(content))).table
    except UserError as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert table.rows.offsets[0] == 0 and table.rows.offsets[-1] == 7 == table.entries == len(table.probabilities)
    assert (table.rows.lengths() >= 0).all()
    for q in range(4):
        assert (np.diff(table.rows.row(q)) > 0).all()
    assert all(0 <= token < 4 for token in table.rows.values)
    assert all(0 <= probability <= 1 for probability in table.probabilities)


# ------------------------------------------------------------------------- hostile words and descriptions


@pytest.mark.parametrize(
    ("vocabulary", "reason"),
    [
        (b"red\nvin\nred\nrouge\n", "twice"),
        (b"red\n\n\nrouge\n", "twice"),
        (b"red\nvin\nwine\nrouge", "truncated"),
        (b"", "4 rows for 0 tokens"),
        (b"red\nv\xfen\nwine\nrouge\n", "not UTF-8"),
        (b"red\nv\xed\xa0\x80n\nwine\nrouge\n", "not UTF-8"),  # a lone surrogate
        (b"red\nvin\nwine\n", "4 rows for 3 tokens"),
        (b"red\nvin\nwine\nrouge\nfive\n", "4 rows for 5 tokens"),
    ],
)
def test_hostile_words_are_refused(vocabulary: bytes, reason: str, tmp_path: Path) -> None:
    assert reason in error_of(write(tmp_path / "table", vocabulary=vocabulary))


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"format": 2}, "format 2; this version reads 1"),
        ({"format": None}, "this version reads 1"),
        ({"format": "\x1b[31m"}, "this version reads 1"),
        ({"format": "x" * 100_000}, "this version reads 1"),
        ({"sha256": {}}, "is damaged"),
        ({"sha256": {TABLE: "0" * 64, VOCABULARY: "0" * 64}}, "is damaged"),
        ({"sha256": {TABLE: ["list"], VOCABULARY: None}}, "is damaged"),
        ({"sha256": "0" * 64}, "not the description"),
        ({"sha256": None}, "not the description"),
        ({"vocabulary": 5}, "vocabulary 5"),
        ({"vocabulary": "x" * 100_000}, "vocabulary"),
        ({"entries": 8}, "entries 8"),
        ({"entries": None}, "entries None"),
        ({"entries": "7"}, "entries '7'"),
    ],
)
def test_hostile_descriptions_are_refused(meta: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert reason in error_of(write(tmp_path / "table", meta=meta))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not JSON",
        b"[]",
        b"null",
        b'"text"',
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"sha256":' * 100_000,
        b'{"format": ' + b"9" * 10_000 + b"}",
        b'{"format": 1, "format": NaN, "sha256": {}}',
    ],
)
def test_a_description_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    (write(tmp_path / "table") / META).write_bytes(content)
    error_of(tmp_path / "table")


# ------------------------------------------------------------------------------------------ saving that fails


def test_a_linked_table_may_have_a_description_of_its_own(tmp_path: Path) -> None:
    table = TranslationTable(ragged([[0], []], np.int32), np.array([0.5], np.float32))
    save_table(table, ["a", "b"], {"field": "word", "scored_with": {"smoothing": 0.0, "floor": 1e-4}}, tmp_path / "one")
    link_table(tmp_path / "one", tmp_path / "two", scored_with={"smoothing": 0.1})
    one, two = load_table(tmp_path / "one"), load_table(tmp_path / "two")
    assert (tmp_path / "one" / TABLE).samefile(tmp_path / "two" / TABLE)
    assert scored_with(one.meta) == {"smoothing": 0.0, "floor": 1e-4} and scored_with(two.meta) == {"smoothing": 0.1}
    assert {**two.meta, "scored_with": None} == {**one.meta, "scored_with": None}


@pytest.mark.parametrize(
    "recorded",
    [0.1, [0.1], None, {"lambda": 0.1}, {"smoothing": "0.1"}, {"smoothing": 1e-9}, {"smoothing": 2}, {"floor": 0.0},
     {"smoothing": 0.1, "floor": float("nan")}],
)  # fmt: skip
def test_a_hostile_lambda_or_floor_is_refused(recorded: Any) -> None:
    with pytest.raises(UserError, match=r"^meta\.json has scored_with .*: it must be a lambda and a floor, at most 1$"):
        scored_with({"scored_with": recorded})


def test_a_table_without_a_record_has_neither() -> None:
    assert scored_with({"field": "word"}) == {}


@contextmanager
def files_of_at_most(limit: int) -> Iterator[None]:
    """As on a full disk: the system itself refuses to write more bytes into a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def assert_the_old_table_stands_alone(parent: Path, before: dict[str, bytes]) -> None:
    assert [path.name for path in parent.iterdir()] == ["table"]
    assert bytes_of(parent / "table") == before


@pytest.mark.parametrize(
    ("limit", "word", "source"),
    [
        (10, "red", "new"),  # no room for the table
        (1000, "red" * 1000, "new"),  # none for the words
        (1000, "red", "new" * 1000),  # none for the description
    ],
)
def test_a_full_disk_leaves_the_old_table_and_no_rubbish(limit: int, word: str, source: str, tmp_path: Path) -> None:
    save_table(SMALL, WORDS, {"source": "old"}, tmp_path / "table")
    before = bytes_of(tmp_path / "table")
    assert 10 < len(before[TABLE]) < 1000
    with files_of_at_most(limit), pytest.raises(OSError, match="File too large"):
        save_table(SMALL, [word, *WORDS[1:]], {"source": source}, tmp_path / "table")
    assert_the_old_table_stands_alone(tmp_path, before)


def test_a_full_disk_without_an_old_table_leaves_nothing(tmp_path: Path) -> None:
    with files_of_at_most(10), pytest.raises(OSError, match="File too large"):
        save_table(SMALL, WORDS, {}, tmp_path / "table")
    assert list(tmp_path.iterdir()) == []


def test_a_description_that_is_no_json_leaves_the_old_table(tmp_path: Path) -> None:
    save_table(SMALL, WORDS, {}, tmp_path / "table")
    before = bytes_of(tmp_path / "table")
    for meta, kind in (({"loss": float("nan")}, ValueError), ({"path": tmp_path}, TypeError)):
        with pytest.raises(kind):
            save_table(SMALL, WORDS, meta, tmp_path / "table")
    assert_the_old_table_stands_alone(tmp_path, before)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (SMALL, WORDS[:3]),
        (SMALL, [*WORDS, "five"]),
        (SMALL, ["a\nb", *WORDS[1:]]),
        (SMALL, ["vin", *WORDS[1:]]),
        (SMALL, ["\ud800", *WORDS[1:]]),
        (SMALL._replace(probabilities=SMALL.probabilities * np.float32(np.nan)), WORDS),
        (SMALL._replace(probabilities=SMALL.probabilities * 2), WORDS),
        (SMALL._replace(probabilities=SMALL.probabilities[1:]), WORDS),
        (SMALL._replace(rows=Ragged(SMALL.rows.offsets, SMALL.rows.values[::-1])), WORDS),
        (SMALL._replace(rows=Ragged(SMALL.rows.offsets, SMALL.rows.values + 1)), WORDS),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(table: TranslationTable, words: list[str], tmp_path: Path) -> None:
    save_table(SMALL, WORDS, {}, tmp_path / "table")
    before = bytes_of(tmp_path / "table")
    with pytest.raises(ValueError):  # noqa: PT011
        save_table(table, words, {}, tmp_path / "table")
    assert_the_old_table_stands_alone(tmp_path, before)


def test_a_new_table_replaces_the_old_one(tmp_path: Path) -> None:
    save_table(SMALL, WORDS, {"source": "old"}, tmp_path / "table")
    save_table(SMALL, WORDS[::-1], {"source": "new"}, tmp_path / "table")
    saved = load_table(tmp_path / "table")
    assert (saved.vocabulary, saved.meta["source"]) == (WORDS[::-1], "new")
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_the_old_table_comes_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_table(SMALL, WORDS, {"source": "old"}, tmp_path / "table")
    before, rename = bytes_of(tmp_path / "table"), Path.rename

    def refuse_the_new(self: Path, target: Path) -> Path:
        if "new" in (self / META).read_text():
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(OSError, match="Input/output error"):
        save_table(SMALL, WORDS, {"source": "new"}, tmp_path / "table")
    assert_the_old_table_stands_alone(tmp_path, before)


def test_a_link_to_a_table_stays_a_link(tmp_path: Path) -> None:
    save_table(SMALL, WORDS, {"source": "old"}, tmp_path / "real")
    (tmp_path / "table").symlink_to("real")
    save_table(SMALL, WORDS, {"source": "new"}, tmp_path / "table")
    assert (tmp_path / "table").is_symlink()
    assert load_table(tmp_path / "real").meta["source"] == "new"


def test_an_empty_folder_becomes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").mkdir()
    monkeypatch.chdir(tmp_path / "table")
    save_table(SMALL, WORDS, {}, Path())
    assert_same(load_table(tmp_path / "table").table, SMALL)


def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "home" / "letters").mkdir(parents=True)
    (tmp_path / "home" / "letters" / "dear.txt").write_text("irreplaceable")
    for folder in (tmp_path / "home", tmp_path / "home" / "letters" / ".."):
        with pytest.raises(UserError, match="letters"):
            save_table(SMALL, WORDS, {}, folder)
    assert (tmp_path / "home" / "letters" / "dear.txt").read_text() == "irreplaceable"
    assert [path.name for path in tmp_path.rglob("*")] == ["home", "letters", "dear.txt"]


def test_a_file_in_the_place_of_the_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("a letter")
    with pytest.raises(OSError, match="table"):
        save_table(SMALL, WORDS, {}, tmp_path / "table")
    assert (tmp_path / "table").read_text() == "a letter"
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
