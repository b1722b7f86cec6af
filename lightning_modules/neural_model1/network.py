"""The paper's neural T(q|d) (section "Our Neural Model 1"), free of Lightning and usable alone.

    T(q|d) = sigmoid(F3(relu(F2(relu(F1([x_q, x_d, x_q o x_d]))))))
    x_q    = P_q(tanh(layer_norm(embed_q(q))))
    x_d    = P_d(tanh(layer_norm(embed_d(d))))

and the weaker form that the paper tried first:

    T(q|d) = (cos(x_q, x_d) + 1) / 2

F1 is linear, so F1([x_q, x_d, x_q o x_d]) = Q x_q + D x_d + H (x_q o x_d) + b: the first two products depend on one
token only and are computed once a token. For one query token and many document tokens it is even a single product,
(D + H diag(x_q)) x_d plus a vector, which is how whole rows of the table are made.

Without the Hadamard product (an ablation) F1 works on [x_q, x_d]: H has no columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.neural_model1.pair_logits import Layers, pair_logits

CACHE = {"cpu": 1 << 19}  # numbers of a block of document tokens and its hidden layers: they stay in the cache
CACHE_ELSEWHERE = 1 << 26
ROWS_TOGETHER = 64  # kernels take rows in groups: blocks are made of whole ones


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
    """T(q|d) of pairs of embedded tokens, self-translation left to the caller.

    Args:
        embedding: width of the embedded tokens.
        projection: width of x_q and x_d.
        hidden: widths of F1 and F2.
        dropout: on tanh(layer_norm(e)), in training.
        hadamard: F1 sees x_q o x_d too.
    """

    def __init__(
        self, embedding: int, projection: int, hidden: tuple[int, int], dropout: float, hadamard: bool = True
    ) -> None:
        super().__init__()
        self.hadamard = hadamard
        self.query = TokenVectors(embedding, projection, dropout)
        self.document = TokenVectors(embedding, projection, dropout)
        self.f1 = nn.Linear((3 if hadamard else 2) * projection, hidden[0])
        self.f2 = nn.Linear(hidden[0], hidden[1])
        self.f3 = nn.Linear(hidden[1], 1)

    def forward(self, x_q: Tensor, x_d: Tensor, pair_query: Tensor, pair_document: Tensor) -> Tensor:
        """(pairs,) float32 T of the pairs (pair_query[i], pair_document[i]) of rows of x_q and x_d."""
        w_q, w_d, w_h = self._parts()
        a_q, a_d = F.linear(x_q, w_q), F.linear(x_d, w_d, self.f1.bias)
        of_q = torch.cat([x_q, a_q], dim=1) if self.hadamard else a_q
        of_d = torch.cat([x_d, a_d], dim=1) if self.hadamard else a_d
        layers = Layers(w_h, self.f2.weight, self.f2.bias, self.f3.weight[0], self.f3.bias[0])
        return torch.sigmoid(pair_logits(of_q, of_d, layers, pair_query, pair_document))

    def _parts(self) -> tuple[Tensor, ...]:
        """Q, D and H of F1; H is (hidden 1, 0) without the Hadamard product."""
        width = self.query.project.out_features
        return self.f1.weight.split([width, width, self.f1.in_features - 2 * width], dim=1)

    def rows(self, x_q: Tensor, x_d: Tensor) -> Iterator[Tensor]:
        """For each row of x_q: (rows of x_d,) T, in memory that the next row uses again."""
        w_q, w_d, w_h = self._parts()
        w2, w3 = self.f2.weight.T.contiguous(), self.f3.weight[0]
        # relu(h + b) = max(h, -b) + b, and the b behind it goes into the next layer's: one pass less over each layer
        b1 = F.linear(x_q, w_q, self.f1.bias)
        b2 = F.linear(b1, self.f2.weight, self.f2.bias)
        b3 = F.linear(b2, self.f3.weight, self.f3.bias)
        wide = sum(layer.in_features for layer in (self.f2, self.f3)) + x_d.shape[1]
        fitting = CACHE.get(x_d.device.type, CACHE_ELSEWHERE) // wide // ROWS_TOGETHER * ROWS_TOGETHER
        size = max(1, min(max(ROWS_TOGETHER, fitting), len(x_d)))
        hidden1, hidden2 = x_d.new_empty(size, self.f2.in_features), x_d.new_empty(size, self.f3.in_features)
        blocks = x_d.split(size)
        row, mixed = x_d.new_empty(len(x_d)), w_d.clone()
        for x, least1, least2, last in zip(x_q, -b1, -b2, b3, strict=True):
            if self.hadamard:
                torch.addcmul(w_d, w_h, x, out=mixed)  # D + H diag(x_q)
            for number, block in enumerate(blocks):
                n, first = len(block), number * size
                h1, h2 = hidden1[:n], hidden2[:n]
                torch.maximum(torch.mm(block, mixed.T, out=h1), least1, out=h1)
                torch.maximum(torch.mm(h1, w2, out=h2), least2, out=h2)
                torch.mv(h2, w3, out=row[first : first + n])
            yield torch.sigmoid_(row.add_(last))


def start_as_similarity(network: TranslationNetwork, level: float, slope: float = 1.2) -> None:
    """Weights of an untrained network whose T is about `level`, and grows with x_q . x_d.

    Both sides are projected alike. The first unit of F1 carries relu(x_q . x_d / sqrt(width)), which F2 hands on and
    F3 multiplies with `slope`; all other units are random and at first of little weight. So the gradients of the
    embeddings have a direction from the first step on. Without the Hadamard product no unit can carry x_q . x_d: T is
    about `level` everywhere.
    """
    query, document = network.query.project, network.document.project
    width = query.out_features
    with torch.no_grad():
        nn.init.normal_(query.weight, std=(0.4 * query.in_features) ** -0.5)  # 0.4: the variance of tanh(normal)
        document.weight.copy_(query.weight)
        for layer in (network.f1, network.f2):
            nn.init.normal_(layer.weight, std=(2 / layer.in_features) ** 0.5)
        nn.init.normal_(network.f3.weight, std=0.1 * network.f3.in_features**-0.5)
        for layer in (query, document, network.f1, network.f2):
            layer.bias.zero_()
        if network.hadamard:
            network.f1.weight[0].zero_()
            network.f1.weight[0, 2 * width :] = width**-0.5
            network.f2.weight[0].zero_()
            network.f2.weight[:, 0].zero_()
            network.f2.weight[0, 0] = 1
            network.f3.weight[0, 0] = slope
        network.f3.bias.fill_(math.log(level / (1 - level)))


class CosineTranslation(nn.Module):
    """T(q|d) = (cos(x_q, x_d) + 1) / 2: the same token vectors, no network behind them."""

    def __init__(self, embedding: int, projection: int, dropout: float) -> None:
        super().__init__()
        self.query = TokenVectors(embedding, projection, dropout)
        self.document = TokenVectors(embedding, projection, dropout)

    def forward(self, x_q: Tensor, x_d: Tensor, pair_query: Tensor, pair_document: Tensor) -> Tensor:
        """(pairs,) float32 T of the pairs (pair_query[i], pair_document[i]) of rows of x_q and x_d."""
        x_q, x_d = F.normalize(x_q.float(), dim=1), F.normalize(x_d.float(), dim=1)
        cosine = (x_q.index_select(0, pair_query) * x_d.index_select(0, pair_document)).sum(dim=1)
        return 0.5 * (cosine + 1)

    def rows(self, x_q: Tensor, x_d: Tensor) -> Iterator[Tensor]:
        """For each row of x_q: (rows of x_d,) T."""
        x_q, x_d = F.normalize(x_q, dim=1), F.normalize(x_d, dim=1)
        for x in x_q:
            yield torch.mv(x_d, x).add_(1).mul_(0.5).clamp_(0, 1)
