"""Target-corpus pretraining: an encoder learns the language of a collection before it is trained to rank.

Masked language modelling with next-sentence prediction (section "Training Models" of the paper; Devlin et al., "BERT",
2019). The loss is the mean cross entropy of the hidden pieces plus that of the next-sentence label. Only hidden pieces,
15% of the positions, go through the wide output layer. Heads that an encoder lacks (an encoder of sentence vectors has
none) start at random and learn at `NEW_HEADS` times the rate; otherwise they would be noise for most of a short
training.

    cache/<data>/<fingerprint>/pretrained-<hash>/            the encoder, its tokenizer, pretraining.json
                               .pretrained-<hash>.training/  <parts of a step>-parts/last.ckpt while it runs or after
                                                             an interruption

All rankers on the same data and backbone start from the same folder: the first one makes it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from callbacks.checkpoints import last_checkpoints
from callbacks.training_report import EpochReport
from datamodules.batches.epoch_loader import Batches, EpochLoader
from datamodules.batches.sentence_pairs import PretrainingTokens, SentencePairs
from datamodules.cached_step import cached_step, code_version, fingerprint, wait_for
from lexical.batches import SentenceBatch
from lexical.encoders import encoder_folder, encoder_identity, load_pretrained
from lexical.errors import UserError, require
from lexical.small_files import read_json, write_json
from lexical.terminal import duration, say
from lightning_modules.bert.chunk_encoder import ATTENTION, FLAG, attention_mask
from lightning_modules.neural_ranker import adamw, current_rate, rate_factor, seed_batch, to_tensors
from lightning_modules.precision import allow_tf32

if TYPE_CHECKING:
    from lightning_modules.bert.ranker import BertRanker

LENGTH = 128  # pieces of a sequence
AT_ONCE = 64  # the most sequences that a process computes together; the rest of its share is accumulated
WARMUP, WEIGHT_DECAY, SEED = 0.1, 0.01, 1
UNTIMED, TIMED = 5, 20  # optimiser steps, the first ones, that are slower; and those that the time is estimated by
NEW_HEADS = 10.0
HELD_OUT = 512  # the most sequences that the pretraining is measured on
REPORT = "pretraining.json"


class EncoderPretraining(L.Callback):
    """When fitting begins, on all processes: pretrains the ranker's encoder, or takes the one in the cache.

    Args:
        sequences: the most that it sees in the pretraining; as many as the collection fills when None.
        learning_rate: base rate.
        batch_size: sequences per optimiser step, over all processes.
    """

    def __init__(self, sequences: int | None, learning_rate: float, batch_size: int) -> None:
        self.sequences, self.learning_rate, self.batch_size = sequences, learning_rate, batch_size

    def setup(self, trainer: L.Trainer, pl_module: BertRanker, stage: str) -> None:  # type: ignore[override]
        if stage != "fit" or trainer.ckpt_path or pl_module.is_trained:  # its encoder is further than this
            return
        check_backbone(pl_module.backbone)
        strategy, what = trainer.strategy, f"pretraining of {pl_module.backbone}"
        tokens = pl_module.data.sequences_folder(pl_module.field)
        parameters = {
            "tokens": tokens.name,
            "backbone": encoder_identity(FLAG, pl_module.backbone),
            "settings": [self.sequences, self.learning_rate, self.batch_size],
            "precision": trainer.precision,
            "code": code_version(["datamodules.batches.sentence_pairs", "callbacks.target_pretraining"]),
        }
        folder = tokens.with_name(f"pretrained-{fingerprint(parameters)}")
        checkpoints = folder.with_name(f".{folder.name}.training")
        # another run may be making the folder: each process waits for it, as a collective gives up after half an hour
        wait_for(folder, what)
        strategy.barrier()
        if trainer.is_global_zero:
            started = False

            def build(target: Path) -> None:
                nonlocal started
                started = strategy.broadcast(True)
                self.pretrain(trainer, pl_module, checkpoints, target)

            cached_step(folder, build, what, parameters)
            if not started:
                strategy.broadcast(False)
            shutil.rmtree(checkpoints, ignore_errors=True)
            report = read_json(folder / REPORT)
            losses = ", ".join(f"{name} {value:.3f}" for name, value in report["held_out"].items())
            say(f"the encoder starts from {folder}, pretrained on {report['sequences']:,} sequences: {losses}")
        elif strategy.broadcast(None):
            self.pretrain(trainer, pl_module, checkpoints)
        strategy.barrier()
        pl_module.start_encoder = str(folder)

    def pretrain(self, outer: L.Trainer, ranker: BertRanker, checkpoints: Path, target: Path | None = None) -> None:
        """Pretrain on all processes together, with a trainer like the outer one; rank zero saves to `target`."""
        started = time.perf_counter()
        tokens = PretrainingTokens.of(ranker.data.vocabulary(ranker.field))
        pairs = SentencePairs(ranker.data.sequences(ranker.field), tokens, LENGTH, SEED)
        if not len(pairs.held_out):
            raise UserError("--model.pretrain: the collection is too small to hold out texts for measuring")
        all_sequences = pairs.order(0)
        sequences, parts = all_sequences[: self.sequences], -(-self.batch_size // (AT_ONCE * outer.world_size))
        checkpoints = checkpoints / f"{parts}-parts"  # Lightning counts parts: with others it would resume elsewhere
        module, cpu = PretrainedEncoder(ranker.backbone, self.learning_rate), outer.strategy.root_device.type == "cpu"
        inner = L.Trainer(
            accelerator="cpu" if cpu else "gpu", devices=outer.num_devices if cpu else outer.device_ids,
            num_nodes=outer.num_nodes, strategy="ddp" if outer.world_size > 1 else "auto",
            precision=outer.precision, max_epochs=1, accumulate_grad_batches=parts, logger=outer.loggers,
            log_every_n_steps=10,
            callbacks=[
                TimeEstimate(),
                EpochReport("pretrain", "pretrain/loss", "sequence"),
                *last_checkpoints(checkpoints, ranker.checkpoint_steps),
            ],
            use_distributed_sampler=False, enable_progress_bar=False, enable_model_summary=False,
            num_sanity_val_steps=0, limit_val_batches=0, default_root_dir=str(checkpoints),
        )  # fmt: skip
        last = checkpoints / "last.ckpt"
        if last.is_file():
            say(f"resuming the unfinished pretraining from {last}")
        say(
            f"pretraining {ranker.backbone}: {len(sequences):,} sequences of {LENGTH} pieces "
            f"({len(sequences) / len(all_sequences):.0%} of the collection), "
            f"{-(-len(sequences) // self.batch_size):,} steps of {self.batch_size}, on {outer.world_size} x "
            f"{outer.strategy.root_device.type} in {outer.precision}"
        )
        batches = training_batches(inner, pairs, sequences, self.batch_size)
        inner.fit(module, batches, ckpt_path=last if last.is_file() else None, weights_only=True)
        inner.limit_val_batches = 1.0
        (measured,) = inner.validate(module, held_out_batches(pairs, AT_ONCE), verbose=False)
        if target is not None:
            module.save(target)
            held_out = {name.removeprefix("pretrain/held_out_"): value for name, value in measured.items()}
            seconds, steps = round(time.perf_counter() - started, 1), inner.global_step
            report = {
                "sequences": len(sequences), "batch_size": self.batch_size, "steps": steps, "seconds": seconds,
                "held_out": held_out,
            }  # fmt: skip
            write_json(target / REPORT, report)


class TimeEstimate(L.Callback):
    """Prints, after the first optimiser steps, how long the rest of a training will take."""

    def __init__(self) -> None:
        self._first, self._since = 0, 0.0

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._first = trainer.global_step  # of a training that is resumed

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        done = trainer.global_step - self._first
        if trainer.fit_loop.epoch_loop._should_accumulate() or done not in (UNTIMED, UNTIMED + TIMED):
            return
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)  # its work is behind the program's
        if done == UNTIMED:
            self._since = time.perf_counter()
            return
        per_step = (time.perf_counter() - self._since) / TIMED
        left = int(trainer.estimated_stepping_batches) - trainer.global_step
        say(f"{left:,} more steps at {per_step:.2f} s: about {duration(left * per_step)}")


def check_backbone(name: str) -> None:
    """Raise a `UserError` if the encoder `name` cannot be pretrained."""
    from transformers import AutoConfig

    config = load_pretrained(FLAG, name, AutoConfig.from_pretrained)
    backbone = f"--model.pretrain true --model.backbone {name}"
    require(config.model_type == "bert", backbone, f"(type {config.model_type!r})", "of type 'bert' for a pretraining")
    positions = config.max_position_embeddings
    require(positions >= LENGTH, backbone, f"({positions} positions)", f"{LENGTH} positions or more for a pretraining")


class PretrainedEncoder(L.LightningModule):
    """An encoder with the two heads of its pretraining, `BertForPreTraining`.

    Args:
        backbone: the encoder that it starts from; weights that the backbone lacks are random.
        learning_rate: base rate.
    """

    def __init__(self, backbone: str, learning_rate: float) -> None:
        from transformers import BertForPreTraining

        super().__init__()
        options: dict[str, Any] = {"attn_implementation": ATTENTION, "dtype": torch.float32}

        def load(path: str) -> Any:
            return BertForPreTraining.from_pretrained(path, output_loading_info=True, **options)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            network, loaded = load_pretrained(FLAG, backbone, load)
        self.network: Any = network.train()  # Hugging Face returns it in evaluation mode
        self.new: set[str] = set(loaded["missing_keys"])  # names of the weights that start at random
        self.backbone, self.learning_rate = backbone, learning_rate

    def setup(self, stage: str) -> None:  # noqa: ARG002
        allow_tf32(self.trainer.strategy.root_device)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return both mean cross entropies, and the share of next-sentence labels that are predicted correctly."""
        output = self.network.bert(
            input_ids=batch.tokens, attention_mask=attention_mask(batch.mask), token_type_ids=batch.types,
            return_dict=True,
        )  # fmt: skip
        vectors = output.last_hidden_state.flatten(0, 1).index_select(0, batch.hidden_at)
        labels = batch.labels.flatten().index_select(0, batch.hidden_at)
        logits = self.network.cls.predictions(vectors)  # (hidden pieces, vocabulary)
        follows = self.network.cls.seq_relationship(output.pooler_output).float()
        return {
            "masked_loss": F.cross_entropy(logits.float(), labels),
            "next_sentence_loss": F.cross_entropy(follows, batch.follows),
            "next_sentence_accuracy": (follows.argmax(dim=1) == batch.follows).float().mean(),
        }

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        return to_tensors(batch, device)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        seed_batch(SEED, self.current_epoch, batch_idx, self.global_rank)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        values = self(batch)
        loss: Tensor = values["masked_loss"] + values["next_sentence_loss"]
        self.log_dict({f"pretrain/{name}": value.detach() for name, value in values.items()}, on_step=True)
        self.log("pretrain/loss", loss.detach(), on_step=True)
        self.log("pretrain/learning_rate", current_rate(self))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Measure all held-out sequences in every process: they are few, and none is counted twice."""
        values = {f"pretrain/held_out_{name}": value for name, value in self(batch).items()}
        self.log_dict(values, batch_size=len(batch.tokens))

    def configure_optimizers(self) -> Any:
        weights = {name: weight for name, weight in self.network.named_parameters() if weight.requires_grad}
        pretrained = [weight for name, weight in weights.items() if name not in self.new]
        new = [weight for name, weight in weights.items() if name in self.new]
        rates = ((pretrained, self.learning_rate), (new, NEW_HEADS * self.learning_rate))
        groups = [{"params": group, "lr": rate} for group, rate in rates if group]
        optimizer = adamw(self, groups, self.learning_rate, WEIGHT_DECAY)
        total = int(self.trainer.estimated_stepping_batches)
        rate = LambdaLR(optimizer, lambda step: rate_factor(step, total, total, WARMUP, 1.0))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def save(self, folder: Path) -> None:
        """Write encoder and tokenizer as a folder that `--model.backbone` accepts."""
        from transformers import AutoTokenizer

        self.network.bert.save_pretrained(folder)
        AutoTokenizer.from_pretrained(encoder_folder(self.backbone)).save_pretrained(folder)


def training_batches(
    trainer: L.Trainer, pairs: SentencePairs, sequences: np.ndarray, size: int
) -> EpochLoader[SentenceBatch]:
    """Return the loader of this process; `size` sequences a step are shared by all processes and their parts.

    Each process accumulates its parts. All are about equally large, and the step's loss is the mean of theirs.
    """
    parts = trainer.accumulate_grad_batches

    def make(epoch: int, number: int) -> SentenceBatch:
        step, part = divmod(number, parts)
        members = sequences[step * size : (step + 1) * size]
        return pairs.batch(epoch, share_of(members, trainer.global_rank * parts + part, trainer.world_size * parts))

    def position() -> tuple[int, int]:
        return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready

    return EpochLoader(make, -(-len(sequences) // size) * parts, position)


def share_of(members: np.ndarray, number: int, shares: int) -> np.ndarray:
    """Return one of the shares of a batch's sequences: none is in two shares, unless there are too few."""
    firsts = np.array_split(np.arange(0, len(members), 2), shares)[number]  # the two of a span stay together
    return members[firsts[0] : firsts[-1] + 2] if len(firsts) else members[number % len(members) :][:1]


def held_out_batches(pairs: SentencePairs, size: int) -> Batches[SentenceBatch]:
    """Return the held-out sequences, always with the same pieces hidden."""
    chosen = pairs.held_out[:HELD_OUT]
    return Batches([pairs.batch(0, chosen[first : first + size]) for first in range(0, len(chosen), size)])
