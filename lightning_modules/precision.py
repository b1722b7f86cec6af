"""What matrices are multiplied in: half precision in encoders, TF32 on a GPU, float32 where digits decide a score."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch

from lexical.terminal import say

BF16, FP16 = "bf16-mixed", "16-mixed"  # Lightning's names
HALF = {BF16: torch.bfloat16, "bf16": torch.bfloat16, FP16: torch.float16, "16": torch.float16}
TF32, FLOAT32 = "high", "highest"  # torch's names


def gpu_has_bf16() -> bool:
    """Return whether the GPU multiplies in bfloat16: from Ampere (A100, RTX 30xx) on; V100, T4 and RTX 20xx do not."""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def cpu_has_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@cache
def encoder_dtype(precision: str | None, device: str) -> torch.dtype | None:
    """Return what an encoder multiplies in on this device, given a precision by Lightning's name; None: float32.

    A device that cannot multiply in bfloat16 would take many times as long as in its own precision.
    """
    half = HALF.get(str(precision))
    if half is None or device not in ("cpu", "cuda"):
        return half
    if device == "cuda":
        return half if gpu_has_bf16() else torch.float16
    if cpu_has_bf16():
        return torch.bfloat16
    say(
        "this CPU cannot multiply in bfloat16; the ranker was trained in half precision, float32 scores differ slightly"
    )
    return None


def allow_tf32(device: torch.device) -> None:
    """Let a GPU multiply float32 matrices in TF32: several times as fast, 10 bits of mantissa instead of 23."""
    if device.type == "cuda" and torch.get_float32_matmul_precision() == FLOAT32:
        torch.set_float32_matmul_precision(TF32)


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context that multiplies in `dtype`, or in float32 when None, whatever the context around it."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


@contextmanager
def float32_products(device: torch.device) -> Iterator[None]:
    """Multiply in float32: neither in half precision nor in TF32, which would round cosines to three digits."""
    before = torch.get_float32_matmul_precision()
    changes = device.type == "cuda" and before != FLOAT32  # a global setting, which CPU threads would take in turns
    if changes:
        torch.set_float32_matmul_precision(FLOAT32)
    try:
        with autocast(device, None):
            yield
    finally:
        if changes:
            torch.set_float32_matmul_precision(before)
