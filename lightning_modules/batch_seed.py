"""Random numbers of a training step that do not depend on what came before it."""

from __future__ import annotations

import numpy as np
import torch


def seed_batch(seed: int, epoch: int, batch: int, rank: int) -> None:
    """Dropout is a function of seed, epoch, batch and process: a resumed training drops the same."""
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch, batch, rank]).generate_state(1, np.uint64)[0] >> 1))
