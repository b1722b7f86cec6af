"""The paper's leaderboard submissions: trained rankers combined (section "Results", Leaderboard Submissions).

The traditional run is a linear fusion of several rankers' own scores over the candidates of BM25 (lemm). The
leaderboard run scores the best of such a fusion again with a BERT ranker and fuses the two; the other documents keep
their order behind them. All weights are learned on `train_fusion`, by coordinate ascent.

The rankers are trained by themselves and stay in their own folders: the checkpoint holds the weights only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lexical.batches import DataNeeds, FusionBatch, JointBatch
from lexical.errors import UserError, require
from lexical.ranking.fusion import fuse, learn_weights
from lexical.ranking.order import RankedTask, top_candidates, two_stage_scores
from lexical.terminal import detail
from lightning_modules.ranker import Ranker, require_settings
from lightning_modules.strategy import UnwrappedStrategy
from lightning_modules.trained import dependency_folder, load_ranker

FIRST, SECOND = "first_weights", "second_weights"


class LeaderboardTraditional(Ranker):
    """The best traditional run: a fusion of rankers that need no network.

    Args:
        parts: trained rankers, by the names of their rows or the folders of their runs; each gives its own scores, not
            fused with BM25.
        rerank_depth: candidates of a query that are ranked.
    """

    single_process = True

    def __init__(self, parts: list[str], rerank_depth: int = 1000) -> None:
        super().__init__("lemm", False, rerank_depth)
        good = len(parts) > 0 and len(set(parts)) == len(parts)
        require(good, "--model.parts", parts, "names of rankers, one or more, none of them twice")
        self.part_names = tuple(parts)
        self.rankers: tuple[Ranker, ...] = ()  # the dependencies, loaded
        self.stages: dict[str, dict[str, Any]] = {}  # what was learned, by the name of the weights

    @property
    def dependencies(self) -> tuple[str, ...]:
        return self.part_names

    @property
    def is_trained(self) -> bool:
        return bool(self.stages)

    def setup(self, stage: str) -> None:
        """Load the rankers that this one is made from: they lie beside the trainer's root folder."""
        super().setup(stage)
        self.load_dependencies(self.trainer.default_root_dir)

    def load_dependencies(self, run: Any) -> None:
        """Load the rankers, which lie beside the folder `run`."""
        if not self.rankers:
            self.rankers = tuple(load_ranker(dependency_folder(name, run)) for name in self.dependencies)
        for name, ranker in zip(self.dependencies, self.rankers, strict=True):
            if isinstance(ranker, LeaderboardTraditional):
                raise UserError(f"--model.parts: {name} is itself a combination of rankers; name those")

    @property
    def parts(self) -> Sequence[Ranker]:
        """The rankers whose scores the first fusion combines."""
        return self.rankers

    def needs(self) -> DataNeeds:
        if not self.rankers:
            self.load_dependencies(self.trainer.default_root_dir)
        fields = tuple(dict.fromkeys(ranker.field for ranker in self.rankers))
        return DataNeeds(fields, "fusion", self.rerank_depth, joint=True, sampled=self.sampled)

    # --- training

    def training_step(self, batch: FusionBatch, batch_idx: int) -> None:
        """Learn the weights. All of `train_fusion` comes first; where the second stage is slow, then a sample of it."""
        if batch_idx == 0:
            features = np.concatenate([self.features(joint) for joint in batch.batches], axis=1)
            names = [f"{name} (alone)" for name in self.part_names]
            self.learn_stage(FIRST, features, names, batch.task, batch.query_set)
        if batch_idx + 1 == self.trainer.num_training_batches:
            self.trainer.should_stop = True

    def learn_stage(
        self, stage: str, features: np.ndarray, names: Sequence[str], task: RankedTask, learned_on: str
    ) -> None:
        learned = learn_weights(features, names, task, learned_on)
        self.stages[stage] = learned
        shown = zip(names, learned["weights"], learned["mrr_of_each_feature"], strict=True)
        weights = ", ".join(f"{name} {weight:.3f} (MRR {mrr:.4f})" for name, weight, mrr in shown)
        detail(f"fusion on {learned_on}: MRR {learned['mrr']:.4f} of {weights}")

    def learned(self) -> dict[str, Any]:
        return {"stages": self.stages}

    def load_learned(self, learned: dict[str, Any]) -> None:
        self.stages = learned["stages"]

    def findings(self) -> dict[str, float]:
        return {f"{stage['learned_on']}/mrr_of_{name}": stage["mrr"] for name, stage in self.stages.items()}

    # --- scores

    def features(self, batch: JointBatch) -> np.ndarray:
        """Return (parts, pairs) each ranker's own scores of the one candidate list."""
        return np.stack([ranker.score(batch.fields[ranker.field]) for ranker in self.parts])

    def score(self, batch: JointBatch) -> np.ndarray:  # type: ignore[override]  # all fields of its parts
        return fuse(self.features(batch), self.weights(FIRST))

    def weights(self, stage: str) -> np.ndarray:
        if stage not in self.stages:
            raise UserError("there are no fusion weights yet: train this ranker first")
        return np.array(self.stages[stage]["weights"])


class Leaderboard(LeaderboardTraditional):
    """The leaderboard run: the best of a first fusion scored again by a BERT ranker, and both fused.

    Where that ranker is measured on samples, the second fusion is learned on `train_fusion_cpu` and the row is measured
    on samples, too; the first one is quick, and learned on all of `train_fusion`.

    Args:
        parts: trained rankers, by the names of their rows or the folders of their runs; each gives its own scores, not
            fused with BM25.
        reranker: the trained ranker that scores the best documents again.
        reranked: how many of each query.
        rerank_depth: candidates of a query that are ranked.
    """

    has_seeds = slow = True
    single_process = False
    asked_precision: str | None = None

    def __init__(
        self, parts: list[str], reranker: str = "bert_model1_full", reranked: int = 100, rerank_depth: int = 1000
    ) -> None:
        super().__init__(parts, rerank_depth)
        require_settings("1 or more", reranked=reranked)
        require(reranker not in parts, "--model.reranker", reranker, "none of the parts of the first fusion")
        self.reranker_name, self.reranked = reranker, reranked

    @property
    def dependencies(self) -> tuple[str, ...]:
        return (*self.part_names, self.reranker_name)

    def load_dependencies(self, run: Any) -> None:
        super().load_dependencies(run)
        self.sampled = self.reranker.sampled
        if self.asked_precision is not None:
            self.reranker.use_precision(self.asked_precision)

    def default_strategy(self, processes: int) -> Any:
        return UnwrappedStrategy() if processes > 1 else "auto"

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.reranker.trainer = self.trainer

    def use_precision(self, precision: str | None) -> None:
        """Let the second ranker score in another precision than that of its training."""
        self.asked_precision = precision
        if self.rankers and precision is not None:
            self.reranker.use_precision(precision)

    @property
    def parts(self) -> Sequence[Ranker]:
        return self.rankers[:-1]

    @property
    def reranker(self) -> Any:
        return self.rankers[-1]

    def training_step(self, batch: FusionBatch, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        if batch_idx + 1 < self.trainer.num_training_batches:
            return
        features, chosen = [], []
        for joint in batch.batches:
            first, best = self.first_stage(joint)
            features.append(np.stack([first[best], self.second_scores(joint, best)]))
            chosen.append(best)
        reranked = np.concatenate(chosen)
        # the documents behind cannot change the best weights: they stay below, whatever the weights
        task = RankedTask(batch.task.candidates.select(reranked), batch.task.id_order, batch.task.relevant[reranked])
        names = ["the first fusion", f"{self.reranker_name} (alone)"]
        self.learn_stage(SECOND, np.concatenate(features, axis=1), names, task, batch.query_set)

    def first_stage(self, batch: JointBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return (pairs,) scores of the first fusion, and (pairs,) bool: what is scored again."""
        first = super().score(batch)
        return first, top_candidates(batch.candidates, first, batch.id_order, self.reranked)

    def second_scores(self, batch: JointBatch, chosen: np.ndarray) -> np.ndarray:
        """Return (chosen pairs,) scores of the second ranker, on the device of this one; processes share the work."""
        self.reranker.to(self.device)
        ranking = batch.fields[self.reranker.field]
        scores: np.ndarray = self.reranker.score_together(
            ranking._replace(candidates=ranking.candidates.select(chosen))
        )
        return scores

    def score(self, batch: JointBatch) -> np.ndarray:  # type: ignore[override]
        first, chosen = self.first_stage(batch)
        fused = fuse(np.stack([first[chosen], self.second_scores(batch, chosen)]), self.weights(SECOND))
        return two_stage_scores(batch.candidates, first, chosen, fused, batch.id_order)
