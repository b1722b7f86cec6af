"""One query set as a trained ranker has ranked it: scores, run, measurements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from evaluation.measurements import Measurement
from evaluation.measures import MRR, NDCG, RECALL, measure
from lexical.batches import EvaluationSet
from lexical.ranking.order import ranking_order
from lexical.ranking.trec_run import Run

FIRST_STAGE_DEPTH = 100  # documents that a slower ranker would re-rank: their recall is measured


@dataclass(eq=False)
class EvaluatedSet:
    """The ranking of one query set."""

    query_set: EvaluationSet
    alone: np.ndarray  # (pairs,) the ranker's own scores
    fused: np.ndarray | None  # (pairs,) its scores fused with the first stage; None for a row that is not a fusion
    seconds: float  # that the ranker took to score

    @property
    def variants(self) -> list[bool]:
        """Values of the argument `alone` that are reported: the row, and without BM25 if it is a fusion."""
        return [False] if self.fused is None else [False, True]

    def scores(self, alone: bool) -> np.ndarray:
        """(pairs,) scores of the row of the results table, or of the ranker without BM25."""
        return self.alone if alone or self.fused is None else self.fused

    @cache  # noqa: B019 - lives as long as the evaluation
    def run(self, alone: bool) -> Run:
        """The ranking in the order of the tie rule."""
        task, scores = self.query_set.task, self.scores(alone)
        order = ranking_order(task.candidates, scores, task.id_order)
        documents = self.query_set.document_ids(task.candidates.values[order])
        return Run(self.query_set.query_ids, np.asarray(task.candidates.offsets), documents, scores[order])

    @cached_property
    def measurements(self) -> list[Measurement]:
        """All measures of all variants: for each variant the main measure, then recall."""
        name, depth = self.query_set.name, self.query_set.depth
        recalls = [f"{RECALL}{k}" for k in sorted({FIRST_STAGE_DEPTH, depth}) if k <= depth]
        names = [NDCG if self.query_set.graded else MRR, *recalls]
        return [
            Measurement(name, alone, measure_name, list(values), np.array([list(values.values())]))
            for alone in self.variants
            for measure_name, values in measure(self.run(alone), self.query_set.qrels, names).items()
        ]

    def logged(self) -> dict[str, float]:
        """Metrics for loggers, such as test/mrr, test/recall@100, and test/mrr_alone for a fusion."""
        return {metric_name(measurement): measurement.mean for measurement in self.measurements}


def metric_name(measurement: Measurement) -> str:
    """Return the name of a measurement's mean in loggers."""
    return f"{measurement.query_set}/{measurement.measure.lower()}{'_alone' if measurement.alone else ''}"
