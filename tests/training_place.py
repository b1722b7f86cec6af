"""Trainings in a folder of their own: started, killed, looked at."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from datamodules.retrieval_data import Folder
from experiment.folders import RunFolder

ROOT = Path(__file__).resolve().parent.parent


class Place:
    """A working folder with its own outputs and a shared cache."""

    def __init__(self, data: Path, work: Path) -> None:
        self.path, self.work = data, work
        self.data = ["--data", "folder", "--data.path", str(data), "--data.cache_dir", str(work / "cache")]

    def command(self, output: str, *arguments: str) -> list[str]:
        return [*arguments, *self.data, "--output_dir", str(self.work / output)]

    def folder(self, output: str, model: str = "nn_model1", seed: int = 1) -> RunFolder:
        (found,) = (self.work / output).glob(f"*/{model}/seed-{seed}")
        return RunFolder(found)

    def opened(self) -> Folder:
        return Folder(str(self.path), cache_dir=str(self.work / "cache"))

    def process(self, output: str, *arguments: str, script: str = "train.py") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / script), *self.command(output, *arguments)], cwd=self.work, text=True,
            env={**os.environ, "WANDB_MODE": "offline"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def kill(self, output: str, arguments: list[str], step: int, model: str = "nn_model1") -> None:
        """Starts a training and ends it by kill -9 when a checkpoint of optimiser step `step` or later is there."""
        process = self.process(output, *arguments)
        deadline = time.monotonic() + 200
        reached = 0
        while time.monotonic() < deadline and process.poll() is None and reached < step:
            for found in (self.work / output).glob(f"*/{model}/seed-1/checkpoints/last.ckpt"):
                with contextlib.suppress(OSError, RuntimeError, EOFError):  # it is just being written
                    reached = torch.load(found, weights_only=True)["global_step"]
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert reached >= step


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return loaded


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], within: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].double() - b[name].double()).abs().max() <= within, name


def logged(folder: RunFolder, name: str) -> list[float]:
    return [float(row[name]) for row in csv.DictReader((folder.path / "metrics.csv").open()) if row.get(name)]


class Gradients(L.Callback):
    """Keeps the gradients and the rate of the first optimiser steps."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.rates: list[float] = []
        self.all_rates: list[list[float]] = []  # of every group of parameters

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:  # noqa: ARG002
        values = {name: p.grad.to_dense().clone() for name, p in pl_module.named_parameters() if p.grad is not None}
        self.gradients.append(values)
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.all_rates.append([group["lr"] for group in optimizer.param_groups])
