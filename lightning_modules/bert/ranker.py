"""BERT rankers on short and long documents: vanilla, CEDR and BERT-Model1 (sections "Embeddings, BERT and CEDR" and
"Experiments" of the paper).

An encoder reads [CLS] q [SEP] d_i [SEP] for each chunk d_i of a document (`chunks`, `chunk_encoder`), and a head makes
a score of the contextual vectors (`heads/`, one a file).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lexical.batches import Needs, PairOptions, QuerySample, RankingBatch
from lexical.encoders import PACKAGED, check_pieces, encoder_folder
from lexical.errors import UserError, require
from lexical.evidence import Evidence
from lexical.index.ragged import ragged
from lexical.terminal import say
from lightning_modules.bert.best_window import best_window
from lightning_modules.bert.chunk_encoder import (
    FLAG,
    ChunkEncoder,
    encoder_precision,
    encoder_type,
    new_transformer,
    on_device,
    pretrained_transformer,
    specials_of,
)
from lightning_modules.bert.chunks import (
    ChunkLimits,
    EncoderInputs,
    GroupLimits,
    PairInputs,
    Specials,
    encoder_inputs,
)
from lightning_modules.bert.evidence import bert_evidence
from lightning_modules.bert.heads.by_name import HEADS, HeadName, Model1Settings, new_head
from lightning_modules.bert.heads.encoded import Encoded
from lightning_modules.bert.pretraining import PretrainingSettings
from lightning_modules.bert.saved_ranker import load_saved_ranker, read_tokenizer, save_ranker, text_pairs
from lightning_modules.bert.scores import bert_scores
from lightning_modules.neural_ranker import NeuralRanker

AT_ONCE = {"cpu": GroupLimits()}  # what the encoder is given at once
AT_ONCE_ELSEWHERE = GroupLimits(positions=1 << 16, padding=1 << 12)
CPU_VALIDATION = QuerySample(queries=50, depth=10)  # what a CPU can do in a minute


class BertRanker(NeuralRanker):
    """A Transformer encoder with a ranking head.

    Args:
        head: vanilla, knrm, drmm, pacrr or model1.
        chunks: chunks of a document that are read at the most: 1 for the short rows, 3 for the full ones.
        backbone: "packaged" (the encoder of the requirements), a Hugging Face name, or a folder.
        positions: of a chunk, query and special tokens included.
        query_pieces: pieces of a query that are read.
        train_window: it learns from one window of so many positions of each document, the one that says most of the
            query (`best_window`): cheaper, so that more queries can be learned from. When not given, it learns from all
            that it ranks by.
        projection: width of x_q and x_d of the Model 1 layer.
        hidden: widths of its F1 and F2.
        dropout: share of its token features that is dropped in training.
        start: T(q|d) of orthogonal vectors before training, about; T then grows with their similarity, to about 0.9
            where they are equal. (Vectors of unrelated pieces are not orthogonal: most T start above it.) Its weights
            start at random when not given.
        pretrain: before it learns to rank, the encoder learns the language of the collection (masked language
            modelling and next-sentence prediction); done once for a data set and backbone.
        pretrain_sequences: of 128 pieces that it sees then; as many as the collection fills when not given.
        pretrain_rate: learning rate of the pretraining.
        frozen_layers: hidden layers, counted from below, that keep their weights, and the embeddings with them; with 0
            everything learns. When not given: 0, and a third of them in the profile "cpu".
        encoder_dropout: of the encoder while it learns to rank. When not given: the backbone's own, and none in the
            profile "cpu".
        gradient_checkpointing: compute the encoder's layers again in the backward pass instead of keeping them.
        profile: "full", "cpu" (samples of the queries, for machines without a GPU) or "auto": cpu where there is none.
        train_queries: training queries of an epoch, a fixed sample; all when not given.
        cpu_train_queries: the same for the profile "cpu", where `train_queries` is not given.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
        batch_size: pairs of an optimiser step, over all processes.
        pairs_at_once: pairs that a process computes at once; the rest is accumulated. All when not given.
        learning_rate: of the encoder.
        head_learning_rate: of the head.
        weight_decay: of AdamW.
        warmup: share of the optimiser steps in which the rates grow linearly from zero.
        cooldown: share of them, the last ones, in which the rates fall linearly to zero.
        negatives_from: a query's 20 non-relevant documents are drawn from so many of its best first-stage candidates.
        found_only: learn only from relevant documents that are among these candidates, as all are that it will rank.
        margin: of the loss.
        checkpoint_steps: save last.ckpt every so many optimiser steps instead of every 5 minutes.
    """

    slow = reads_texts = True
    trained_in: str | None = None  # precision of the encoder, by Lightning's name; heads and scores are float32
    encoder: ChunkEncoder
    head: nn.Module
    specials: Specials
    tokenizer: Any = None  # of texts, where texts are scored

    def __init__(
        self,
        head: HeadName = "vanilla",
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
        frozen_layers: int | None = None,
        encoder_dropout: float | None = None,
        gradient_checkpointing: bool = False,
        profile: Literal["auto", "cpu", "full"] = "auto",
        train_queries: int | None = None,
        cpu_train_queries: int = 500,
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
        found_only: bool = False,
        margin: float = 1.0,
        checkpoint_steps: int | None = None,
    ) -> None:
        super().__init__(
            "bwps", fused, rerank_depth, batch_size, pairs_at_once, learning_rate, weight_decay, warmup, 1.0, margin,
            None, checkpoint_steps,
        )  # fmt: skip
        if backbone.startswith(("/", ".", "~")) and not Path(backbone).expanduser().is_dir():
            raise UserError(f"--model.backbone: there is no folder {backbone}")
        require(train_queries is None or train_queries >= 1, "--model.train_queries", train_queries, "1 or more")
        require(cpu_train_queries >= 1, "--model.cpu_train_queries", cpu_train_queries, "1 or more")
        require(head_learning_rate > 0, "--model.head_learning_rate", head_learning_rate, "more than 0")
        require(frozen_layers is None or frozen_layers >= 0, "--model.frozen_layers", frozen_layers, "0 or more")
        known = encoder_dropout is None or 0 <= encoder_dropout < 1
        require(known, "--model.encoder_dropout", encoder_dropout, "from 0 to less than 1")
        require(0 <= cooldown <= 1, "--model.cooldown", cooldown, "between 0 and 1")
        require(negatives_from >= 1, "--model.negatives_from", negatives_from, "1 or more")
        self.cooldown, self.negatives_from, self.found_only = cooldown, negatives_from, found_only
        self.frozen_layers, self.encoder_dropout = frozen_layers, encoder_dropout
        self.explains = head == "model1"
        self.limits = ChunkLimits(positions, query_pieces, chunks).check()
        self.train_limits = self.limits if train_window is None else self.limits.window(train_window)
        self.head_name, self.backbone, self.gradient_checkpointing = head, backbone, gradient_checkpointing
        self.model1 = Model1Settings(projection, tuple(hidden), dropout, start).check()
        self.pretrain = PretrainingSettings(pretrain_sequences, pretrain_rate).check() if pretrain else None
        self.profile, self.sampled = str(profile), profile == "cpu"
        self.train_queries, self.cpu_train_queries = train_queries, cpu_train_queries
        self.head_learning_rate = head_learning_rate

    # --- network

    def use_vocabulary(self, vocabulary: list[str]) -> None:
        self.specials = specials_of(vocabulary, self.backbone)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.encoder = ChunkEncoder(
                new_transformer(self.backbone, self.encoder_dropout), HEADS[self.head_name].all_layers
            )
            self.head = new_head(
                self.head_name, self.encoder.width, self.encoder.layers, self.limits.query_pieces, self.model1
            )
        config: Any = self.encoder.transformer.config
        check_pieces(FLAG, self.backbone, config.vocab_size, vocabulary)
        wanted = f"{config.max_position_embeddings} at the most, the positions of the backbone"
        require(
            self.limits.positions <= config.max_position_embeddings, "--model.positions", self.limits.positions, wanted
        )
        layers = int(config.num_hidden_layers)
        frozen = (layers // 3 if self.sampled else 0) if self.frozen_layers is None else self.frozen_layers
        wanted = f"fewer than the {layers} layers of the backbone"
        require(frozen < layers, "--model.frozen_layers", frozen, wanted)
        self.encoder.freeze(frozen)
        if self.gradient_checkpointing:
            self.encoder.transformer.gradient_checkpointing_enable()  # type: ignore[operator]
        self.remember_vocabulary(vocabulary)

    def start_weights(self, vocabulary: list[str]) -> None:  # noqa: ARG002
        """The trained weights of the backbone; the head stays random."""
        self.start_from(self.backbone)

    def start_from(self, encoder: str) -> None:
        """The weights of an encoder of the same architecture: a name or a folder."""
        self.encoder.transformer.load_state_dict(pretrained_transformer(encoder).state_dict(), strict=True)

    def forward(self, inputs: EncoderInputs) -> Tensor:
        """(pairs,) float32 scores."""
        return self.head(self.encode(inputs))

    def encode(self, inputs: EncoderInputs) -> Encoded:
        """Contextual vectors: the same inside a trainer and outside of one."""
        device = self.device.type
        half = encoder_type(self.trained_in, device)
        with torch.autocast(device, half or torch.bfloat16, enabled=half is not None):
            return self.encoder(inputs)

    # --- training

    def choose_profile(self, gpu: bool) -> None:
        """Settles "auto"."""
        if self.profile == "auto":
            self.profile = "full" if gpu else "cpu"
        self.sampled = self.profile == "cpu"
        if self.sampled:
            self.train_queries = self.train_queries or self.cpu_train_queries
            if self.encoder_dropout is None:
                self.encoder_dropout = 0.0  # drawing it takes time, and so few steps do not over-fit
            say(
                f"profile cpu (there is no GPU, or it was asked for): {self.train_queries:,} training queries; the "
                "embeddings and the lower third of the encoder keep their weights; development and test are samples, "
                "development_cpu and test_cpu; --model.profile full for everything"
            )

    def precision(self, gpu: bool) -> str | None:
        return encoder_precision(gpu)

    def use_precision(self, precision: str | None) -> None:
        self.trained_in = precision

    def needs(self) -> Needs:
        options = PairOptions(
            self.seed, self.at_once, self.parts, self.collate, self.train_queries, self.negatives_from, self.found_only
        )
        sample = CPU_VALIDATION if self.sampled else QuerySample()
        return Needs((self.field,), "pairs", "sample", self.rerank_depth, pairs=options, sample=sample)

    def collate(self, batch: RankingBatch) -> PairInputs:
        """The sequences of all candidates of a batch, query after query. On a CPU each pair is encoded by
        itself: small matrices are as good there, and of several pairs those that keep their margin need no backward
        pass."""
        count = len(batch.candidates.values)
        each = 2 if self.device.type == "cpu" else max(2, count)
        places = [np.arange(first, min(first + each, count)) for first in range(0, count, each)]
        return PairInputs(tuple(self.inputs_of(batch, some) for some in places))

    def inputs_of(self, batch: RankingBatch, pairs: np.ndarray, scored: bool = False) -> EncoderInputs:
        """The sequences of some of the batch's (query, candidate) pairs; `scored`: for scores, not for gradients."""
        assert batch.sequences is not None
        owners = batch.candidates.row_numbers()[pairs]
        most = self.limits.chunk * self.limits.chunks
        queries = [batch.queries.row(i)[: self.limits.query_pieces] for i in owners]
        documents = [batch.sequences.row(i)[:most] for i in batch.candidates.values[pairs]]
        at_once, limits = AT_ONCE.get(self.device.type, AT_ONCE_ELSEWHERE), self.limits
        if scored and self.to_the_bit:
            at_once = at_once.for_scores()
        if not scored and self.train_limits != limits:
            limits = self.train_limits
            starts = [best_window(q, d, limits.chunk) for q, d in zip(queries, documents, strict=True)]
            documents = [d[start:] for start, d in zip(starts, documents, strict=True)]
        return encoder_inputs(ragged(queries, np.int64), ragged(documents, np.int64), limits, self.specials, at_once)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Training batches become tensors; batches that are scored stay where they are, memory-mapped."""
        return (
            PairInputs(tuple(on_device(one, device) for one in batch.graphs))
            if isinstance(batch, PairInputs)
            else batch
        )

    def pair_scores(self, batch: Any) -> list[Tensor]:
        return [self(one).view(-1, 2) for one in batch.graphs]

    def optimizer(self) -> torch.optim.Optimizer:
        learning = [weight for weight in self.encoder.parameters() if weight.requires_grad]
        groups = [
            {"params": learning, "lr": self.learning_rate, "name": "encoder"},
            {"params": list(self.head.parameters()), "lr": self.head_learning_rate, "name": "head"},
        ]
        return torch.optim.AdamW(groups, weight_decay=self.weight_decay)

    # --- as a folder

    def save_pretrained(self, folder: str | Path) -> None:
        """Encoder, head, tokenizer and settings; see `saved_ranker`."""
        save_ranker(self, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> BertRanker:
        return load_saved_ranker(cls, Path(folder))

    def save_files(self, folder: Path) -> None:
        self.save_pretrained(folder / "ranker")

    def score_texts(self, queries: list[str], documents: list[str]) -> np.ndarray:
        """(pairs,) float32 scores of (queries[i], documents[i]); for a ranker that `from_pretrained` has loaded."""
        if self.tokenizer is None:
            self.tokenizer = read_tokenizer(Path(encoder_folder(self.backbone)))
        return self.score(text_pairs(self.tokenizer, queries, documents))

    # --- scoring

    def score_together(self, batch: RankingBatch) -> np.ndarray:
        """All scores of the batch, on every process: each computes its share.

        The slices do not depend on the number of processes, so neither do the scores: on a CPU to the last bit, on a
        GPU as far as its sums are repeatable.
        """
        trainer = self.trainer
        if trainer.world_size == 1:
            return self.score(batch)
        mine = torch.from_numpy(self.score(batch, trainer.global_rank, trainer.world_size)).to(self.device)
        whole: Any = trainer.strategy.reduce(mine, reduce_op="sum")  # what another process has computed is 0 here
        return np.asarray(whole.cpu().numpy())

    def score(self, batch: RankingBatch, share: int = 0, shares: int = 1) -> np.ndarray:
        return bert_scores(self, batch, share, shares)

    def encode_pairs(self, batch: RankingBatch, pairs: np.ndarray) -> Encoded:
        """Some pairs of the batch, encoded as they are for their scores."""
        return self.encode(on_device(self.inputs_of(batch, pairs, scored=True), self.device))

    @property
    def to_the_bit(self) -> bool:
        """Scores are the same to the bit whatever is scored beside them. Other devices want everything at once."""
        return self.device.type == "cpu"

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        return bert_evidence(self, batch)
