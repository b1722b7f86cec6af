"""train.py and evaluate.py as a user runs them, on a small folder: real index, real tokenizer, real W&B files."""

from __future__ import annotations

import csv
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from datamodules.retrieval_data import Folder
from evaluate import evaluate
from lexical.errors import UserError
from lexical.ranking.trec_run import read_run
from pipeline.configs import names, resolve
from pipeline.loading import load_ranker
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
    expected = "config.yaml checkpoints/last.ckpt metrics.csv fusion.json runs/test.run runs/test.alone.run"
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
        mine = [entry for entry in results if entry["query_set"] == name and entry["measure"] == "MRR"]
        assert sorted((entry["model"], entry["fused"]) for entry in mine) == expected
    assert {entry["query_set"] for entry in results} == {"test", "test_cpu"}
    assert all(entry["queries"] == 40 and entry["ms_per_1k"] > 0 for entry in results)


def test_the_value_in_the_table_is_that_of_the_run_file(trained: Trained, small_folder: Path) -> None:
    relevant = dict(line.split()[::2] for line in (small_folder / "qrels.test.tsv").read_text().splitlines())
    for row, alone in [(ROWS[0], False), *((row, alone) for row in ROWS[1:] for alone in (True, False))]:
        run = read_run(trained.folder(row).run("test", alone))
        ranks = [run[q][0].index(d) + 1 if q in run and d in run[q][0] else np.inf for q, d in relevant.items()]
        expected = float(np.mean(1 / np.array(ranks)))
        (found,) = (
            one.value
            for one in trained.results
            if (one.model, one.fused, one.query_set, one.measure) == (row, not alone and row != ROWS[0], "test", "MRR")
        )
        assert found == pytest.approx(expected, abs=1e-9)
        lines = list(csv.DictReader(trained.folder(row).per_query("test", alone).open(), delimiter="\t"))
        assert np.mean([float(line["value"]) for line in lines if line["measure"] == "MRR"]) == pytest.approx(
            found, abs=1e-6
        )


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


def test_a_reloaded_ranker_reproduces_the_development_number_exactly(trained: Trained, small_folder: Path) -> None:
    from lexical.ranking.order import mean_reciprocal_rank
    from pipeline.reranking import ranking_trainer, rerank

    for row in ROWS:
        folder = trained.folder(row)
        data = Folder(str(small_folder), cache_dir=str(trained.work / "cache"))
        model = load_ranker(folder, row, data)
        weights = json.loads(folder.fusion.read_text())["weights"] if model.fused else None
        ranked = rerank(ranking_trainer(model, {"accelerator": "auto"}), model, data, "development", weights)
        assert mean_reciprocal_rank(ranked.task, ranked.row) == trained.development[row]["development/mrr"]


def test_rows_without_randomness_live_in_seed_1(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    train(["--model", "bm25_lemm", "--seed", "3", *trained.places])
    assert "--seed 3 is ignored" in capsys.readouterr().err
    assert not (trained.outputs / "bm25_lemm" / "seed-3").exists()


def test_given_parameters_are_not_tuned(trained: Trained, tmp_path: Path) -> None:
    train(
        [
            "--model",
            "bm25_lemm",
            "--model.k1",
            "0.77",
            "--model.b",
            "0.33",
            *trained.data,
            "--output_dir",
            str(tmp_path),
        ]
    )
    (saved,) = tmp_path.glob("*/bm25_lemm/seed-1/development.json")
    assert json.loads(saved.read_text())["k1"] == 0.77 and json.loads(saved.read_text())["b"] == 0.33


def test_a_saved_config_can_be_given_back(trained: Trained, tmp_path: Path) -> None:
    saved = trained.folder("bm25_lemm_word").config
    again = train(["--model", "bm25_lemm_word", "--config", str(saved), *trained.data, "--output_dir", str(tmp_path)])
    assert again == trained.development["bm25_lemm_word"]


def test_what_the_ranker_fixes_is_said_and_saved(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--trainer.devices", "2", "--trainer.limit_predict_batches", "0.5"]
    again = train(["--model", "bm25_lemm", *asked, *trained.data, "--output_dir", str(tmp_path)])
    said = capsys.readouterr().err
    assert "--trainer.devices 1: 2 is ignored" in said and "--trainer.limit_predict_batches 1.0: 0.5 is ignored" in said
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
    """A run with two documents a query: everything is measured over those two, whoever made them."""
    lines = []
    for name in ("train", "dev", "test"):
        for line in (small_folder / f"qrels.{name}.tsv").read_text().splitlines():
            query, _, document, _ = line.split()
            lines += [f"{query} Q0 {document} 2 1.5 x", f"{query} Q0 D{(int(document[1:]) + 1) % 400} 1 2.5 x"]
    (tmp_path / "vespa.run").write_text("\n".join(lines) + "\n")
    arguments = [*trained.data, "--data.candidates", str(tmp_path / "vespa.run"), "--output_dir", str(tmp_path / "out")]
    train(["--model", "bm25_lemm_word", *arguments])
    results = evaluate(arguments)
    assert {one.value for one in results if one.measure == "recall@2" and one.depth == 2} == {1.0}
    run = read_run(next((tmp_path / "out").glob("*/bm25_lemm_word/seed-1/runs/test.run")))
    assert {len(documents) for documents, _ in run.values()} == {2}


def test_the_listing_of_the_data(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    train(["--data.stats", *trained.data])
    shown = capsys.readouterr().out
    assert "400" in shown and "train_modeling" in shown and "270" in shown and "bwps" in shown


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
    assert max(row["tune/mrr"] for row in tuned.history if "tune/mrr" in row) > 0
    measured = by_job["evaluate"]
    assert measured.summary["results/nrows"] == 10 and "test/MRR" in measured.summary
    assert any("runs" in artifact for artifact in measured.artifacts)
    assert measured.summary["per_query/test/nrows"] == 40


def test_wandb_artifacts_name_what_they_are_made_of(trained: Trained) -> None:
    """data -> candidates -> model -> table -> runs: followed backwards by name and digest."""
    from tests.fixtures.wandb_files import read_offline_runs

    runs = {run.job_type: run for run in read_offline_runs(trained.folder("model1_word").path / "wandb")}
    known = {
        f"{name}@{one['digest']}": one for run in runs.values() for name, one in run.metadata.items() if "digest" in one
    }  # W&B logs tables as artifacts of its own
    (at,) = (reference for reference, one in known.items() if one["type"] == "runs")
    path = [known[at]["type"]]
    while known[at]["inputs"]:
        at = known[at]["inputs"][0]
        path.append(known[at]["type"])
    assert path == ["runs", "table", "model", "candidates", "data"]
    assert {reference.split("-")[0] for reference in runs["evaluate"].config["inputs"]} == {"table", "candidates"}
    assert known[at]["queries"]["development"] == 60


def test_wandb_has_a_summary_over_all_seeds_of_a_ranker(trained: Trained) -> None:
    from tests.fixtures.wandb_files import read_offline_runs

    (summary, *_) = read_offline_runs(trained.outputs / "model1_word" / "wandb")
    assert (summary.job_type, summary.name) == ("summary", "model1_word-summary")
    assert summary.group == f"model1_word/{trained.outputs.name}" and summary.config["seeds"] == 1
    (value,) = (one.value for one in trained.results if one[:4] == ("model1_word", True, "test", "MRR"))
    assert summary.summary["test/MRR"] == pytest.approx(value) and "test/MRR_alone" in summary.summary
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


def test_precedence_command_line_then_data_then_model(tmp_path: Path) -> None:
    from pipeline.command_line import NamedConfigCLI

    bm25 = {"class_path": "lightning_modules.bm25.BM25", "init_args": {"k1": 0.1, "b": 0.1, "rerank_depth": 10}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"model": bm25, "trainer": {"max_epochs": 3, "min_epochs": 1}}))
    data = {"class_path": "datamodules.retrieval_data.PyDocs"}
    changes = {
        "m*": {"model": {"b": 0.2, "rerank_depth": 20}, "trainer": {"max_epochs": 5}},
        "other*": {"model": {"b": 9.0}},
    }
    (tmp_path / "my_data.yaml").write_text(yaml.safe_dump({"data": data, "for_models": changes}))
    files = ["--model", str(tmp_path / "mine.yaml"), "--data", str(tmp_path / "my_data.yaml")]
    config = NamedConfigCLI(resolve([*files, "--model.rerank_depth", "30"]), "").config_as_dict()
    assert (config["model"]["k1"], config["model"]["b"], config["model"]["rerank_depth"]) == (0.1, 0.2, 30)
    assert (config["trainer"]["max_epochs"], config["trainer"]["min_epochs"], config["trainer"]["devices"]) == (5, 1, 1)


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "say which ranker: --model NAME with one of: bert_cedr_drmm, "),
        (["--model", "bm26"], "--model: there is no 'bm26'; choose one of: bert_cedr_drmm, "),
        (["--model"], "--model needs a value"),
        (
            ["--model", "bm25_lemm", "--data", "msmarco"],
            "--data: there is no 'msmarco'; choose one of: folder, msmarco_doc",
        ),
        (["--model", "bm25_lemm", "--model.k3", "1"], "unrecognized arguments: --model.k3 1"),
        (["--model", "bm25_lemm", "--model.k1", "big"], "--model.k1: 'big' is no float"),
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


@pytest.mark.parametrize("damage", ["truncated", "hostile", "other keys", "missing"])
def test_a_bad_checkpoint_is_never_trusted(
    trained: Trained, small_folder: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "bm25_lemm" / "seed-1")
    folder.checkpoint.parent.mkdir(parents=True)
    original = trained.folder("bm25_lemm")
    for name in ("config.yaml", "ranker.json"):
        (folder.path / name).write_bytes((original.path / name).read_bytes())
    if damage == "truncated":
        folder.checkpoint.write_bytes(original.checkpoint.read_bytes()[:500])
    elif damage == "hostile":
        folder.checkpoint.write_bytes(pickle.dumps({"state_dict": Hostile()}))
    elif damage == "other keys":
        torch.save({"state_dict": {"k1": torch.tensor(1.0)}}, folder.checkpoint)
    with pytest.raises(UserError, match="cannot be loaded") as caught:
        load_ranker(folder, "bm25_lemm", Folder(str(small_folder), cache_dir=str(trained.work / "cache")))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "hacked").exists()


def test_ctrl_c_leaves_a_cache_that_the_next_run_completes(
    trained: Trained, small_folder: Path, tmp_path: Path
) -> None:
    arguments = ["--model", "bm25_lemm", "--data", "folder", "--data.path", str(small_folder)]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=tmp_path, env={**os.environ, "WANDB_MODE": "disabled"},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs are born deaf to it
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
