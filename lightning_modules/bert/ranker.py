"""BERT rankers on short and long documents: vanilla, CEDR and BERT-Model1 (sections "Embeddings, BERT and CEDR" and
"Experiments" of the paper).

An encoder reads [CLS] q [SEP] d_i [SEP] for each chunk d_i of a document (`chunks`, `chunk_encoder`), and a head turns
the contextual vectors into a score (`heads/`).

On a CPU a score depends on its query and document only, to the last bit: not on the pairs beside it, nor on the number
of threads or processes. Each sequence is padded to a length of its own, each slice of pairs is computed by one thread,
and the head gets one pair at a time. So an explanation has the score of the run file, and two processes write the run
file of one. A GPU computes many pairs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from lexical.batches import DataNeeds, PairOptions, RankingBatch, ValidationSample
from lexical.encoders import PACKAGED, check_word_pieces, encoder_folder
from lexical.errors import UserError, require
from lexical.evidence import Evidence, model1_evidence
from lexical.index.ragged import ragged
from lexical.terminal import track
from lightning_modules.bert.chunk_encoder import (
    BF16,
    FLAG,
    ChunkEncoder,
    cpu_has_bf16,
    encoder_dtype,
    new_transformer,
    pretrained_transformer,
    to_device,
)
from lightning_modules.bert.chunks import (
    ChunkLimits,
    EncoderInputs,
    GroupLimits,
    PairInputs,
    Specials,
    best_window,
    chunk_lengths,
    encoder_inputs,
    slices_by_length,
)
from lightning_modules.bert.heads.drmm import DRMMHead
from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.bert.heads.knrm import KNRMHead
from lightning_modules.bert.heads.model1 import ALIKE, FLOOR, Model1Head
from lightning_modules.bert.heads.pacrr import PACRRHead
from lightning_modules.bert.heads.vanilla import VanillaHead
from lightning_modules.bert.pretraining import PretrainingSettings
from lightning_modules.bert.saved_ranker import load_saved_ranker, read_tokenizer, save_ranker, text_pairs
from lightning_modules.bert.threads import one_thread_each
from lightning_modules.neural_ranker import NeuralRanker

S = TypeVar("S")
T = TypeVar("T")

CPU_GROUPS, GPU_GROUPS = GroupLimits(), GroupLimits(positions=1 << 16, padding=1 << 12)
CPU_SLICE, GPU_SLICE = 1 << 11, 1 << 15  # document pieces whose vectors of all layers are in memory, once per thread
SMALL_VALIDATION = ValidationSample(queries=50, depth=10)  # a minute on a CPU


class BertRanker(NeuralRanker):
    """A Transformer encoder with a ranking head.

    Args:
        head: vanilla, knrm, drmm, pacrr or model1.
        chunks: the most chunks of a document that are read: 1 for the short rows, 3 for the full ones.
        backbone: "packaged" (the encoder of the requirements), a Hugging Face name, or a folder.
        positions: of a chunk, query and special tokens included.
        query_pieces: pieces of a query that are read.
        train_window: train on one window of this many positions per document, the one that has most of the query
            (`best_window`): cheaper, so more queries can be trained on. When not given, on all that it ranks by.
        projection: width of x_q and x_d of the Model 1 layer.
        hidden: widths of its F1 and F2.
        dropout: share of its token features that is dropped in training.
        start: approximate T(q|d) of orthogonal vectors before training; it then grows with their similarity, to about
            0.9 for equal vectors. (Vectors of unrelated pieces are not orthogonal: most T start above it.) The weights
            of the layer are random when not given.
        pretrain: before the training, the encoder learns the language of the collection (masked language modelling and
            next-sentence prediction); once per data set and backbone.
        pretrain_sequences: sequences of 128 pieces that it sees then; as many as the collection fills when not given.
        pretrain_rate: learning rate of the pretraining.
        frozen_layers: hidden layers, from the bottom, that keep their weights, and the embeddings with them; with 0
            everything is trained.
        encoder_dropout: of the encoder in training; the backbone's own when not given.
        gradient_checkpointing: compute the encoder's layers again in the backward pass instead of keeping them.
        sampled: validate, learn the fusion and measure on fixed samples of the query sets, for machines without a GPU.
        train_queries: training queries of an epoch, a fixed sample; all when not given.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
        batch_size: pairs per optimiser step, over all processes.
        pairs_at_once: pairs that a process computes at once; the rest is accumulated. All when not given.
        learning_rate: base rate of the encoder.
        head_learning_rate: base rate of the head.
        weight_decay: of AdamW.
        warmup: share of the optimiser steps in which the rates grow linearly from zero.
        cooldown: share of them, the last ones, in which the rates fall linearly to zero.
        negatives_from: the non-relevant documents of a query are drawn from this many of its best candidates.
        retrieved_only: train only on relevant documents that are among these candidates, as all are that it will rank.
        margin: of the loss.
        checkpoint_steps: save last.ckpt every this many optimiser steps instead of every 5 minutes.
    """

    slow = reads_texts = True
    precision: str | None = None  # of the encoder, by Lightning's name; heads and scores are always float32
    start_encoder: str | None = None  # its weights are those that training starts from; the backbone's when None
    encoder: ChunkEncoder
    head: nn.Module
    specials: Specials
    tokenizer: Any = None  # loaded when texts are scored

    def __init__(
        self,
        head: Literal["vanilla", "knrm", "drmm", "pacrr", "model1"] = "vanilla",
        chunks: int = 1,
        backbone: str = PACKAGED,
        positions: int = 512,
        query_pieces: int = 32,
        train_window: int | None = None,
        projection: int = 128,
        hidden: list[int] = [128, 64],  # noqa: B006 - jsonargparse shows it; never changed
        dropout: float = 0.1,
        start: float | None = None,
        pretrain: bool = False,
        pretrain_sequences: int | None = None,
        pretrain_rate: float = 3e-5,
        frozen_layers: int = 0,
        encoder_dropout: float | None = None,
        gradient_checkpointing: bool = False,
        sampled: bool = False,
        train_queries: int | None = None,
        fused: bool = False,
        rerank_depth: int = 100,
        batch_size: int = 16,
        pairs_at_once: int | None = None,
        learning_rate: float = 2e-5,
        head_learning_rate: float = 2e-4,
        weight_decay: float = 1e-7,
        warmup: float = 0.1,
        cooldown: float = 0.0,
        negatives_from: int = 500,
        retrieved_only: bool = False,
        margin: float = 1.0,
        checkpoint_steps: int | None = None,
    ) -> None:
        super().__init__(
            "bwps", fused, rerank_depth, batch_size, pairs_at_once, learning_rate, weight_decay, warmup, 1.0, margin,
            None, checkpoint_steps,
        )  # fmt: skip
        if backbone.startswith(("/", ".", "~")) and not Path(backbone).expanduser().is_dir():
            raise UserError(f"--model.backbone: there is no folder {backbone}")
        require(projection >= 1, "--model.projection", projection, "1 or more")
        require(len(hidden) == 2 and min(hidden) >= 1, "--model.hidden", hidden, "two widths, such as [128, 64]")
        require(0 <= dropout < 1, "--model.dropout", dropout, "from 0 to less than 1")
        require(start is None or 0 < start < ALIKE, "--model.start", start, f"between 0 and {ALIKE}")
        sequences = pretrain_sequences
        require(sequences is None or sequences >= 1, "--model.pretrain_sequences", sequences, "1 or more")
        require(pretrain_rate > 0, "--model.pretrain_rate", pretrain_rate, "more than 0")
        require(frozen_layers >= 0, "--model.frozen_layers", frozen_layers, "0 or more")
        require(0 <= (encoder_dropout or 0.0) < 1, "--model.encoder_dropout", encoder_dropout, "from 0 to less than 1")
        require(train_queries is None or train_queries >= 1, "--model.train_queries", train_queries, "1 or more")
        require(head_learning_rate > 0, "--model.head_learning_rate", head_learning_rate, "more than 0")
        require(0 <= cooldown <= 1, "--model.cooldown", cooldown, "between 0 and 1")
        require(negatives_from >= 1, "--model.negatives_from", negatives_from, "1 or more")
        require(chunks >= 1, "--model.chunks", chunks, "1 or more")
        require(query_pieces >= 1, "--model.query_pieces", query_pieces, "1 or more")
        self.limits = ChunkLimits(positions, query_pieces, chunks)
        require(self.limits.chunk >= 1, "--model.positions", positions, "more than the query and 3 specials")
        self.train_limits = self.limits
        if train_window is not None:
            self.train_limits = ChunkLimits(train_window, query_pieces, 1)
            expected = "more than the query and 3 specials, --model.positions at most"
            fits = self.train_limits.chunk >= 1 and train_window <= positions
            require(fits, "--model.train_window", train_window, expected)
        self.head_name, self.explains, self.backbone = head, head == "model1", backbone
        self.projection, self.hidden, self.dropout, self.start = projection, (hidden[0], hidden[1]), dropout, start
        self.pretraining = PretrainingSettings(pretrain_sequences, pretrain_rate) if pretrain else None
        self.frozen_layers, self.encoder_dropout = frozen_layers, encoder_dropout
        self.gradient_checkpointing = gradient_checkpointing
        self.sampled, self.train_queries = sampled, train_queries
        self.head_learning_rate, self.cooldown = head_learning_rate, cooldown
        self.negatives_from, self.retrieved_only = negatives_from, retrieved_only

    # --- network

    def new_head(self) -> nn.Module:
        """Return the head, untrained: a module with `all_layers` that gives `Encoded` pairs (pairs,) float32 scores."""
        width, layers = self.encoder.config.hidden_size, self.encoder.config.num_hidden_layers + 1
        heads: dict[str, Callable[[], nn.Module]] = {
            "vanilla": lambda: VanillaHead(width),
            "knrm": lambda: KNRMHead(width, layers),
            "drmm": lambda: DRMMHead(width, layers),
            "pacrr": lambda: PACRRHead(width, layers, self.limits.query_pieces),
            "model1": lambda: Model1Head(width, self.projection, self.hidden, self.dropout, self.start),
        }
        return heads[self.head_name]()

    def build(self, vocabulary: list[str]) -> None:
        self.specials = Specials.of(vocabulary, self.backbone)
        self.encoder = ChunkEncoder(new_transformer(self.backbone, self.encoder_dropout))
        config, positions = self.encoder.config, self.limits.positions
        check_word_pieces(FLAG, self.backbone, config.vocab_size, vocabulary)
        expected = f"{config.max_position_embeddings} at most, the positions of the backbone"
        require(positions <= config.max_position_embeddings, "--model.positions", positions, expected)
        expected = f"fewer than the {config.num_hidden_layers} layers of the backbone"
        require(self.frozen_layers < config.num_hidden_layers, "--model.frozen_layers", self.frozen_layers, expected)
        self.head = self.new_head()
        self.encoder.all_layers = bool(self.head.all_layers)
        self.encoder.freeze(self.frozen_layers)
        if self.gradient_checkpointing:
            self.encoder.transformer.gradient_checkpointing_enable()

    def start_weights(self, vocabulary: list[str]) -> None:  # noqa: ARG002
        """Load trained weights into the encoder; the head stays random."""
        trained = pretrained_transformer(self.start_encoder or self.backbone)
        self.encoder.transformer.load_state_dict(trained.state_dict(), strict=True)

    def forward(self, inputs: EncoderInputs) -> Tensor:
        """Return (pairs,) float32 scores."""
        return self.head(self.encode(inputs))

    def encode(self, inputs: EncoderInputs) -> Encoded:
        """Return contextual vectors: the same inside a trainer and outside of one."""
        half = encoder_dtype(self.precision, self.device.type)
        with torch.autocast(self.device.type, half or torch.bfloat16, enabled=half is not None):
            return self.encoder(inputs)

    def learned(self) -> dict[str, Any]:
        return {"precision": self.precision}

    def load_learned(self, learned: dict[str, Any]) -> None:
        self.precision = learned["precision"]

    def default_precision(self, gpu: bool) -> str | None:
        """Return bfloat16 where the GPU, or the CPU, multiplies in it."""
        supported = torch.cuda.is_bf16_supported(including_emulation=False) if gpu else cpu_has_bf16()
        return BF16 if supported else None

    def use_precision(self, precision: str | None) -> None:
        self.precision = precision

    # --- training

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            self.use_precision(str(self.trainer.precision))

    def configure_callbacks(self) -> Sequence[L.Callback]:
        from callbacks.target_pretraining import EncoderPretraining

        callbacks = super().configure_callbacks()
        return callbacks if self.pretraining is None else [EncoderPretraining(self.pretraining), *callbacks]

    def needs(self) -> DataNeeds:
        pairs = PairOptions(
            self.seed, *self.divide_batch(), self.collate, self.train_queries, self.negatives_from, self.retrieved_only
        )
        validation = SMALL_VALIDATION if self.sampled else ValidationSample()
        fields, depth = (self.field,), self.rerank_depth
        return DataNeeds(fields, "pairs", depth, sampled=self.sampled, pairs=pairs, validation=validation)

    def collate(self, batch: RankingBatch) -> PairInputs:
        """Convert a training batch.

        On a CPU each training pair is encoded by itself: small matrices are as fast there, and pairs that keep their
        margin need no backward pass.
        """
        count = len(batch.candidates.values)
        size = 2 if self.device.type == "cpu" else max(2, count)
        parts = [np.arange(first, min(first + size, count)) for first in range(0, count, size)]
        return PairInputs(tuple(self.inputs_of(batch, part) for part in parts))

    def inputs_of(self, batch: RankingBatch, pairs: np.ndarray, for_scores: bool = False) -> EncoderInputs:
        """Return the sequences of `pairs`, numbers of the batch's (query, candidate) pairs, for scores or gradients."""
        assert batch.sequences is not None
        limits = self.limits
        queries = [batch.queries.row(i)[: limits.query_pieces] for i in batch.candidates.row_numbers()[pairs]]
        documents = [batch.sequences.row(i)[: limits.pieces] for i in batch.candidates.values[pairs]]
        groups = CPU_GROUPS if self.device.type == "cpu" else GPU_GROUPS
        if for_scores and self.exact:
            groups = groups.for_scores()
        if not for_scores and self.train_limits != limits:
            limits = self.train_limits
            starts = [best_window(q, d, limits.chunk) for q, d in zip(queries, documents, strict=True)]
            documents = [d[start:] for start, d in zip(starts, documents, strict=True)]
        return encoder_inputs(ragged(queries, np.int64), ragged(documents, np.int64), limits, self.specials, groups)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Convert training batches to tensors; batches that are scored stay memory-mapped."""
        if not isinstance(batch, PairInputs):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        return PairInputs(tuple(to_device(graph, device) for graph in batch.graphs))

    def pair_scores(self, batch: Any) -> list[Tensor]:
        return [self(graph).view(-1, 2) for graph in batch.graphs]

    def optimizer(self) -> torch.optim.Optimizer:
        trained = [weight for weight in self.encoder.parameters() if weight.requires_grad]
        groups = [
            {"params": trained, "lr": self.learning_rate, "name": "encoder"},
            {"params": list(self.head.parameters()), "lr": self.head_learning_rate, "name": "head"},
        ]
        return torch.optim.AdamW(groups, weight_decay=self.weight_decay)

    # --- scoring

    @property
    def exact(self) -> bool:
        """Whether a score depends on its query and document only, to the last bit."""
        return self.device.type == "cpu"

    def score(self, batch: RankingBatch, share: int = 0, shares: int = 1) -> np.ndarray:
        """Return (pairs,) float32 scores, pairs of about the same length together; 0 for slices of other shares."""
        assert batch.sequences is not None
        lengths = np.minimum(batch.sequences.lengths()[batch.candidates.values], self.limits.pieces)
        slices = slices_by_length(lengths, CPU_SLICE if self.device.type == "cpu" else GPU_SLICE)[share::shares]
        results = self._each_by_itself(partial(self._score_pairs, batch), slices)
        if len(slices) > 1:
            results = track(results, "score", total=len(slices))
        scores = np.zeros(len(lengths), np.float32)
        for pairs, values in zip(slices, results, strict=True):
            scores[pairs] = values
        return scores

    def score_together(self, batch: RankingBatch) -> np.ndarray:
        """Score with all processes, each a share; every process gets all scores."""
        trainer = self.trainer
        if trainer.world_size == 1:
            return self.score(batch)
        share = torch.from_numpy(self.score(batch, trainer.global_rank, trainer.world_size)).to(self.device)
        whole: Any = trainer.strategy.reduce(share, reduce_op="sum")
        return np.asarray(whole.cpu().numpy())

    def _score_pairs(self, batch: RankingBatch, pairs: np.ndarray) -> np.ndarray:
        encoded = self._encode_pairs(batch, pairs)
        scores = [self.head(pair) for pair in (encoded.pairs() if self.exact else [encoded])]
        return np.asarray(torch.cat(scores).float().cpu().numpy())

    def _encode_pairs(self, batch: RankingBatch, pairs: np.ndarray) -> Encoded:
        return self.encode(to_device(self.inputs_of(batch, pairs, for_scores=True), self.device))

    def _each_by_itself(self, work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
        """Yield work(item) of all items, without gradients; on a CPU several at once, each in one thread."""
        encoder_dtype(self.precision, self.device.type)  # prints its warning, if any, before there are threads
        return one_thread_each(work, items) if self.exact else map(torch.no_grad()(work), items)

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        """Decompose the scores of the Model 1 head: T of contextual vectors, not divided by the query's length."""
        pairs = range(len(batch.candidates.values))
        return list(self._each_by_itself(partial(self._pair_evidence, batch), pairs))

    def _pair_evidence(self, batch: RankingBatch, pair: int) -> Evidence:
        assert isinstance(self.head, Model1Head) and batch.sequences is not None
        encoded = self._encode_pairs(batch, np.array([pair]))
        with torch.autocast(self.device.type, enabled=False):
            values, _, q, d = (tensor.cpu().numpy() for tensor in self.head.translations(encoded))
        translation = np.zeros((encoded.query_mask.shape[1], encoded.document_mask.shape[1]))
        translation[q, d] = values
        lengths = chunk_lengths(len(batch.sequences.row(batch.candidates.values[pair])), self.limits)
        chunks = tuple(int(start) for start in np.cumsum([0, *lengths[:-1]]))
        return model1_evidence(translation, np.zeros(len(translation)), FLOOR, 1, chunks)

    # --- as a folder

    def save_artifacts(self, folder: Path) -> None:
        self.save_pretrained(folder / "ranker")

    def save_pretrained(self, folder: str | Path) -> None:
        """Save encoder, head, tokenizer and settings; see `saved_ranker`."""
        save_ranker(self, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> BertRanker:
        """Load a saved ranker in evaluation mode."""
        return load_saved_ranker(cls, Path(folder))

    def score_texts(self, queries: list[str], documents: list[str]) -> np.ndarray:
        """Return (pairs,) float32 scores of (queries[i], documents[i])."""
        if self.tokenizer is None:
            self.tokenizer = read_tokenizer(Path(encoder_folder(self.backbone)))
        return self.score(text_pairs(self.tokenizer, queries, documents))
