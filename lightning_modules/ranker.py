"""What every ranker is to the rest of the project: what it asks of the data, how it scores, what it saves."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np

from lexical.batches import Needs, RankingBatch
from lexical.errors import require
from lexical.evidence import Evidence


class Source(NamedTuple):
    """A trained ranker that another one is made of; no part of that one's network, so not in its checkpoint."""

    name: str
    ranker: Ranker
    folder: Path  # of its run
    digest: str  # equal for equal trained rankers


class Ranker(L.LightningModule):
    """A ranker over the tokens of one field.

    Args:
        field: word, lemm, word_all or bwps.
        fused: the row of the results table is this ranker fused with the first stage.
        rerank_depth: candidates of a query that are re-ranked.
    """

    random = False  # nothing is drawn: seeds are ignored, results live in seed-1
    seed = 1  # of everything that is drawn; set before anything is built
    made_from: tuple[str, ...] = ()  # names of the rankers, trained before, that this one is made of
    ranks_with_sources = False  # it scores with those very rankers: they are handed over whenever it is loaded
    joint_fields: tuple[str, ...] = ()  # it reads several fields: its batches are of the kind `JointBatch`
    slow = False  # all devices score together, and the clock runs along: nothing is scored again for it
    seconds = 0.0  # that scoring has taken since somebody has set it to 0
    reads_texts = False  # it scores the tokens in the order of the text, not how often each comes
    explains = False  # its scores can be taken apart: `evidence`
    sampled = False  # too slow for whole query sets: it is measured on the samples development_cpu and test_cpu

    def __init__(self, field: str, fused: bool, rerank_depth: int) -> None:
        super().__init__()
        require(rerank_depth >= 1, "--model.rerank_depth", rerank_depth, "1 or more")
        self.field, self.fused, self.rerank_depth = field, fused, rerank_depth

    def needs(self) -> Needs:
        """What the data must have ready for the training of this ranker."""
        raise NotImplementedError(f"{type(self).__name__} must define needs()")

    def choose_profile(self, gpu: bool) -> None:
        """Says whether there is a GPU; called before anything else is asked."""

    def precision(self, gpu: bool) -> str | None:  # noqa: ARG002
        """The trainer's precision where none is asked for; None: Lightning's own."""
        return None

    def use_precision(self, precision: str | None) -> None:
        """Says what the trainer's precision is, or was: scores are the same outside of a trainer."""

    def share_work(self, processes: int) -> None:
        """Says how many processes train together; called before `trainer_settings` and `needs`."""

    def use_sources(self, sources: Sequence[Source]) -> None:
        """Hands over the trained rankers `made_from`, in that order."""

    def trainer_settings(self) -> dict[str, Any]:
        """What the ranker fixes of the trainer's settings."""
        return {}

    def ranking_settings(self) -> dict[str, Any]:
        """Settings of the trainer that scores with the trained ranker, in one process."""
        return {"devices": 1, "num_nodes": 1, "use_distributed_sampler": False, "enable_progress_bar": False}

    def strategy(self, processes: int) -> Any:  # noqa: ARG002
        """How so many processes train it; the trainer's `strategy`."""
        return "auto"

    def score(self, batch: RankingBatch) -> np.ndarray:
        """(pairs,) float32 scores of the batch's candidates, normalised for fusion."""
        raise NotImplementedError(f"{type(self).__name__} must define score()")

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        """The score of each candidate taken apart; for rankers that `explains`."""
        raise NotImplementedError(f"{type(self).__name__} cannot take its scores apart")

    def read_inputs(self) -> None:
        """Reads what the user has named (a table, vectors); called before older results are removed."""

    def use_vocabulary(self, vocabulary: list[str]) -> None:
        """Builds what depends on the tokens of the field; called once, before training or before weights are loaded."""

    def start_weights(self, vocabulary: list[str]) -> None:
        """The weights that a training starts from, where they are not simply random; after `use_vocabulary`."""

    def end_progress(self) -> None:
        """Called when fitting has ended, whatever ended it: a bar must not outlive it."""

    def save_files(self, folder: Path) -> None:
        """Writes what the checkpoint does not hold (a translation table) into the run's folder."""

    def load_files(self, folder: Path) -> None:
        """Reads it back."""

    def check_vocabulary(self, vocabulary: list[str]) -> None:
        """Raises a `UserError` when the ranker was trained for a field with other tokens."""

    def findings(self) -> dict[str, float]:
        """What training has found: the scalar buffers (tuned parameters) that are set, and what a ranker adds."""
        return finite({name: float(value) for name, value in self.named_buffers() if value.ndim == 0})

    def record(self, step: int, values: dict[str, float]) -> None:
        """To all loggers; they write on rank zero alone."""
        for logger in self.loggers:
            logger.log_metrics(values, step=step)

    def score_together(self, batch: RankingBatch) -> np.ndarray:
        """The same with all processes of the trainer, on each of which it is called."""
        return self.score(batch)

    def predict_step(self, batch: RankingBatch, batch_idx: int) -> np.ndarray:  # noqa: ARG002
        started = time.perf_counter()
        scores = self.score_together(batch)
        self.seconds += time.perf_counter() - started
        return scores


def finite(values: dict[str, float]) -> dict[str, float]:
    """Without the settings that a ranker does not have (NaN)."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
