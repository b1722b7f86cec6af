"""Model 1 as it is trained: by EM (one process and two), by embeddings, and with a table that was given."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lexical.batches import BitextBatch
from lexical.errors import UserError
from lexical.model1.em import train_model1
from lexical.model1.table import Translations, others_rescaled, with_self_translation
from lexical.model1.table_files import load_table
from lexical.small_files import read_json
from lightning_modules import Model1, load_ranker
from pipeline.run_folder import RunFolder
from tests import ROOT
from tests.fixtures.small_folder import write_small_folder
from tests.fixtures.training_place import Place
from tests.fixtures.wandb_files import read_offline_runs
from train import train


@pytest.fixture(scope="module")
def place(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    os.environ["WANDB_MODE"] = "offline"
    return Place(small_folder, tmp_path_factory.mktemp("model1"))


def trained_in(place: Place, output: str, *arguments: str) -> RunFolder:
    """Train a ranker in an output folder of its own."""
    train(place.command(output, *arguments))
    (folder,) = (place.work / output).glob("*/*/seed-1")
    return RunFolder(folder)


@pytest.fixture(scope="module")
def alone(place: Place) -> RunFolder:
    """model1_word trained in one process."""
    return trained_in(place, "alone", "--model", "model1_word")


def likelihoods(folder: RunFolder, field: str) -> list[float]:
    rows = csv.DictReader((folder.path / "metrics.csv").open())
    return [float(row[f"train/log_likelihood_{field}"]) for row in rows if row[f"train/log_likelihood_{field}"]]


# --- EM


def test_the_log_likelihood_of_each_iteration_is_logged_and_never_falls(alone: RunFolder) -> None:
    for field in ("word", "word_all"):
        reached = likelihoods(alone, field)
        assert len(reached) == 5
        assert all(b >= a for a, b in pairwise(reached))


def test_wandb_has_the_log_likelihood_the_trials_and_the_table(alone: RunFolder) -> None:
    (logged,) = read_offline_runs(alone.path / "wandb")
    keys = {key for row in logged.history for key in row}
    assert {"train/log_likelihood_word", "train/log_likelihood_word_all", "tune/mrr_word", "tune/p_self"} <= keys
    assert any(name.startswith("table-") for name in logged.artifacts)


def test_both_fields_are_reported_and_the_better_one_is_kept(alone: RunFolder) -> None:
    measured = read_json(alone.development)
    tuned = {field: measured[f"development/mrr_tuned_{field}"] for field in ("word", "word_all")}
    best = max(tuned, key=lambda field: tuned[field])
    assert load_table(alone.table).meta["field"] == best
    assert load_ranker(alone.path).field == best


def bitext_batches(place: Place) -> list[BitextBatch]:
    data, ranker = place.opened(), Model1(min_documents=2)  # of the profile
    ranker.trainer = data.trainer = place.trainer()
    data.trainer.strategy.connect(ranker)
    return list(data.train_dataloader())


def test_the_trained_table_is_that_of_the_library(alone: RunFolder, place: Place) -> None:
    saved = load_table(alone.table)
    field, settings = saved.meta["field"], saved.meta["parameters"]
    blocks = [batch.bitext for batch in bitext_batches(place) if batch.field == field]
    em, _ = train_model1(blocks, len(saved.vocabulary))
    learned = Translations(em.pairs, em.translation).pruned(settings["threshold"])
    expected = with_self_translation(others_rescaled(learned), settings["p_self"])
    assert saved.table.rows.values.tolist() == expected.rows.values.tolist()
    assert np.abs(saved.table.probabilities - expected.probabilities).max() == 0
    assert saved.vocabulary == place.opened().vocabulary(field)


def test_two_processes_learn_the_table_of_one(alone: RunFolder, place: Place) -> None:
    process = place.process("two", "--model", "model1_word", "--trainer.devices", "2")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    (path,) = (place.work / "two").glob("*/*/seed-1")
    one, two = load_table(alone.table), load_table(path / "table")
    assert one.vocabulary == two.vocabulary and one.meta["parameters"] == two.meta["parameters"]
    assert one.table.rows.values.tolist() == two.table.rows.values.tolist()
    assert np.abs(one.table.probabilities - two.table.probabilities).max() < 1e-6
    for field in ("word", "word_all"):
        assert likelihoods(RunFolder(path), field) == pytest.approx(likelihoods(alone, field), rel=1e-9)
    assert output.count("model1_word: development MRR") == 1  # one process reports
    assert output.count("EM (word): iteration 5 of 5") == 1
    dropped: dict[str, int] = {}
    for batch in bitext_batches(place):
        dropped[batch.field] = dropped.get(batch.field, 0) + batch.bitext.dropped
    ending = "pairs are dropped because their lengths differ by more than a factor of 9"
    expected = [f"bitext ({field}): {count:,} {ending}" for field, count in dropped.items() if count]
    assert [line for line in output.splitlines() if "pairs are dropped" in line] == expected  # of both processes
    assert len(list(path.glob("wandb/offline-run-*"))) == 1


def test_settings_that_are_given_are_not_tuned(place: Place) -> None:
    given = (
        "--model.fields [word] --model.p_self 0.3 --model.smoothing 0.15 --model.threshold 0.01 --model.iterations 2"
    )
    folder = trained_in(place, "given", "--model", "model1_word", *given.split())
    measured = read_json(folder.development)
    assert (measured["p_self"], measured["smoothing"], measured["threshold"]) == (0.3, 0.15, 0.01)
    assert len(likelihoods(folder, "word")) == 2
    assert load_table(folder.table).meta["source"]["iterations"] == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("--model.iterations 0", "--model.iterations 0: must be 1 or more"),
        ("--model.p_self 1", "--model.p_self 1.0: must be from 0 to less than 1"),
        ("--model.smoothing 1e-9", "--model.smoothing 1e-09: must be 0, or from 0.000001 to 1"),
        ("--model.threshold -1", "--model.threshold -1.0: must be from 0 to less than 1"),
        ("--model.fields []", "--model.fields []: must be one field or more"),
        ("--trainer.devices -1", "--trainer.devices -1: must be a number of processes, 1 or more"),
        ("--model.chunk 1e9", "--model.chunk 1000000000.0: must be from 0 (whole documents) to 1000"),
        ("--model.fields [stems]", "there is no field 'stems': choose one of word, lemm, word_all, bwps"),
    ],
)
def test_a_wrong_setting_gets_one_line(place: Place, setting: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        trained_in(place, "wrong", "--model", "model1_word", *setting.split())
    assert message in str(caught.value)


def test_training_pairs_without_known_tokens_are_refused(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "data", 40, 30, 10, 10)
    lines = [f"{line.split(chr(9))[0]}\tzzz{i}" for i, line in enumerate((folder / "queries.train.tsv").open())]
    (folder / "queries.train.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="give no sentence pairs in the field word"):
        trained_in(Place(folder, tmp_path), "outputs", "--model", "model1_word", "--model.fields", "[word]")


# --- embeddings


def test_embedding_translations_need_no_training_queries(place: Place) -> None:
    folder = trained_in(place, "embed", "--model", "model1_embed", "--model.neighbours", "8")
    saved = load_table(folder.table)
    assert saved.meta["source"]["neighbours"] == 8
    vocabulary = {token: i for i, token in enumerate(saved.vocabulary)}
    row = saved.table.rows.row(vocabulary["school"]).tolist()
    assert {vocabulary["school"], vocabulary["classroom"]} <= set(row)


def test_word_vectors_of_a_text_file(place: Place, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("4 2\nengine 1 0\nmotor 0.9 0.1\nviolin 0 1\nmusic 0.1 0.9\nnowhere 1 1\n")
    settings = ["--model.field", "word", "--model.vectors", str(vectors), "--model.neighbours", "1"]
    folder = trained_in(place, "file", "--model", "model1_embed", *settings)
    saved = load_table(folder.table)
    number = {token: i for i, token in enumerate(saved.vocabulary)}
    known = [token for token in ("engine", "motor", "violin", "music") if token in number]
    assert len(known) >= 2  # a word that no document has is no token of the field
    pairs = {
        (saved.vocabulary[q], saved.vocabulary[d]) for q in map(number.get, known) for d in saved.table.rows.row(q)
    }
    assert all((token, token) in pairs for token in known)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("engine 1 0\nviolin 1\n", ":2: 1 numbers instead of 2"),
        ("engine 1 x\n", ":1: not a line of numbers"),
        ("engine 1 nan\n", ":1: a number is not finite"),
        ("nowhere 1 2\n", "has no vector for any token of the field"),
    ],
)
def test_broken_word_vectors_get_one_line(place: Place, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "vectors.txt").write_text(content)
    with pytest.raises(UserError) as caught:
        trained_in(
            place,
            "broken",
            "--model",
            "model1_embed",
            "--model.field",
            "word",
            "--model.vectors",
            f"{tmp_path}/vectors.txt",
        )
    assert message in str(caught.value)


# --- a table that was made elsewhere


def test_a_given_table_ranks_as_the_ranker_that_made_it(alone: RunFolder, place: Place) -> None:
    saved = load_table(alone.table)
    smoothing = str(saved.meta["scored_with"]["smoothing"])
    settings = ["--model.table", str(alone.table), "--model.field", saved.meta["field"], "--model.smoothing", smoothing]
    folder = trained_in(place, "given_table", "--model", "model1_table", *settings)
    given, made = read_json(folder.development), read_json(alone.development)
    assert given["development/mrr_alone"] == made["development/mrr_alone"]
    assert given["smoothing"] == made["smoothing"] and "p_self" not in given
    assert load_ranker(folder.path).is_trained


def test_a_table_of_other_words_is_refused(alone: RunFolder, place: Place) -> None:
    with pytest.raises(UserError, match=r"say which table: --model\.table FOLDER"):
        trained_in(place, "none", "--model", "model1_table")
    with pytest.raises(UserError, match=r"is not a translation table: it has no table\.safetensors"):
        trained_in(place, "none", "--model", "model1_table", "--model.table", str(place.work))


def test_a_table_may_be_read_from_the_folder_that_it_is_written_to(alone: RunFolder, place: Place) -> None:
    settings = ["--model", "model1_table", "--model.field", load_table(alone.table).meta["field"]]
    folder = trained_in(place, "again", *settings, "--model.table", str(alone.table))
    before = load_table(folder.table)
    again = load_table(trained_in(place, "again", *settings, "--model.table", str(folder.table)).table)
    assert again.table.probabilities.tolist() == before.table.probabilities.tolist()
    with pytest.raises(UserError, match="is not a translation table"):
        trained_in(place, "again", *settings, "--model.table", str(place.work / "nowhere"))
    assert folder.config.exists() and folder.table.exists()  # a typo removes nothing


def test_processes_of_torchrun_must_be_as_many_as_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"torchrun has started 2 processes .* give --trainer\.devices 2"):
        trained_in(place, "torchrun", "--model", "model1_word")


def test_ctrl_c_during_em_is_one_line(place: Place) -> None:
    arguments = ["--model", "model1_word", "--model.iterations", "100000"]
    output = ["--output_dir", str(place.work / "stop")]
    running = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments, *place.data, *output],
        env={**os.environ, "WANDB_MODE": "disabled"}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert running.stderr is not None
    for line in running.stderr:
        if "iteration 3 of" in line:
            break
    running.send_signal(signal.SIGINT)
    rest = running.stderr.read()
    assert running.wait(60) == 130
    assert "interrupted" in rest and "Traceback" not in rest
