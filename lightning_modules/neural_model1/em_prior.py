"""The neural Model 1 as a correction of EM's table: a prior learned by counting, corrected by ranking.

    T(q|d) = sigmoid(logit(max(T_EM(q|d), 1e-5)) + f(q, d))
    f(q,d) = a_q + b_d + [q = d] s_q + x_q . x_d
    P(q|D) = (1 - lambda) * sum over unique d in D of T(q|d) tf(d, D) / |D|  +  lambda P(q|C)

T_EM is the table of Model 1 by EM, pruned, with its self-translations; its threshold, p_self and lambda are those that
are best on development. f starts as x_q . x_d of unit vectors and is trained by ranking. A training query is scored
with a table that has not seen it (`callbacks.cross_fitted_em`); all others with the table of all training queries.

The loss is that of the score that is measured, the fusion with the first stage: with the relevant document D+ among
`negatives` others that the fusion ranks high,

    loss = - p ** focus * ln p,   p = softmax over D of tau * (BM25(Q, D) + w * ln P(Q|D) / |Q|) at D+

where p ** focus counts as a constant: queries that words cannot answer do not dominate. tau and w are learned, too.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from callbacks.cross_fitted_em import CrossFittedEM, PriorOptions
from callbacks.start_vectors import StartVectors
from lexical.batches import DataNeeds, PairOptions, RankingBatch, ValidationSample
from lexical.encoders import encoder_width
from lexical.errors import require
from lexical.index.ragged import Ragged
from lexical.model1.bitext import BitextOptions
from lexical.model1.cross_fitting import CrossFitted
from lexical.model1.distinct_pairs import DistinctPairs, distinct_pairs
from lexical.model1.scorer import UNSEEN
from lexical.model1.table import TranslationTable
from lightning_modules.neural_model1.context_free import ContextFreeRanker, log_probabilities, token_probabilities
from lightning_modules.neural_model1.rows import ROWS_TOGETHER, whole_groups
from lightning_modules.precision import autocast
from lightning_modules.ranker import require_settings

PRIOR_FLOOR, PRIOR_CEILING = 1e-5, 1 - 1e-6  # T_EM is kept between them: its log-odds are finite
ADAGRAD_START = 0.01  # what Adagrad's sums of squared gradients start from


class LogBilinear(nn.Module):
    """f(q, d) = a_q + b_d + [q = d] s_q + x_q . x_d, which is added to the log-odds of a prior.

    Args:
        vocabulary: number of tokens.
        dimensions: of x_q and x_d, which start as equal random unit vectors; all other weights start at 0.
    """

    def __init__(self, vocabulary: int, dimensions: int) -> None:
        super().__init__()
        self.a, self.b, self.s = (nn.Embedding(vocabulary, 1) for _ in range(3))
        self.x_q, self.x_d = (nn.Embedding(vocabulary, dimensions) for _ in range(2))
        for bias in (self.a, self.b, self.s):
            nn.init.zeros_(bias.weight)
        self.start_at(torch.randn(vocabulary, dimensions))

    def start_at(self, vectors: Tensor) -> None:
        """Make x_q and x_d the same vectors, of length 1; those of length 0 stay as they are."""
        with torch.no_grad():
            self.x_q.weight.copy_(F.normalize(vectors))
            self.x_d.weight.copy_(self.x_q.weight)

    def forward(self, query_tokens: Tensor, document_tokens: Tensor) -> Tensor:
        """Return (query tokens, document tokens) f."""
        products = self.x_q(query_tokens) @ self.x_d(document_tokens).T
        same = (query_tokens[:, None] == document_tokens[None, :]).float()
        return products + self.a(query_tokens) + self.b(document_tokens).T + same * self.s(query_tokens)


class TrainingLists(NamedTuple):
    """Queries, each with a relevant document and some others."""

    pairs: DistinctPairs
    prior: np.ndarray  # (distinct pairs,) float32 log-odds of T_EM
    background: np.ndarray  # (rows,) float32 P(q|C)
    first_stage: np.ndarray  # (documents,) float32 normalised BM25
    tokens: np.ndarray  # (documents,) float32 |Q| of the document's query
    query: np.ndarray  # (documents,) int64
    position: np.ndarray  # (documents,) int64 in the list of its query; 0 is the relevant document
    queries: int


class NeuralModel1EM(ContextFreeRanker):
    """The neural Model 1 as a correction of EM's table.

    Args:
        field: word, lemm, word_all or bwps.
        iterations: of EM.
        folds: of the training queries; EM is run once more for each of them.
        min_documents: EM does not learn translations of tokens of fewer documents.
        dimensions: of x_q and x_d.
        vectors: what x_q and x_d start from: "packaged" (the packaged encoder's output for each token alone), a Hugging
            Face name or a folder; random when not given.
        candidates: of the first stage for each training query; queries without a relevant one are left out.
        negatives_from: negatives are drawn from this many of the best of these, ranked by BM25 and EM.
        negatives: of a query and epoch.
        focus: exponent of p, the probability of the relevant document, in the weight that a query has in the loss.
        sharpness: tau before training.
        learning_rate: base rate of x_q and x_d.
        bias_rate: base rate of the biases a, b, s.
        scale_rate: base rate of tau and w.
        final_rate: share of the base rates that is left at the end of training; they fall linearly.
        fused: the row of the results table is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
        batch_size: queries per optimiser step, over all processes.
        pairs_at_once: the most queries that a process computes at once; the rest of its share is accumulated. Its whole
            share when not given.
        patience: stop when the validation MRR has not grown for this many epochs; never when not given.
        checkpoint_steps: save last.ckpt every this many optimiser steps instead of every 5 minutes.
        export_threshold: when training ends, T(q|d) is exported to a sparse table without smaller values; no export
            when not given.
        export_top_k: the table keeps at most this many document tokens per query token; all when not given.
        export_whole_vocabulary: the table has document tokens that do not occur in the collection, too.
    """

    correction: LogBilinear

    def __init__(
        self,
        field: str = "bwps",
        iterations: int = 5,
        folds: int = 4,
        min_documents: int = 1,
        dimensions: int = 64,
        vectors: str | None = None,
        candidates: int = 200,
        negatives_from: int = 50,
        negatives: int = 31,
        focus: float = 0.5,
        sharpness: float = 6.0,
        learning_rate: float = 0.2,
        bias_rate: float = 0.1,
        scale_rate: float = 0.02,
        final_rate: float = 0.3,
        fused: bool = True,
        rerank_depth: int = 1000,
        batch_size: int = 32,
        pairs_at_once: int | None = None,
        patience: int | None = None,
        checkpoint_steps: int | None = None,
        export_threshold: float | None = 1e-3,
        export_top_k: int | None = None,
        export_whole_vocabulary: bool = False,
    ) -> None:
        super().__init__(
            field, export_threshold, export_top_k, export_whole_vocabulary, fused=fused, rerank_depth=rerank_depth,
            batch_size=batch_size, pairs_at_once=pairs_at_once, learning_rate=learning_rate, weight_decay=0.0,
            warmup=0.0, epoch_decay=1.0, patience=patience, checkpoint_steps=checkpoint_steps,
        )  # fmt: skip
        require_settings("1 or more", iterations=iterations, min_documents=min_documents, dimensions=dimensions)
        require_settings("1 or more", candidates=candidates, negatives_from=negatives_from, negatives=negatives)
        require_settings("0 or more", focus=focus)
        require_settings("more than 0", sharpness=sharpness, bias_rate=bias_rate, scale_rate=scale_rate)
        require_settings("between 0 and 1", final_rate=final_rate)
        require(folds >= 2, "--model.folds", folds, "2 or more")
        self.vectors, self.negatives, self.focus = vectors, negatives, focus
        bitext = BitextOptions(min_documents=min_documents)
        self.prior_options = PriorOptions(bitext, iterations, folds, candidates, negatives_from, rerank_depth, fused)
        self.prior: TranslationTable | None = None  # of all training queries
        self.prior_weight = 0.5  # of Model 1 by EM in the fusion with the first stage
        self.cross_fitted: CrossFitted | None = None  # what training needs of EM
        self.start_vectors: np.ndarray | None = None

    # --- network

    def build(self, vocabulary: list[str]) -> None:
        self.correction = LogBilinear(len(vocabulary), self.hparams["dimensions"])
        self.log_tau = nn.Parameter(torch.tensor(math.log(self.hparams["sharpness"])))
        self.log_w = nn.Parameter(torch.tensor(0.0))

    def check_inputs(self) -> None:
        if self.vectors is not None:
            width, dimensions = encoder_width("--model.vectors", self.vectors), self.hparams["dimensions"]
            expected = f"{width} at most, the width of the encoder of --model.vectors"
            require(dimensions <= width, "--model.dimensions", dimensions, expected)

    def configure_callbacks(self) -> Sequence[L.Callback]:
        starts = [] if self.vectors is None else [StartVectors(self.vectors, self.hparams["dimensions"])]
        return [CrossFittedEM(self.prior_options), *starts, *super().configure_callbacks()]

    def use_prior(self, fitted: CrossFitted) -> None:
        """Take EM's table, its settings, and what training needs of it."""
        self.cross_fitted, self.prior, self.prior_weight = fitted, fitted.whole, fitted.weight
        self.smoothing = fitted.settings.smoothing

    def start_weights(self, vocabulary: list[str]) -> None:  # noqa: ARG002
        with torch.no_grad():
            self.log_w.fill_(math.log(self.prior_weight / (1 - self.prior_weight)))
        if self.start_vectors is not None:
            self.correction.start_at(torch.from_numpy(self.start_vectors))

    def configure_model(self) -> None:
        """Build the network; on a CPU, gradients hold only the rows that a batch used."""
        super().configure_model()
        if self._trainer is not None:
            cpu = self.trainer.strategy.root_device.type == "cpu"
            for embedding in self.correction.children():
                embedding.sparse = cpu and not self.trainer.gradient_clip_val  # type: ignore[assignment]

    # --- training

    def needs(self) -> DataNeeds:
        given, mined = self.hparams, None if self.cross_fitted is None else self.cross_fitted.negatives
        shares = self.divide_batch(self.trainer.world_size)
        pairs = PairOptions(self.seed, *shares, self.collate, negatives=self.negatives, mined=mined, first_stage=True)
        validation = ValidationSample(queries=None, depth=self.rerank_depth)
        return DataNeeds(
            (self.field,), "pairs", self.rerank_depth, training_depth=given["candidates"], pairs=pairs,
            validation=validation,
        )  # fmt: skip

    def collate(self, batch: RankingBatch) -> TrainingLists:
        """Convert a training batch; T_EM of a query is that of its fold."""
        fitted, candidates, queries = self.cross_fitted, batch.candidates, batch.queries
        assert fitted is not None
        assert batch.rows is not None
        assert batch.first_stage is not None
        pairs = distinct_pairs(batch, fitted.fold[batch.rows])
        background = self.collection_probability(batch.forward)[pairs.row_token]
        query = candidates.row_numbers()
        return TrainingLists(
            pairs, log_odds(self._prior_of(pairs, fitted.without)),
            np.where(pairs.row_token >= 0, background, UNSEEN).astype(np.float32), batch.first_stage,
            np.maximum(1, queries.lengths()).astype(np.float32)[query], query, candidates.positions(), candidates.rows,
        )  # fmt: skip

    def _prior_of(self, pairs: DistinctPairs, tables: Sequence[TranslationTable]) -> np.ndarray:
        """Return (distinct pairs,) T_EM by the tables of the folds."""
        fold = pairs.query_groups[pairs.pair_query]  # ascending
        q, d = pairs.query_tokens[pairs.pair_query], pairs.document_tokens[pairs.pair_document]
        bounds = np.searchsorted(fold, np.arange(len(tables) + 1))
        parts = zip(tables, np.split(q, bounds[1:-1]), np.split(d, bounds[1:-1]), strict=True)
        return np.concatenate([table.lookup(*tokens) for table, *tokens in parts])

    def loss_metrics(self, losses: Tensor) -> dict[str, Tensor]:
        return {"train/loss": losses.sum() / max(1, len(losses))}

    def log_probabilities(self, lists: Any) -> Tensor:
        """Return (documents,) log P(Q|D)."""
        pairs = lists.pairs
        f = self.correction(pairs.query_tokens, pairs.document_tokens)
        f = f.view(-1).index_select(0, pairs.pair_query * f.shape[1] + pairs.pair_document)
        with autocast(f.device, None):
            translated = token_probabilities(pairs, torch.sigmoid(lists.prior + f.float()))
            return log_probabilities(pairs, (1 - self.smoothing) * translated + self.smoothing * lists.background)

    def losses(self, lists: Any) -> tuple[Tensor, Tensor]:
        """Return (queries,) cross entropies without gradients, and the sum of the weighted ones to learn from."""
        model1 = self.log_w.exp() * self.log_probabilities(lists) / lists.tokens
        scores = self.log_tau.exp() * (model1 + lists.first_stage if self.fused else model1)
        table = torch.full((lists.queries, self.negatives + 1), -math.inf, device=self.device)
        table = table.index_put((lists.query, lists.position), scores)
        losses = -F.log_softmax(table, dim=1)[:, 0]
        unweighted = losses.detach()
        return unweighted, (torch.exp(-self.focus * unweighted) * losses).sum()

    def optimizer(self) -> torch.optim.Optimizer:
        f, given = self.correction, self.hparams
        groups = [
            {"params": [f.x_q.weight, f.x_d.weight], "lr": self.learning_rate},
            {"params": [f.a.weight, f.b.weight, f.s.weight], "lr": given["bias_rate"]},
            {"params": [self.log_tau, self.log_w], "lr": given["scale_rate"]},
        ]
        warnings.filterwarnings("ignore", message="Sparse invariant checks")  # of the tensors that Adagrad makes
        return torch.optim.Adagrad(groups, initial_accumulator_value=ADAGRAD_START)

    def rate(self, step: int, total: int, per_epoch: int) -> float:  # noqa: ARG002
        return 1 - (1 - self.hparams["final_rate"]) * min(1.0, step / max(1, total))

    # --- scoring

    @torch.inference_mode()
    def translation_rows(self, query_tokens: np.ndarray, document_tokens: np.ndarray) -> Iterator[np.ndarray]:
        assert self.prior is not None
        tokens = torch.from_numpy(whole_groups(document_tokens)).to(self.device)
        of_vocabulary = np.zeros(self.prior.vocabulary_size, np.float32)
        for first in range(0, len(query_tokens), ROWS_TOGETHER):
            group = query_tokens[first : first + ROWS_TOGETHER]
            f = self.correction(torch.from_numpy(whole_groups(group)).to(self.device), tokens).float().cpu().numpy()
            for token, correction in zip(group, f, strict=False):
                row = slice(self.prior.rows.offsets[token], self.prior.rows.offsets[token + 1])
                known = self.prior.rows.values[row]
                of_vocabulary[known] = self.prior.probabilities[row]
                odds = log_odds(of_vocabulary[document_tokens]) + correction[: len(document_tokens)]
                of_vocabulary[known] = 0
                yield 1 / (1 + np.exp(-odds))

    # --- checkpoint

    def fingerprint(self) -> str:
        digest = hashlib.sha256(super().fingerprint().encode())
        for array in (*self.prior.rows, self.prior.probabilities) if self.prior is not None else ():
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def learned(self) -> dict[str, Any]:
        if self.prior is None:
            return {}
        arrays = (*self.prior.rows, self.prior.probabilities)
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        return {"prior": tensors, "smoothing": self.smoothing}

    def load_learned(self, learned: dict[str, Any]) -> None:
        if learned:
            offsets, tokens, probabilities = (tensor.cpu().numpy() for tensor in learned["prior"])
            self.prior = TranslationTable(Ragged(offsets, tokens), probabilities)
            self.smoothing = learned["smoothing"]

    def findings(self) -> dict[str, float]:
        return {"smoothing": self.smoothing, "tau": self.log_tau.exp().item(), "w": self.log_w.exp().item()}


def log_odds(probability: np.ndarray) -> np.ndarray:
    """Return float32 ln(p / (1 - p)) of probabilities between `PRIOR_FLOOR` and `PRIOR_CEILING`."""
    p = np.clip(probability.astype(np.float32), PRIOR_FLOOR, PRIOR_CEILING)
    return np.log(p / (1 - p))
