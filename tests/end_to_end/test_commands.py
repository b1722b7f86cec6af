"""train.py and evaluate.py as a user runs them, on a small folder: real index, real tokenizer, real W&B files."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
import yaml

from datamodules import Folder
from evaluate import evaluate
from lexical.errors import UserError
from lexical.ranking import trec_run
from lexical.ranking.trec_run import read_run
from lightning_modules import load_ranker
from pipeline.configs import names, resolve
from pipeline.evaluating import load_trained
from pipeline.run_folder import RunFolder
from tests import ROOT
from train import train

ROWS = ("bm25_lemm", "bm25_lemm_word", "bm25_lemm_bwps", "model1_word", "model1_bwps", "model1_embed")


class Trained:
    """All rows of this project trained and evaluated once on the small folder."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.work = work
        self.data = ["--data", "folder", "--data.path", str(folder), "--data.cache_dir", str(work / "cache")]
        self.places = [*self.data, "--output_dir", str(work / "outputs")]
        self.development = {row: train(["--model", row, *self.places]) for row in ROWS}
        self.results = evaluate(self.places)
        (self.outputs,) = (work / "outputs").iterdir()

    def folder(self, row: str) -> RunFolder:
        return RunFolder(self.outputs / row / "seed-1")

    def mrr(self, row: str, fused: bool) -> float:
        key = (row, fused, "test", "MRR")
        (value,) = (r.value for r in self.results if (r.model, r.fused, r.query_set, r.measure) == key)
        return float(value)


@pytest.fixture(scope="module")
def trained(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    os.environ["WANDB_MODE"] = "offline"
    return Trained(small_folder, tmp_path_factory.mktemp("commands"))


def command(script: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


# --- results


def test_every_file_of_the_contract_is_there(trained: Trained) -> None:
    folder = trained.folder("bm25_lemm_word").path
    expected = "config.yaml checkpoints/ranker.ckpt metrics.csv fusion.json runs/test.run runs/test.alone.run"
    expected += " per_query/test.tsv per_query/test.alone.tsv wandb"
    assert [name for name in expected.split() if not (folder / name).exists()] == []
    assert trained.outputs.name.startswith("folder-small-")
    assert not trained.folder("bm25_lemm").fusion.exists()
    assert not trained.folder("bm25_lemm").run("test", alone=True).exists()
    for ending in ("json", "md", "tex", "html"):
        assert (trained.outputs / f"results.{ending}").stat().st_size > 0


def test_results_json_has_the_fields_of_the_contract(trained: Trained) -> None:
    results = json.loads((trained.outputs / "results.json").read_text())
    fields = "model fused query_set measure value seeds queries depth ms_per_1k device threads significance seed_values"
    assert all(list(entry) == fields.split() for entry in results)
    expected = sorted([(ROWS[0], False), *((row, fused) for row in ROWS[1:] for fused in (True, False))])
    for name in ("test", "test_cpu"):
        rows = [entry for entry in results if entry["query_set"] == name and entry["measure"] == "MRR"]
        assert sorted((entry["model"], entry["fused"]) for entry in rows) == expected
    assert {entry["query_set"] for entry in results} == {"test", "test_cpu"}
    assert all(entry["queries"] == 40 and entry["ms_per_1k"] > 0 for entry in results)


def test_the_value_in_the_table_is_that_of_the_run_file(trained: Trained, small_folder: Path) -> None:
    relevant = dict(line.split()[::2] for line in (small_folder / "qrels.test.tsv").read_text().splitlines())
    for row, alone in [(ROWS[0], False), *((row, alone) for row in ROWS[1:] for alone in (True, False))]:
        run = read_run(trained.folder(row).run("test", alone))
        ranks = [run[q][0].index(d) + 1 if q in run and d in run[q][0] else np.inf for q, d in relevant.items()]
        expected = float(np.mean(1 / np.array(ranks)))
        assert trained.mrr(row, fused=not alone and row != ROWS[0]) == pytest.approx(expected, abs=1e-9)
        lines = csv.DictReader(trained.folder(row).per_query("test", alone).open(), delimiter="\t")
        values = [float(line["value"]) for line in lines if line["measure"] == "MRR"]
        assert np.mean(values) == pytest.approx(expected, abs=1e-12)  # in full precision


def test_a_fused_run_is_the_weighted_sum_of_its_features(trained: Trained) -> None:
    folder = trained.folder("bm25_lemm_bwps")
    weights = json.loads(folder.fusion.read_text())["weights"]
    assert sum(map(abs, weights)) == pytest.approx(1.0)
    fused, alone = read_run(folder.run("test", False)), read_run(folder.run("test", True))
    lemm = read_run(trained.folder("bm25_lemm").run("test", False))
    for query in list(fused)[:10]:
        features = [dict(zip(*run[query], strict=True)) for run in (lemm, alone)]
        for document, score in zip(*fused[query], strict=True):
            expected = sum(w * feature[document] for w, feature in zip(weights, features, strict=True))
            assert score == pytest.approx(expected, abs=1e-5)


def test_evaluating_again_gives_the_same_bytes(trained: Trained) -> None:
    runs = sorted(trained.outputs.rglob("*.run"))
    before = [path.read_bytes() for path in runs]
    evaluate(["--models", "bm25_lemm,bm25_lemm_word", *trained.places])
    assert [path.read_bytes() for path in runs] == before


def test_large_runs_are_gzipped_and_the_same_after_unpacking(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained.folder("bm25_lemm")
    plain = folder.run("test", False).read_bytes()
    monkeypatch.setattr(trec_run, "GZIPPED_FROM", 1000)
    evaluate(["--models", "bm25_lemm", *trained.places])
    packed = folder.run("test", False)
    assert packed.name == "test.run.gz" and not packed.with_suffix("").exists()
    assert gzip.decompress(packed.read_bytes()) == plain
    assert folder.run("test_cpu", False).name == "test_cpu.run"  # 20 documents of 40 queries: 800 lines
    monkeypatch.undo()
    evaluate(["--models", "bm25_lemm", *trained.places])
    assert folder.run("test", False).read_bytes() == plain and not packed.exists()


def test_run_files_may_be_cut_and_what_is_measured_stays(trained: Trained) -> None:
    folder = trained.folder("bm25_lemm_word")
    before, measured = read_run(folder.run("test", True)), folder.per_query("test", True).read_bytes()
    evaluate(["--models", "bm25_lemm_word", "--run_depth", "7", *trained.places])
    cut = read_run(folder.run("test", True))
    assert {len(documents) for documents, _ in cut.values()} == {7}
    assert all(cut[query][0] == before[query][0][:7] for query in before)
    assert folder.per_query("test", True).read_bytes() == measured
    evaluate(["--models", "bm25_lemm_word", *trained.places])
    with pytest.raises(UserError, match="--run_depth 0: must be 1 or more"):
        evaluate(["--run_depth", "0", *trained.places])


def test_a_table_is_stored_once(trained: Trained, tmp_path: Path) -> None:
    """The checkpoint of a run has the hash of the table beside it; a checkpoint elsewhere has the table itself."""
    run = trained.folder("model1_word")
    assert run.checkpoint.stat().st_size < 0.2 * (run.table / "table.safetensors").stat().st_size
    ranker = load_ranker(run.path)
    data = Folder(trained.data[3], cache_dir=str(trained.work / "cache"))
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.validate(ranker, data, verbose=False)
    trainer.save_checkpoint(tmp_path / "whole.ckpt", weights_only=True)
    (batch,) = data.evaluation_batches("test", ranker.needs())
    alone = type(ranker).load_from_checkpoint(tmp_path / "whole.ckpt", weights_only=True)
    assert np.array_equal(alone.score(batch.ranking), ranker.score(batch.ranking))
    copy = tmp_path / "copy"
    shutil.copytree(run.checkpoint.parent, copy / "checkpoints")
    with pytest.raises(UserError, match=r"copy: the trained ranker cannot be loaded \(.*table is not a translation"):
        load_ranker(copy)
    shutil.copytree(trained.folder("model1_bwps").table, copy / "table")
    with pytest.raises(UserError, match=r"table is not the table of .*ranker\.ckpt"):
        load_ranker(copy)


def test_training_again_gives_the_same_weights_and_rebuilds_nothing(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    fusion = trained.folder("bm25_lemm_word").fusion
    before = json.loads(fusion.read_text())
    again = train(["--model", "bm25_lemm_word", *trained.places])
    after = json.loads(fusion.read_text())
    assert again == trained.development["bm25_lemm_word"]
    assert {**before, "seconds": 0} == {**after, "seconds": 0}
    assert "done in" not in capsys.readouterr().err


def test_a_plain_trainer_gives_the_rows_of_the_table(trained: Trained) -> None:
    """What was learned for the fusion is part of the ranker."""
    data = Folder(trained.data[3], cache_dir=str(trained.work / "cache"))
    for row in ROWS:
        ranker = load_ranker(trained.folder(row).path)
        trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
        trainer.test(ranker, data, verbose=False)
        assert ranker.evaluated["test"].measurements[0].mean == trained.mrr(row, fused=row != ROWS[0])


def test_rows_without_randomness_live_in_seed_1(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    train(["--model", "bm25_lemm", "--seed", "3", *trained.places])
    assert "--seed 3 is ignored" in capsys.readouterr().err
    assert not (trained.outputs / "bm25_lemm" / "seed-3").exists()


def test_given_parameters_are_not_tuned(trained: Trained, tmp_path: Path) -> None:
    settings = ["--model.k1", "0.77", "--model.b", "0.33"]
    train(["--model", "bm25_lemm", *settings, *trained.data, "--output_dir", str(tmp_path)])
    (saved,) = tmp_path.glob("*/bm25_lemm/seed-1/development.json")
    measured = json.loads(saved.read_text())
    assert (measured["k1"], measured["b"]) == (0.77, 0.33)


def test_a_saved_config_can_be_given_back(trained: Trained, tmp_path: Path) -> None:
    saved = trained.folder("bm25_lemm_word").config
    again = train(["--model", "bm25_lemm_word", "--config", str(saved), *trained.data, "--output_dir", str(tmp_path)])
    assert again == trained.development["bm25_lemm_word"]


def test_more_devices_than_a_ranker_uses_are_ignored_with_a_line(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = train(["--model", "bm25_lemm", "--trainer.devices", "2", *trained.data, "--output_dir", str(tmp_path)])
    assert "bm25_lemm is trained in one process: --trainer.devices 2 is ignored" in capsys.readouterr().err
    (saved,) = tmp_path.glob("*/bm25_lemm/seed-1/config.yaml")
    assert yaml.safe_load(saved.read_text())["trainer"]["devices"] == 1
    assert again == trained.development["bm25_lemm"]


def test_a_ranker_is_not_measured_on_other_candidates_than_it_was_trained_on(trained: Trained) -> None:
    with pytest.raises(UserError, match="was trained on other data or candidates"):
        evaluate(["--models", "bm25_lemm", "--data.depth", "10", *trained.places])


def test_leaderboard_runs_on_request(trained: Trained) -> None:
    evaluate(["--models", "bm25_lemm", "--leaderboard", "true", *trained.places])
    written = trained.folder("bm25_lemm").path / "runs" / "test.leaderboard.tsv"
    query, document, rank = written.read_text().splitlines()[0].split("\t")
    assert (query, rank) == ("test0", "1") and document.startswith("D")


def test_external_candidates_replace_the_first_stage(trained: Trained, small_folder: Path, tmp_path: Path) -> None:
    """A run with two documents a query: everything is measured over those two, wherever they come from."""
    lines = []
    for name in ("train", "dev", "test"):
        for line in (small_folder / f"qrels.{name}.tsv").read_text().splitlines():
            query, _, document, _ = line.split()
            lines += [f"{query} Q0 {document} 2 1.5 x", f"{query} Q0 D{(int(document[1:]) + 1) % 400} 1 2.5 x"]
    (tmp_path / "vespa.run").write_text("\n".join(lines) + "\n")
    arguments = [*trained.data, "--data.candidates", str(tmp_path / "vespa.run"), "--output_dir", str(tmp_path / "out")]
    train(["--model", "bm25_lemm_word", *arguments])
    results = evaluate(arguments)
    assert {result.value for result in results if result.measure == "recall@2" and result.depth == 2} == {1.0}
    run = read_run(next((tmp_path / "out").glob("*/bm25_lemm_word/seed-1/runs/test.run")))
    assert {len(documents) for documents, _ in run.values()} == {2}


def test_the_listing_of_the_data(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    train(["--data.stats", *trained.data])
    shown = capsys.readouterr().out
    assert "400" in shown and "train_modeling" in shown and "270" in shown and "bwps" in shown


@pytest.mark.parametrize("at_once", ["1", "2"])
def test_several_rankers_print_a_plan_a_line_each_and_what_comes_next(
    trained: Trained, tmp_path: Path, at_once: str
) -> None:
    places = [*trained.data, "--output_dir", str(tmp_path)]
    names = "bm25_lemm,bm25_lemm_word,model1_word"
    done = command(
        "train.py", "--models", names, *places, *(["--at_once", "2"] if at_once == "2" else []), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / trained.outputs.name
    said = done.stderr.splitlines()
    assert said[0] == f"{folder.name}: 3 rankers are trained: bm25_lemm, bm25_lemm_word, model1_word"
    assert said[1] == f"results go to {folder}"
    lines = [*said, *done.stdout.splitlines()]
    figures = r"(\[\d of 3\] )?(\w+)(, seed 1)?: development MRR \d\.\d{4}.*\d+ s\)?"
    assert sorted(match[2] for line in lines if (match := re.fullmatch(figures, line))) == sorted(names.split(","))
    assert len(lines) <= 12 and len(lines) == len(set(lines))

    done = command("evaluate.py", *places, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert [line.split(": ")[0] for line in said[1:4]] == names.split(",")
    assert all(re.fullmatch(r"\w+: test MRR \d\.\d{4}, \d+ s", line) for line in said[1:4])
    assert sum("kept offline" in line for line in said) == 1 and len(said) <= 10
    assert re.match(
        r"time of training: \d+ s \((\w+ \d+(, )?){3}\)$", next(line for line in said if "training" in line)
    )
    assert said[-2].startswith(f"next: open {folder}/results.html") and "python serve.py --data folder" in said[-2]
    assert said[-1].startswith("next: python explain.py --model ")


# --- tracking


def test_wandb_offline_files_hold_what_was_logged(trained: Trained) -> None:
    from tests.fixtures.wandb_files import read_offline_runs

    runs = read_offline_runs(trained.folder("bm25_lemm_word").path / "wandb")
    by_job = {run.job_type: run for run in runs}
    assert set(by_job) == {"train", "evaluate"}
    tuned = by_job["train"]
    assert tuned.group == f"bm25_lemm_word/{trained.outputs.name}" and tuned.name == "bm25_lemm_word-seed1"
    assert {"bm25_lemm_word", "train"} <= set(tuned.tags)
    assert tuned.config["model"]["field"] == "word" and tuned.config["labels"]["job_type"] == "train"
    assert tuned.summary["development/mrr"] == pytest.approx(trained.development["bm25_lemm_word"]["development/mrr"])
    assert max(step["tune/mrr"] for step in tuned.history if "tune/mrr" in step) > 0
    measured = by_job["evaluate"]
    assert measured.summary["results/nrows"] == 10 and "test/MRR" in measured.summary
    assert any("runs" in artifact for artifact in measured.artifacts)
    assert measured.summary["per_query/test/nrows"] == 40


def test_wandb_artifacts_name_what_they_were_made_from(trained: Trained) -> None:
    """data -> candidates -> model -> table -> runs: followed backwards by name and digest."""
    from tests.fixtures.wandb_files import read_offline_runs

    runs = {run.job_type: run for run in read_offline_runs(trained.folder("model1_word").path / "wandb")}
    artifacts = {
        f"{name}@{metadata['digest']}": metadata
        for run in runs.values()
        for name, metadata in run.metadata.items()
        if "digest" in metadata
    }  # W&B logs tables as artifacts of its own
    (reference,) = (reference for reference, metadata in artifacts.items() if metadata["type"] == "runs")
    types = [artifacts[reference]["type"]]
    while artifacts[reference]["inputs"]:
        reference = artifacts[reference]["inputs"][0]
        types.append(artifacts[reference]["type"])
    assert types == ["runs", "table", "model", "candidates", "data"]
    assert {name.split("-")[0] for name in runs["evaluate"].config["inputs"]} == {"table", "candidates"}
    assert artifacts[reference]["queries"]["development"] == 60


def test_wandb_has_a_summary_over_all_seeds_of_a_ranker(trained: Trained) -> None:
    from tests.fixtures.wandb_files import read_offline_runs

    (summary, *_) = read_offline_runs(trained.outputs / "model1_word" / "wandb")
    assert (summary.job_type, summary.name) == ("summary", "model1_word-summary")
    assert summary.group == f"model1_word/{trained.outputs.name}" and summary.config["seeds"] == 1
    assert (
        summary.summary["test/MRR"] == pytest.approx(trained.mrr("model1_word", True))
        and "test/MRR_alone" in summary.summary
    )
    assert summary.summary["significance/nrows"] == 2 and "report/sha256" in summary.summary


def test_wandb_disabled_leaves_no_trace_and_local_files_stay(trained: Trained, tmp_path: Path) -> None:
    os.environ["WANDB_MODE"] = "disabled"
    try:
        train(["--model", "bm25_lemm", *trained.data, "--output_dir", str(tmp_path)])
        evaluate([*trained.data, "--output_dir", str(tmp_path)])
    finally:
        os.environ["WANDB_MODE"] = "offline"
    assert not list(tmp_path.rglob("wandb"))
    assert list(tmp_path.rglob("metrics.csv")) and list(tmp_path.rglob("results.json"))


# --- configs


@pytest.mark.parametrize("model", names("model"))
@pytest.mark.parametrize("data", names("data"))
def test_every_named_config_resolves(model: str, data: str) -> None:
    resolved = resolve(["--model", model, "--data", data])
    assert resolved.model is not None and resolved.model.name == model and resolved.data.name == data


def test_precedence_command_line_then_profile_then_model(tmp_path: Path) -> None:
    from pipeline.command_line import RankerCLI

    bm25 = {"class_path": "lightning_modules.BM25", "init_args": {"k1": 0.1, "b": 0.1, "rerank_depth": 10}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"model": bm25, "trainer": {"max_epochs": 3, "min_epochs": 1}}))
    models = {
        "m*": {"model": {"b": 0.2, "rerank_depth": 20}, "trainer": {"max_epochs": 5}},
        "other*": {"model": {"b": 9.0}},
    }
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump({"models": models}))
    files = ["--model", str(tmp_path / "mine.yaml"), "--profile", str(tmp_path / "profile.yaml")]
    config = RankerCLI(resolve([*files, "--model.rerank_depth", "30"])).config_as_dict()
    assert (config["model"]["k1"], config["model"]["b"], config["model"]["rerank_depth"]) == (0.1, 0.2, 30)
    assert (config["trainer"]["max_epochs"], config["trainer"]["min_epochs"], config["trainer"]["devices"]) == (5, 1, 1)


def test_print_config_has_the_settings_of_the_profile(trained: Trained) -> None:
    """The whole truth in one place: the profile's 384 where the model's own file has 512."""
    shown = command("train.py", "--model", "nn_model1", *trained.data, "--print_config", cwd=trained.work)
    config = yaml.safe_load(shown.stdout)
    assert config["model"]["embedding"] == 384 and config["profile"] == "small"


# --- a ranker of one's own

TOY = """
from __future__ import annotations

import lightning as L
import numpy as np

from lexical.batches import RankingBatch
from lightning_modules import Ranker


class Overlap(Ranker):
    \"\"\"Share of the query's tokens that stand in the document.\"\"\"

    def __init__(self, field: str = "word", power: float = 1.0, fused: bool = True, rerank_depth: int = 1000) -> None:
        super().__init__(field, fused, rerank_depth)
        self.power = power

    def score(self, batch: RankingBatch) -> np.ndarray:
        shares = [np.isin(query, document).mean() for query, document in batch.pairs()]
        return np.array(shares, np.float32) ** self.power
"""


def test_a_ranker_of_ones_own_is_one_class_and_one_yaml(trained: Trained, tmp_path: Path) -> None:
    """Both in a folder of the user's, trained and evaluated by the commands, each in a process of its own."""
    (tmp_path / "overlap.py").write_text(TOY)
    model = {"model": {"class_path": "overlap.Overlap", "init_args": {"power": 0.5}}}
    (tmp_path / "my_overlap.yaml").write_text(yaml.safe_dump(model))
    arguments = [*trained.data, "--output_dir", str(tmp_path / "out")]
    done = command("train.py", "--model", str(tmp_path / "my_overlap.yaml"), *arguments, cwd=trained.work)
    assert done.returncode == 0, done.stderr
    assert "my_overlap: development MRR" in done.stdout
    done = command("evaluate.py", "--models", "my_overlap", *arguments, cwd=trained.work)
    assert done.returncode == 0, done.stderr
    assert "my_overlap" in done.stdout
    (results,) = (tmp_path / "out").glob("*/results.json")
    values = {
        (r["query_set"], r["fused"]): r["value"] for r in json.loads(results.read_text()) if r["measure"] == "MRR"
    }
    assert values["test", False] > 0 and trained.mrr("bm25_lemm", False) <= values["test", True] + 0.05


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "say which ranker: --model NAME with one of: bert_cedr_drmm, "),
        (["--model", "bm26"], "--model: there is no 'bm26'; choose one of: bert_cedr_drmm, "),
        (["--model"], "argument --model: expected one argument"),
        (
            ["--model", "bm25_lemm", "--data", "msmarco"],
            "--data: there is no 'msmarco'; choose one of: folder, msmarco_doc",
        ),
        (["--model", "bm25_lemm", "--model.k3", "1"], "unrecognized arguments: --model.k3 1"),
        (["--model", "bm25_lemm", "--model.k1", "big"], "--model.k1: 'big' is not float"),
        (["--model", "bm25_lemm", "--model.b", "1.5"], "--model.b 1.5: must be between 0 and 1"),
        (["--model", "bm25_lemm", "--model.rerank_depth", "0"], "--model.rerank_depth 0: must be 1 or more"),
        (["--model", "bm25_lemm", "--seed", "-1"], "--seed -1: must be between 0 and 4294967295"),
        (["--model", "my ranker.yaml"], "there is no 'my ranker.yaml'"),
        (["--model", "bm25_lemm", "--trainer.max_epoch", "1"], "unrecognized arguments: --trainer.max_epoch 1"),
        (["--model", "bm25_lemm", "--config", "no.yaml"], "no.yaml"),
        (["--model", "bm25_lemm", "--data", "folder"], "give the folder of the data with --data.path DIR"),
        (["--model", "bm25_lemm", "--data", "folder", "--data.path", "/no/such"], "there is no folder /no/such"),
        (
            ["--model", "bm25_lemm", "--data.candidates", "/no/run"],
            "--data.candidates: there is no file or folder /no/run",
        ),
    ],
)
def test_a_mistake_gets_one_clear_line(arguments: list[str], line: str) -> None:
    with pytest.raises(UserError) as caught:
        train(arguments)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_exit_code_2_and_no_traceback(tmp_path: Path) -> None:
    for script, arguments in (("train.py", ["--model", "bm26"]), ("evaluate.py", ["--models", "bm25_lemm"])):
        done = command(script, *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"{script}: ")
        assert done.stdout == ""


def test_evaluate_names_what_is_missing(trained: Trained, tmp_path: Path) -> None:
    for arguments, line in (
        ([*trained.data, "--output_dir", str(tmp_path)], "nothing is trained on folder-small-"),
        (["--models", "bm26", *trained.places], "there is no ranker 'bm26'"),
        (["--model", "bm25_lemm", *trained.places], "takes --models"),
    ):
        with pytest.raises(UserError, match=line):
            evaluate(arguments)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("damage", ["truncated", "hostile", "other keys", "other class", "missing"])
def test_a_bad_checkpoint_is_never_trusted(
    trained: Trained, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, original = RunFolder(tmp_path / "bm25_lemm" / "seed-1"), trained.folder("bm25_lemm")
    folder.checkpoint.parent.mkdir(parents=True)
    for name in ("config.yaml", "development.json"):
        (folder.path / name).write_bytes((original.path / name).read_bytes())
    content = torch.load(original.checkpoint, weights_only=True)
    if damage == "truncated":
        folder.checkpoint.write_bytes(original.checkpoint.read_bytes()[:500])
    elif damage == "hostile":
        folder.checkpoint.write_bytes(pickle.dumps({"state_dict": Hostile()}))
    elif damage == "other keys":
        torch.save({**content, "state_dict": {"k1": torch.tensor(1.0)}}, folder.checkpoint)
    elif damage == "other class":
        torch.save({**content, "ranker": "subprocess.Popen"}, folder.checkpoint)
    with pytest.raises(UserError, match=r"cannot be loaded|has no trained ranker") as error:
        load_trained(folder, Folder(trained.data[3], cache_dir=str(trained.work / "cache")))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "hacked").exists()


def test_ctrl_c_leaves_a_cache_that_the_next_run_completes(
    trained: Trained, small_folder: Path, tmp_path: Path
) -> None:
    arguments = ["--model", "bm25_lemm", "--data", "folder", "--data.path", str(small_folder)]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=tmp_path, env={**os.environ, "WANDB_MODE": "disabled"},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs ignore it otherwise
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("cache/*/*/.fields*.building")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("train.py: interrupted")
    assert "Traceback" not in errors
    assert not list(tmp_path.glob("cache/*/*/.*.building"))
    done = command("train.py", *arguments, cwd=tmp_path, WANDB_MODE="disabled")
    assert done.returncode == 0, done.stderr
    (saved,) = tmp_path.glob("outputs/*/bm25_lemm/seed-1/development.json")
    assert json.loads(saved.read_text())["development/mrr"] == trained.development["bm25_lemm"]["development/mrr"]
