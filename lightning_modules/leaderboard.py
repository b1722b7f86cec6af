"""The paper's leaderboard submissions: trained rankers put together (section "Results", Leaderboard Submissions).

The traditional run is a linear fusion of several rankers' own scores over the candidates of BM25 (lemm). The
leaderboard run scores the best of such a fusion again with a BERT ranker and fuses the two; the documents behind keep
their order. All weights are learned on `train_fusion`, by coordinate ascent.

The rankers are trained by themselves and stay in their own folders. The checkpoint holds the weights alone, and
fusion.json says what each weight is of, and of which trained rankers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lexical.batches import FusionBatch, JointBatch, Needs, RankingBatch
from lexical.errors import UserError, require
from lexical.ranking.fusion import fuse, learn_weights
from lexical.ranking.order import RankedTask
from lexical.ranking.two_stage import best_of_each, with_the_rest_behind
from lexical.terminal import say
from lightning_modules.lexical_ranker import LexicalRanker
from lightning_modules.ranker import Ranker, Source

FUSION = "fusion.json"  # in the run's folder
FIRST, SECOND = "first_weights", "second_weights"


class LeaderboardTraditional(LexicalRanker):
    """The best traditional run: a fusion of rankers that need no network.

    Args:
        parts: names of trained rankers; each gives its own scores, not fused with BM25.
        rerank_depth: candidates of a query that are ranked.
    """

    ranks_with_sources = True

    def __init__(self, parts: list[str], rerank_depth: int = 1000) -> None:
        super().__init__("lemm", False, rerank_depth)
        good = len(parts) > 0 and len(set(parts)) == len(parts)
        require(good, "--model.parts", parts, "names of rankers, one or more, none of them twice")
        self.made_from = tuple(parts)
        self.sources: tuple[Source, ...] = ()
        self.stages: dict[str, dict[str, Any]] = {}  # what was learned, by the name of the weights
        self.features_of = {FIRST: len(parts)}  # features of each fusion
        self.weights: dict[str, list[float]] = {}  # of each fusion, as learned

    def get_extra_state(self) -> dict[str, list[float]]:
        """What the checkpoint holds. Lists, not tensors: not every device has 64-bit numbers."""
        return self.weights

    def set_extra_state(self, state: dict[str, list[float]]) -> None:
        if {stage: len(weights) for stage, weights in state.items()} != self.features_of:
            raise UserError("the checkpoint has other fusion weights than these settings ask for")
        self.weights = {stage: [float(one) for one in weights] for stage, weights in state.items()}

    def use_sources(self, sources: Sequence[Source]) -> None:
        if nested := [one.name for one in sources if one.ranker.joint_fields]:
            raise UserError(f"--model.parts: {nested[0]} is itself made of several rankers; name those")
        self.sources = tuple(sources)
        self.joint_fields = tuple(dict.fromkeys(one.ranker.field for one in sources))

    @property
    def parts(self) -> tuple[Source, ...]:
        """The rankers whose scores the first fusion is of."""
        return self.sources

    # --- training

    def needs(self) -> Needs:
        return Needs(self.joint_fields, "fusion", depth=self.rerank_depth, sampled=self.sampled)

    def training_step(self, batch: FusionBatch, batch_idx: int) -> None:
        """The whole of `train_fusion` comes first, then, where the second stage is slow, a sample of it."""
        if batch_idx == 0:
            features = np.concatenate([self.features(one) for one in batch.batches], axis=1)
            self.learn(FIRST, features, [f"{one.name} (alone)" for one in self.parts], batch.task, batch.query_set)

    def learn(self, stage: str, features: np.ndarray, names: Sequence[str], task: RankedTask, learned_on: str) -> None:
        found = learn_weights(features, names, task, learned_on)
        self.stages[stage] = found
        self.weights[stage] = found["weights"]
        shown = zip(names, found["weights"], found["mrr_of_each_feature"], strict=True)
        weights = ", ".join(f"{name} {weight:.3f} (MRR {mrr:.4f})" for name, weight, mrr in shown)
        say(f"fusion on {learned_on}: MRR {found['mrr']:.4f} of {weights}")

    def findings(self) -> dict[str, float]:
        return {f"{one['learned_on']}/mrr_of_{stage}": one["mrr"] for stage, one in self.stages.items()}

    # --- scores

    def features(self, batch: JointBatch) -> np.ndarray:
        """(parts, pairs) each ranker's own scores of the one candidate list."""
        return np.stack([part.ranker.score(batch.fields[part.ranker.field]) for part in self.parts])

    def score(self, batch: JointBatch) -> np.ndarray:  # type: ignore[override]  # all fields of its parts
        return fuse(self.features(batch), self.learned(FIRST))

    def learned(self, stage: str) -> np.ndarray:
        if stage not in self.weights:
            raise ValueError("there are no fusion weights yet: train this ranker first")
        return np.array(self.weights[stage])

    # --- files

    def save_files(self, folder: Path) -> None:
        parts = {one.name: {"run": one.folder.name, "digest": one.digest} for one in self.sources}
        text = json.dumps({"parts": parts, **self.stages}, indent=1, allow_nan=False)
        (folder / FUSION).write_text(text + "\n", encoding="utf-8")

    def load_files(self, folder: Path) -> None:
        saved = json.loads((folder / FUSION).read_text(encoding="utf-8"))
        self.stages = {stage: saved[stage] for stage in self.features_of}
        if {stage: one["weights"] for stage, one in self.stages.items()} != self.weights:
            raise UserError(f"{folder / FUSION} and the checkpoint are of different trainings")


class Leaderboard(LeaderboardTraditional):
    """The leaderboard run: the best of a first fusion scored again by a BERT ranker, and both fused.

    Where that ranker was trained with the profile "cpu", the second fusion is learned on `train_fusion_cpu` and the row
    is measured on samples, as that ranker is; the first one is quick, and learned on all of `train_fusion`.

    Args:
        parts: names of trained rankers; each gives its own scores, not fused with BM25.
        reranker: name of the trained ranker that scores the best documents again.
        reranked: so many of each query.
        rerank_depth: candidates of a query that are ranked.
    """

    random = True
    slow = True
    asked_precision: str | None = None

    def __init__(
        self, parts: list[str], reranker: str = "bert_model1_full", reranked: int = 100, rerank_depth: int = 1000
    ) -> None:
        super().__init__(parts, rerank_depth)
        require(reranked >= 1, "--model.reranked", reranked, "1 or more")
        require(reranker not in parts, "--model.reranker", reranker, "none of the parts of the first fusion")
        self.made_from, self.reranked = (*parts, reranker), reranked
        self.features_of[SECOND] = 2

    def use_sources(self, sources: Sequence[Source]) -> None:
        super().use_sources(sources)
        self.sampled = self.reranker.sampled
        self.use_precision(self.asked_precision)

    @property
    def parts(self) -> tuple[Source, ...]:
        return self.sources[:-1]

    @property
    def reranker(self) -> Ranker:
        return self.sources[-1].ranker

    def trainer_settings(self) -> dict[str, Any]:
        return _on_any_device(super().trainer_settings())

    def ranking_settings(self) -> dict[str, Any]:
        return _on_any_device(super().ranking_settings())

    def use_precision(self, precision: str | None) -> None:
        """The second ranker scores as it was trained, unless something else is asked for."""
        self.asked_precision = precision
        if self.sources and precision is not None:
            self.reranker.use_precision(precision)

    def training_step(self, batch: FusionBatch, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        if batch_idx + 1 < self.trainer.num_training_batches:
            return
        features, chosen = [], []
        for one in batch.batches:
            first, best = self.first_stage(one)
            features.append(np.stack([first[best], self.second_scores(one, best, self.reranker.score)]))
            chosen.append(best)
        mine = np.concatenate(chosen)
        # what stays behind cannot change the best weights: it is below whatever they do
        task = RankedTask(batch.task.candidates.select(mine), batch.task.id_order, batch.task.relevant[mine])
        names = ["the first fusion", f"{self.sources[-1].name} (alone)"]
        self.learn(SECOND, np.concatenate(features, axis=1), names, task, batch.query_set)

    def first_stage(self, batch: JointBatch) -> tuple[np.ndarray, np.ndarray]:
        """(pairs,) scores of the first fusion; (pairs,) bool: what is scored again."""
        first = super().score(batch)
        return first, best_of_each(batch.candidates, first, batch.id_order, self.reranked)

    def second_scores(
        self, batch: JointBatch, chosen: np.ndarray, score: Callable[[RankingBatch], np.ndarray]
    ) -> np.ndarray:
        """(chosen pairs,) scores of the second ranker, on the device of this one."""
        self.reranker.to(self.device)
        whole = batch.fields[self.reranker.field]
        return score(whole._replace(candidates=whole.candidates.select(chosen)))

    def score(self, batch: JointBatch) -> np.ndarray:  # type: ignore[override]
        return self._row(batch, self.reranker.score)

    def score_together(self, batch: JointBatch) -> np.ndarray:  # type: ignore[override]
        """The second ranker shares the work; the rest, which is quick, every process does by itself."""
        self.reranker.trainer = self.trainer
        return self._row(batch, self.reranker.score_together)

    def _row(self, batch: JointBatch, score: Callable[[RankingBatch], np.ndarray]) -> np.ndarray:
        first, chosen = self.first_stage(batch)
        fused = fuse(np.stack([first[chosen], self.second_scores(batch, chosen, score)]), self.learned(SECOND))
        return with_the_rest_behind(batch.candidates, first, chosen, fused, batch.id_order)


def _on_any_device(settings: dict[str, Any]) -> dict[str, Any]:
    """The second ranker may want a GPU."""
    return {key: value for key, value in settings.items() if key != "accelerator"}
