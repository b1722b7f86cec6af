"""The learning rate of an optimiser step, and how the pairs of a step are shared, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lexical.errors import UserError
from lightning_modules import NeuralModel1
from lightning_modules.neural_ranker import rate_factor, to_tensors


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0.0), (1, 0.1), (5, 0.5), (10, 1.0), (11, 1.0), (49, 1.0), (50, 0.9), (99, 0.9)],
)
def test_the_rate_grows_over_a_tenth_of_the_steps_and_falls_after_an_epoch(step: int, factor: float) -> None:
    assert rate_factor(step, total=100, per_epoch=50, warmup=0.1, epoch_decay=0.9) == pytest.approx(factor)


def test_the_decay_begins_with_the_epoch_after_the_warm_up() -> None:
    """Ten steps of warm-up end within the third epoch, of steps 8 to 11."""
    factors = [rate_factor(step, total=20, per_epoch=4, warmup=0.5, epoch_decay=0.5) for step in range(20)]
    assert factors == pytest.approx([step / 10 for step in range(10)] + [1.0] * 2 + [0.5] * 4 + [0.25] * 4)


@pytest.mark.parametrize(("devices", "accumulated"), [(1, 1), (1, 4), (2, 2), (8, 1)])
def test_the_paper_s_training_reaches_its_base_rate(devices: int, accumulated: int) -> None:
    """32 epochs, a tenth of them warm-up: the base value at its end, 0.9 ** 28 of it in the last epoch."""
    per_epoch = -(-(788_700 // (devices * (32 // (devices * accumulated)))) // accumulated)
    total, settings = 32 * per_epoch, {"per_epoch": per_epoch, "warmup": 0.1, "epoch_decay": 0.9}
    assert rate_factor(0, total, **settings) == 0  # type: ignore[arg-type]
    assert rate_factor(-(-total // 10), total, **settings) == 1  # type: ignore[arg-type]
    assert rate_factor(total - 1, total, **settings) == pytest.approx(0.9**28)  # type: ignore[arg-type]


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert [rate_factor(step, 4, 2, warmup=0.0, epoch_decay=0.5) for step in range(4)] == [1.0, 1.0, 0.5, 0.5]


def test_a_warm_up_of_less_than_a_step_ends_with_the_first() -> None:
    assert [rate_factor(step, 3, 3, warmup=0.1, epoch_decay=1.0) for step in range(3)] == [0.0, 1.0, 1.0]


def test_a_warm_up_over_everything_ends_with_the_last_step() -> None:
    assert rate_factor(9, total=10, per_epoch=10, warmup=1.0, epoch_decay=0.9) == pytest.approx(0.9)
    assert rate_factor(10, total=10, per_epoch=10, warmup=1.0, epoch_decay=0.9) == 1


def test_a_cooldown_ends_at_zero_after_the_last_step() -> None:
    factors = [rate_factor(step, 10, 10, warmup=0.2, epoch_decay=1.0, cooldown=0.5) for step in range(11)]
    assert factors == pytest.approx([0, 0.5, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0])
    assert rate_factor(5, 10, 10, warmup=0.0, epoch_decay=1.0, cooldown=1.0) == pytest.approx(0.5)


# --- batches


class Part(NamedTuple):
    tokens: np.ndarray
    mask: np.ndarray | None
    documents: int


def test_a_batch_becomes_tensors_at_any_depth_and_the_rest_stays() -> None:
    tokens = np.arange(3)
    (parts, mask) = to_tensors(((Part(tokens, None, 7),), tokens > 1), torch.device("cpu"))
    assert type(parts[0]) is Part and torch.equal(parts[0].tokens, torch.arange(3))
    assert parts[0].mask is None and parts[0].documents == 7
    assert torch.equal(mask, torch.tensor([False, False, True]))


# --- the pairs of a step


def model_with(processes: int, **settings: Any) -> NeuralModel1:
    model = NeuralModel1(**settings)
    model.trainer = SimpleNamespace(world_size=processes)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    ("batch_size", "pairs_at_once", "processes", "at_once", "parts"),
    [
        (32, None, 1, 32, 1), (32, None, 2, 16, 1), (32, 8, 1, 8, 4), (32, 8, 2, 8, 2), (32, 8, 4, 8, 1),
        (1, 1, 1, 1, 1), (16, 8, 4, 4, 1), (16, 8, 8, 2, 1), (32, 5, 1, 4, 8), (32, 64, 1, 32, 1), (24, 5, 2, 4, 3),
    ],
)  # fmt: skip
def test_the_pairs_of_a_step_are_divided(
    batch_size: int, pairs_at_once: int | None, processes: int, at_once: int, parts: int
) -> None:
    model = model_with(processes, batch_size=batch_size, pairs_at_once=pairs_at_once)
    assert model.divide_batch(processes) == (at_once, parts)
    assert at_once * parts * processes == batch_size
    options = model.needs().pairs
    assert options is not None and (options.pairs_at_once, options.parts) == (at_once, parts)


@pytest.mark.parametrize(("batch_size", "processes"), [(32, 3), (2, 4)])
def test_pairs_that_cannot_be_divided_are_refused(batch_size: int, processes: int) -> None:
    model = NeuralModel1(batch_size=batch_size)
    with pytest.raises(UserError, match=rf"^--model\.batch_size {batch_size} cannot be shared by {processes} process"):
        model.divide_batch(processes)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("batch_size", 0), ("pairs_at_once", 0), ("learning_rate", 0.0), ("weight_decay", -1e-9), ("warmup", 1.1),
        ("warmup", -0.1), ("epoch_decay", 0.0), ("epoch_decay", 1.1), ("margin", 0.0), ("patience", 0),
        ("embedding", 0), ("projection", 0), ("hidden", [4]), ("hidden", [4, 0]), ("dropout", 1.0), ("p_self", -0.1),
        ("p_self", 1.0), ("start", 0.0),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(flag: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"^--model\.{flag} "):
        NeuralModel1(**{flag: value})  # type: ignore[arg-type]
