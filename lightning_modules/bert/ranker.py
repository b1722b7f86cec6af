"""BERT rankers on short and long documents: vanilla, CEDR and BERT-Model1 (sections "Embeddings, BERT and CEDR" and
"Experiments" of the paper).

An encoder reads [CLS] q [SEP] d_i [SEP] for each chunk d_i of a document (`chunks`, `chunk_encoder`), and a head turns
the contextual vectors into a score (`heads/`).

On a CPU a score depends on its query and document only, to the last bit: not on the pairs beside it, nor on the number
of threads or processes. Each sequence is padded to a length of its own, each slice of pairs is computed by one thread,
and the head gets one pair at a time. So an explanation has the score of the run file, and two processes write the run
file of one. A GPU computes many pairs together.

A trained ranker is a folder that another project loads in one line. It holds weights and settings, no code:

    ranker = BertRanker.from_pretrained("folder")
    scores = ranker.score_texts(["how to sort"] * 2, ["sorts a list in place", "opens a file"])

    config.json, model.safetensors   the encoder, as Hugging Face's AutoModel reads it
    head.safetensors                 the head
    tokenizer.json                   the word pieces
    ranker.json                      head, chunks and the other settings of the ranker
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import lightning as L
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lexical.batches import DataNeeds, PairOptions, RankingBatch, ValidationSample
from lexical.encoders import PACKAGED, check_word_pieces, encoder_folder, read_tokenizer
from lexical.errors import UserError, require
from lexical.evidence import Evidence, model1_evidence
from lexical.index.ragged import Ragged, ragged
from lexical.small_files import write_json
from lexical.terminal import track
from lightning_modules.bert.chunk_encoder import FLAG, ChunkEncoder, new_transformer, pretrained_transformer
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
from lightning_modules.bert.threads import one_ahead, one_thread_each
from lightning_modules.neural_ranker import NeuralRanker, adamw, host_tensors, to_tensors
from lightning_modules.precision import (
    BF16,
    FP16,
    autocast,
    cpu_has_bf16,
    encoder_dtype,
    float32_products,
    gpu_has_bf16,
)
from lightning_modules.ranker import require_settings

T = TypeVar("T")

CPU_GROUPS, GPU_GROUPS = GroupLimits(), GroupLimits(positions=1 << 16, padding=1 << 12)
CPU_SLICE, GPU_SLICE = 1 << 11, 1 << 15  # document pieces whose vectors of all layers are in memory, once per thread
SHAPES = ("head", "chunks", "positions", "query_pieces", "projection", "hidden")  # settings that decide the weights
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
        pretrain_sequences: sequences of 128 pieces that it sees then, at most; as many as the collection fills when
            null: 39 million on MS MARCO.
        pretrain_batch_size: sequences per optimiser step of the pretraining, over all processes.
        pretrain_rate: its base rate, BERT's own for 256 sequences; constant after a warm-up of a tenth of the steps.
        frozen_layers: hidden layers, from the bottom, that keep their weights, and the embeddings with them; with 0
            everything is trained.
        encoder_dropout: of the encoder in training; the backbone's own when not given.
        gradient_checkpointing: compute the encoder's layers again in the backward pass instead of keeping them.
        sampled: validate, learn the fusion and measure on fixed samples of the query sets, for machines without a GPU.
        train_queries: training queries of an epoch, a fixed sample; all when not given.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
        batch_size: pairs per optimiser step, over all processes.
        pairs_at_once: the most pairs that a process computes at once; the rest of its share is accumulated. Its whole
            share when not given.
        learning_rate: base rate of the encoder.
        head_learning_rate: base rate of the head.
        weight_decay: of AdamW.
        warmup: share of the optimiser steps in which the rates grow linearly from zero.
        cooldown: share of them, the last ones, in which the rates fall linearly to zero. With 0 they stay constant
            after the warm-up, as in the paper. With 1 - warmup they fall from its end on, about as in the authors'
            trainer, which made a new AdamW and a linear one-cycle schedule for every epoch.
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
        pretrain_sequences: int | None = 2_000_000,
        pretrain_batch_size: int = 256,
        pretrain_rate: float = 1e-4,
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
        require_settings("1 or more", projection=projection, chunks=chunks, query_pieces=query_pieces)
        require_settings("1 or more", train_queries=train_queries, negatives_from=negatives_from)
        require_settings("1 or more", pretrain_sequences=pretrain_sequences, pretrain_batch_size=pretrain_batch_size)
        require_settings("0 or more", frozen_layers=frozen_layers)
        require_settings("more than 0", head_learning_rate=head_learning_rate, pretrain_rate=pretrain_rate)
        require_settings("from 0 to less than 1", dropout=dropout, encoder_dropout=encoder_dropout)
        require_settings("between 0 and 1", cooldown=cooldown)
        require(len(hidden) == 2 and min(hidden) >= 1, "--model.hidden", hidden, "two widths, such as [128, 64]")
        require(start is None or 0 < start < ALIKE, "--model.start", start, f"between 0 and {ALIKE}")
        self.limits = ChunkLimits(positions, query_pieces, chunks)
        require(self.limits.chunk >= 1, "--model.positions", positions, "more than the query and 3 specials")
        self.train_limits = self.limits
        if train_window is not None:
            self.train_limits = ChunkLimits(train_window, query_pieces, 1)
            fits = self.train_limits.chunk >= 1 and train_window <= positions
            expected = "more than the query and 3 specials, --model.positions at most"
            require(fits, "--model.train_window", train_window, expected)
        self.explains, self.backbone, self.sampled, self.cooldown = head == "model1", backbone, sampled, cooldown
        self.pretrain, self.retrieved_only = pretrain, retrieved_only
        self.gradient_checkpointing = gradient_checkpointing

    # --- network

    def new_head(self) -> nn.Module:
        """Return the head, untrained: a module with `all_layers` that gives `Encoded` pairs (pairs,) float32 scores."""
        width, layers = self.encoder.config.hidden_size, self.encoder.config.num_hidden_layers + 1
        given = self.hparams
        heads: dict[str, Callable[[], nn.Module]] = {
            "vanilla": lambda: VanillaHead(width),
            "knrm": lambda: KNRMHead(width, layers),
            "drmm": lambda: DRMMHead(width, layers),
            "pacrr": lambda: PACRRHead(width, layers, given["query_pieces"]),
            "model1": lambda: Model1Head(width, given["projection"], given["hidden"], given["dropout"], given["start"]),
        }
        return heads[given["head"]]()

    def build(self, vocabulary: list[str]) -> None:
        self.specials = Specials.of(vocabulary, self.backbone)
        self.encoder = ChunkEncoder(new_transformer(self.backbone, self.hparams["encoder_dropout"]))
        config, positions, frozen = self.encoder.config, self.limits.positions, self.hparams["frozen_layers"]
        check_word_pieces(FLAG, self.backbone, config.vocab_size, vocabulary)
        expected = f"{config.max_position_embeddings} at most, the positions of the backbone"
        require(positions <= config.max_position_embeddings, "--model.positions", positions, expected)
        expected = f"fewer than the {config.num_hidden_layers} layers of the backbone"
        require(frozen < config.num_hidden_layers, "--model.frozen_layers", frozen, expected)
        self.head = self.new_head()
        self.encoder.all_layers = bool(self.head.all_layers)
        self.encoder.freeze(frozen)
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
        with autocast(self.device, encoder_dtype(self.precision, self.device.type)):
            return self.encoder(inputs)

    def learned(self) -> dict[str, Any]:
        return {"precision": self.precision}

    def load_learned(self, learned: dict[str, Any]) -> None:
        self.precision = learned["precision"]

    def default_precision(self, gpu: bool) -> str | None:
        """Return bfloat16 where the GPU or the CPU multiplies in it, fp16 on other GPUs, float32 on other CPUs."""
        if gpu:
            return BF16 if gpu_has_bf16() else FP16
        return BF16 if cpu_has_bf16() else None

    def use_precision(self, precision: str | None) -> None:
        self.precision = precision

    # --- training

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            self.use_precision(str(self.trainer.precision))

    def configure_callbacks(self) -> Sequence[L.Callback]:
        from callbacks.target_pretraining import EncoderPretraining

        given, callbacks = self.hparams, super().configure_callbacks()
        if not self.pretrain:
            return callbacks
        settings = given["pretrain_sequences"], given["pretrain_rate"], given["pretrain_batch_size"]
        return [EncoderPretraining(*settings), *callbacks]

    def needs(self) -> DataNeeds:
        queries, best = self.hparams["train_queries"], self.hparams["negatives_from"]
        shares = self.divide_batch(self.trainer.world_size)
        pairs = PairOptions(
            self.seed, *shares, self.collate, queries, negatives_from=best, retrieved_only=self.retrieved_only
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
        if for_scores and self.exact:  # an encoder rounds its sums by the length that it is given, padding included
            groups = groups._replace(padding=0, alone=True)
        if not for_scores and self.train_limits != limits:
            limits = self.train_limits
            starts = [best_window(q, d, limits.chunk) for q, d in zip(queries, documents, strict=True)]
            documents = [d[start:] for start, d in zip(starts, documents, strict=True)]
        return encoder_inputs(ragged(queries, np.int64), ragged(documents, np.int64), limits, self.specials, groups)

    def pair_scores(self, batch: Any) -> list[Tensor]:
        return [self(graph).view(-1, 2) for graph in batch.graphs]

    def optimizer(self) -> torch.optim.Optimizer:
        trained = [weight for weight in self.encoder.parameters() if weight.requires_grad]
        groups = [
            {"params": trained, "lr": self.learning_rate, "name": "encoder"},
            {"params": list(self.head.parameters()), "lr": self.hparams["head_learning_rate"], "name": "head"},
        ]
        return adamw(self, groups, self.learning_rate, self.weight_decay)

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
        results = self._each_slice(batch, slices, self._score_slice)
        if len(slices) > 1:
            results = track(results, "score", total=len(slices))
        scores, computed = np.zeros(len(lengths), np.float32), list(results)
        if computed:  # copied at the end: a copy of each slice would let a GPU wait for the next one
            scores[np.concatenate(slices)] = torch.cat(computed).cpu().numpy()
        return scores

    def score_together(self, batch: RankingBatch) -> np.ndarray:
        """Score with all processes of the trainer, if there is one, each a share; every process gets all scores."""
        trainer = self._trainer
        if trainer is None or trainer.world_size == 1:
            return self.score(batch)
        share = torch.from_numpy(self.score(batch, trainer.global_rank, trainer.world_size)).to(self.device)
        whole: Any = trainer.strategy.reduce(share, reduce_op="sum")
        return np.asarray(whole.cpu().numpy())

    def _each_slice(
        self, batch: RankingBatch, slices: Sequence[np.ndarray], work: Callable[[Encoded, np.ndarray], T]
    ) -> Iterator[T]:
        """Yield work(encoded pairs, their numbers) of all slices of the batch's pairs, without gradients.

        On a CPU several at once, each in one thread. Elsewhere a thread prepares the inputs of the next slice while the
        device computes.
        """
        encoder_dtype(self.precision, self.device.type)  # prints its warning, if any, before there are threads

        def prepare(pairs: np.ndarray) -> EncoderInputs:
            inputs: EncoderInputs = host_tensors(self.inputs_of(batch, pairs, for_scores=True), self.device)
            return inputs

        def compute(inputs: EncoderInputs, pairs: np.ndarray) -> T:
            return work(self.encode(to_tensors(inputs, self.device)), pairs)

        if self.exact:
            return one_thread_each(lambda pairs: compute(prepare(pairs), pairs), slices)
        return map(torch.no_grad()(compute), one_ahead(prepare, slices), slices)

    def _score_slice(self, encoded: Encoded, pairs: np.ndarray) -> Tensor:  # noqa: ARG002
        """Return (pairs,) float32 scores."""
        return torch.cat([self.head(pair) for pair in (encoded.pairs() if self.exact else [encoded])])

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        """Decompose the scores of the Model 1 head: T of contextual vectors, not divided by the query's length."""
        pairs = [np.array([pair]) for pair in range(len(batch.candidates.values))]
        return list(self._each_slice(batch, pairs, partial(self._pair_evidence, batch)))

    def _pair_evidence(self, batch: RankingBatch, encoded: Encoded, pairs: np.ndarray) -> Evidence:
        assert isinstance(self.head, Model1Head) and batch.sequences is not None
        with float32_products(self.device):
            values, _, q, d = (tensor.cpu().numpy() for tensor in self.head.translations(encoded))
        translation = np.zeros((encoded.query_mask.shape[1], encoded.document_mask.shape[1]))
        translation[q, d] = values
        lengths = chunk_lengths(len(batch.sequences.row(batch.candidates.values[pairs[0]])), self.limits)
        chunks = tuple(int(start) for start in np.cumsum([0, *lengths[:-1]]))
        return model1_evidence(translation, np.zeros(len(translation)), FLOOR, 1, chunks)

    # --- as a folder

    def save_artifacts(self, folder: Path) -> None:
        self.save_pretrained(folder / "ranker")

    def save_pretrained(self, folder: str | Path) -> None:
        """Save all that scoring needs; the settings of the training are left out."""
        from transformers import AutoTokenizer

        folder = Path(folder)
        beside = folder.with_name(f".{folder.name}.{os.getpid()}")  # the folder is complete or not there
        self.encoder.transformer.save_pretrained(beside)
        weights = {name: weight.contiguous() for name, weight in self.head.state_dict().items()}
        save_file(weights, beside / "head.safetensors")
        AutoTokenizer.from_pretrained(encoder_folder(self.backbone)).save_pretrained(beside)
        settings = {name: self.hparams[name] for name in SHAPES}
        write_json(beside / "ranker.json", {**settings, "precision": self.precision})
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> BertRanker:
        """Load a saved ranker in evaluation mode; a damaged folder is an error."""
        folder = Path(folder)
        try:
            settings = json.loads((folder / "ranker.json").read_text(encoding="utf-8"))
            precision = settings.pop("precision", None)  # missing in folders of older versions
            if set(settings) != set(SHAPES):
                raise ValueError(f"ranker.json must have {', '.join(SHAPES)}")
            tokenizer = read_tokenizer(str(folder))
            ids = tokenizer.get_vocab()
            vocabulary = sorted(ids, key=lambda piece: ids[piece])
            ranker = cls(backbone=str(folder), **settings)
            ranker.use_precision(precision)
            ranker.build_for(vocabulary)
            ranker.start_weights(vocabulary)
            ranker.head.load_state_dict(load_file(folder / "head.safetensors"), strict=True)
        except Exception as error:  # missing, cut short, hostile or of another version: not trusted
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{folder} is not a saved ranker that can be loaded ({reason})") from error
        ranker.tokenizer = tokenizer
        return ranker.eval()

    def score_texts(self, queries: list[str], documents: list[str]) -> np.ndarray:
        """Return (pairs,) float32 scores of (queries[i], documents[i])."""
        if len(queries) != len(documents):
            raise ValueError(f"{len(queries):,} queries for {len(documents):,} documents: give a query for each")
        tokenizer = self.tokenizer = self.tokenizer or read_tokenizer(self.backbone)
        query_tokens, document_tokens = (
            ragged([text.ids for text in tokenizer.encode_batch_fast(texts, add_special_tokens=False)], np.int32)
            for texts in (queries, documents)
        )
        candidates = Ragged(np.arange(len(documents) + 1), np.arange(len(documents), dtype=np.int32))
        forward: Any = None  # bags of words are not read
        return self.score(RankingBatch(forward, query_tokens, candidates, document_tokens))
