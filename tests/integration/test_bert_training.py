"""BERT rankers as they are trained and measured: a tiny encoder, real data, real processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import lightning as L
import numpy as np
import pytest
from safetensors.torch import load_file

from evaluate import evaluate
from lexical.errors import UserError
from lightning_modules.bert.ranker import BertRanker
from lightning_modules.neural_ranker import rate_factor
from pipeline.loading import load_ranker
from pipeline.run_folder import RunFolder
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert
from tests.fixtures.training_place import Gradients, Place, assert_same, logged, weights
from train import train

SMALL = ["--trainer.accelerator=cpu", "--model.positions=64", "--model.query_pieces=8", "--model.train_queries=48"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the packaged tokenizer beside the random weights."""
    return with_packaged_tokenizer(write_tiny_bert(tmp_path_factory.mktemp("bert"), positions=64))


@pytest.fixture(scope="module")
def place(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    os.environ["WANDB_MODE"] = "offline"
    return Place(small_folder, tmp_path_factory.mktemp("bert_training"))


def arguments(backbone: Path, model: str) -> list[str]:
    return ["--model", model, "--model.backbone", str(backbone), *SMALL]


@pytest.fixture(scope="module")
def trained(place: Place, backbone: Path) -> RunFolder:
    train(place.command("alone", *arguments(backbone, "bert_model1_full"), "--trainer.log_every_n_steps=1"))
    return place.folder("alone", "bert_model1_full")


def test_without_a_gpu_the_profile_is_saved_and_the_samples_are_measured(trained: RunFolder, place: Place) -> None:
    assert trained.load_config()["model"]["profile"] == "cpu"
    train(place.command("alone", "--model", "bm25_lemm"))
    found = evaluate([*place.data, "--output_dir", str(place.work / "alone")])
    assert {one.query_set for one in found if one.model == "bert_model1_full"} == {"test_cpu"}
    assert {one.query_set for one in found if one.model == "bm25_lemm"} == {"test", "test_cpu"}
    sampled = [one for one in found if one.query_set == "test_cpu" and one.measure == "MRR"]
    assert len({(one.queries, one.depth) for one in sampled}) == 1  # the same queries and depth for every row
    assert sampled[0].depth == 20
    (bert,) = (one for one in sampled if one.model == "bert_model1_full")
    assert bert.ms_per_1k > 0
    with pytest.raises(UserError, match=r"--trainer\.precision bf16-true: weights and scores stay float32"):
        evaluate([*place.data, "--output_dir", str(place.work / "alone"), "--trainer.precision", "bf16-true"])


def test_a_training_logs_padding_and_the_rates_of_both_groups(trained: RunFolder) -> None:
    padding = logged(trained, "train/padding")
    assert padding and 0 <= min(padding) <= max(padding) < 0.5
    head, encoder = (logged(trained, f"train/learning_rate_{group}") for group in ("head", "encoder"))
    assert max(head) == pytest.approx(1e-3) and head == pytest.approx([10 * rate for rate in encoder])
    assert head[-1] < max(head)  # the cooldown of this data


def test_the_last_validation_number_is_reproduced(trained: RunFolder, place: Place) -> None:
    data = place.opened()
    ranker = load_ranker(trained, "bert_model1_full", data)
    assert isinstance(ranker, BertRanker)
    data.serve(ranker.needs())
    batch = data.validation_batch("bwps")
    trainer = L.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu", enable_model_summary=False)
    (measured,) = trainer.validate(ranker, data, verbose=False)
    assert logged(trained, "val/mrr")[-1] == pytest.approx(measured["val/mrr"], abs=1e-6)
    assert batch.ranking.queries.rows == min(50, len(data.query_set("development")))


def test_the_saved_folder_scores_as_the_checkpoint(trained: RunFolder, place: Place) -> None:
    data = place.opened()
    ranker = load_ranker(trained, "bert_model1_full", data)
    loaded = BertRanker.from_pretrained(trained.path / "ranker")
    (batch,) = data.ranking_loader("test_cpu", "bwps", 5)
    np.testing.assert_array_equal(loaded.score(batch), ranker.score(batch))
    queries = data.query_set("test_cpu").texts
    documents = [data.prepared.collection.text(int(row)) for row in batch.candidates.values[:5]]
    first = [queries[0]] * 5
    np.testing.assert_allclose(loaded.score_texts(first, documents), ranker.score(batch)[:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["bert_vanilla_short", "bert_cedr_knrm", "bert_cedr_drmm", "bert_cedr_pacrr"])
def test_every_row_trains(model: str, place: Place, backbone: Path) -> None:
    metrics = train(place.command("rows", *arguments(backbone, model), "--model.train_queries=16"))
    assert 0 <= metrics["development/mrr"] <= 1


def test_evaluated_alone_there_is_a_table_too(place: Place, backbone: Path) -> None:
    """20 queries in steps of 16, 2 pairs at once: the last step has parts without pairs."""
    settings = ["--model.train_queries=20", "--model.pairs_at_once=2", "--model.fused=true"]
    train(place.command("single", *arguments(backbone, "bert_model1_full"), *settings))
    found = evaluate([*place.data, "--output_dir", str(place.work / "single")])
    assert {(one.query_set, one.fused) for one in found} == {("test_cpu", True), ("test_cpu", False)}
    fusion = json.loads(place.folder("single", "bert_model1_full").fusion.read_text())
    assert fusion["learned_on"] == "train_fusion_cpu"


def fitted(place: Place, backbone: Path, batch_size: int, at_once: int | None) -> Gradients:
    data = place.opened()
    model = BertRanker(
        "model1", 2, str(backbone), 64, 8, dropout=0.0, train_queries=40, batch_size=batch_size, pairs_at_once=at_once,
        warmup=0.4,
    )  # fmt: skip
    model.share_work(1)
    data.serve(model.needs())
    vocabulary = data.prepared.field("bwps").vocabulary()
    model.use_vocabulary(vocabulary)
    model.start_weights(vocabulary)
    config = model.encoder.transformer.config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0  # type: ignore[union-attr]
    for module in model.encoder.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    seen = Gradients()
    settings = {**model.trainer_settings(), "enable_checkpointing": False, "accelerator": "cpu", "logger": False}
    L.Trainer(**settings, max_epochs=1, callbacks=[seen], limit_val_batches=0).fit(model, data)
    return seen


def test_gradients_and_rates_of_both_groups_do_not_depend_on_accumulation(place: Place, backbone: Path) -> None:
    whole, parts = fitted(place, backbone, 8, None), fitted(place, backbone, 8, 2)
    assert whole.all_rates == parts.all_rates
    expected = [rate_factor(step, 5, 5, 0.4, 1.0) for step in range(5)]
    for number, base in enumerate((2e-5, 2e-4)):
        assert [rates[number] for rates in whole.all_rates] == pytest.approx([base * one for one in expected])
    for name, value in whole.gradients[0].items():
        assert (value - parts.gradients[0][name]).abs().max() <= 1e-4 * max(1e-2, value.abs().max()), name


def test_two_processes_write_the_run_file_of_one(trained: RunFolder, place: Place) -> None:
    """Beside a quick ranker, whose file the helping process must leave alone."""
    train(place.command("alone", "--model", "bm25_lemm"))
    written = []
    for processes in ("1", "2"):
        process = place.process("alone", "--trainer.devices", processes, script="evaluate.py")
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        written.append([trained.run("test_cpu", False).read_bytes(), trained.per_query("test_cpu", False).read_bytes()])
    assert written[0] == written[1]
    saved = json.loads(trained.evaluation.read_text())
    assert {one["device"] for one in saved["results"]} == {"2 x cpu"}


def test_two_processes_train_as_one(place: Place, tmp_path: Path) -> None:
    """Without dropout, and with a last optimiser step that leaves one process without pairs."""
    still = with_packaged_tokenizer(write_tiny_bert(tmp_path / "still", positions=64, dropout=0.0))
    same = [*arguments(still, "bert_model1_short"), "--model.pairs_at_once=4", "--model.dropout=0"]
    same += ["--model.train_queries=36", "--model.warmup=0"]
    train(place.command("one", *same))
    process = place.process("two", *same, "--trainer.devices", "2")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    one, two = (place.folder(name, "bert_model1_short") for name in ("one", "two"))
    assert logged(two, "train/learning_rate") == pytest.approx(logged(one, "train/learning_rate"))
    first, second = weights(one.checkpoint), weights(two.checkpoint)
    start = load_file(still / "model.safetensors")
    layer = "encoder.layer.0.attention.self.query.weight"
    moved = (first[f"encoder.transformer.{layer}"] - start[layer]).abs().mean()
    for name, value in first.items():  # Adam makes a step of a gradient that is all but rounding, too: so the mean
        if not name.endswith("key.bias"):  # softmax takes it away: its gradient is nothing but rounding
            assert (value.double() - second[name].double()).abs().mean() < 0.01 * moved, name


def test_killed_and_continued_the_weights_are_bitwise_the_same(place: Place, backbone: Path) -> None:
    same = [*arguments(backbone, "bert_model1_short"), "--model.checkpoint_steps", "1", "--model.batch_size", "8"]
    place.kill("killed", same, step=3, model="bert_model1_short")
    outputs = [place.process(name, *same).communicate(timeout=300)[0] for name in ("killed", "undisturbed")]
    assert "an unfinished training is continued from" in outputs[0]
    continued, undisturbed = (place.folder(name, "bert_model1_short") for name in ("killed", "undisturbed"))
    assert_same(weights(continued.checkpoint), weights(undisturbed.checkpoint))
