"""The paper's neural T(q|d) (section "Our Neural Model 1"). Free of Lightning, usable alone.

    T(q|d) = sigmoid(F3(relu(F2(relu(F1([x_q, x_d, x_q o x_d]))))))
    x_q    = P_q(tanh(layer_norm(embed_q(q))))
    x_d    = P_d(tanh(layer_norm(embed_d(d))))

and the weaker form that the paper tried first, of the embeddings themselves:

    T(q|d) = (cos(embed_q(q), embed_d(d)) + 1) / 2

To try another T(q|d), write a module with `query`, `document` and `forward` as below and return it from
`NeuralModel1.new_network`; it is trained, validated, exported and explained like this one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TokenVectors(nn.Module):
    """x = P(dropout(tanh(layer_norm(e)))) of embedded tokens."""

    def __init__(self, embedding: int, projection: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embedding)
        self.dropout = dropout
        self.project = nn.Linear(embedding, projection)

    def forward(self, embedded: Tensor) -> Tensor:
        """(tokens, embedding) -> (tokens, projection)"""
        features = torch.tanh(self.norm(embedded))
        if self.training and self.dropout:  # on a CPU torch draws these numbers five times faster than bernoulli's
            features = features * (torch.rand_like(features) >= self.dropout) / (1 - self.dropout)
        return self.project(features)


class TranslationNetwork(nn.Module):
    """T(q|d) of pairs of tokens. Self-translation is left to the caller.

    Args:
        embedding: width of the embedded tokens.
        projection: width of x_q and x_d.
        hidden: widths of F1 and F2.
        dropout: on tanh(layer_norm(e)), in training.
        hadamard: F1 sees x_q o x_d beside x_q and x_d.
    """

    def __init__(
        self, embedding: int, projection: int, hidden: tuple[int, int], dropout: float, hadamard: bool = True
    ) -> None:
        super().__init__()
        self.projection, self.hadamard = projection, hadamard
        self.query = TokenVectors(embedding, projection, dropout)
        self.document = TokenVectors(embedding, projection, dropout)
        self.f1 = nn.Linear((3 if hadamard else 2) * projection, hidden[0])
        self.f2 = nn.Linear(hidden[0], hidden[1])
        self.f3 = nn.Linear(hidden[1], 1)

    def forward(self, x_q: Tensor, x_d: Tensor, pair_query: Tensor, pair_document: Tensor) -> Tensor:
        """Return (pairs,) float32 T(q|d).

        Args:
            x_q: (query tokens, projection) from `query`.
            x_d: (document tokens, projection) from `document`.
            pair_query: (pairs,) row of x_q of each pair.
            pair_document: (pairs,) row of x_d of each pair.
        """
        # F1 is linear, so its parts that depend on one token only are computed once per token, not once per pair.
        w_q, w_d, w_h = self.f1_parts()
        hidden = F.linear(x_q, w_q).index_select(0, pair_query)  # (pairs, hidden 1)
        hidden = hidden + F.linear(x_d, w_d, self.f1.bias).index_select(0, pair_document)
        if self.hadamard:
            products = x_q.index_select(0, pair_query) * x_d.index_select(0, pair_document)  # (pairs, projection)
            hidden = torch.addmm(hidden, products, w_h.T)
        hidden = torch.relu(self.f2(torch.relu(hidden)))  # (pairs, hidden 2)
        return torch.sigmoid(self.f3(hidden).squeeze(1).float())

    def f1_parts(self) -> tuple[Tensor, ...]:
        """Return the columns of F1 for x_q, x_d and x_q o x_d."""
        width = self.projection
        return self.f1.weight.split([width, width, self.f1.in_features - 2 * width], dim=1)

    def start_at(self, level: float) -> None:
        """Make T about `level` for all pairs before training."""
        nn.init.constant_(self.f3.bias, math.log(level / (1 - level)))

    def start_as_similarity(self, level: float, slope: float = 1.2) -> None:
        """Make T about `level` before training, growing with x_q . x_d.

        Both sides are projected alike. The first unit of F1 computes relu(x_q . x_d / sqrt(projection)), F2 passes it
        on and F3 multiplies it by `slope`; all other units are random and have little weight at first. So the
        gradients of the embeddings have a direction from the first step on. Without the Hadamard product no unit can
        compute x_q . x_d: T is about `level` everywhere.
        """
        query, document, width = self.query.project, self.document.project, self.projection
        with torch.no_grad():
            nn.init.normal_(query.weight, std=(0.4 * query.in_features) ** -0.5)  # 0.4: the variance of tanh(normal)
            document.weight.copy_(query.weight)
            for layer in (self.f1, self.f2):
                nn.init.normal_(layer.weight, std=(2 / layer.in_features) ** 0.5)
            nn.init.normal_(self.f3.weight, std=0.1 * self.f3.in_features**-0.5)
            for layer in (query, document, self.f1, self.f2):
                layer.bias.zero_()
            if self.hadamard:
                self.f1.weight[0].zero_()
                self.f1.weight[0, 2 * width :] = width**-0.5
                self.f2.weight[0].zero_()
                self.f2.weight[:, 0].zero_()
                self.f2.weight[0, 0] = 1
                self.f3.weight[0, 0] = slope
            self.start_at(level)


class UnitVectors(nn.Module):
    """x = e / |e| of embedded tokens."""

    def forward(self, embedded: Tensor) -> Tensor:
        """(tokens, embedding) -> (tokens, embedding) float32"""
        return F.normalize(embedded.float(), dim=1)


class CosineTranslation(nn.Module):
    """T(q|d) = (cos(embed_q(q), embed_d(d)) + 1) / 2: it learns the embeddings and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.document = UnitVectors(), UnitVectors()

    def forward(self, x_q: Tensor, x_d: Tensor, pair_query: Tensor, pair_document: Tensor) -> Tensor:
        """Return (pairs,) float32 T(q|d); arguments as in `TranslationNetwork.forward`, with vectors of length 1."""
        return self.matrix(x_q, x_d)[pair_query, pair_document]

    def matrix(self, x_q: Tensor, x_d: Tensor) -> Tensor:
        """Return (query tokens, document tokens) T(q|d): one product costs less than vectors gathered pair by pair."""
        with torch.autocast(x_q.device.type, enabled=False):
            return (0.5 * (x_q @ x_d.T + 1)).clamp(0, 1)
