"""The benchmarks run and keep their bounds, at a size that a test can bear."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import full_size
from lexical.errors import UserError
from tests import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["benchmarks/prepare.py", "--sizes", "30000,90000"],
        ["benchmarks/fusion.py"],
        ["benchmarks/em.py", "--pairs", "100000"],
        ["benchmarks/score.py", "--queries", "20", "--repeats", "7", "--vocabulary", "20000", "--entries", "400000"],
        ["benchmarks/retrieve.py", "--documents", "300000", "--queries", "100"],
        ["benchmarks/nn_model1.py", "--small"],
        ["benchmarks/bert.py", "--small"],
    ],
    ids=["prepare", "fusion", "em", "score", "retrieve", "nn_model1", "bert"],
)
def test_a_benchmark_keeps_its_bounds(command: list[str], tmp_path: Path) -> None:
    arguments = [sys.executable, str(ROOT / command[0]), *command[1:]]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ------------------------------------------------------------------------------------------- full_size.py


def made_up(folder: Path, size: full_size.Size) -> dict[str, bytes]:
    full_size.generate(size, folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def lines_of(files: dict[str, bytes], name: str) -> list[list[str]]:
    return [line.split("\t") for line in files[name].decode().splitlines()]


def test_made_up_texts_depend_on_the_seed_alone_and_a_larger_collection_begins_with_a_smaller(tmp_path: Path) -> None:
    small, same, other, large = (
        made_up(tmp_path / str(number), full_size.Size(full_size.PASSAGE, texts, seed))
        for number, (texts, seed) in enumerate([(10_000, 1), (10_000, 1), (10_000, 2), (15_000, 1)])
    )
    assert small == same and small["collection.tsv"] != other["collection.tsv"]
    assert large["collection.tsv"].startswith(small["collection.tsv"])
    assert large["collection.tsv"].count(b"\n") == 15_000


def test_made_up_passages_have_the_statistics_of_text(tmp_path: Path) -> None:
    """Mean length, the share of the most frequent words, and a vocabulary that grows with the power 0.5 to 0.9."""
    files = made_up(tmp_path, full_size.Size(full_size.PASSAGE, 20_000, 1))
    words = [re.findall(r"[a-z0-9]+", text.lower()) for _, text in lines_of(files, "collection.tsv")]
    assert np.mean([len(text) for text in words]) == pytest.approx(full_size.PASSAGE.mean_words, rel=0.02)
    counts = Counter(word for text in words for word in text)
    assert sum(count for _, count in counts.most_common(100)) / counts.total() == pytest.approx(0.42, abs=0.05)
    rare = [len({word for text in part for word in text if counts[word] < 5}) for part in (words[:5000], words)]
    assert 0.5 < np.log(rare[1] / rare[0]) / np.log(4) < 0.9


def test_made_up_queries_share_words_with_their_passage(tmp_path: Path) -> None:
    files = made_up(tmp_path, full_size.Size(full_size.PASSAGE, 10_000, 1))
    texts = dict(lines_of(files, "collection.tsv"))
    for name, count in full_size.Size(full_size.PASSAGE, 10_000, 1).queries.items():
        queries = dict(lines_of(files, f"queries.{name}.tsv"))
        relevant = {line[0]: line[2] for line in map(str.split, files[f"qrels.{name}.tsv"].decode().splitlines())}
        assert len(queries) == count and queries.keys() == relevant.keys()
        for query, text in queries.items():
            passage = re.findall(r"[a-z0-9]+", texts[relevant[query]].lower())
            assert set(text.split()) & set(passage), query


def test_made_up_documents_have_four_columns(tmp_path: Path) -> None:
    files = made_up(tmp_path, full_size.Size(full_size.DOCUMENT, 300, 1))
    lines = lines_of(files, "collection.tsv")
    assert len(lines) == 300 and {len(line) for line in lines} == {4}
    assert np.mean([len(body.split()) for *_, body in lines]) == pytest.approx(1040, rel=0.2)


def test_an_interrupted_step_is_repeated_from_its_beginning(tmp_path: Path) -> None:
    """What a complete step has written stays, what an interrupted one has left is removed."""
    size = full_size.Size(full_size.PASSAGE, 10_000, 1)
    steps = full_size.Steps(size, tmp_path)
    (steps.folder / "data").mkdir()
    for name in ("collection.tsv", "half.tsv"):
        (steps.folder / "data" / name).write_text("text")
    steps.record["files"] = ["data/collection.tsv"]
    full_size.write_json(steps.file, steps.record)
    full_size.Steps(size, tmp_path).remove_leftovers()
    assert [path.name for path in sorted(steps.folder.rglob("*"))] == ["data", "collection.tsv", "steps.json"]
    with pytest.raises(UserError, match="was made with other settings"):
        full_size.Steps(size._replace(seed=2), tmp_path)


@pytest.mark.slow
def test_full_size_resumes_after_an_interruption_and_measures_both_sizes(tmp_path: Path) -> None:
    folder, results = tmp_path / "full", tmp_path / "results.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "full_size.py"), "--passages", "10000"]
    command += ["--folder", str(folder), "--results", str(results)]
    steps = folder / "1000-passages" / "steps.json"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        deadline = time.monotonic() + 300
        while not (steps.is_file() and "texts" in json.loads(steps.read_text())["steps"]):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
    before = json.loads(steps.read_text())["steps"]
    assert 2 <= len(before) < 11
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(results.read_text())
    assert list(measured) == ["1000-passages", "10000-passages"]
    for name, record in measured.items():
        assert list(record["steps"]) == ["generate", *full_size.PREPARATION, "EM", "network", "table", "evaluation"]
        assert all(step["memory_mib"] > 0 and step["cpu_seconds"] > 0 for step in record["steps"].values()), name
    assert measured["1000-passages"]["steps"].items() >= before.items()
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(results.read_text()) == measured
    assert "| evaluation |" in again.stdout
