"""What a GPU multiplies in, without one: the settings that a training makes, and what heads and the export undo."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lightning_modules import BM25, BertRanker
from lightning_modules.neural_ranker import adamw, host_tensors
from lightning_modules.precision import BF16, FP16, encoder_dtype, float32_products

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("matmul_precision")
@pytest.mark.parametrize(("device", "expected"), [(CUDA, "high"), (CPU, "highest")])
def test_any_trainer_with_a_gpu_multiplies_in_tf32_and_heads_in_float32(device: torch.device, expected: str) -> None:
    ranker = BM25(k1=1.2, b=0.75)
    ranker.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=device), datamodule=None)  # type: ignore[assignment]
    ranker.setup("test")
    assert torch.get_float32_matmul_precision() == expected
    with float32_products(device):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == expected


@pytest.mark.usefixtures("matmul_precision")
def test_a_precision_that_somebody_has_chosen_is_kept() -> None:
    torch.set_float32_matmul_precision("medium")
    ranker = BM25(k1=1.2, b=0.75)
    ranker.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=CUDA), datamodule=None)  # type: ignore[assignment]
    ranker.setup("test")
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize(("has_bf16", "default", "of_bf16"), [(True, BF16, torch.bfloat16), (False, FP16, torch.half)])
def test_a_gpu_without_bfloat16_trains_and_scores_in_fp16(
    has_bf16: bool, default: str, of_bf16: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16 or including_emulation)
    encoder_dtype.cache_clear()
    assert BertRanker().default_precision(gpu=True) == default
    assert encoder_dtype(BF16, "cuda") is of_bf16 and encoder_dtype(FP16, "cuda") is torch.half
    assert encoder_dtype(None, "cuda") is encoder_dtype("32-true", "cuda") is None
    encoder_dtype.cache_clear()


@pytest.mark.parametrize(
    ("device", "precision", "clip", "fused"),
    [
        (CPU, "32-true", None, None), (CUDA, "32-true", None, True), (CUDA, BF16, 1.0, True), (CUDA, FP16, None, True),
        (CUDA, FP16, 1.0, None),  # Lightning refuses to clip gradients that the optimiser itself unscales
    ],
)  # fmt: skip
def test_adamw_is_fused_on_a_gpu_unless_scaled_gradients_are_clipped(
    device: torch.device, precision: str, clip: float | None, fused: bool | None
) -> None:
    trainer = SimpleNamespace(gradient_clip_val=clip, precision=precision)
    module: Any = SimpleNamespace(device=device, _trainer=trainer)
    optimizer = adamw(module, [torch.zeros(2, requires_grad=True)], 0.1, 0.01)
    assert optimizer.defaults["fused"] is fused
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.1, 0.01)


def test_arrays_for_a_gpu_are_copied_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    batch = ((np.arange(3), None), np.zeros(2))
    assert torch.equal(host_tensors(batch, CPU)[0][0], torch.arange(3)) and not pinned
    host_tensors(batch, CUDA)
    assert [len(tensor) for tensor in pinned] == [3, 2]
