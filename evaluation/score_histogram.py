"""How a ranker's scores of relevant documents and of all other candidates are distributed: two histograms."""

from __future__ import annotations

import numpy as np

BINS = 30
TAIL = 0.005  # share of the scores on either side that the range leaves out


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
