"""Base of the rankers that are trained by gradients: loss, optimiser schedule, seeds and validation, once for all.

The loss of a training pair is max(0, margin - s(positive) + s(negative)), summed over the `batch_size` pairs of an
optimiser step, however many processes and accumulated parts share them. Lightning divides a loss by the number of
accumulated parts, and DDP averages gradients over the processes: both are undone by `training_step`.

A pair that keeps its margin has no gradient, and soon most pairs do. Where scores come from several graphs, the
backward pass of a graph without gradient is spared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics.retrieval import RetrievalMRR

from lexical.batches import ValidationBatch
from lexical.errors import UserError, require
from lexical.ranking.order import ranking_order
from lightning_modules.batch_seed import seed_batch
from lightning_modules.ranker import Ranker


class NeuralRanker(Ranker):
    """A ranker trained on pairs of a relevant and a non-relevant document.

    Args:
        field: word, lemm, word_all or bwps.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
        batch_size: pairs of an optimiser step, over all processes.
        pairs_at_once: pairs that a process computes at once; the rest is accumulated. All when not given.
        learning_rate: base rate.
        weight_decay: of AdamW.
        warmup: share of the optimiser steps in which the rate grows linearly from zero.
        epoch_decay: the rate is multiplied by it after each epoch.
        margin: of the loss.
        patience: stop when the validation MRR has not grown for so many epochs; never when not given.
        checkpoint_steps: save last.ckpt every so many optimiser steps instead of every 5 minutes.
    """

    digest: Tensor
    random = True
    monitor = "val/mrr"
    cooldown = 0.0  # share of the optimiser steps, the last ones, in which the rate falls linearly to zero
    _threads: int | None = None  # torch's, while it trains

    def __init__(
        self,
        field: str,
        fused: bool,
        rerank_depth: int,
        batch_size: int,
        pairs_at_once: int | None,
        learning_rate: float,
        weight_decay: float,
        warmup: float,
        epoch_decay: float,
        margin: float,
        patience: int | None,
        checkpoint_steps: int | None,
    ) -> None:
        super().__init__(field, fused, rerank_depth)
        require(batch_size >= 1, "--model.batch_size", batch_size, "1 or more")
        require(pairs_at_once is None or pairs_at_once >= 1, "--model.pairs_at_once", pairs_at_once, "1 or more")
        require(learning_rate > 0, "--model.learning_rate", learning_rate, "more than 0")
        require(weight_decay >= 0, "--model.weight_decay", weight_decay, "0 or more")
        require(0 <= warmup <= 1, "--model.warmup", warmup, "between 0 and 1")
        require(0 < epoch_decay <= 1, "--model.epoch_decay", epoch_decay, "more than 0, 1 at the most")
        require(margin > 0, "--model.margin", margin, "more than 0")
        wanted = "1 or more"
        require(checkpoint_steps is None or checkpoint_steps >= 1, "--model.checkpoint_steps", checkpoint_steps, wanted)
        require(patience is None or patience >= 1, "--model.patience", patience, "1 or more")
        self.batch_size, self.pairs_at_once = batch_size, pairs_at_once
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.warmup, self.epoch_decay, self.margin, self.patience = warmup, epoch_decay, margin, patience
        self.checkpoint_steps = checkpoint_steps
        self.at_once, self.parts = batch_size, 1
        self.validation_mrr = RetrievalMRR(empty_target_action="neg")

    def share_work(self, processes: int) -> None:
        """Says how many processes train together; the pairs of an optimiser step are divided among them."""
        self.at_once = self.pairs_at_once or max(1, self.batch_size // processes)
        if self.batch_size % (processes * self.at_once):
            raise UserError(
                f"--model.batch_size {self.batch_size} cannot be shared by {processes} process(es) with "
                f"{self.at_once} pairs at once: choose --model.pairs_at_once so that it divides"
            )
        self.parts = self.batch_size // (processes * self.at_once)

    def trainer_settings(self) -> dict[str, Any]:
        return {
            "accumulate_grad_batches": self.parts,
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "fast_dev_run": False,
            "enable_checkpointing": True,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }

    def strategy(self, processes: int) -> Any:
        return "ddp" if processes > 1 else "auto"

    # --- what a ranker defines

    def pair_scores(self, batch: Any) -> Sequence[Tensor]:
        """(pairs, 2) float32 scores of the relevant and the non-relevant document, not normalised; from one
        graph, or from several that were computed apart."""
        raise NotImplementedError(f"{type(self).__name__} must define pair_scores()")

    def optimizer(self) -> torch.optim.Optimizer:
        """Over all parameters, with the base rate."""
        raise NotImplementedError(f"{type(self).__name__} must define optimizer()")

    # --- training

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        losses, loss = self.hinge(batch)
        pairs = max(1, len(losses))  # the last batches of an epoch may be empty
        self.log("train/loss", losses.sum() / pairs, on_step=True, on_epoch=False, batch_size=pairs)
        self.log("train/open_pairs", (losses > 0).sum() / pairs, on_step=True, on_epoch=False, batch_size=pairs)
        self.log("train/learning_rate", self.optimizers().param_groups[0]["lr"], batch_size=pairs)  # type: ignore[union-attr]
        return loss * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def hinge(self, batch: Any) -> tuple[Tensor, Tensor]:
        """(pairs,) losses, without gradients; and their sum, to learn from."""
        graphs = [F.relu(self.margin - scores[:, 0] + scores[:, 1]) for scores in self.pair_scores(batch)]
        losses = torch.cat([torch.zeros(0, device=self.device), *(one.detach() for one in graphs)])
        if len(graphs) > 1:  # where there is one it is not asked: a GPU would have to wait for the answer
            graphs = [one for one in graphs if one.detach().any()]
        if not graphs:  # 0, with a gradient of 0 for every weight: DDP waits for all of them
            graphs = [0.0 * one.sum() for one in self.parameters() if one.requires_grad]
        return losses, torch.stack([one.sum() for one in graphs]).sum()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        seed_batch(self.seed, self.current_epoch, batch_idx, self.global_rank)

    def on_fit_start(self) -> None:
        self._threads = torch.get_num_threads()

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        total = int(self.trainer.estimated_stepping_batches)
        per_epoch = max(1, -(-int(self.trainer.num_training_batches) // self.trainer.accumulate_grad_batches))
        rate = LambdaLR(optimizer, lambda step: self._rate_factor(step, total, per_epoch))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def _rate_factor(self, step: int, total: int, per_epoch: int) -> float:
        return rate_factor(step, total, per_epoch, self.warmup, self.epoch_decay, self.cooldown)

    # --- tokens

    def remember_vocabulary(self, vocabulary: list[str]) -> None:
        """The checkpoint holds a digest of the tokens that the network is made for."""
        self.register_buffer("digest", _digest(vocabulary))

    def check_vocabulary(self, vocabulary: list[str]) -> None:
        if not torch.equal(self.digest.cpu(), _digest(vocabulary)):
            raise UserError(
                f"the network was trained for other tokens than the field {self.field} has: "
                "give the same --data settings, or train this ranker again"
            )

    # --- weights

    def use_best_weights(self) -> None:
        """The weights of the epoch with the best validation MRR."""
        for callback in self.trainer.checkpoint_callbacks:
            path = getattr(callback, "best_model_path", "") if getattr(callback, "monitor", None) else ""
            if path:
                self.load_state_dict(torch.load(path, map_location=self.device, weights_only=True)["state_dict"])

    def fingerprint(self) -> str:
        """Equal for equal weights."""
        digest = hashlib.sha256()
        for name, value in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(value.detach().cpu().numpy()).data)
        return digest.hexdigest()

    # --- validation

    def validation_step(self, batch: ValidationBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Each process has queries of its own; torchmetrics brings them together without repeating any."""
        scores = self.score(batch.ranking)
        order = ranking_order(batch.ranking.candidates, scores, batch.id_order)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order), 0, -1)  # the tie rule has spoken: torchmetrics gets places, not scores
        numbers = batch.numbers[batch.ranking.candidates.row_numbers()]
        without = batch.numbers[batch.ranking.candidates.lengths() == 0]  # a query without candidates counts as 0
        places = np.concatenate([place, np.ones(len(without), np.int64)]).astype(np.float32)  # 0 would be ignored
        relevant = np.concatenate([batch.relevant, np.zeros(len(without), bool)])
        if len(places):  # a process may have no query at all
            preds, target, indexes = (
                torch.from_numpy(one).to(self.device) for one in (places, relevant, np.concatenate([numbers, without]))
            )
            self.validation_mrr.update(preds, target, indexes=indexes)

    def on_validation_end(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(
                self._threads
            )  # numba's kernels may have changed OpenMP's; it would change the rounding

    def on_validation_epoch_end(self) -> None:
        mrr = float(self.validation_mrr.compute())  # over all processes: the same on each of them
        self.validation_mrr.reset()
        self.log(self.monitor, mrr)


def rate_factor(
    step: int, total: int, per_epoch: int, warmup: float, epoch_decay: float, cooldown: float = 0.0
) -> float:
    """What the base rate is multiplied with at an optimiser step: linear warm-up times decay per finished epoch, and
    a linear fall to zero over the last steps."""
    rising = min(1.0, step / max(1.0, warmup * total)) if warmup else 1.0
    falling = min(1.0, max(0.0, total - step) / (cooldown * total)) if cooldown else 1.0
    return rising * falling * epoch_decay ** (step // per_epoch)


def _digest(vocabulary: list[str]) -> Tensor:
    """SHA-256 of the vocabulary."""
    return torch.tensor(list(hashlib.sha256("\n".join(vocabulary).encode()).digest()), dtype=torch.uint8)
