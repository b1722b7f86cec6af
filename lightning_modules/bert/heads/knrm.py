"""CEDR-KNRM: kernel pooling over the cosines of every layer, and [CLS] (MacAvaney et al., "CEDR", 2019).

    K_k(q)  = sum over document pieces d of exp(-(cos(q, d) - mu_k)^2 / (2 sigma_k^2))
    phi_k   = sum over query pieces q of log(K_k(q) + 1e-6)              for every layer
    score   = w . [phi of all layers, cls] + b

mu and sigma are learned. The kernels are computed one after the other, and again in the backward pass: that takes the
memory of a few cosine matrices instead of eleven times as many.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.precision import float32_products

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
        with float32_products(encoded.cls.device):
            cosines = encoded.cosines()
            sharpness = 0.5 / self.sigma.square().clamp_min(LEAST_VARIANCE)
            real = encoded.document_mask.to(cosines.dtype)
            kernels = zip(self.mu, sharpness, strict=True)
            sums = [checkpoint(kernel_sums, cosines, real, *kernel, use_reentrant=False) for kernel in kernels]
            logs = torch.log(torch.stack(sums, dim=3) + EMPTY).masked_fill(~encoded.query_mask[:, None, :, None], 0.0)
            features = logs.sum(dim=2).flatten(1)  # (pairs, layers x kernels)
            return self.score(torch.cat([features, encoded.cls.float()], dim=1)).squeeze(1)


def kernel_sums(cosines: Tensor, real: Tensor, mu: Tensor, sharpness: Tensor) -> Tensor:
    """Return (pairs, layers, q_len) the sum over d of real(d) exp(-sharpness (cos(q, d) - mu)^2) of one kernel."""
    kernel = torch.exp(-sharpness * (cosines - mu).square())
    return torch.einsum("plqd,pd->plq", kernel, real)
