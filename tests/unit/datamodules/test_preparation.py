"""A whole preparation: the same bytes for any number of workers, after a kill, and with two processes at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from datamodules.candidates.candidate_sets import retrieve
from datamodules.preparation import NEGATIVES, NEGATIVES_FROM, Preparation, PreparationSettings
from datamodules.text.fields import DOCUMENTS_PER_SHARD, SHARDS_IN_ONE_PROCESS
from datamodules.text.query_sets import SplitSizes
from datamodules.text.sources import SplitTexts, folder_texts
from lexical.bm25 import BM25Parameters
from lexical.errors import UserError
from lexical.index.retrieval import RetrievalIndex
from lexical.ranking.order import ranking_order
from lexical.ranking.trec_run import read_run
from tests import ROOT
from tests.fixtures.small_folder import write_lines, write_small_folder


def prepare(folder: Path, cache: Path, sizes: SplitSizes | None = None, **settings: Any) -> Preparation:
    texts = SplitTexts(folder_texts(folder), sizes or SplitSizes())
    return Preparation("data", texts, PreparationSettings(**{"workers": 1, **settings}), cache)


def prepare_everything(folder: Path, cache: Path, **settings: Any) -> Preparation:
    prepared = prepare(folder, cache, **settings)
    prepared.field("bwps")
    for query_set in prepared.ranked_sets:
        prepared.candidates(query_set)
    prepared.negatives()
    return prepared


def prepare_fields(folder: Path, cache: Path, **settings: Any) -> None:
    prepared = prepare(folder, cache, **settings)
    prepared.field("lemm")
    prepared.field("bwps")


def bytes_in(cache: Path) -> dict[str, bytes]:
    """Every file of the cache but the locks."""
    files = (path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(cache)): path.read_bytes() for path in files}


def assert_same_bytes(first: Path, second: Path) -> None:
    contents, expected = bytes_in(first), bytes_in(second)
    assert sorted(contents) == sorted(expected)
    assert [name for name in contents if contents[name] != expected[name]] == []


# ------------------------------------------------------------------------------------------------- the same bytes


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More documents than one process takes for itself, so that worker processes are started."""
    count = SHARDS_IN_ONE_PROCESS * DOCUMENTS_PER_SHARD + 100
    return write_small_folder(tmp_path_factory.mktemp("many") / "many", documents=count)


@pytest.fixture(scope="module")
def undisturbed(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of words, lemmas and word pieces, prepared in one process."""
    cache = tmp_path_factory.mktemp("undisturbed")
    prepare_fields(many, cache)
    return cache


def test_the_number_of_workers_changes_no_byte(many: Path, undisturbed: Path, tmp_path: Path) -> None:
    prepare_fields(many, tmp_path, workers=2)
    assert_same_bytes(tmp_path, undisturbed)


COMMAND = """
import sys
from pathlib import Path
from tests.unit.datamodules.test_preparation import prepare
prepare(Path(sys.argv[1]), Path(sys.argv[2]), workers=int(sys.argv[3])).field("lemm")
"""


def start(folder: Path, cache: Path, workers: int) -> subprocess.Popen[str]:
    """Start the preparation of words and lemmas in a process and a session of its own."""
    command = [sys.executable, "-c", COMMAND, str(folder), str(cache), str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def assert_words_are_those_of(cache: Path, expected: Path) -> None:
    contents, expected_contents = bytes_in(cache), bytes_in(expected)
    steps = ("texts", "fields-word")
    assert sorted(contents) == sorted(name for name in expected_contents if name.split("/")[2][:11] in steps)
    assert [name for name in contents if contents[name] != expected_contents[name]] == []


def steps_done(said: str) -> list[str]:
    return sorted(re.sub(r" in \d+\.\d s$", "", line) for line in said.splitlines() if ": done in " in line)


def living(session: int) -> list[int]:
    """Processes of the session that have not ended (Linux)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_session = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue  # ended meanwhile
        if int(of_session) == session and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def workers_at_work(session: int) -> list[int]:
    """Processes of the session, but for its first one, that have loaded spaCy."""
    found = []
    for pid in set(living(session)) - {session}:
        with contextlib.suppress(OSError):
            if "/spacy/" in Path(f"/proc/{pid}/maps").read_text():
                found.append(pid)
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Killed(NamedTuple):
    cache: Path
    left_over: list[int]  # processes that still live a while after their parent was killed
    files: set[str]  # what lay in the cache then


@pytest.fixture(scope="module")
def killed(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """A preparation with two workers, killed (``kill -9``) while these were at the words."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc to see the processes of a session")
    cache = tmp_path_factory.mktemp("killed")
    process = start(many, cache, 2)
    try:
        assert wait_until(lambda: len(workers_at_work(process.pid)) == 2, 60), "the workers did not start"
        assert any(cache.glob("data/*/.fields-word-*.building/lemm"))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        files = {str(path.relative_to(cache)) for path in cache.rglob("*")}
        wait_until(lambda: not living(process.pid), 15)
        yield Killed(cache, living(process.pid), files)
    finally:
        for pid in living(process.pid):
            os.kill(pid, signal.SIGKILL)
        assert process.stderr is not None
        process.stderr.close()


def test_after_a_kill_the_same_command_completes_with_the_same_bytes(
    killed: Killed, many: Path, undisturbed: Path
) -> None:
    steps = {path.split("/")[2] for path in killed.files if path.count("/") == 2}
    assert {re.sub(r"[0-9a-f]{12}", "*", name) for name in steps if not name.endswith(".lock")} == {
        "texts",
        ".fields-word-*.building",
    }
    again = start(many, killed.cache, 2)
    said = again.communicate(timeout=120)[1]
    assert again.returncode == 0, said
    assert steps_done(said) == ["data: words and lemmas: done"]
    assert_words_are_those_of(killed.cache, undisturbed)


def test_a_killed_preparation_leaves_no_worker_behind(killed: Killed) -> None:
    assert killed.left_over == []


@pytest.fixture(scope="module")
def small_cache(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything prepared from the small folder."""
    cache = tmp_path_factory.mktemp("small")
    prepare_everything(small_folder, cache)
    return cache


def test_two_processes_at_once_do_the_work_once(small_folder: Path, small_cache: Path, tmp_path: Path) -> None:
    processes = [start(small_folder, tmp_path, 1) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert steps_done("".join(said)) == ["data: texts: done", "data: words and lemmas: done"]
    assert_words_are_those_of(tmp_path, small_cache)


# ----------------------------------------------------------------------------------------------- damaged, changed


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("texts/collection/documents.arrow", "data: texts"),
        ("texts/query_sets/development.judged_rows.npy", "data: texts"),
        ("fields-word-*/lemm/tokens.npy", "data: words and lemmas"),
        ("fields-bwps-*/bwps/vocab.txt", "data: word pieces"),
        ("candidates-*/test.run", "data: candidates of train_fusion, development, test"),
    ],
)
def test_a_step_with_a_truncated_file_is_rebuilt(
    small_folder: Path, small_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, label: str
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(small_cache, cache)
    path = next(cache.glob(f"data/*/{file}"))
    os.truncate(path, path.stat().st_size - 1)
    capsys.readouterr()
    prepare_everything(small_folder, cache)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("data: ")]
    name = str(path.relative_to(path.parents[file.count("/") - 1]))
    assert re.fullmatch(
        rf"{label}: the cached .* is damaged \({name} has .* bytes instead of .*\); rebuilding it", said[0]
    )
    assert re.fullmatch(rf"{label}: done in \d+\.\d s", said[1]) and len(said) == 2
    assert_same_bytes(cache, small_cache)


def test_every_step_has_its_folder(small_cache: Path) -> None:
    names = {re.sub(r"-[0-9a-f]{12}|[0-9a-f]{12}/", "", name) for name in bytes_in(small_cache)}
    assert {
        "data/texts/collection/documents.arrow",
        "data/texts/query_sets/train_modeling.queries.tsv",
        "data/fields-word/lemm/forward/counts.npy",
        "data/fields-bwps/bwps/vocab.txt",
        "data/tuning/tuned.json",
        "data/candidates-bm25/development.run",
        "data/negatives/rows.npy",
    } <= names


def test_a_second_run_builds_nothing(small_folder: Path, small_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in small_cache.rglob("*") if path.is_file()}
    prepare_everything(small_folder, small_cache)
    assert capsys.readouterr().err.splitlines() == [
        "no query text is in two query sets (checked): train_modeling 270, train_fusion 30, development 60, test 40"
    ]
    assert {path: path.stat().st_mtime_ns for path in small_cache.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({"max_doc_tokens": 5}, "fields-word fields-bwps index candidates-bm25 negatives"),
        ({"max_vocabulary": 30}, "fields-word index candidates-bm25 negatives"),
        ({"k1": 0.9}, "index candidates-bm25 negatives"),
        ({"b": 0.4}, "index candidates-bm25 negatives"),
        ({"depth": 7}, "candidates-bm25"),
        ({"workers": 2}, ""),
    ],
)
def test_other_parameters_have_other_folders(
    small_folder: Path, small_cache: Path, tmp_path: Path, change: dict[str, Any], new: str
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(small_cache, cache)
    prepare_everything(small_folder, cache, k1=1.2, b=0.75)
    before = bytes_in(cache)
    prepare_everything(small_folder, cache, **{"k1": 1.2, "b": 0.75, **change})
    after = bytes_in(cache)
    assert {name: after[name] for name in before} == before  # what was there is still there
    added = {re.sub(r"-[0-9a-f]{12}$", "", name.split("/")[2]) for name in set(after) - set(before)}
    assert added == set(new.split())


def test_other_files_or_sizes_have_another_fingerprint(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "data", 30, 30, 10, 0)
    names = {prepare(folder, tmp_path).folder, prepare(folder, tmp_path, SplitSizes(development=4)).folder}
    write_lines(folder / "qrels.dev.tsv", [*(folder / "qrels.dev.tsv").read_text().splitlines(), "dev0 0 D1 1"])
    names.add(prepare(folder, tmp_path).folder)
    assert len(names) == 3


# ------------------------------------------------------------------------------------------------ what is prepared


def test_query_tokens_are_the_tokens_of_the_query_texts(small_folder: Path, small_cache: Path) -> None:
    prepared = prepare(small_folder, small_cache)
    for name, queries in prepared.query_sets.items():
        tokens = prepared.query_tokens(name, "word_all")
        vocabulary = [*prepared.field("word_all").vocabulary(), "unknown"]
        assert tokens.rows == len(queries)
        for i, text in enumerate(queries.texts):
            expected = [word if word in vocabulary else "unknown" for word in text.lower().rstrip("?").split()]
            assert [vocabulary[token] for token in tokens.row(i)] == expected


def test_the_tuned_parameters_are_the_best_of_all_trials(small_folder: Path, small_cache: Path) -> None:
    tuned = json.loads(next(small_cache.glob("data/*/tuning-*/tuned.json")).read_text())
    best = max(mrr for _, _, mrr in tuned["trials"])
    k1, b = next((k1, b) for k1, b, mrr in tuned["trials"] if mrr == best)
    prepared = prepare(small_folder, small_cache)
    assert prepared.first_stage_parameters == (tuned["k1"], tuned["b"]) == (k1, b)
    assert len(tuned["trials"]) >= 72 and 0 < best <= 1


def test_a_given_k1_is_kept_while_b_is_tuned(small_folder: Path, small_cache: Path, tmp_path: Path) -> None:
    shutil.copytree(small_cache, tmp_path / "cache")
    assert prepare(small_folder, tmp_path / "cache", k1=0.77).first_stage_parameters.k1 == 0.77
    assert prepare(small_folder, tmp_path, k1=0.77, b=0.1).first_stage_parameters == BM25Parameters(0.77, 0.1)


def test_candidates_and_their_run_are_equal(small_folder: Path, small_cache: Path) -> None:
    prepared = prepare(small_folder, small_cache)
    found = prepared.candidates("test")
    assert isinstance(found.scores, np.memmap)
    run = read_run(Path(str(found.scores.filename)).with_name("test.run"))
    queries = prepared.query_sets["test"]
    assert found.candidates.lengths().max() > 10
    for i, query in enumerate(queries.ids):
        documents, scores = run.get(query, ([], np.zeros(0)))
        span = slice(found.candidates.offsets[i], found.candidates.offsets[i + 1])
        assert prepared.collection.ids(found.candidates.row(i)).to_pylist() == documents
        assert np.array_equal(scores.astype(np.float32), found.scores[span])
        assert [(-s, d) for s, d in zip(scores, documents, strict=True)] == sorted(
            (-s, d) for s, d in zip(scores, documents, strict=True)
        )


def test_ranked_tasks_mark_the_relevant_documents(small_folder: Path, small_cache: Path) -> None:
    prepared = prepare(small_folder, small_cache)
    judged = {tuple(line.split()[::2]) for line in (small_folder / "qrels.test.tsv").read_text().splitlines()}
    queries = prepared.query_sets["test"].ids
    for depth in (1000, 3):
        task = prepared.ranked_task("test", depth)
        assert prepared.ranked_task("test", depth) is task  # computed once for all rows
        documents = prepared.collection.ids(task.candidates.values).to_pylist()
        pairs = zip(task.candidates.row_numbers(), documents, task.relevant, strict=True)
        assert all(((queries[row], document) in judged) == relevant for row, document, relevant in pairs)
        assert task.candidates.lengths().max() == 3 or depth > 3
    assert prepared.ranked_task("test", 1000).relevant.sum() > 10


def test_negatives_may_come_from_fewer_candidates(small_folder: Path, small_cache: Path) -> None:
    prepared = prepare(small_folder, small_cache)
    near, far = prepared.negatives(depth=5), prepared.negatives()
    assert ((near >= 0).sum(axis=1) <= 5).all() and not np.array_equal(near, far)


def test_relevant_documents_may_be_limited_to_candidates(small_folder: Path, small_cache: Path) -> None:
    prepared = prepare(small_folder, small_cache)
    relevant = prepared.query_sets["train_modeling"].relevant
    near, far = prepared.retrieved_relevant(depth=2), prepared.retrieved_relevant()
    index = RetrievalIndex.load(prepared.index_folder(prepared.first_stage_parameters))
    tokens, id_order = prepared.query_tokens("train_modeling", "lemm"), prepared.collection.id_order
    candidates, scores = retrieve(index, tokens, "train_modeling", 500, 1, id_order)
    retrieved = candidates._replace(values=candidates.values[ranking_order(candidates, scores, id_order)])
    for i in range(relevant.rows):
        expected = set(relevant.row(i).tolist())
        assert set(near.row(i).tolist()) == expected & set(retrieved.row(i)[:2].tolist())
        assert set(far.row(i).tolist()) == expected & set(retrieved.row(i).tolist())
    assert 0 < len(near.values) < len(far.values)


def test_negatives_come_from_the_top_500_and_are_not_relevant(small_folder: Path, small_cache: Path) -> None:
    prepared = prepare(small_folder, small_cache)
    negatives = prepared.negatives()
    queries = prepared.query_sets["train_modeling"]
    assert (NEGATIVES, NEGATIVES_FROM) == (20, 500)
    assert negatives.shape == (270, 20) and isinstance(negatives, np.memmap)
    words = [set(prepared.field("lemm").sequences.row(i).tolist()) for i in range(len(prepared.collection))]
    tokens = prepared.query_tokens("train_modeling", "lemm")
    for i in range(len(queries)):
        chosen = [row for row in negatives[i].tolist() if row >= 0]
        matching = {row for row, found in enumerate(words) if found & set(tokens.row(i).tolist())}
        others = matching - set(queries.relevant.row(i).tolist())
        assert set(chosen) <= others and len(set(chosen)) == min(20, len(others))


# --------------------------------------------------------------------------------------------- external candidates


@pytest.fixture
def external_run(small_folder: Path, tmp_path: Path) -> Path:
    """A run of all dev, test and training queries: for each the documents D5, D6, D7."""
    queries = [
        line.split("\t")[0]
        for name in ("train", "dev", "test")
        for line in (small_folder / f"queries.{name}.tsv").read_text().splitlines()
    ]
    lines = (f"{query} Q0 D{5 + i} {i + 1} {1.0 - i} other" for query in queries for i in range(3))
    return write_lines(tmp_path / "other.run", lines)


def test_an_external_run_replaces_the_first_stage(small_folder: Path, small_cache: Path, external_run: Path) -> None:
    prepared = prepare(small_folder, small_cache, candidates=external_run)
    for name in prepared.ranked_sets:
        found = prepared.candidates(name)
        assert found.candidates.rows == len(prepared.query_sets[name])
        ids = prepared.collection.ids(found.candidates.values).to_pylist()
        assert ids == ["D5", "D6", "D7"] * found.candidates.rows
        assert found.scores.tolist() == [1.0, 0.0, -1.0] * found.candidates.rows
    assert prepared.tuning_task().candidates.values.tolist() == [5, 6, 7] * 60


def test_a_changed_run_is_read_again(small_folder: Path, small_cache: Path, external_run: Path) -> None:
    prepare(small_folder, small_cache, candidates=external_run).candidates("test")
    external_run.write_text(external_run.read_text().replace(" D5 ", " D8 "))
    found = prepare(small_folder, small_cache, candidates=external_run).candidates("test")
    assert found.candidates.row(0).tolist() == [8, 6, 7]


def test_a_query_set_that_is_missing_in_the_run_is_one_clear_line(
    small_folder: Path, small_cache: Path, external_run: Path
) -> None:
    lines = [line for line in external_run.read_text().splitlines() if not line.startswith("dev")]
    write_lines(external_run, lines)
    prepared = prepare(small_folder, small_cache, candidates=external_run)
    assert prepared.candidates("test").candidates.rows == 40
    with pytest.raises(UserError, match=r"has no line for any query of development \(the first is dev0\)$"):
        prepared.candidates("development")
