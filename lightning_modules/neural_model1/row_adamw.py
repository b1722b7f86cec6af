"""AdamW that touches only the rows of an embedding that a batch has used.

A step of the paper's network sees about two thousand of 61,000 embedding rows. Plain AdamW reads and writes all of
them, with their two moments, at every step; see `benchmarks/nn_model1.py`. Here the moments, the decay and the update
of a row wait until it is used again: the rule of ``torch.optim.SparseAdam`` with AdamW's decoupled weight decay. Dense
gradients (a GPU, several processes) are treated alike: a row whose gradient is zero stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RowAdamW(torch.optim.Optimizer):
    """AdamW; in groups with ``rows=True`` (embedding matrices) only the rows that have a gradient are updated.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        weight_decay: decoupled; applied to a row when it is updated.
        rows: the default of the groups.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        weight_decay: float = 0.0,
        rows: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "rows": rows, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        step, matrices = float(state["step"]), (parameter, state["exp_avg"], state["exp_avg_sq"])
        if not group["rows"]:
            _adamw(*matrices, gradient.to_dense(), step, group)
            return
        if parameter.device.type != "cpu":  # to collect the used rows a program waits until the GPU has counted them
            _adamw_of_used_rows(*matrices, gradient, step, group)
            return
        rows, gradient = _used_rows(gradient)
        used = [matrix.index_select(0, rows) for matrix in matrices]
        _adamw(used[0], used[1], used[2], gradient, step, group)
        for matrix, updated in zip(matrices, used, strict=True):
            matrix.index_copy_(0, rows, updated)


def _adamw(
    parameter: Tensor, first: Tensor, second: Tensor, gradient: Tensor, step: float, group: dict[str, Any]
) -> None:
    """Make one step of AdamW, in place."""
    rate, (beta1, beta2) = float(group["lr"]), group["betas"]
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = second.sqrt().mul_((1 - beta2**step) ** -0.5).add_(group["eps"])
    parameter.mul_(1 - rate * group["weight_decay"]).addcdiv_(first, denominator, value=-rate / (1 - beta1**step))


def _adamw_of_used_rows(
    parameter: Tensor, first: Tensor, second: Tensor, gradient: Tensor, step: float, group: dict[str, Any]
) -> None:
    """Make one step of AdamW on all rows, in place, and take it back where the gradient is zero."""
    matrices = (parameter, first, second)
    before = [matrix.clone() for matrix in matrices]
    _adamw(*matrices, gradient, step, group)
    used = gradient.ne(0).any(dim=1, keepdim=True)
    for matrix, old in zip(matrices, before, strict=True):
        torch.where(used, matrix, old, out=matrix)


def _used_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return (rows, gradients of these rows)."""
    sparse = gradient.coalesce() if gradient.is_sparse else gradient.to_sparse(1)
    used = sparse.values().ne(0).any(dim=1)  # a token of the batch has no gradient where all margins are kept
    return sparse.indices()[0][used], sparse.values()[used]
