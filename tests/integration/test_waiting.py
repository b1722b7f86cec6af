"""A training step never asks the device for a value: a GPU would be idle from the answer to the next kernel.

Tensors of torch's meta device have no values: whatever reads one raises an error. The layer of BERT-Model1 is not here:
it selects the real pieces by their mask, once per part of a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy

from callbacks.target_pretraining import LENGTH, PretrainedEncoder
from callbacks.training_report import EpochReport, TrainingMonitor
from datamodules import Folder
from datamodules.batches.epoch_loader import Batches
from datamodules.batches.sentence_pairs import PretrainingTokens, SentencePairs
from lightning_modules import BertRanker, NeuralModel1, NeuralRanker
from tests.fixtures.bert_training import SMALL, open_data
from tests.fixtures.tiny_bert import tiny_backbone, with_packaged_tokenizer, write_tiny_bert

STEPS = 3

pytestmark = pytest.mark.usefixtures("one_thread")


class Meta(CPUAccelerator):
    """An accelerator whose tensors have no values."""

    def setup_device(self, device: torch.device) -> None:
        assert device.type == "meta"


class MetaStrategy(SingleDeviceStrategy):
    """Gives Lightning the lengths of loaders, which it reads before a training: all that it needs is that none is 0."""

    def reduce(self, tensor: Any, *_: Any, **__: Any) -> Any:
        return torch.ones(tensor.shape)


class Stop(L.Callback):
    """Stops a training after some steps: what comes at the end of an epoch may read values."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == STEPS:
            raise RuntimeError("enough steps")


def train_without_values(module: L.LightningModule, data: Any, loss: str) -> None:
    strategy: Any = MetaStrategy(torch.device("meta"), accelerator=Meta())
    trainer = L.Trainer(
        strategy=strategy, max_epochs=1, logger=False, callbacks=[EpochReport(loss=loss), TrainingMonitor(), Stop()],
        log_every_n_steps=1000, limit_val_batches=0, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises((RuntimeError, NotImplementedError)) as raised:
        trainer.fit(module, data)
    first: BaseException = raised.value  # of several: Lightning then fails to copy the weights to the CPU
    while first.__context__ is not None:
        first = first.__context__
    assert str(first) == "enough steps" and trainer.global_step == STEPS


@pytest.fixture(scope="module")
def data(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return open_data(small_folder, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("head", ["vanilla", "knrm", "drmm", "pacrr", None])
def test_a_training_step_reads_no_value(head: Any, data: Folder) -> None:
    settings: dict[str, Any] = {**SMALL, "batch_size": 8, "pairs_at_once": 4}
    ranker: NeuralRanker = BertRanker(head, 2, tiny_backbone(), **settings) if head else NeuralModel1(embedding=16)
    ranker.build_for(data.vocabulary("bwps"))
    train_without_values(ranker, data, "train/loss")


def test_a_step_of_the_pretraining_reads_no_value(data: Folder, tmp_path: Path) -> None:
    backbone = with_packaged_tokenizer(write_tiny_bert(tmp_path, positions=128))
    pairs = SentencePairs(data.sequences("bwps"), PretrainingTokens.of(data.vocabulary("bwps")), LENGTH)
    batches = [pairs.batch(0, pairs.order(0)[8 * i : 8 * i + 8]) for i in range(STEPS + 1)]
    train_without_values(PretrainedEncoder(str(backbone), 1e-4), Batches(batches), "pretrain/loss")
