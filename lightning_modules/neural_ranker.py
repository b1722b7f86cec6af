"""Base class of the rankers that are trained by gradients: loss, learning rate, seeds, validation, best weights.

The loss of a training pair is max(0, margin - s(positive) + s(negative)), summed over the `batch_size` pairs of an
optimiser step, however many processes and accumulated parts share them. Lightning divides a loss by the number of
accumulated parts, and DDP averages gradients over the processes: `training_step` undoes both.

A pair that keeps its margin has no gradient, and soon most pairs do. Where scores come from several graphs, the
backward pass of a graph without gradient is skipped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import Metric

from callbacks.checkpoints import BestCheckpoint, Patience, last_checkpoints
from lexical.batches import EvaluationBatch, RankingBatch, ValidationBatch
from lexical.errors import UserError, require
from lexical.ranking.fusion import TRIAL_WEIGHTS, trial_reciprocal_ranks
from lightning_modules.precision import FP16
from lightning_modules.ranker import DEVELOPMENT, Ranker, require_settings


class NeuralRanker(Ranker):
    """A ranker trained on pairs of a relevant and a non-relevant document.

    A subclass defines `build`, `pair_scores`, `score` and `needs`, and passes settings of these names on.

    Args:
        field: word, lemm, word_all or bwps.
        fused: the row of the results table is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
        batch_size: pairs per optimiser step, over all processes.
        pairs_at_once: the most pairs that a process computes at once; the rest of its share is accumulated. Its whole
            share when not given.
        learning_rate: base rate.
        weight_decay: of AdamW, on all parameters, biases and layer norms included. At the paper's 1e-7 it shrinks a
            weight by less than 0.03% in the longest training (at most 3e-3 x 1e-7 x 800,000 steps).
        warmup: share of the optimiser steps in which the rate grows linearly from zero to its base value.
        epoch_decay: the rate is multiplied by it after each epoch, once it has reached its base value.
        margin: of the loss.
        patience: stop when the validation MRR has not grown for this many epochs; never when not given.
        checkpoint_steps: save last.ckpt every this many optimiser steps instead of every 5 minutes.
    """

    has_seeds = True
    cooldown = 0.0  # share of the optimiser steps, the last ones, in which the rate falls linearly to zero

    def __init__(
        self,
        field: str = "bwps",
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
        super().__init__(field, fused, rerank_depth)
        self.automatic_optimization = True
        require_settings("1 or more", batch_size=batch_size, pairs_at_once=pairs_at_once)
        require_settings("1 or more", patience=patience, checkpoint_steps=checkpoint_steps)
        require_settings("more than 0", learning_rate=learning_rate, margin=margin)
        require_settings("0 or more", weight_decay=weight_decay)
        require_settings("between 0 and 1", warmup=warmup)
        require(0 < epoch_decay <= 1, "--model.epoch_decay", epoch_decay, "more than 0, at most 1")
        self.batch_size, self.pairs_at_once = batch_size, pairs_at_once
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.warmup, self.epoch_decay, self.margin, self.patience = warmup, epoch_decay, margin, patience
        self.checkpoint_steps = checkpoint_steps
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "1"))  # of L.seed_everything
        self.vocabulary: list[str] | None = None  # tokens that the network is built for
        self._validated: list[np.ndarray] = []  # scores of the last validation, after so many optimiser steps:
        self._validated_at = 0
        self._of_best_epoch: list[np.ndarray] = []
        self.validation_mrr = BestMean(len(TRIAL_WEIGHTS) if fused else 1)
        self._threads = torch.get_num_threads()

    # --- what a ranker defines

    def build(self, vocabulary: list[str]) -> None:
        """Create the layers, with random weights. Called once, before training or before weights are loaded."""
        raise NotImplementedError(f"{type(self).__name__} must define build()")

    def start_weights(self, vocabulary: list[str]) -> None:
        """Load the weights that training starts from, where they are not random."""

    def pair_scores(self, batch: Any) -> Sequence[Tensor]:
        """Return (pairs, 2) float32 scores of the relevant and the non-relevant document, not normalised; in one
        tensor, or in several with autograd graphs of their own."""
        raise NotImplementedError(f"{type(self).__name__} must define pair_scores()")

    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimiser of all parameters, with the base rate."""
        return adamw(self, self.parameters(), self.learning_rate, self.weight_decay)

    # --- set-up

    @property
    def is_trained(self) -> bool:
        return self.vocabulary is not None

    def configure_model(self) -> None:
        """Build the network for the tokens of the data, once; `on_load_checkpoint` builds that of a checkpoint."""
        if self.vocabulary is not None or self._trainer is None:
            return
        vocabulary = self.data.vocabulary(self.field)
        self.build_for(vocabulary)
        self.start_weights(vocabulary)

    def build_for(self, vocabulary: list[str]) -> None:
        """Build the network with random weights that depend on the seed only."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.build(vocabulary)
        self.vocabulary = vocabulary

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            parts, given = self.divide_batch(self.trainer.world_size)[1], self.trainer.accumulate_grad_batches
            if given not in (1, parts):
                raise UserError(
                    f"--trainer.accumulate_grad_batches {given}: it follows from --model.batch_size and "
                    f"--model.pairs_at_once, which make it {parts}"
                )
            self.trainer.accumulate_grad_batches = parts

    def divide_batch(self, processes: int) -> tuple[int, int]:
        """Return (pairs that each of `processes` computes at once, parts of an optimiser step that it accumulates).

        A process has an equal share of the step's pairs. It computes at most `pairs_at_once` of them together: the
        largest number that divides its share.
        """
        share, rest = divmod(self.batch_size, processes)
        if rest or not share:
            raise UserError(
                f"--model.batch_size {self.batch_size} cannot be shared by {processes} processes: "
                f"choose a multiple of {processes}"
            )
        at_most = min(self.pairs_at_once or share, share)
        pairs_at_once = max(size for size in range(1, at_most + 1) if share % size == 0)
        return pairs_at_once, share // pairs_at_once

    def configure_callbacks(self) -> Sequence[L.Callback]:
        """Return the checkpoints in `checkpoints/` of the trainer's root folder, and early stopping if asked for."""
        self._threads = torch.get_num_threads()  # this hook runs before anything else
        stopping = [] if self.patience is None else [Patience("val/mrr", mode="max", patience=self.patience)]
        if not self.trainer.checkpoint_callbacks:  # enable_checkpointing=False
            return stopping
        folder = Path(self.trainer.default_root_dir) / "checkpoints"
        return [*stopping, BestCheckpoint(folder), *last_checkpoints(folder, self.checkpoint_steps)]

    def default_strategy(self, processes: int) -> Any:
        return "ddp" if processes > 1 else "auto"

    # --- training

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Convert what `PairOptions.collate` made of training batches to tensors; other batches stay memory-mapped."""
        mapped = isinstance(batch, (ValidationBatch, EvaluationBatch, RankingBatch))
        return batch if mapped else to_tensors(batch, device)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        losses, loss = self.losses(batch)
        pairs = max(1, len(losses))  # the last batches of an epoch may be empty
        self.log_dict(self.loss_metrics(losses), on_step=True, on_epoch=False, batch_size=pairs)
        self.log("train/learning_rate", current_rate(self), batch_size=pairs)
        return loss * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def loss_metrics(self, losses: Tensor) -> dict[str, Tensor]:
        """Return what is logged of the (pairs,) losses: their mean, and the share of pairs that violate the margin."""
        pairs = max(1, len(losses))
        return {"train/loss": losses.sum() / pairs, "train/active_pairs": (losses > 0).sum() / pairs}

    def losses(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return (pairs,) losses without gradients, and their sum to learn from."""
        graphs = [F.relu(self.margin - scores[:, 0] + scores[:, 1]) for scores in self.pair_scores(batch)]
        losses = torch.cat([torch.zeros(0, device=self.device), *(graph.detach() for graph in graphs)])
        if len(graphs) > 1:  # a single graph is always used: a GPU would have to wait for the answer
            graphs = [graph for graph in graphs if graph.detach().any()]
        if not graphs:  # 0, with a gradient of 0 for every weight: DDP waits for all of them
            graphs = [0.0 * weight.sum() for weight in self.parameters() if weight.requires_grad]
        return losses, torch.stack([graph.sum() for graph in graphs]).sum()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Make dropout a function of seed, epoch, batch and process: a resumed training drops the same units."""
        seed_batch(self.seed, self.current_epoch, batch_idx, self.global_rank)

    def rate(self, step: int, total: int, per_epoch: int) -> float:
        """Return what the base rates are multiplied by at an optimiser step."""
        return rate_factor(step, total, per_epoch, self.warmup, self.epoch_decay, self.cooldown)

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        total = int(self.trainer.estimated_stepping_batches)
        per_epoch = max(1, -(-int(self.trainer.num_training_batches) // self.trainer.accumulate_grad_batches))

        def factor(step: int) -> float:
            return self.rate(step, total, per_epoch)

        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}}

    # --- weights

    def known_scores(self, query_set: str) -> np.ndarray | None:
        """Return what the validation of the best epoch has scored, if that was the whole query set in one process."""
        sample, scores = self.needs().validation, self._of_best_epoch
        whole = sample is not None and sample.queries is None and sample.depth == self.rerank_depth
        known = whole and query_set == DEVELOPMENT and not self.sampled and self.trainer.world_size == 1
        return np.concatenate(scores) if known and scores else None

    def _best_checkpoint(self) -> BestCheckpoint | None:
        return next((each for each in self.trainer.checkpoint_callbacks if isinstance(each, BestCheckpoint)), None)

    def _keep_scores(self) -> None:
        """Keep the scores of the last validation if best.ckpt, which is saved after it, has their weights."""
        best = self._best_checkpoint()
        if best is not None and self._validated and best._last_global_step_saved == self._validated_at:
            self._of_best_epoch = self._validated

    def on_train_start(self) -> None:
        torch.set_num_threads(self._threads)  # data and loaders have run numba's kernels, see `on_validation_end`
        self._validated, self._of_best_epoch = [], []

    def on_train_end(self) -> None:
        """Return to the weights of the best epoch; add what is learned with them, such as the fusion, to its file."""
        self._keep_scores()
        saved = self._best_checkpoint()
        if saved is None or not saved.best_model_path:
            self._of_best_epoch = []  # the weights are those of the last step
            super().on_train_end()
            return
        best = Path(saved.best_model_path)
        checkpoint = torch.load(best, map_location="cpu", weights_only=True)
        self.load_state_dict(checkpoint["state_dict"])
        super().on_train_end()
        if self.trainer.is_global_zero:
            checkpoint["state_dict"]["_extra_state"] = self.get_extra_state()
            beside = best.with_name(f".{best.name}.writing")
            torch.save(checkpoint, beside)
            beside.replace(best)
        self._validated, self._of_best_epoch = [], []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["vocabulary"], checkpoint["seed"] = self.vocabulary, self.seed

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seed = checkpoint["seed"]
        if self.vocabulary is None:
            self.build_for(checkpoint["vocabulary"])

    def check_vocabulary(self, vocabulary: list[str]) -> None:
        if self.vocabulary != vocabulary:
            raise UserError(
                f"the network was trained for other tokens than the field {self.field} has: "
                "give the same --data settings, or train this ranker again"
            )

    def fingerprint(self) -> str:
        """Return a hash that is equal for equal weights."""
        digest = hashlib.sha256()
        for name, value in sorted(self.state_dict().items()):
            if isinstance(value, Tensor):
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(value.detach().cpu().numpy()).data)
        return digest.hexdigest()

    # --- validation

    def on_validation_start(self) -> None:
        self._keep_scores()
        self._validated, self._validated_at = [], self.trainer.global_step

    def validation_step(self, batch: ValidationBatch, batch_idx: int) -> None:  # type: ignore[override]  # noqa: ARG002
        """Measure the queries of this process; torchmetrics sums over all processes."""
        first_stage = batch.first_stage if self.fused else None
        scores = self.score(batch.ranking)
        self._validated.append(scores)
        ranks = trial_reciprocal_ranks(batch.task, first_stage, scores)
        self.validation_mrr.update(torch.from_numpy(ranks))
        self.log("val/mrr", self.validation_mrr, prog_bar=True)

    def on_validation_end(self) -> None:
        torch.set_num_threads(self._threads)  # numba's kernels may have changed OpenMP's; it would change the rounding


class BestMean(Metric):
    """The largest column mean of the rows of all processes: the MRR at the best of a few fusion weights."""

    full_state_update = False
    sums: Tensor
    rows: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(columns), dist_reduce_fx="sum")
        self.add_state("rows", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        """Add (rows, columns) values."""
        self.sums += values.sum(dim=0).to(self.sums)
        self.rows += len(values)

    def compute(self) -> Tensor:
        return (self.sums / self.rows.clamp(min=1)).max()


def to_tensors(batch: Any, device: torch.device) -> Any:
    """Return a batch, or a part of one, with tensors on a device in place of its arrays."""
    tensors = host_tensors(batch, device)
    return apply_to_collection(tensors, Tensor, lambda tensor: tensor.to(device, non_blocking=True))


def host_tensors(batch: Any, device: torch.device) -> Any:
    """Return a batch with tensors in place of its arrays, from which `device` copies without making anybody wait."""

    def convert(array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if device.type == "cuda" else tensor

    return apply_to_collection(batch, np.ndarray, convert)


def current_rate(module: L.LightningModule) -> Tensor:
    """Return the learning rate of the first group, on the module's device: Lightning would wait to copy a number."""
    optimizer: Any = module.optimizers()
    return torch.full((), optimizer.param_groups[0]["lr"], device=module.device)


def adamw(
    module: L.LightningModule, parameters: Any, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return AdamW of the module's parameters, or of groups of them; on a GPU one fused kernel updates them all.

    In fp16 a fused AdamW divides the gradients by the loss scale itself and never asks the GPU whether they are finite.
    Nothing can clip them before, so it is not used where the trainer clips.
    """
    trainer: Any = module._trainer
    clips = trainer is not None and bool(trainer.gradient_clip_val) and trainer.precision == FP16
    fused = module.device.type == "cuda" and not clips
    return torch.optim.AdamW(parameters, learning_rate, weight_decay=weight_decay, fused=fused or None)


def seed_batch(seed: int, epoch: int, batch: int, rank: int) -> None:
    """Seed torch by a function of all four."""
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch, batch, rank]).generate_state(1, np.uint64)[0] >> 1))


def rate_factor(
    step: int, total: int, per_epoch: int, warmup: float, epoch_decay: float, cooldown: float = 0.0
) -> float:
    """Return what the base rate is multiplied by at an optimiser step.

    A linear warm-up from 0 to 1, then `epoch_decay` for each epoch that has ended since, and a linear fall to zero over
    the last steps. A decay that began with the first epoch would keep the rate below its base value: at most 0.76 of it
    for a warm-up over a tenth of 32 epochs.
    """
    rising = min(1.0, step / max(1.0, warmup * total)) if warmup else 1.0
    falling = min(1.0, max(0.0, total - step) / (cooldown * total)) if cooldown else 1.0
    epochs = max(0, step // per_epoch - int(warmup * total) // per_epoch)  # ended since the warm-up
    return rising * falling * epoch_decay**epochs
