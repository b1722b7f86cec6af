"""Processes that train or rank together: how many there are, which one is rank zero, and how they separate."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only

from lexical.errors import UserError, require


def process_count(trainer: dict[str, Any]) -> int:
    """Return how many processes a trainer with these settings has; torchrun must have started as many.

    "auto" devices become one: on a shared server more are used only when a number is asked for.
    """
    if trainer["devices"] == "auto":
        trainer["devices"] = 1
    devices = str(trainer["devices"])
    expected = "a number of processes, 1 or more"
    require(devices.isdigit() and int(devices) >= 1, "--trainer.devices", trainer["devices"], expected)
    processes = int(devices) * (trainer["num_nodes"] or 1)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if "TORCHELASTIC_RUN_ID" in os.environ and started != processes:
        raise UserError(
            f"torchrun has started {started} processes and the settings ask for {processes}: "
            f"give --trainer.devices {os.environ.get('LOCAL_WORLD_SIZE', started)}"
        )
    return processes


def is_rank_zero() -> bool:
    """Return whether this process is the one that prints and writes."""
    return bool(rank_zero_only.rank == 0)  # type: ignore[attr-defined]


def leave_process_group() -> None:
    """Destroy the process group; later collectives would hang."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
