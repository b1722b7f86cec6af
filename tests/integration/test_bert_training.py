"""BERT rankers as they are trained and measured by a plain trainer: a tiny encoder, real data, real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from datamodules import Folder
from lexical.batches import RankingBatch
from lightning_modules import BertRanker
from lightning_modules.neural_ranker import rate_factor
from tests.fixtures.bert_training import SMALL, logged, open_data, run_in_processes, trainer_in
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert
from tests.fixtures.training_place import Gradients, weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny encoder without dropout."""
    return str(with_packaged_tokenizer(write_tiny_bert(tmp_path_factory.mktemp("bert"), positions=128, dropout=0.0)))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bert_training")


@pytest.fixture(scope="module")
def data(small_folder: Path, work: Path) -> Folder:
    return open_data(small_folder, work / "cache")


class Trained(NamedTuple):
    """A trained and tested ranker."""

    ranker: BertRanker
    folder: Path
    metrics: dict[str, float]  # of the test


@pytest.fixture(scope="module")
def trained(data: Folder, backbone: str, work: Path) -> Trained:
    """20 queries in steps of 16, 2 pairs at once: parts of the last step have no pairs."""
    ranker = BertRanker(
        "model1", 3, backbone, fused=True, learning_rate=1e-4, head_learning_rate=1e-3, pairs_at_once=2, cooldown=0.5,
        **{**SMALL, "train_queries": 20},
    )  # fmt: skip
    trainer = trainer_in(work / "trained", precision="bf16-mixed")
    trainer.fit(ranker, data)
    trainer.save_checkpoint(work / "trained" / "ranker.ckpt")
    (metrics,) = trainer.test(ranker, data, verbose=False)
    return Trained(ranker, work / "trained", dict(metrics))


def test_a_sampled_ranker_is_validated_fused_and_measured_on_samples(trained: Trained, data: Folder) -> None:
    ranker = trained.ranker
    assert set(ranker.evaluated) == {"test_cpu"} and ranker.evaluated["test_cpu"].query_set.depth == 20
    assert {"test_cpu/mrr", "test_cpu/mrr_alone"} <= set(trained.metrics)
    assert ranker.fusion is not None and ranker.fusion["learned_on"] == "train_fusion_cpu"
    assert [batch.ranking.queries.rows for batch in data.validation_batches(ranker.needs())] == [50]


def test_padding_and_the_rates_of_both_groups_are_logged(trained: Trained) -> None:
    padding = logged(trained.folder, "train/padding")
    assert padding and 0 <= min(padding) <= max(padding) < 0.5
    head, encoder = (logged(trained.folder, f"lr-AdamW/{group}") for group in ("head", "encoder"))
    assert max(head) > 0 and head == pytest.approx([10 * rate for rate in encoder])


def test_the_saved_folder_scores_as_the_checkpoint(trained: Trained, data: Folder, tmp_path: Path) -> None:
    ranker = BertRanker.load_from_checkpoint(trained.folder / "ranker.ckpt").eval()
    assert ranker.precision == "bf16-mixed"  # that of the training, whatever the trainer that it is tested with
    ranker.save_artifacts(tmp_path)
    loaded = BertRanker.from_pretrained(tmp_path / "ranker")
    batch = data.evaluation_batches("test", trained.ranker.needs())[0].ranking
    assert isinstance(batch, RankingBatch)
    first = batch._replace(candidates=batch.candidates.rows_between(0, 1).head(5))
    expected = ranker.score(first)
    np.testing.assert_array_equal(loaded.score(first), expected)
    query = data.query_set("test_cpu").texts[0]
    documents = [data.prepared.collection.text(int(row)) for row in first.candidates.values]
    np.testing.assert_allclose(loaded.score_texts([query] * 5, documents), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["vanilla", "knrm", "drmm", "pacrr"])
def test_every_head_trains(head: str, data: Folder, backbone: str, tmp_path: Path) -> None:
    ranker = BertRanker(head, 2, backbone, frozen_layers=1, train_window=32, **{**SMALL, "train_queries": 16})  # type: ignore[arg-type]
    trainer_in(tmp_path).fit(ranker, data)
    assert 0 < ranker.development["development/mrr"] <= 1


def fitted(data: Folder, backbone: str, pairs_at_once: int | None, folder: Path) -> Gradients:
    settings: dict[str, Any] = {**SMALL, "train_queries": 40, "batch_size": 8, "dropout": 0.0, "warmup": 0.4}
    ranker = BertRanker("model1", 2, backbone, pairs_at_once=pairs_at_once, **settings)
    gradients = Gradients()
    trainer_in(folder, callbacks=[gradients], limit_val_batches=0, enable_checkpointing=False).fit(ranker, data)
    return gradients


def test_gradients_and_rates_of_both_groups_do_not_depend_on_accumulation(
    data: Folder, backbone: str, tmp_path: Path
) -> None:
    whole, parts = (fitted(data, backbone, pairs, tmp_path) for pairs in (None, 2))
    assert whole.all_rates == parts.all_rates
    expected = [rate_factor(step, 5, 5, 0.4, 1.0) for step in range(5)]
    for number, base in enumerate((2e-5, 2e-4)):
        assert [rates[number] for rates in whole.all_rates] == pytest.approx([base * factor for factor in expected])
    for name, gradient in whole.gradients[0].items():
        assert (gradient - parts.gradients[0][name]).abs().max() <= 1e-4 * max(1e-2, gradient.abs().max()), name


def test_two_processes_train_test_and_pretrain_as_one(
    trained: Trained, data: Folder, small_folder: Path, backbone: str, work: Path, tmp_path: Path
) -> None:
    """The last optimiser step of the training leaves one process without pairs, that of the pretraining without a pair
    of sequences. The run file is the same to the byte."""
    settings = {
        **SMALL, "head": "model1", "backbone": backbone, "pairs_at_once": 4, "dropout": 0.0, "warmup": 0.0,
    }  # fmt: skip
    one = trainer_in(tmp_path / "one")
    one.fit(BertRanker(**settings), data)
    one.save_checkpoint(tmp_path / "one" / "ranker.ckpt")
    pretraining = {
        **settings,
        "pretrain": True,
        "pretrain_sequences": 65,
        "pretrain_batch_size": 32,
        "train_queries": 16,
    }
    run_in_processes(
        texts=str(small_folder), cache=str(work / "cache"), devices=2,
        fits={str(tmp_path / "two"): settings, str(tmp_path / "pretrained"): pretraining},
        tests={str(tmp_path / "tested"): str(trained.folder / "ranker.ckpt")},
    )  # fmt: skip
    first, second = (weights(tmp_path / name / "ranker.ckpt") for name in ("one", "two"))
    start = load_file(Path(backbone) / "model.safetensors")
    layer = "encoder.layer.0.attention.self.query.weight"
    moved = (first[f"encoder.transformer.{layer}"] - start[layer]).abs().mean()
    for name, value in first.items():  # Adam also takes a step where the gradient is mere rounding: hence the mean
        if name != "_extra_state" and not name.endswith("key.bias"):  # softmax removes it: its gradient is rounding
            assert (value.double() - second[name].double()).abs().mean() < 0.01 * moved, name
    file = Path("runs") / "test_cpu.run"
    assert (tmp_path / "tested" / file).read_bytes() == (trained.folder / file).read_bytes()
    assert weights(tmp_path / "pretrained" / "ranker.ckpt").keys() == second.keys()
    (report,) = (work / "cache").glob("*/*/pretrained-*/pretraining.json")
    assert '"steps": 3' in report.read_text()


class Interruption(L.Callback):
    """Stops a training before an optimiser step."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 3:
            raise RuntimeError("interrupted")


def test_a_resumed_training_ends_with_the_same_weights_to_the_bit(data: Folder, tmp_path: Path) -> None:
    backbone = str(with_packaged_tokenizer(write_tiny_bert(tmp_path / "bert", positions=64)))
    settings = {**SMALL, "head": "model1", "backbone": backbone, "batch_size": 8, "checkpoint_steps": 1}
    whole = BertRanker(**settings)
    trainer_in(tmp_path / "whole").fit(whole, data)
    with pytest.raises(RuntimeError, match="interrupted"):
        trainer_in(tmp_path / "parts", callbacks=[Interruption()]).fit(BertRanker(**settings), data)
    last = tmp_path / "parts" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 3
    resumed = BertRanker(**settings)
    trainer_in(tmp_path / "parts").fit(resumed, data, ckpt_path=last, weights_only=True)
    assert resumed.fingerprint() == whole.fingerprint()
