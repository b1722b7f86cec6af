"""Target-corpus pretraining before a ranker is trained (section "Training Models" of the paper).

    cache/<data>/<fingerprint>/pretrained-<hash>/            the encoder, its tokenizer, pretraining.json
                               .pretrained-<hash>.training/  last.ckpt of one that is under way or was interrupted

Every ranker on the same data and backbone starts from the same folder; the second one finds it there.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch.utils.data import DataLoader

from callbacks.checkpoints import last_checkpoints
from callbacks.epoch_report import EpochReport
from datamodules.batches.epoch_loader import EpochLoader, ready_made
from datamodules.batches.sentence_pairs import SentencePairs
from datamodules.cached_step import cached_step, code_version, fingerprint, wait_for
from lexical.batches import SentenceBatch
from lexical.encoders import encoder_identity
from lexical.errors import UserError
from lexical.terminal import say
from lightning_modules.bert.chunk_encoder import FLAG
from lightning_modules.bert.pretraining import (
    PretrainingSettings,
    TargetPretraining,
    pretraining_network,
    save_encoder,
)
from lightning_modules.bert.ranker import BertRanker

HELD_OUT = 512  # sequences that the pretraining is measured on, at the most
REPORT = "pretraining.json"
_CODE = ["datamodules.batches.sentence_pairs", "lightning_modules.bert.pretraining"]


class EncoderPretraining(L.Callback):
    """When fitting begins, on all its processes: pretrains the ranker's encoder, or takes the one in the cache.

    Args:
        place: folder of the prepared data.
        pairs: makes the sentence pairs of the collection; called where they are needed.
        tokens: what the collection's word pieces are known by.
        backbone: the encoder that it starts from.
        settings: how long and how fast.
        trainer: accelerator, devices, num_nodes, strategy and precision.
        checkpoint_steps: save last.ckpt every so many optimiser steps instead of every 5 minutes.
    """

    def __init__(
        self, place: Path, pairs: Callable[[], SentencePairs], tokens: str, backbone: str,
        settings: PretrainingSettings, trainer: dict[str, Any], checkpoint_steps: int | None = None,
    ) -> None:  # fmt: skip
        self.checkpoint_steps = checkpoint_steps
        self.pairs, self.backbone, self.settings, self.trainer = pairs, backbone, settings, trainer
        self.parameters = {
            "tokens": tokens,
            "backbone": encoder_identity(FLAG, backbone),
            "settings": settings._asdict(),
            "precision": trainer.get("precision"),
            "code": code_version(_CODE),
        }
        self.folder = place / f"pretrained-{fingerprint(self.parameters)}"
        self.what = f"pretraining of {backbone}"
        self.checkpoints = self.folder.with_name(f".{self.folder.name}.training")

    def wait(self) -> None:
        """Until no other run is at the same pretraining. Before fitting: in there the other processes of this run would
        wait in a collective, which gives up after half an hour."""
        wait_for(self.folder, self.what)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage != "fit" or trainer.ckpt_path:  # a checkpoint holds an encoder that is further than this
            return
        assert isinstance(pl_module, BertRanker)
        strategy = trainer.strategy
        if trainer.is_global_zero:
            began = False

            def build(place: Path) -> None:
                nonlocal began
                began = True
                strategy.broadcast(True)
                self.pretrain(place, trainer)

            cached_step(self.folder, build, self.what, self.parameters)
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            if not began:
                strategy.broadcast(False)
            report = json.loads((self.folder / REPORT).read_text())
            say(
                f"the encoder is pretrained on {report['sequences']:,} sequences of the collection: held-out masked-LM "
                f"loss {report['held_out_masked_loss']:.3f}, next-sentence accuracy "
                f"{report['held_out_next_sentence_accuracy']:.3f} ({self.folder})"
            )
        elif strategy.broadcast(None):
            self.pretrain(None, trainer)
        strategy.barrier()
        pl_module.start_from(str(self.folder))

    def pretrain(self, place: Path | None, outer: L.Trainer) -> None:
        """Trains, on all processes together; rank zero saves to `place`."""
        started, pairs = time.perf_counter(), self.pairs()
        if not len(pairs.held_out):
            raise UserError("--model.pretrain: the collection is too small: no text can be held out to measure it on")
        sequences = pairs.order(0)[: self.settings.sequences]
        network, new = pretraining_network(self.backbone, self.settings.seed)
        module = TargetPretraining(network, self.settings, new=new)
        callbacks = [
            EpochReport("pretrain", "pretrain/loss", "a sequence"),
            *last_checkpoints(self.checkpoints, self.checkpoint_steps),
        ]
        inner = L.Trainer(
            **self.trainer, max_epochs=1, logger=outer.loggers, callbacks=callbacks, log_every_n_steps=10,
            use_distributed_sampler=False, enable_progress_bar=False, enable_model_summary=False,
            num_sanity_val_steps=0, limit_val_batches=0, default_root_dir=str(self.checkpoints),
        )  # fmt: skip
        last = self.checkpoints / "last.ckpt"
        resumed = str(last) if last.is_file() else None
        if resumed:
            say(f"an unfinished pretraining is continued from {last}")
        inner.fit(module, self.training_batches(inner, pairs, sequences), ckpt_path=resumed, weights_only=True)
        inner.limit_val_batches = 1.0
        (measured,) = inner.validate(module, held_out_batches(pairs, self.settings.batch_size), verbose=False)
        if place is not None:
            save_encoder(module, self.backbone, place)
            report = {
                **{name.removeprefix("pretrain/"): value for name, value in measured.items()},
                "sequences": len(sequences),
                "steps": inner.global_step,
                "seconds": round(time.perf_counter() - started, 1),
            }
            (place / REPORT).write_text(json.dumps(report, indent=1) + "\n")

    def training_batches(
        self, inner: L.Trainer, pairs: SentencePairs, sequences: np.ndarray
    ) -> EpochLoader[SentenceBatch]:  # fmt: skip
        size = self.settings.batch_size
        rank, processes = inner.global_rank, inner.world_size

        def make(epoch: int, number: int) -> SentenceBatch:
            members = sequences[number * size : (number + 1) * size]
            return pairs.batch(epoch, share_of(members, rank, processes))

        def position() -> tuple[int, int]:
            return inner.current_epoch, inner.fit_loop.epoch_loop.batch_progress.current.ready

        return EpochLoader(make, -(-len(sequences) // size), position)


def share_of(members: np.ndarray, rank: int, processes: int) -> np.ndarray:
    """The sequences of a batch that a process trains on: each belongs to one, unless there are fewer than processes."""
    firsts = np.array_split(np.arange(0, len(members), 2), processes)[rank]  # the two of a span stay together
    mine = members[firsts[0] : firsts[-1] + 2] if len(firsts) else members[:0]
    return mine if len(mine) else members[rank % len(members) :][:1]


def held_out_batches(pairs: SentencePairs, size: int) -> DataLoader[SentenceBatch]:
    """The same sequences, with the same pieces hidden, whenever they are asked for."""
    chosen = pairs.held_out[:HELD_OUT]
    return ready_made([pairs.batch(0, chosen[first : first + size]) for first in range(0, len(chosen), size)])
