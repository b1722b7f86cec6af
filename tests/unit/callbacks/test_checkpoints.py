"""How often several processes agree whether it is time for a checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from callbacks.checkpoints import STEPS_BETWEEN_LOOKS, StepCheckpoint


@pytest.mark.parametrize(("processes", "messages"), [(2, 2), (1, 2 * STEPS_BETWEEN_LOOKS)])
def test_several_processes_look_at_the_clock_now_and_then(processes: int, messages: int, tmp_path: Path) -> None:
    """Each look is a message that all GPUs wait for; one process sends none, and looks at every step."""
    asked: list[bool] = []
    progress = SimpleNamespace(_should_accumulate=lambda: False, batch_progress=SimpleNamespace(is_last_batch=False))
    trainer: Any = SimpleNamespace(
        world_size=processes, global_step=0, fit_loop=SimpleNamespace(epoch_loop=progress), fast_dev_run=False,
        state=SimpleNamespace(fn="fit"), sanity_checking=False,
        strategy=SimpleNamespace(broadcast=lambda skip: asked.append(skip) or skip),
    )  # fmt: skip
    checkpoint = StepCheckpoint(tmp_path)
    for step in range(1, 2 * STEPS_BETWEEN_LOOKS + 1):
        trainer.global_step = step
        checkpoint.on_train_batch_end(trainer, SimpleNamespace(automatic_optimization=True), None, None, step)
    assert asked == [True] * messages
