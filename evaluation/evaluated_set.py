"""One query set as a trained ranker has ranked it: scores and their histograms, run, measurements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from evaluation.measurements import Measurement
from evaluation.measures import MRR, NDCG, RECALL, measure
from lexical.batches import EvaluationSet
from lexical.ranking.order import ranking_order
from lexical.ranking.trec_run import Run

FIRST_STAGE_DEPTH = 100  # documents that a slower ranker would re-rank: their recall is measured
BINS = 30  # of a histogram
TAIL = 0.005  # share of the scores on either side that its range leaves out


@dataclass(eq=False)
class EvaluatedSet:
    """The ranking of one query set."""

    query_set: EvaluationSet
    alone: np.ndarray  # (pairs,) the ranker's own scores
    fused: np.ndarray | None  # (pairs,) its scores fused with the first stage; None for a row that is not a fusion
    seconds: float  # that the ranker took to score all pairs: the median batch's time for a pair, times the pairs

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
            for measure_name, values in measure(
                self.run(alone), self.query_set.qrels, names, self.query_set.relevant_from
            ).items()
        ]

    @property
    def histograms(self) -> list[dict[str, Any]]:
        """The `score_histogram` of each variant that has scores."""
        relevant = self.query_set.task.relevant
        counted = [(alone, score_histogram(self.scores(alone), relevant)) for alone in self.variants]
        return [{"query_set": self.query_set.name, "alone": alone, **counts} for alone, counts in counted if counts]

    def logged(self) -> dict[str, float]:
        """Metrics for loggers, such as test/mrr, test/recall@100, and test/mrr_alone for a fusion."""
        return {metric_name(measurement): measurement.mean for measurement in self.measurements}


def metric_name(measurement: Measurement) -> str:
    """Return the name of a measurement's mean in loggers."""
    return f"{measurement.query_set}/{measurement.measure.lower()}{'_alone' if measurement.alone else ''}"


def score_histogram(scores: np.ndarray, relevant: np.ndarray) -> dict[str, list[float]] | None:
    """Count (pairs,) scores apart for relevant documents, (pairs,) bool, and others; None where there are no scores.

    Returns the edges of BINS common bins and the counts of both groups; the outermost bins also hold what lies beyond.
    The range is 0.5% to 99.5% of the relevant and of the others, whichever reaches further: among a thousand
    candidates relevant documents are so few that the range of all scores together would cut most of them off.
    """
    groups = [scores[relevant].astype(np.float64), scores[~relevant].astype(np.float64)]
    ranges = [np.quantile(group, [TAIL, 1 - TAIL]) for group in groups if len(group)]
    if not ranges:
        return None
    low, high = float(np.min(ranges)), float(np.max(ranges))
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # all equal: bins must have a width
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    counts = [np.histogram(np.clip(group, edges[0], edges[-1]), edges)[0].tolist() for group in groups]
    return {"edges": edges.tolist(), "relevant": counts[0], "others": counts[1]}
