"""What a training reports, by hand: the mean loss of an epoch, and the norm of gradients beside a loss scale."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from callbacks.training_report import EpochReport, TrainingMonitor
from datamodules.batches.epoch_loader import Batches


class Sum(L.LightningModule):
    """The loss is the batch times a weight of 1; so the batch is the gradient."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.weight, self.fused = torch.nn.Parameter(torch.ones(2)), fused

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:  # noqa: ARG002
        loss = (self.weight * batch).sum()
        self.log("train/loss", loss.detach(), on_step=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-9, fused=self.fused)


def trainer(callback: L.Callback, **settings: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, callbacks=[callback], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, **settings,
    )  # fmt: skip


def test_the_line_of_an_epoch_has_the_mean_loss(capsys: pytest.CaptureFixture[str]) -> None:
    trainer(EpochReport()).fit(Sum(), Batches([torch.tensor(pair) for pair in ([1.0, 0.0], [2.0, 0.0], [3.0, 4.0])]))
    assert "epoch 1 of 1: loss per pair 3.3333, " in capsys.readouterr().err


@pytest.mark.parametrize("fused", [False, True])
def test_the_gradient_norm_in_fp16_is_not_multiplied_by_the_loss_scale(fused: bool) -> None:
    """Gradients of 3 and 4; a fused optimiser divides them by the scale of 1024 only in its step."""
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))  # type: ignore[attr-defined]
    one = trainer(TrainingMonitor(), plugins=[scaled])
    one.fit(Sum(fused), Batches([torch.tensor([3.0, 4.0])]))
    assert float(one.callback_metrics["train/gradient_norm"]) == pytest.approx(5.0)
