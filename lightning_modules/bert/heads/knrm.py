"""CEDR-KNRM: kernel pooling over the cosines of every layer, and [CLS] (MacAvaney et al., "CEDR", 2019).

    K_k(q)  = sum over document pieces d of exp(-(cos(q, d) - mu_k)^2 / (2 sigma_k^2))
    phi_k   = sum over query pieces q of log(K_k(q) + 1e-6)              for every layer
    score   = w . [phi of all layers, cls] + b

mu and sigma are learned. The kernels are computed one after the other, and again in the backward pass: that takes the
memory of a few cosine matrices instead of eleven times as many.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lightning_modules.bert.heads.encoded import Encoded

MU = (-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # the last one counts exact matches
SIGMA = (0.1,) * 10 + (0.001,)
LEAST_VARIANCE = 1e-8  # a learned sigma may approach 0; no kernel is narrower than 1e-4
EMPTY = 1e-6  # added to a sum before the logarithm


class KNRMHead(nn.Module):
    """Score of the soft counts of matches at eleven levels of similarity.

    Args:
        width: of the contextual vectors.
        layers: number of layers in `Encoded`.
    """

    all_layers = True

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.tensor(MU))
        self.sigma = nn.Parameter(torch.tensor(SIGMA))
        self.score = nn.Linear(layers * len(MU) + width, 1)

    def forward(self, encoded: Encoded) -> Tensor:
        """(pairs,) float32"""
        with torch.autocast(encoded.cls.device.type, enabled=False):
            cosines = encoded.cosines()
            sharpness = 0.5 / self.sigma.square().clamp_min(LEAST_VARIANCE)
            sums = KernelSums.apply(cosines, encoded.document_mask.to(cosines.dtype), self.mu, sharpness)
            logs = torch.log(sums + EMPTY).masked_fill(~encoded.query_mask[:, None, :, None], 0.0)
            features = logs.sum(dim=2).flatten(1)  # (pairs, layers x kernels)
            return self.score(torch.cat([features, encoded.cls.float()], dim=1)).squeeze(1)


class KernelSums(torch.autograd.Function):
    """sum over d of real(d) exp(-sharpness (cos(q, d) - mu)^2), for each kernel.

    (pairs, layers, q_len, d_len) cosines, (pairs, d_len) real: 1 or 0, (kernels,) mu, (kernels,) sharpness
    -> (pairs, layers, q_len, kernels)
    """

    @staticmethod
    def forward(ctx: Any, cosines: Tensor, real: Tensor, mu: Tensor, sharpness: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, real, mu, sharpness)
        sums = cosines.new_empty(*cosines.shape[:3], len(mu))
        for number, (centre, sharp) in enumerate(zip(mu, sharpness, strict=True)):
            kernel = (cosines - centre).square_().mul_(-sharp).exp_()
            sums[..., number] = torch.bmm(kernel.flatten(1, 2), real[:, :, None]).view(cosines.shape[:3])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        cosines, real, mu, sharpness = ctx.saved_tensors
        to_cosines, to_mu, to_sharpness = map(torch.zeros_like, (cosines, mu, sharpness))
        for number, (centre, sharp) in enumerate(zip(mu, sharpness, strict=True)):
            difference = cosines - centre
            kernel = difference.square().mul_(-sharp).exp_()
            slope = kernel.mul_(real[:, None, None, :]).mul_(grad[..., number, None]).mul_(difference)
            to_cosines.addcmul_(slope, sharp, value=-2)
            to_mu[number] = 2 * sharp * slope.sum()
            to_sharpness[number] = -slope.mul_(difference).sum()
        return to_cosines, None, to_mu, to_sharpness
