"""Two candidate lists as one: reciprocal rank fusion (Cormack et al., 2009), which needs no scores that compare.

score(d) = sum over the lists that have d of 1 / (60 + rank of d)
"""

from __future__ import annotations

import numpy as np

from lexical.index.ragged import Ragged, concatenated, offsets_of

CONSTANT = 60.0
QUERIES_AT_ONCE = 4096  # what is in memory at a time


def reciprocal_rank_fusion(
    lists: list[Ragged], depth: int, documents: int, id_order: np.ndarray
) -> tuple[Ragged, np.ndarray]:
    """(candidates, scores): for each query the `depth` best of all lists, best first; ties by document id.

    Args:
        lists: candidates of the same queries, best first.
        depth: documents kept for a query.
        documents: size of the collection.
        id_order: (documents,) place of a document in the order of ids.
    """
    blocks = [
        _fused([one.rows_between(first, first + QUERIES_AT_ONCE) for one in lists], depth, documents, id_order)
        for first in range(0, lists[0].rows, QUERIES_AT_ONCE)
    ]
    if not blocks:
        return lists[0], np.zeros(0, np.float32)
    return concatenated([found for found, _ in blocks]), np.concatenate([scores for _, scores in blocks])


def _fused(
    lists: list[Ragged], depth: int, documents: int, id_order: np.ndarray
) -> tuple[Ragged, np.ndarray]:  # fmt: skip
    keys = np.concatenate([one.row_numbers() * documents + one.values for one in lists])
    values = np.concatenate([1.0 / (CONSTANT + 1 + one.positions()) for one in lists])
    found, place = np.unique(keys, return_inverse=True)
    scores = np.bincount(place, values, len(found)).astype(np.float32)
    rows, docs = found // documents, found % documents
    best = np.lexsort((id_order[docs], -scores, rows))
    whole = Ragged(offsets_of(np.bincount(rows, minlength=lists[0].rows)), docs[best].astype(np.int32))
    kept = whole.positions() < depth
    return whole.select(kept), scores[best][kept]
