"""Where a document speaks of a query: the window of a long document that a short training reads."""

from __future__ import annotations

import numpy as np


def best_window(query: np.ndarray, document: np.ndarray, width: int) -> int:
    """Where the window of `width` pieces begins in which the document says most of the query.

    A piece of the query counts 1 in a whole document, however often it is said, so that frequent pieces do not decide.
    Where many windows hold the same, the middle one of the first such stretch has the matches in its midst.
    """
    said = np.isin(document, query)
    if len(document) <= width or not said.any():
        return 0
    _, kind, counts = np.unique(document, return_inverse=True, return_counts=True)
    share = np.concatenate([[0.0], np.cumsum(said / counts[kind])])
    sums = share[width:] - share[:-width]
    best = np.flatnonzero(sums >= sums.max() - 1e-9)
    stretch = np.flatnonzero(np.diff(best, append=best[-1] + 2) > 1)[0]  # the last place of the first stretch
    return int(best[stretch // 2])
