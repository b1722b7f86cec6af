"""The neural Model 1 as it is trained: gradients shared by parts and processes, rates, resuming, export, evaluation."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import ir_measures
import lightning as L
import numpy as np
import pytest
import torch

from callbacks.checkpoints import BestCheckpoint
from datamodules.retrieval_data import Folder
from evaluate import evaluate
from lexical.errors import UserError
from lexical.model1.table_files import load_table
from lightning_modules.neural_model1.ranker import NNModel1
from lightning_modules.neural_ranker import rate_factor
from pipeline.loading import load_ranker
from pipeline.resuming import remember_training, resume_from
from pipeline.run_folder import RunFolder
from tests.fixtures.training_place import Gradients, Place, assert_same, logged, weights
from tests.fixtures.wandb_files import read_offline_runs
from train import train

SMALL = [
    "--model.vectors=null", "--model.embedding=12", "--model.projection=8", "--model.hidden=[8,6]", "--model.margin=8",
    "--model.start=0.003", "--trainer.max_epochs=2", "--trainer.accelerator=cpu",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    os.environ["WANDB_MODE"] = "offline"
    return Place(small_folder, tmp_path_factory.mktemp("nn_model1"))


@pytest.fixture(scope="module")
def trained(place: Place) -> RunFolder:
    train(place.command("alone", "--model", "nn_model1", *SMALL))
    return place.folder("alone")


# --- what a training leaves


def test_both_rows_come_from_one_command(trained: RunFolder, place: Place) -> None:
    exported = place.folder("alone", "nn_model1_exp")
    assert trained.config.is_file() and exported.config.is_file()
    assert trained.fusion.is_file() and exported.fusion.is_file()
    assert (trained.table / "table.safetensors").samefile(exported.table / "table.safetensors")


def test_a_training_logs_its_gradients_and_its_speed(trained: RunFolder) -> None:
    for metric in ("train/gradient_norm", "train/pairs_per_second"):
        values = logged(trained, metric)
        assert values and all(np.isfinite(values)) and min(values) > 0
    runs = {run.job_type: run for run in read_offline_runs(trained.path / "wandb")}
    assert runs["train"].kept == {"val/mrr": "max", "train/loss": "min", "train/pairs_per_second": "mean"}


def test_the_gradient_norm_counts_sparse_rows_once_each() -> None:
    from callbacks.training_monitor import _squares

    dense = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])
    twice = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 2]]), torch.tensor([[0.5, 1.0], [0.5, 1.0], [3.0, 4.0]]), (3, 2)
    )
    assert _squares(dense) == _squares(twice) == 30.0


def test_the_exported_scores_are_the_networks(trained: RunFolder, place: Place) -> None:
    """Where nothing is dropped, pair by pair; with the threshold, every pair above it."""
    data = place.opened()
    network = load_ranker(trained, "nn_model1", data)
    assert isinstance(network, NNModel1)
    table = load_table(trained.table)
    used = np.flatnonzero(data.prepared.field("bwps").forward.document_frequency > 0)
    tokens = np.array([0, 5, 1996, 2100, 30_000])
    for token, row in zip(tokens, network.translation_rows(tokens, used), strict=True):
        start, end = table.table.rows.offsets[token : token + 2]
        exported = dict(zip(table.table.rows.values[start:end], table.table.probabilities[start:end], strict=True))
        assert set(used[row >= 1.0001e-3]) <= set(exported) <= set(used[row >= 0.9999e-3])  # but for rounding
        expected = dict(zip(used, row, strict=True))
        assert all(value == pytest.approx(expected[d], rel=1e-5) for d, value in exported.items())
    train(place.command("alone", "--model", "nn_model1_exp", "--model.threshold", "0"))
    whole = load_ranker(place.folder("alone", "nn_model1_exp"), "nn_model1_exp", data)
    (batch,) = data.ranking_loader("test", "bwps", 1000)
    assert np.abs(whole.score(batch) - network.score(batch)).max() < 1e-5
    train(place.command("alone", "--model", "nn_model1_exp"))


def test_the_last_validation_number_is_reproduced_and_is_that_of_ir_measures(trained: RunFolder, place: Place) -> None:
    data = place.opened()
    network = load_ranker(trained, "nn_model1", data)
    batch = data.validation_batch("bwps")
    scores = network.score(batch.ranking)
    queries = np.repeat(np.arange(batch.ranking.queries.rows), batch.ranking.candidates.lengths())
    documents = [f"{place_of:06d}" for place_of in batch.id_order[batch.ranking.candidates.values]]
    run = [ir_measures.ScoredDoc(str(q), d, float(s)) for q, d, s in zip(queries, documents, scores, strict=True)]
    judged = zip(queries, documents, batch.relevant, strict=True)
    qrels = [ir_measures.Qrel(str(q), d, int(r)) for q, d, r in judged]
    qrels += [ir_measures.Qrel(str(q), "none", 1) for q in range(batch.ranking.queries.rows)]  # all of them count
    expected = ir_measures.calc_aggregate([ir_measures.RR], qrels, run)[ir_measures.RR]
    assert max(logged(trained, "val/mrr")) == pytest.approx(expected, abs=1e-6)


def test_wandb_has_loss_rate_validation_and_export(trained: RunFolder) -> None:
    (run,) = read_offline_runs(trained.path / "wandb")
    keys = {key for row in run.history for key in row}
    assert {"train/loss", "train/learning_rate", "val/mrr", "export/entries", "export/share_of_mass"} <= keys


def test_the_rows_are_evaluated(trained: RunFolder, place: Place) -> None:
    found = evaluate([*place.data, "--output_dir", str(place.work / "alone")])
    rows = {(one.model, one.fused) for one in found}
    assert rows == {(model, fused) for model in ("nn_model1", "nn_model1_exp") for fused in (True, False)}
    assert trained.run("test", alone=False).is_file()


def test_seeds_are_averaged(trained: RunFolder, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    train(place.command("alone", "--model", "nn_model1", *SMALL, "--seed", "2"))
    other = place.folder("alone", seed=2)
    assert (
        weights(other.best_checkpoint)["embed_q.weight"] != weights(trained.best_checkpoint)["embed_q.weight"]
    ).any()
    found = evaluate([*place.data, "--output_dir", str(place.work / "alone"), "--models", "nn_model1"])
    by_seed = [json.loads(folder.evaluation.read_text())["results"][0]["value"] for folder in (trained, other)]
    mine = next(one for one in found if (one.model, one.fused, one.measure) == ("nn_model1", True, "MRR"))
    assert mine.seeds == 2
    assert mine.value == pytest.approx(np.mean(by_seed), abs=1e-6)
    again = train(place.command("alone", "--model", "nn_model1", *SMALL, "--seeds", "2"))
    said = capsys.readouterr().err
    assert all(f"nn_model1, seed {seed}: trained already with these settings, kept" in said for seed in (1, 2))
    measured = [json.loads(folder.development.read_text())["development/mrr"] for folder in (trained, other)]
    assert again["development/mrr"] == pytest.approx(np.mean(measured))
    assert all(place.folder("alone", "nn_model1_exp", seed).evaluation.is_file() for seed in (1, 2))  # measured too


def test_settings_of_the_ranker_are_kept_from_the_measurement() -> None:
    from train import _without

    given = ["--model.margin=8", "--model.hidden", "[8,6]", "--model.k1", "-1", "--data.path", "x", "--output_dir=y"]
    assert _without(given, "--model.") == ["--data.path", "x", "--output_dir=y"]


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--seeds", "x"], ["--seeds", "2", "--seed", "1"]])
def test_wrong_seeds_are_refused(wrong: list[str]) -> None:
    with pytest.raises(UserError, match="--seeds"):
        train(["--model", "nn_model1", *wrong])


# --- gradients and rates


def fitted(place: Place, batch_size: int, at_once: int | None, epochs: int = 1) -> Gradients:
    data = place.opened()
    model = NNModel1(
        embedding=12, projection=8, hidden=[8, 6], dropout=0.0, margin=8, start=1e-3, batch_size=batch_size,
        pairs_at_once=at_once, warmup=0.2,
    )  # fmt: skip
    model.share_work(1)
    data.serve(model.needs())
    model.use_vocabulary(data.prepared.field("bwps").vocabulary())
    seen = Gradients()
    settings = {**model.trainer_settings(), "enable_checkpointing": False, "accelerator": "cpu", "logger": False}
    trainer = L.Trainer(**settings, max_epochs=epochs, callbacks=[seen])
    trainer.fit(model, data)
    return seen


def test_gradients_and_rates_do_not_depend_on_accumulation(place: Place) -> None:
    whole, parts = fitted(place, 16, None), fitted(place, 16, 4)
    assert len(whole.rates) == len(parts.rates) == 17  # 270 queries: the last step has 14 pairs
    assert whole.rates == parts.rates
    for step in (0, 1, 16):
        for name, value in whole.gradients[step].items():
            assert (value - parts.gradients[step][name]).abs().max() <= 1e-4 * max(1e-3, value.abs().max()), name


def test_the_rate_warms_up_by_optimiser_steps_and_decays_by_epochs(place: Place) -> None:
    rates = fitted(place, 16, 4, epochs=2).rates
    assert rates == pytest.approx([3e-3 * rate_factor(step, 34, 17, 0.2, 0.9) for step in range(34)])
    assert rates[0] == 0 and rates[7] == pytest.approx(3e-3) and rates[-1] == pytest.approx(3e-3 * 0.9)


def test_two_processes_train_as_one(place: Place) -> None:
    """The same pairs, gradients summed: the same weights, but for rounding."""
    same = ["--model", "nn_model1", *SMALL, "--model.dropout=0"]
    train(place.command("one", *same))
    process = place.process("two", *same, "--trainer.devices", "2")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    one, two = place.folder("one"), place.folder("two")
    assert logged(two, "val/mrr") == pytest.approx(logged(one, "val/mrr"), abs=0.02)
    assert logged(two, "train/learning_rate") == pytest.approx(logged(one, "train/learning_rate"))
    assert_same(weights(one.checkpoint), weights(two.checkpoint), within=2e-3)


def test_a_batch_that_cannot_be_shared_is_refused(place: Place) -> None:
    with pytest.raises(UserError, match=r"--model\.batch_size 32 cannot be shared"):
        train(place.command("refused", "--model", "nn_model1", *SMALL, "--model.pairs_at_once", "5"))


def test_an_exported_row_without_a_network_says_what_to_train(place: Place) -> None:
    with pytest.raises(UserError, match=r"python train\.py --model nn_model1 --seed 7"):
        train(place.command("nothing", "--model", "nn_model1_exp", "--seed", "7"))


# --- interrupted and continued


def test_killed_in_the_middle_of_an_epoch_and_continued_the_weights_are_bitwise_the_same(place: Place) -> None:
    """kill -9 after the checkpoint of a step in the second epoch; dropout is on. All in processes of their own."""
    arguments = ["--model", "nn_model1", *SMALL, "--model.checkpoint_steps", "1"]
    place.kill("killed", arguments, step=12)
    assert not place.folder("killed").config.is_file()
    outputs = [place.process(name, *arguments).communicate(timeout=300)[0] for name in ("killed", "undisturbed")]
    assert "an unfinished training is continued from" in outputs[0]
    continued, undisturbed = place.folder("killed"), place.folder("undisturbed")
    assert_same(weights(continued.checkpoint), weights(undisturbed.checkpoint))
    assert_same(weights(continued.best_checkpoint), weights(undisturbed.best_checkpoint))


def unfinished(trained: RunFolder, place: Place, work: Path) -> tuple[RunFolder, dict[str, Any], NNModel1, Folder]:
    """A copy of a run that was killed after its last epoch, and what it was started with."""
    shutil.copytree(trained.path, work / "seed-1")
    folder, data, config = RunFolder(work / "seed-1"), place.opened(), trained.load_config()
    folder.config.unlink()
    model = load_ranker(trained, "nn_model1", data)
    assert isinstance(model, NNModel1)
    remember_training(folder, config, model, data)
    return folder, config, model, data


def test_the_same_settings_are_continued_and_others_are_kept_aside(
    trained: RunFolder, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, config, model, data = unfinished(trained, place, tmp_path)
    assert resume_from(folder, config, model, data) == folder.checkpoint
    other = {**config, "model": {**config["model"], "margin": 3.0}}
    assert resume_from(folder, other, model, data) is None
    assert not folder.checkpoint.exists() and folder.checkpoint.with_name("other-settings.ckpt").is_file()
    assert "not continued; its checkpoint is kept as" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_not_continued(
    trained: RunFolder, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, config, model, data = unfinished(trained, place, tmp_path)
    folder.checkpoint.write_bytes(folder.checkpoint.read_bytes()[:5000])
    assert resume_from(folder, config, model, data) is None
    assert "is damaged and cannot be continued from" in capsys.readouterr().err


def test_the_best_epoch_is_found_again_after_a_move(tmp_path: Path) -> None:
    saved = BestCheckpoint("/gone", "best", monitor="val/mrr", mode="max").state_dict()
    saved |= {"best_model_path": "/gone/best.ckpt", "best_model_score": torch.tensor(0.5)}
    moved = BestCheckpoint(tmp_path, "best", monitor="val/mrr", mode="max")
    moved.load_state_dict(saved)
    assert moved.best_model_path == str(tmp_path / "best.ckpt")
    assert moved.best_model_score == 0.5


def test_half_precision_weights_are_refused(place: Place) -> None:
    with pytest.raises(UserError, match="bf16-mixed is what you want"):
        train(place.command("half", "--model", "nn_model1", *SMALL, "--trainer.precision", "bf16-true"))
