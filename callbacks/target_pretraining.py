"""Target-corpus pretraining before a ranker is trained (section "Training Models" of the paper).

    cache/<data>/<fingerprint>/pretrained-<hash>/            the encoder, its tokenizer, pretraining.json
                               .pretrained-<hash>.training/  last.ckpt while it runs or after an interruption

All rankers on the same data and backbone start from the same folder: the first one makes it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import lightning as L
import numpy as np

from callbacks.checkpoints import last_checkpoints
from callbacks.epoch_report import EpochReport
from datamodules.batches.epoch_loader import Batches, EpochLoader
from datamodules.batches.sentence_pairs import PretrainingTokens, SentencePairs
from datamodules.cached_step import cached_step, code_version, fingerprint, wait_for
from lexical.batches import SentenceBatch
from lexical.encoders import encoder_identity
from lexical.errors import UserError
from lexical.small_files import read_json, write_json
from lexical.terminal import say
from lightning_modules.bert.chunk_encoder import FLAG
from lightning_modules.bert.pretraining import PretrainingSettings, TargetPretraining, pretraining_network, save_encoder
from lightning_modules.bert.ranker import BertRanker

HELD_OUT = 512  # the most sequences that the pretraining is measured on
REPORT = "pretraining.json"


class EncoderPretraining(L.Callback):
    """When fitting begins, on all processes: pretrains the ranker's encoder, or takes the one in the cache."""

    def __init__(self, settings: PretrainingSettings) -> None:
        self.settings = settings

    def setup(self, trainer: L.Trainer, pl_module: BertRanker, stage: str) -> None:  # type: ignore[override]
        if stage != "fit" or trainer.ckpt_path or pl_module.is_trained:  # its encoder is further than this
            return
        strategy, what = trainer.strategy, f"pretraining of {pl_module.backbone}"
        tokens = pl_module.data.sequences_folder(pl_module.field)
        parameters = {
            "tokens": tokens.name,
            "backbone": encoder_identity(FLAG, pl_module.backbone),
            "settings": self.settings._asdict(),
            "precision": trainer.precision,
            "code": code_version(["datamodules.batches.sentence_pairs", "lightning_modules.bert.pretraining"]),
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
        started, settings = time.perf_counter(), self.settings
        tokens = PretrainingTokens.of(ranker.data.vocabulary(ranker.field))
        pairs = SentencePairs(ranker.data.sequences(ranker.field), tokens, settings.length, settings.seed)
        if not len(pairs.held_out):
            raise UserError("--model.pretrain: the collection is too small to hold out texts for measuring")
        network, new = pretraining_network(ranker.backbone, settings.seed)
        module, cpu = TargetPretraining(network, settings, new), outer.strategy.root_device.type == "cpu"
        reports = [EpochReport("pretrain", "pretrain/loss", "sequence")]
        inner = L.Trainer(
            accelerator="cpu" if cpu else "gpu", devices=outer.num_devices if cpu else outer.device_ids,
            num_nodes=outer.num_nodes, strategy="ddp" if outer.world_size > 1 else "auto",
            precision=outer.precision, max_epochs=1, logger=outer.loggers,
            callbacks=[*reports, *last_checkpoints(checkpoints, ranker.checkpoint_steps)], log_every_n_steps=10,
            use_distributed_sampler=False, enable_progress_bar=False, enable_model_summary=False,
            num_sanity_val_steps=0, limit_val_batches=0, default_root_dir=str(checkpoints),
        )  # fmt: skip
        last = checkpoints / "last.ckpt"
        if last.is_file():
            say(f"resuming the unfinished pretraining from {last}")
        sequences = pairs.order(0)[: settings.sequences]
        batches = training_batches(inner, pairs, sequences, settings.batch_size)
        inner.fit(module, batches, ckpt_path=last if last.is_file() else None, weights_only=True)
        inner.limit_val_batches = 1.0
        (measured,) = inner.validate(module, held_out_batches(pairs, settings.batch_size), verbose=False)
        if target is not None:
            save_encoder(module, ranker.backbone, target)
            held_out = {name.removeprefix("pretrain/held_out_"): value for name, value in measured.items()}
            seconds, steps = round(time.perf_counter() - started, 1), inner.global_step
            report = {"sequences": len(sequences), "steps": steps, "seconds": seconds, "held_out": held_out}
            write_json(target / REPORT, report)


def training_batches(
    trainer: L.Trainer, pairs: SentencePairs, sequences: np.ndarray, size: int
) -> EpochLoader[SentenceBatch]:
    """Return the loader of this process; `size` is that of a batch over all processes."""

    def make(epoch: int, number: int) -> SentenceBatch:
        members = sequences[number * size : (number + 1) * size]
        return pairs.batch(epoch, share_of(members, trainer.global_rank, trainer.world_size))

    def position() -> tuple[int, int]:
        return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready

    return EpochLoader(make, -(-len(sequences) // size), position)


def share_of(members: np.ndarray, rank: int, processes: int) -> np.ndarray:
    """Return the sequences of a batch that a process trains on: none twice, unless there are too few."""
    firsts = np.array_split(np.arange(0, len(members), 2), processes)[rank]  # the two of a span stay together
    return members[firsts[0] : firsts[-1] + 2] if len(firsts) else members[rank % len(members) :][:1]


def held_out_batches(pairs: SentencePairs, size: int) -> Batches[SentenceBatch]:
    """Return the held-out sequences, always with the same pieces hidden."""
    chosen = pairs.held_out[:HELD_OUT]
    return Batches([pairs.batch(0, chosen[first : first + size]) for first in range(0, len(chosen), size)])
