"""AdamW that touches only the rows of an embedding that a batch has used.

A step of the paper's network sees about two thousand of 61,000 embedding rows. Plain AdamW reads and writes all of
them (31 million numbers and their two moments) at every step, which takes longer than everything else together.
Here the moments, the decay and the update of a row wait until it is used again: the rule of ``torch.optim.SparseAdam``
with AdamW's decoupled weight decay. Dense gradients (a GPU, several processes) are treated in the same way: a row
whose gradient is zero stays as it is. Other parameters get plain AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numba import njit
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

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        values = (parameter, state["exp_avg"], state["exp_avg_sq"])
        if not group["rows"]:
            _adamw(*values, grad.to_dense(), float(state["step"]), group)
            return
        rows, grad = _used_rows(grad)
        if parameter.device.type == "cpu" and parameter.dtype == torch.float32:
            arrays = [one.numpy() for one in (*values, rows, grad)]
            _update_rows(*[*arrays, *_numbers(float(state["step"]), group)])
            return
        used = tuple(one.index_select(0, rows) for one in values)
        _adamw(used[0], used[1], used[2], grad, float(state["step"]), group)
        for one, new in zip(values, used, strict=True):
            one.index_copy_(0, rows, new)


def _adamw(parameter: Tensor, first: Tensor, second: Tensor, grad: Tensor, step: float, group: dict[str, Any]) -> None:
    """One step of AdamW, in place."""
    beta1, beta2, eps, decay, rate, scale = _numbers(step, group)
    first.lerp_(grad, 1 - beta1)
    second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    denominator = second.sqrt().mul_(scale).add_(eps)
    parameter.mul_(decay).addcdiv_(first, denominator, value=-rate)


def _numbers(step: float, group: dict[str, Any]) -> tuple[float, float, float, float, float, float]:
    """beta1, beta2, epsilon, what weight decay leaves, the corrected rate, the correction of the second moment."""
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    decay, rate, scale = 1 - lr * group["weight_decay"], lr / (1 - beta1**step), (1 - beta2**step) ** -0.5
    return beta1, beta2, group["eps"], decay, rate, scale


@njit(cache=True, nogil=True)
def _update_rows(  # type: ignore[no-untyped-def]
    parameter, first, second, rows, grad, beta1, beta2, eps, decay, rate, scale
):
    """`_adamw` of the given rows in one pass over memory."""
    b1, b2, eps = np.float32(beta1), np.float32(beta2), np.float32(eps)
    one, decay, rate, scale = np.float32(1), np.float32(decay), np.float32(rate), np.float32(scale)
    for i in range(len(rows)):
        p, m, v, g = parameter[rows[i]], first[rows[i]], second[rows[i]], grad[i]
        for j in range(len(g)):
            m[j] = m[j] + (one - b1) * (g[j] - m[j])
            v[j] = v[j] * b2 + (one - b2) * g[j] * g[j]
            p[j] = p[j] * decay - rate * m[j] / (np.sqrt(v[j]) * scale + eps)


def _used_rows(grad: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, gradients of these rows)."""
    if grad.is_sparse:
        grad = grad.coalesce()
        used = grad.values().ne(0).any(dim=1)  # a token of the batch has none where all margins are kept
        return grad.indices()[0][used], grad.values()[used]
    rows = grad.ne(0).any(dim=1).nonzero().squeeze(1)
    return rows, grad.index_select(0, rows)
