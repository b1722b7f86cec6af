"""The paper's context-free neural Model 1 (section "Our Neural Model 1"), trained end to end by ranking.

    log P(Q|D) = sum over q in Q of log max(sum over unique d in D of T(q|d) tf(d, D) / |D|, floor)
    T(t|t)     = p_self; all other T(q|d) are the network's, times 1 - p_self
                 (or, without p_self, T(t|t) is the network's like any other)

T depends on two token ids only: `context_free` scores, explains and exports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexical.batches import DataNeeds, PairOptions, ValidationSample
from lexical.errors import UserError, require
from lexical.model1.distinct_pairs import distinct_pairs
from lexical.model1.scorer import FLOOR
from lexical.terminal import detail
from lightning_modules.model1.embeddings import check_vectors, read_vectors
from lightning_modules.neural_model1.context_free import ContextFreeRanker, log_probabilities, token_probabilities
from lightning_modules.neural_model1.network import CosineTranslation, TranslationNetwork
from lightning_modules.neural_model1.row_adamw import RowAdamW
from lightning_modules.neural_model1.rows import network_rows, whole_groups
from lightning_modules.precision import autocast
from lightning_modules.ranker import require_settings


class NeuralModel1(ContextFreeRanker):
    """Context-free neural Model 1.

    The paper names neither `embedding`, `projection`, `dropout`, `p_self` nor `margin`: their defaults are those of the
    authors' code. `hidden` is not published.

    Args:
        field: word, lemm, word_all or bwps.
        embedding: width of the token embeddings.
        projection: width of x_q and x_d.
        hidden: widths of F1 and F2.
        hadamard: F1 sees x_q o x_d beside x_q and x_d, as in the paper.
        dropout: share of the token features that is dropped in training.
        p_self: T(t|t). With 0 an exact match counts nothing; with None the network learns T(t|t) like any other T(q|d).
        floor: smallest P(q|D) inside the logarithm.
        start: approximate T(q|d) of the untrained network.
        vectors: token vectors that the embeddings start from: "packaged" (input embeddings of the packaged encoder),
            the folder of another encoder, or a text file of vectors; random when not given.
        compile_network: compile T(q|d) by `torch.compile`, which takes half a minute: worth it for long trainings.
        further: settings of `ContextFreeRanker` and `NeuralRanker`.
    """

    embed_q: nn.Embedding
    embed_d: nn.Embedding
    network: Any  # a module like `TranslationNetwork`

    def __init__(
        self,
        field: str = "bwps",
        embedding: int = 512,
        projection: int = 128,
        hidden: list[int] = [128, 64],  # noqa: B006 - jsonargparse shows it; never changed
        hadamard: bool = True,
        dropout: float = 0.1,
        p_self: float | None = 0.05,
        floor: float = FLOOR,
        start: float = 1e-4,
        vectors: str | None = None,
        compile_network: bool = False,
        **further: Any,
    ) -> None:
        super().__init__(field, **further)
        require_settings("1 or more", embedding=embedding, projection=projection)
        require(len(hidden) == 2 and min(hidden) >= 1, "--model.hidden", hidden, "two widths, such as [128, 64]")
        require_settings("from 0 to less than 1", dropout=dropout, p_self=p_self)
        require(0 < floor < 1, "--model.floor", floor, "between 0 and 1")
        require(0 < start < 1, "--model.start", start, "between 0 and 1")
        self.embedding, self.projection, self.hidden = embedding, projection, (hidden[0], hidden[1])
        self.hadamard, self.compile_network = hadamard, compile_network
        self.dropout, self.p_self, self.floor, self.start, self.vectors = dropout, p_self, floor, start, vectors

    # --- network

    def new_network(self) -> nn.Module:
        """Return T(q|d) of embedded tokens, untrained: a module like `TranslationNetwork`."""
        network = TranslationNetwork(self.embedding, self.projection, self.hidden, self.dropout, self.hadamard)
        network.start_at(self.start)
        return network

    def build(self, vocabulary: list[str]) -> None:
        self.embed_q = nn.Embedding(len(vocabulary), self.embedding)
        self.embed_d = nn.Embedding(len(vocabulary), self.embedding)
        self.network = self.new_network()
        if self.compile_network:
            self.network.compile(dynamic=True)

    def check_inputs(self) -> None:
        if self.vectors is not None:
            check_vectors(self.vectors)

    def start_weights(self, vocabulary: list[str]) -> None:
        """Start both embeddings from given vectors, and T as their similarity."""
        if self.vectors is None:
            return
        given = read_vectors(self.vectors, vocabulary)
        if given.vectors.shape[1] != self.embedding:
            raise UserError(
                f"--model.embedding {self.embedding}: the vectors of --model.vectors {self.vectors} have "
                f"{given.vectors.shape[1]} dimensions"
            )
        detail(f"{len(given.tokens):,} of {len(vocabulary):,} tokens of the field {self.field} start from a vector")
        vectors = torch.from_numpy(given.vectors)
        vectors = (vectors - vectors.mean(dim=1, keepdim=True)) / vectors.std(dim=1, keepdim=True).clamp(min=1e-6)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.embed_q.weight[torch.from_numpy(given.tokens).long()] = vectors
            self.embed_d.weight.copy_(self.embed_q.weight)
            if isinstance(self.network, TranslationNetwork):
                self.network.start_as_similarity(self.start)

    # --- training

    def needs(self) -> DataNeeds:
        pairs = PairOptions(self.seed, *self.divide_batch(self.trainer.world_size), distinct_pairs)
        validation = ValidationSample(queries=None, depth=self.rerank_depth)
        return DataNeeds((self.field,), "pairs", self.rerank_depth, pairs=pairs, validation=validation)

    def pair_scores(self, batch: Any) -> list[Tensor]:
        """Return (pairs, 2) log P(Q|D) of the relevant and the other document."""
        return [self.log_probabilities(batch).view(-1, 2)]

    def log_probabilities(self, pairs: Any) -> Tensor:
        """Return (documents,) log P(Q|D) of all candidates; every distinct pair of tokens is computed once."""
        x_q = self.network.query(self.embed_q(pairs.query_tokens))
        x_d = self.network.document(self.embed_d(pairs.document_tokens))
        translation = self.network(x_q, x_d, pairs.pair_query, pairs.pair_document)
        with autocast(x_q.device, None):
            if self.p_self is not None:
                translation = torch.where(pairs.pair_same, self.p_self, (1 - self.p_self) * translation.float())
            return log_probabilities(pairs, token_probabilities(pairs, translation).clamp(min=self.floor))

    def configure_model(self) -> None:
        """Build the network; on a CPU, gradients of the embeddings hold only the rows that a batch used.

        On a GPU a dense gradient is cheap, and NCCL cannot sum sparse ones; torch cannot clip sparse gradients.
        """
        super().configure_model()
        if self._trainer is not None:
            cpu = self.trainer.strategy.root_device.type == "cpu"
            self.embed_q.sparse = self.embed_d.sparse = cpu and not self.trainer.gradient_clip_val

    def optimizer(self) -> torch.optim.Optimizer:
        groups = [
            {"params": [self.embed_q.weight, self.embed_d.weight], "rows": True},
            {"params": list(self.network.parameters()), "rows": False},
        ]
        return RowAdamW(groups, self.learning_rate, self.weight_decay)

    # --- scoring

    @torch.inference_mode()
    def translation_rows(self, query_tokens: np.ndarray, document_tokens: np.ndarray) -> Iterator[np.ndarray]:
        """Yield (document tokens,) float32 T(q|d) for each query token, self-translation included.

        Both arguments are ascending. The next row may use the memory of a row again. On a CPU T(q|d) does not depend on
        the other tokens: whole groups of rows are computed, because matrix products round a smaller group differently.
        """
        x_q = self.network.query(self.embed_q(torch.from_numpy(whole_groups(query_tokens)).to(self.device)))
        x_d = self.network.document(self.embed_d(torch.from_numpy(whole_groups(document_tokens)).to(self.device)))
        positions = np.searchsorted(document_tokens, query_tokens)
        for token, position, row in zip(query_tokens, positions, network_rows(self.network, x_q, x_d), strict=False):
            translation = row[: len(document_tokens)].cpu().numpy()
            if self.p_self is not None:
                translation *= 1 - self.p_self
                if position < len(document_tokens) and document_tokens[position] == token:
                    translation[position] = self.p_self
            yield translation


class NeuralModel1Cosine(NeuralModel1):
    """The paper's first, weaker parametrisation: T(q|d) = (cos(embed_q(q), embed_d(d)) + 1) / 2.

    All else as in `NeuralModel1`; `projection`, `hidden`, `hadamard`, `dropout` and `start` are not used. Before
    training T(q|d) is about a half for all pairs, so `p_self` must be near 1 for an exact match to count.
    """

    def new_network(self) -> nn.Module:
        return CosineTranslation()
