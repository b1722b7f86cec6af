"""RowAdamW is AdamW for dense parameters, and SparseAdam with decoupled decay for the used rows of embeddings."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from lightning_modules.neural_model1.row_adamw import RowAdamW, _adamw_of_used_rows

ROWS, WIDTH = 12, 5


def parameter(seed: int = 0) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def gradients(steps: int = 20, used: int = 4) -> list[Tensor]:
    """Dense gradients of `used` rows each, others zero; the last rows are never used."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        grad = torch.zeros(ROWS, WIDTH)
        grad[torch.randperm(ROWS - 2, generator=generator)[:used]] = torch.randn(used, WIDTH, generator=generator)
        found.append(grad)
    return found


def sparse(grad: Tensor) -> Tensor:
    rows = grad.ne(0).any(dim=1).nonzero().squeeze(1)
    return sparse_rows(rows.tolist(), grad[rows])


def sparse_rows(rows: list[int], values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (ROWS, WIDTH), check_invariants=True)


def train(optimizer: torch.optim.Optimizer, weight: Tensor, grads: list[Tensor]) -> None:
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_dense_group_is_plain_adamw(weight_decay: float) -> None:
    ours, theirs = parameter(), parameter()
    grads = gradients(used=8)
    train(RowAdamW([ours], lr=0.01, weight_decay=weight_decay, rows=False), ours, grads)
    train(torch.optim.AdamW([theirs], lr=0.01, weight_decay=weight_decay), theirs, grads)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(ours, parameter(), atol=0.05)  # something was learned


def test_without_decay_used_rows_are_updated_as_by_sparse_adam() -> None:
    """It adds epsilon before the correction of the bias: hence not to the last bit."""
    ours, theirs = parameter(), parameter()
    grads = [sparse(grad) for grad in gradients()]
    train(RowAdamW([ours], lr=0.01), ours, grads)
    train(torch.optim.SparseAdam([theirs], lr=0.01), theirs, grads)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(ours, parameter(), atol=0.02)


def test_sparse_and_dense_gradients_give_the_same() -> None:
    of_dense, of_sparse = parameter(), parameter()
    first, second = (RowAdamW([weight], lr=0.01, weight_decay=0.1) for weight in (of_dense, of_sparse))
    train(first, of_dense, gradients())
    train(second, of_sparse, [sparse(grad) for grad in gradients()])
    assert torch.equal(of_dense, of_sparse)
    for name in ("exp_avg", "exp_avg_sq", "step"):
        assert torch.equal(first.state[of_dense][name], second.state[of_sparse][name])


def test_a_gpu_masks_the_rows_that_a_cpu_selects() -> None:
    group = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
    selected, masked = parameter(), parameter()
    optimizer, moments = RowAdamW([selected], lr=0.01, weight_decay=0.1), [torch.zeros(ROWS, WIDTH) for _ in range(2)]
    for step, grad in enumerate(gradients(), start=1):
        train(optimizer, selected, [grad])
        with torch.no_grad():
            _adamw_of_used_rows(masked, *moments, grad, step, group)
    assert torch.equal(selected, masked)
    assert torch.equal(optimizer.state[selected]["exp_avg_sq"], moments[1])


def test_a_row_of_zeros_that_a_sparse_gradient_lists_stays_as_it_is() -> None:
    """Where the margin is kept a token of the batch has such a gradient; a GPU (dense gradients) leaves it alone."""
    of_dense, of_sparse = parameter(), parameter()
    grad = torch.ones(1, WIDTH)
    listed = [sparse_rows([3], values) for values in (grad, 0 * grad)]
    train(RowAdamW([of_dense], lr=0.01), of_dense, [gradient.to_dense() for gradient in listed])
    train(RowAdamW([of_sparse], lr=0.01), of_sparse, listed)
    assert torch.equal(of_dense, of_sparse)


@pytest.mark.parametrize("is_sparse", [True, False])
def test_rows_without_gradient_stay_as_they_are(is_sparse: bool) -> None:
    weight = parameter()
    optimizer = RowAdamW([weight], lr=0.01, weight_decay=0.1)
    train(optimizer, weight, gradients(steps=5, used=10))
    state = optimizer.state[weight]
    before = [tensor.detach().clone() for tensor in (weight, state["exp_avg"], state["exp_avg_sq"])]
    grad = torch.zeros(ROWS, WIDTH)
    grad[[2, 7]] = 1.0
    train(optimizer, weight, [sparse(grad) if is_sparse else grad])
    others = [row for row in range(ROWS) if row not in (2, 7)]
    for old, new in zip(before, (weight, state["exp_avg"], state["exp_avg_sq"]), strict=True):
        assert torch.equal(new[others], old[others])
        assert (new[[2, 7]] != old[[2, 7]]).all()
    assert torch.equal(weight[ROWS - 2 :], parameter()[ROWS - 2 :])  # never used, never decayed


def test_the_first_step_by_hand() -> None:
    """Decay by 1 - 0.5 * 0.1, then a step of the rate against the sign of the gradient; for the used row alone."""
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    train(RowAdamW([weight], lr=0.5, weight_decay=0.1), weight, [torch.tensor([[0.0, 0.0], [10.0, -0.1]])])
    torch.testing.assert_close(weight.detach(), torch.tensor([[1.0, 2.0], [3 * 0.95 - 0.5, 4 * 0.95 + 0.5]]))


def test_decay_is_decoupled_from_the_moments() -> None:
    plain, decayed = parameter(), parameter()
    first, second = RowAdamW([plain], lr=0.01), RowAdamW([decayed], lr=0.01, weight_decay=0.5)
    grad = gradients(steps=1)[0]
    train(first, plain, [grad])
    train(second, decayed, [grad])
    used = grad.ne(0).any(dim=1)
    expected = plain - torch.where(used.unsqueeze(1), 0.01 * 0.5 * parameter(), torch.zeros(()))
    torch.testing.assert_close(decayed, expected, rtol=1e-6, atol=1e-7)
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(first.state[plain][name], second.state[decayed][name])


def test_a_saved_state_continues_as_if_nothing_had_happened() -> None:
    whole, parted = parameter(), parameter()
    grads = [sparse(grad) for grad in gradients()]
    train(RowAdamW([whole], lr=0.01, weight_decay=0.1), whole, grads)
    before = RowAdamW([parted], lr=0.01, weight_decay=0.1)
    train(before, parted, grads[:9])
    after = RowAdamW([parted], lr=7.0)  # the rate and the decay come from the state, too
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    train(after, parted, grads[9:])
    assert torch.equal(parted, whole)


def test_gradients_of_the_same_row_are_summed() -> None:
    twice, once = parameter(), parameter()
    grad = sparse_rows([3, 1, 3], torch.tensor([[1.0], [2.0], [4.0]]).repeat(1, WIDTH))
    assert not grad.is_coalesced()
    summed = torch.zeros(ROWS, WIDTH)
    summed[3], summed[1] = 5.0, 2.0
    first, second = RowAdamW([twice], lr=0.01), RowAdamW([once], lr=0.01)
    train(first, twice, [grad])
    train(second, once, [summed])
    assert torch.equal(twice, once)
    assert first.state[twice]["exp_avg"][3].tolist() == pytest.approx([0.5] * WIDTH)


def test_a_step_without_any_row_changes_nothing() -> None:
    """The last batch of an epoch may be empty for a process."""
    weight = parameter()
    train(RowAdamW([weight], lr=0.01, weight_decay=0.1), weight, [sparse(torch.zeros(ROWS, WIDTH))])
    assert torch.equal(weight, parameter())


def test_groups_have_rates_and_rules_of_their_own() -> None:
    rows, dense, without = parameter(), parameter(), parameter()
    groups = [{"params": [rows, without], "rows": True}, {"params": [dense], "rows": False, "lr": 0.02}]
    optimizer = RowAdamW(groups, lr=0.01, weight_decay=0.1)
    rows.grad, dense.grad = (torch.zeros(ROWS, WIDTH) for _ in range(2))
    rows.grad[0], dense.grad[0] = 1.0, 1.0
    optimizer.step()
    torch.testing.assert_close(rows[0], parameter()[0] * (1 - 0.001) - 0.01)
    torch.testing.assert_close(dense[0], parameter()[0] * (1 - 0.002) - 0.02)
    assert torch.equal(rows[1:], parameter()[1:])
    torch.testing.assert_close(dense[1:], parameter()[1:] * (1 - 0.002))
    assert torch.equal(without, parameter())
