"""The paper's context-free neural Model 1 (section "Our Neural Model 1"), trained end to end by ranking.

    log P(Q|D) = sum over q in Q of log max(sum over unique d in D of T(q|d) tf(d, D) / |D|, floor)
    T(t|t)     = p_self; all other T(q|d) are the network's, times 1 - p_self

T depends on two token ids alone. In training it is computed once for every distinct pair of a batch
(`lexical.model1.distinct_pairs`); in scoring once for every query token of a batch and document token of its
candidates, and the CPU scorer of the exported table does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexical.batches import Needs, PairOptions, RankingBatch
from lexical.errors import UserError, require
from lexical.evidence import Evidence, model1_evidence
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.distinct_pairs import DistinctPairs, distinct_pairs, tokens_of
from lexical.model1.scorer import FLOOR, model1_scores, per_query_token
from lexical.model1.table import TranslationTable
from lexical.terminal import say
from lightning_modules.model1.token_vectors import check_vectors, read_vectors
from lightning_modules.neural_model1.network import (
    ROWS_TOGETHER,
    CosineTranslation,
    TranslationNetwork,
    start_as_similarity,
)
from lightning_modules.neural_model1.row_adamw import RowAdamW
from lightning_modules.neural_ranker import NeuralRanker


class NNModel1(NeuralRanker):
    """Context-free neural Model 1.

    Args:
        field: word, lemm, word_all or bwps.
        embedding: width of the token embeddings.
        projection: width of x_q and x_d.
        hidden: widths of F1 and F2.
        hadamard: F1 sees x_q o x_d beside x_q and x_d, as in the paper.
        dropout: share of the token features that is dropped in training.
        p_self: T(t|t); with 0 an exact match counts nothing.
        floor: P(q|D) at the least, inside of the logarithm.
        start: T(q|d) of an untrained network, about.
        vectors: token vectors that the embeddings start from: "packaged" (input embeddings of the packaged encoder),
            the folder of another encoder, or a text file of vectors; random when not given.
        fused: the row is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
        batch_size: pairs of an optimiser step, over all processes.
        pairs_at_once: pairs that a process computes at once; the rest is accumulated. All when not given.
        learning_rate: base rate.
        weight_decay: of AdamW.
        warmup: share of the optimiser steps in which the rate grows linearly from zero.
        epoch_decay: the rate is multiplied by it after each epoch.
        margin: of the loss, on log-probabilities.
        patience: stop when the validation MRR has not grown for so many epochs; never when not given.
        checkpoint_steps: save last.ckpt every so many optimiser steps instead of every 5 minutes.
    """

    explains = True
    embed_q: nn.Embedding
    embed_d: nn.Embedding
    network: TranslationNetwork | CosineTranslation

    def __init__(
        self,
        field: str = "bwps",
        embedding: int = 512,
        projection: int = 128,
        hidden: list[int] = [128, 64],  # noqa: B006 - jsonargparse shows it; never changed
        hadamard: bool = True,
        dropout: float = 0.1,
        p_self: float = 0.05,
        floor: float = FLOOR,
        start: float = 1e-4,
        vectors: str | None = None,
        fused: bool = True,
        rerank_depth: int = 1000,
        batch_size: int = 32,
        pairs_at_once: int | None = None,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-7,
        warmup: float = 0.1,
        epoch_decay: float = 0.9,
        margin: float = 1.0,
        patience: int | None = None,
        checkpoint_steps: int | None = None,
    ) -> None:
        super().__init__(
            field, fused, rerank_depth, batch_size, pairs_at_once, learning_rate, weight_decay, warmup, epoch_decay,
            margin, patience, checkpoint_steps,
        )  # fmt: skip
        for name, width in (("embedding", embedding), ("projection", projection)):
            require(width >= 1, f"--model.{name}", width, "1 or more")
        require(len(hidden) == 2 and min(hidden) >= 1, "--model.hidden", hidden, "two widths, such as [128, 64]")
        require(0 <= dropout < 1, "--model.dropout", dropout, "from 0 to less than 1")
        require(0 <= p_self < 1, "--model.p_self", p_self, "from 0 to less than 1")
        require(0 < floor < 1, "--model.floor", floor, "between 0 and 1")
        require(0 < start < 1, "--model.start", start, "between 0 and 1")
        self.embedding, self.projection, self.hidden = embedding, projection, (hidden[0], hidden[1])
        self.hadamard = hadamard
        self.dropout, self.p_self, self.floor, self.start, self.vectors = dropout, p_self, floor, start, vectors

    # --- network

    def use_vocabulary(self, vocabulary: list[str]) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.embed_q = nn.Embedding(len(vocabulary), self.embedding)
            self.embed_d = nn.Embedding(len(vocabulary), self.embedding)
            self.network = self.new_network()
        self.remember_vocabulary(vocabulary)

    def new_network(self) -> TranslationNetwork | CosineTranslation:
        """T(q|d) of embedded tokens, not trained yet."""
        network = TranslationNetwork(self.embedding, self.projection, self.hidden, self.dropout, self.hadamard)
        nn.init.constant_(network.f3.bias, float(np.log(self.start / (1 - self.start))))
        return network

    def read_inputs(self) -> None:
        if self.vectors is not None:
            check_vectors(self.vectors)

    def start_weights(self, vocabulary: list[str]) -> None:
        """With given vectors: both embeddings are these vectors, and T grows with their similarity."""
        if self.vectors is None:
            return
        found = read_vectors(self.vectors, vocabulary)
        if found.vectors.shape[1] != self.embedding:
            raise UserError(
                f"--model.embedding {self.embedding}: the vectors of --model.vectors {self.vectors} have "
                f"{found.vectors.shape[1]} dimensions"
            )
        say(f"{len(found.tokens):,} of {len(vocabulary):,} tokens of the field {self.field} start from a vector")
        given = torch.from_numpy(found.vectors)
        given = (given - given.mean(dim=1, keepdim=True)) / given.std(dim=1, keepdim=True).clamp(min=1e-6)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.embed_q.weight[torch.from_numpy(found.tokens).long()] = given
            self.embed_d.weight.copy_(self.embed_q.weight)
            if isinstance(self.network, TranslationNetwork):
                start_as_similarity(self.network, self.start)

    # --- training

    def needs(self) -> Needs:
        options = PairOptions(self.seed, self.at_once, self.parts, distinct_pairs)
        return Needs((self.field,), "pairs", "sample", self.rerank_depth, pairs=options)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Training batches become tensors; batches that are scored stay where they are, memory-mapped."""
        if not isinstance(batch, DistinctPairs):
            return batch
        arrays = [torch.from_numpy(one).to(device, non_blocking=True) for one in batch[:-1]]
        return DistinctPairs._make([*arrays, batch.documents])

    def pair_scores(self, batch: Any) -> list[Tensor]:
        """(pairs, 2) log P(Q|D) of the relevant and the other document."""
        pairs: DistinctPairs = batch
        return [self.log_probabilities(pairs).view(-1, 2)]

    def log_probabilities(self, pairs: Any) -> Tensor:
        """(documents,) log P(Q|D) of all candidates; every distinct pair of tokens goes through the network once."""
        x_q = self.network.query(self.embed_q(pairs.query_tokens))
        x_d = self.network.document(self.embed_d(pairs.document_tokens))
        translation = self.network(x_q, x_d, pairs.pair_query, pairs.pair_document)
        with torch.autocast(x_q.device.type, enabled=False):
            translation = torch.where(pairs.pair_same, self.p_self, (1 - self.p_self) * translation.float())
            summands = translation.index_select(0, pairs.entry_pair) * pairs.entry_weight
            p = torch.zeros_like(pairs.row_repeats).index_add(0, pairs.entry_row, summands)
            logs = torch.log(p.clamp(min=self.floor)) * pairs.row_repeats
            return torch.zeros(pairs.documents, device=logs.device).index_add(0, pairs.row_document, logs)

    def setup(self, stage: str) -> None:
        if (
            stage == "fit"
        ):  # before DDP looks at it; on a GPU a dense gradient is cheap, and NCCL cannot sum sparse ones
            clipped = bool(self.trainer.gradient_clip_val)  # torch has no norm of a sparse gradient
            self.sparse_gradients(self.trainer.strategy.root_device.type == "cpu" and not clipped)

    def sparse_gradients(self, sparse: bool) -> None:
        """Whether the gradients of the embeddings list only the rows that a batch has used."""
        self.embed_q.sparse = self.embed_d.sparse = sparse

    def optimizer(self) -> torch.optim.Optimizer:
        embeddings = [self.embed_q.weight, self.embed_d.weight]
        groups = [
            {"params": embeddings, "rows": True},
            {"params": list(self.network.parameters()), "rows": False},
        ]
        return RowAdamW(groups, self.learning_rate, self.weight_decay)

    # --- scoring

    @torch.inference_mode()
    def translation_rows(self, query_tokens: np.ndarray, document_tokens: np.ndarray) -> Iterator[np.ndarray]:
        """For each query token: (document tokens,) float32 T(q|d), self-translation included.

        Both ascending. The memory of a row is used again for the next one. On a CPU T(q|d) does not depend on the other
        tokens: whole groups of rows are computed, as matrix products round the rest of a group in another way.
        """
        x_q = self.network.query(self.embed_q(torch.from_numpy(_whole_groups(query_tokens)).to(self.device)))
        x_d = self.network.document(self.embed_d(torch.from_numpy(_whole_groups(document_tokens)).to(self.device)))
        places = np.searchsorted(document_tokens, query_tokens)
        for token, place, row in zip(query_tokens, places, self.network.rows(x_q, x_d), strict=False):
            translation = row.mul_(1 - self.p_self)[: len(document_tokens)].cpu().numpy()
            if place < len(document_tokens) and document_tokens[place] == token:
                translation[place] = self.p_self
            yield translation

    def score(self, batch: RankingBatch) -> np.ndarray:
        forward, queries, candidates = batch[:3]
        query_tokens = np.unique(queries.values[queries.values >= 0]).astype(np.int64)
        document_tokens = tokens_of(forward, candidates.values)
        lengths = np.zeros(forward.vocabulary_size, np.int64)
        lengths[query_tokens] = len(document_tokens)
        values = np.empty((len(query_tokens), len(document_tokens)), np.float32)
        with torch.autocast(self.device.type, enabled=False):  # T is float32, whatever the training's precision
            for number, row in enumerate(self.translation_rows(query_tokens, document_tokens)):
                values[number] = row
        rows = Ragged(offsets_of(lengths), np.tile(document_tokens.astype(np.int32), len(query_tokens)))
        scores = model1_scores(
            TranslationTable(rows, values.ravel()), forward, queries, candidates, 0.0, floor=self.floor
        )
        return per_query_token(scores, queries, candidates)

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        found = []
        for query, document in batch.pairs():
            tokens, q_place = np.unique(query[query >= 0].astype(np.int64), return_inverse=True)
            words, d_place = np.unique(document.astype(np.int64), return_inverse=True)
            translation = np.zeros((len(query), len(document)))
            with torch.autocast(self.device.type, enabled=False):
                rows = [row.copy() for row in self.translation_rows(tokens, words)]
            if rows and len(words):
                translation[query >= 0] = np.stack(rows)[q_place][:, d_place]
            found.append(model1_evidence(translation, np.zeros(len(query)), self.floor, len(query)))
        return found


def _whole_groups(tokens: np.ndarray) -> np.ndarray:
    """As many tokens as fill groups of `ROWS_TOGETHER`: the last one is repeated."""
    missing = -len(tokens) % ROWS_TOGETHER
    return np.concatenate([tokens, np.full(missing, tokens[-1] if len(tokens) else 0, tokens.dtype)])


class NNModel1Cosine(NNModel1):
    """The paper's first, weaker parametrisation: T(q|d) = (cos(x_q, x_d) + 1) / 2. All else as in `NNModel1`."""

    def new_network(self) -> TranslationNetwork | CosineTranslation:
        return CosineTranslation(self.embedding, self.projection, self.dropout)
