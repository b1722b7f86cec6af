"""The neural Model 1 as train.py trains it: gradients shared by parts and processes, resuming, export, evaluation."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
import torch

from callbacks.checkpoints import BestCheckpoint
from callbacks.training_report import squared_norm
from evaluate import evaluate
from lexical.batches import RankingBatch
from lexical.errors import UserError
from lexical.model1.scorer import model1_scores, per_query_token
from lexical.model1.table_files import load_table
from lexical.model1.tuning import SMOOTHING_OF_EXPORT
from lexical.ranking.fusion import TRIAL_WEIGHTS, trial_reciprocal_ranks
from lexical.ranking.order import mean_reciprocal_rank
from lexical.small_files import read_json
from lightning_modules import NeuralModel1, load_ranker
from lightning_modules.neural_ranker import rate_factor
from pipeline.rows import without_model_settings
from pipeline.run_folder import RunFolder
from pipeline.training import checkpoint_to_resume
from tests.fixtures.small_rankers import SMALL_NETWORK
from tests.fixtures.training_place import Gradients, Place, assert_same, logged, weights
from tests.fixtures.wandb_files import read_offline_runs
from train import train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    os.environ["WANDB_MODE"] = "offline"
    return Place(small_folder, tmp_path_factory.mktemp("nn_model1"))


@pytest.fixture(scope="module")
def trained(place: Place) -> RunFolder:
    train(place.command("alone", "--model", "nn_model1", *SMALL_NETWORK))
    return place.folder("alone")


# --- what a training leaves


def test_both_rows_come_from_one_command(trained: RunFolder, place: Place) -> None:
    exported = place.folder("alone", "nn_model1_exp")
    assert trained.config.is_file() and exported.config.is_file()
    assert trained.fusion.is_file() and exported.fusion.is_file()
    assert (trained.table / "table.safetensors").samefile(exported.table / "table.safetensors")
    assert [path.name for path in trained.checkpoint.parent.iterdir()] == ["ranker.ckpt"]
    assert "optimizer_states" not in torch.load(trained.checkpoint, weights_only=True)


def test_a_training_logs_its_gradients_and_its_speed(trained: RunFolder) -> None:
    for metric in ("train/gradient_norm", "train/pairs_per_second"):
        values = logged(trained, metric)
        assert values and all(np.isfinite(values)) and min(values) > 0
    (run,) = read_offline_runs(trained.path / "wandb")
    assert run.kept == {"val/mrr": "max", "train/loss": "min", "train/pairs_per_second": "mean"}
    keys = {key for row in run.history for key in row}
    assert {"train/loss", "train/learning_rate", "val/mrr", "export/entries", "export/share_of_mass"} <= keys


def test_the_gradient_norm_sums_repeated_sparse_rows() -> None:
    dense = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])
    rows = torch.tensor([[0, 0, 2]])
    twice = torch.sparse_coo_tensor(rows, torch.tensor([[0.5, 1.0], [0.5, 1.0], [3.0, 4.0]]), (3, 2))
    assert squared_norm(dense) == squared_norm(twice) == 30.0


def test_the_exported_scores_are_the_networks(trained: RunFolder, place: Place) -> None:
    """Above the threshold pair by pair; without one, all scores."""
    data, network = place.opened(), load_ranker(trained.path)
    assert isinstance(network, NeuralModel1) and network.export is not None
    threshold = network.export.threshold
    table = load_table(trained.table)
    used = np.flatnonzero(data.tokens_in_collection("bwps"))
    tokens = np.array([0, 5, 1996, 2100, 30_000])
    for token, row in zip(tokens, network.translation_rows(tokens, used), strict=True):
        start, end = table.table.rows.offsets[token : token + 2]
        exported = dict(zip(table.table.rows.values[start:end], table.table.probabilities[start:end], strict=True))
        assert set(used[row >= 1.0001 * threshold]) <= set(exported) <= set(used[row >= 0.9999 * threshold])
        expected = dict(zip(used, row, strict=True))
        assert all(value == pytest.approx(expected[d], rel=1e-5) for d, value in exported.items())
    train(place.command("alone", "--model", "nn_model1_exp", "--model.threshold", "0", "--model.smoothing", "0"))
    whole = load_ranker(place.folder("alone", "nn_model1_exp").path)
    (batch,) = data.evaluation_batches("test", whole.needs())
    assert np.abs(whole.score(batch.ranking) - network.score(batch.ranking)).max() < 1e-5
    train(place.command("alone", "--model", "nn_model1_exp"))


def test_the_last_validation_number_is_reproduced_and_is_that_of_ir_measures(trained: RunFolder, place: Place) -> None:
    """All development queries, fused with BM25 at the best of a few weights: as EM's settings are chosen."""
    network = load_ranker(trained.path)
    network.trainer = place.trainer()
    (batch,) = place.opened().validation_batches(network.needs())
    assert batch.ranking.queries.rows == len(place.opened().query_set("development"))
    own = network.score(batch.ranking)
    queries = np.repeat(np.arange(batch.ranking.queries.rows), batch.ranking.candidates.lengths())
    documents = [f"{order:06d}" for order in batch.task.id_order[batch.ranking.candidates.values]]
    judged = zip(queries, documents, batch.task.relevant, strict=True)
    qrels = [ir_measures.Qrel(str(q), d, int(r)) for q, d, r in judged]
    qrels += [ir_measures.Qrel(str(q), "none", 1) for q in range(batch.ranking.queries.rows)]  # all queries count

    def mrr_of(weight: float) -> float:
        scores = (1 - np.float32(weight)) * batch.first_stage + np.float32(weight) * own
        run = [ir_measures.ScoredDoc(str(q), d, float(s)) for q, d, s in zip(queries, documents, scores, strict=True)]
        return ir_measures.calc_aggregate([ir_measures.RR], qrels, run)[ir_measures.RR]

    expected = max(mrr_of(weight) for weight in TRIAL_WEIGHTS)
    assert max(logged(trained, "val/mrr")) == pytest.approx(expected, abs=1e-6)


def test_the_smoothing_of_an_export_is_chosen_on_development_and_recorded(trained: RunFolder, place: Place) -> None:
    """As in any table, lambda P(q|C) stands for what is missing."""
    exported, data = load_ranker(place.folder("alone", "nn_model1_exp").path), place.opened()
    saved = load_table(place.folder("alone", "nn_model1_exp").table)
    (batch,) = data.evaluation_batches("development", exported.needs())

    def scores(smoothing: float) -> np.ndarray:
        return per_query_token(model1_scores(saved.table, *batch.ranking[:3], smoothing), *batch.ranking[1:3])

    def fused_mrr(smoothing: float) -> float:
        ranks = trial_reciprocal_ranks(batch.query_set.task, batch.first_stage, scores(smoothing))
        return float(ranks.mean(axis=0).max())

    mrr, chosen = {value: fused_mrr(value) for value in SMOOTHING_OF_EXPORT}, saved.meta["scored_with"]
    assert mrr[chosen["smoothing"]] == pytest.approx(max(mrr.values()))
    assert saved.meta["development_mrr"] == pytest.approx(max(mrr.values()))
    np.testing.assert_array_equal(exported.score(batch.ranking), scores(**chosen))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_an_exported_table_is_scored_alike_by_whoever_reads_it(
    trained: RunFolder, place: Place, smoothing: float
) -> None:
    """Its meta.json has lambda and the network's floor, which is not the 1e-8 of other tables."""
    given = ["--model.smoothing", str(smoothing)]
    train(place.command("alone", "--model", "nn_model1_exp", *given))
    exported = place.folder("alone", "nn_model1_exp")
    assert load_table(exported.table).meta["scored_with"]["smoothing"] == smoothing
    table = ["--model", "model1_table", "--model.field", "bwps", "--model.table", str(exported.table)]
    train(place.command("alone", *table, *given))
    measured = [read_json(place.folder("alone", name).development) for name in ("nn_model1_exp", "model1_table")]
    assert measured[0]["development/mrr_alone"] == measured[1]["development/mrr_alone"]
    shutil.rmtree(place.folder("alone", "model1_table").path.parent)
    train(place.command("alone", "--model", "nn_model1_exp"))


def test_the_best_epoch_is_not_scored_again(place: Place, tmp_path: Path) -> None:
    """60 development queries are scored once an epoch, 30 of train_fusion at the end; the figures are those of all."""
    scored: list[int] = []

    class Counted(NeuralModel1):
        def score(self, batch: RankingBatch) -> np.ndarray:
            scored.append(batch.queries.rows)
            return super().score(batch)

    ranker = Counted(embedding=12, projection=8, hidden=[8, 6], margin=8.0, start=0.003, export_threshold=None)
    data = place.opened()
    place.trainer(max_epochs=3, num_sanity_val_steps=0, default_root_dir=tmp_path).fit(ranker, data)
    assert (scored.count(60), scored.count(30)) == (3, 1)
    ranker.eval()
    (batch,) = data.evaluation_batches("development", ranker.needs())
    alone = mean_reciprocal_rank(batch.query_set.task, ranker.score(batch.ranking))
    assert ranker.development["development/mrr_alone"] == alone


def test_the_rows_are_evaluated(trained: RunFolder, place: Place) -> None:
    results = evaluate([*place.data, "--output_dir", str(place.work / "alone")])
    rows = {(result.model, result.fused) for result in results}
    assert rows == {(model, fused) for model in ("nn_model1", "nn_model1_exp") for fused in (True, False)}
    assert trained.run("test", alone=False).is_file()


def test_seeds_are_averaged(trained: RunFolder, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    means = train(place.command("alone", "--model", "nn_model1", *SMALL_NETWORK, "--seeds", "2"))
    assert "nn_model1, seed 1: already trained with these settings, kept" in capsys.readouterr().err
    other = place.folder("alone", seed=2)
    assert (weights(other.checkpoint)["embed_q.weight"] != weights(trained.checkpoint)["embed_q.weight"]).any()
    measured = [read_json(folder.development)["development/mrr"] for folder in (trained, other)]
    assert means["development/mrr"] == pytest.approx(np.mean(measured))
    assert all(place.folder("alone", "nn_model1_exp", seed).evaluation.is_file() for seed in (1, 2))  # measured, too
    results = evaluate([*place.data, "--output_dir", str(place.work / "alone"), "--skip_measured", "true"])
    by_seed = [read_json(folder.evaluation)["results"][0]["value"] for folder in (trained, other)]
    (mean,) = [r for r in results if (r.model, r.fused, r.query_set, r.measure) == ("nn_model1", True, "test", "MRR")]
    assert mean.seeds == 2
    assert mean.value == pytest.approx(np.mean(by_seed), abs=1e-6)


def test_settings_of_the_ranker_are_not_passed_to_the_measurement() -> None:
    argv = ["--model.margin=8", "--model.hidden", "[8,6]", "--model.k1", "-1", "--data.path", "x", "--output_dir=y"]
    assert without_model_settings(argv) == ["--data.path", "x", "--output_dir=y"]


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--seeds", "x"], ["--seeds", "2", "--seed", "1"]])
def test_wrong_seeds_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="--seeds"):
        train(["--model", "nn_model1", *arguments])


# --- gradients and rates


def fitted(place: Place, batch_size: int, pairs_at_once: int | None, epochs: int = 1) -> Gradients:
    model = NeuralModel1(
        embedding=12, projection=8, hidden=[8, 6], dropout=0.0, margin=8, start=1e-3, batch_size=batch_size,
        pairs_at_once=pairs_at_once, warmup=0.2, export_threshold=None,
    )  # fmt: skip
    gradients = Gradients()
    place.trainer(max_epochs=epochs, callbacks=[gradients], enable_checkpointing=False).fit(model, place.opened())
    return gradients


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
    settings = ["--model", "nn_model1", *SMALL_NETWORK, "--model.dropout=0"]
    train(place.command("one", *settings))
    process = place.process("two", *settings, "--trainer.devices", "2")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    one, two = place.folder("one"), place.folder("two")
    assert logged(two, "val/mrr") == pytest.approx(logged(one, "val/mrr"), abs=0.02)
    assert logged(two, "train/learning_rate") == pytest.approx(logged(one, "train/learning_rate"))
    assert_same(weights(one.checkpoint), weights(two.checkpoint), within=2e-3)


def test_a_batch_that_cannot_be_shared_is_refused(place: Place) -> None:
    with pytest.raises(UserError, match=r"--model\.batch_size 32 cannot be shared by 3 processes"):
        train(place.command("refused", "--model", "nn_model1", *SMALL_NETWORK, "--trainer.devices", "3"))


def test_an_exported_row_without_a_network_says_what_to_train(place: Place) -> None:
    with pytest.raises(UserError, match=r"python train\.py --model nn_model1 --seed 7"):
        train(place.command("nothing", "--model", "nn_model1_exp", "--seed", "7"))


# --- interrupted and resumed


def test_killed_in_the_middle_of_an_epoch_and_resumed_the_weights_are_bitwise_the_same(place: Place) -> None:
    """kill -9 after the checkpoint of a step in the second epoch; dropout is on. All in processes of their own."""
    arguments = ["--model", "nn_model1", *SMALL_NETWORK, "--model.checkpoint_steps", "1"]
    place.kill("killed", arguments, step=12)
    assert not place.folder("killed").config.is_file()
    outputs = [place.process(name, *arguments).communicate(timeout=300)[0] for name in ("killed", "undisturbed")]
    assert "resuming the unfinished training from" in outputs[0]
    assert_same(weights(place.folder("killed").checkpoint), weights(place.folder("undisturbed").checkpoint))


@pytest.fixture
def unfinished(trained: RunFolder, place: Place, tmp_path: Path) -> tuple[RunFolder, dict[str, Any]]:
    """A copy of the run as it is when it is killed after its last epoch, and its settings."""
    shutil.copytree(trained.path, tmp_path / "seed-1")
    folder, config = RunFolder(tmp_path / "seed-1"), trained.load_config()
    folder.config.unlink()
    assert checkpoint_to_resume(folder, config, place.opened()) is None  # writes what the training was started with
    folder.checkpoint.rename(folder.last_checkpoint)
    return folder, config


def test_the_same_settings_are_resumed_and_others_are_kept_aside(
    unfinished: tuple[RunFolder, dict[str, Any]], place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, config = unfinished
    assert checkpoint_to_resume(folder, config, place.opened()) == folder.last_checkpoint
    other = {**config, "model": {**config["model"], "margin": 3.0}}
    assert checkpoint_to_resume(folder, other, place.opened()) is None
    assert not folder.last_checkpoint.exists() and folder.last_checkpoint.with_name("other-settings.ckpt").is_file()
    assert "is not resumed; its checkpoint is kept as" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_not_resumed(
    unfinished: tuple[RunFolder, dict[str, Any]], place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, config = unfinished
    folder.last_checkpoint.write_bytes(folder.last_checkpoint.read_bytes()[:5000])
    assert checkpoint_to_resume(folder, config, place.opened()) is None
    assert "is damaged; training starts from the beginning" in capsys.readouterr().err


def test_the_best_epoch_is_known_after_a_move(tmp_path: Path) -> None:
    saved = BestCheckpoint(Path("/gone")).state_dict()
    saved |= {"best_model_path": "/gone/best.ckpt", "best_model_score": torch.tensor(0.5)}
    moved = BestCheckpoint(tmp_path)
    moved.load_state_dict(saved)
    assert moved.best_model_path == str(tmp_path / "best.ckpt")
    assert moved.best_model_score == 0.5


def test_half_precision_weights_are_refused(place: Place) -> None:
    with pytest.raises(UserError, match="bf16-mixed is what you want"):
        train(place.command("half", "--model", "nn_model1", *SMALL_NETWORK, "--trainer.precision", "bf16-true"))


def test_results_are_the_same_keys_as_ever(trained: RunFolder, place: Place) -> None:
    """results.json is read by others."""
    evaluate([*place.data, "--output_dir", str(place.work / "alone"), "--skip_measured", "true"])
    (path,) = (place.work / "alone").glob("*/results.json")
    expected = {
        "model", "fused", "query_set", "measure", "value", "seeds", "queries", "depth", "ms_per_1k", "device",
        "threads", "significance",
    }  # fmt: skip
    assert all(expected <= set(result) for result in json.loads(path.read_text()))
