"""Measures of a run by ``ir-measures``, for each query.

MRR for sparsely judged sets, nDCG@10 for graded ones, the recall of the whole list beside them. The run comes in its
final order (the project's tie rule) and is passed on with ranks as scores, so that no library breaks ties its own way.
A query that is missing from the run counts as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lexical.ranking.trec_run import Run

MRR, NDCG, RECALL = "MRR", "nDCG@10", "recall@"


def is_recall(measure: str) -> bool:
    return measure.startswith(RECALL)


def measure(
    run: Run, qrels: Sequence[tuple[str, str, int]], names: Sequence[str], relevant_from: int = 1
) -> dict[str, dict[str, float]]:
    """Return measure -> query -> value for the measures `names` (MRR, nDCG@10, recall@K), for every judged query.

    `relevant_from`: the lowest grade of a relevant document, for MRR and recall; nDCG uses all grades.
    """
    relevant = f"(rel={relevant_from})"
    replaced = {name: name.replace(RECALL, f"R{relevant}@").replace(MRR, f"RR{relevant}") for name in names}
    measures = {ir_measures.parse_measure(text): name for name, text in replaced.items()}
    judgements = [ir_measures.Qrel(query, document, grade) for query, document, grade in qrels]
    ranked = {
        query: {document: -float(rank) for rank, document in enumerate(documents)}
        for query, documents in _up_to_last_judged(run, qrels)
    }
    values = {name: dict.fromkeys((query for query, _, _ in qrels), 0.0) for name in names}
    for metric in ir_measures.iter_calc(list(measures), judgements, ranked):
        values[measures[metric.measure]][metric.query_id] = float(metric.value)
    return values


def _up_to_last_judged(run: Run, qrels: Sequence[tuple[str, str, int]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the documents of each query up to the last judged one: no measure depends on those behind it.

    Of a thousand candidates that is usually a handful, and the library is spared millions of strings.
    """
    judged: dict[str, set[str]] = {}
    for query, document, _ in qrels:
        judged.setdefault(query, set()).add(document)
    for query, (start, end) in zip(run.query_ids, pairwise(run.offsets), strict=True):
        documents = run.document_ids[start:end]
        hits = np.flatnonzero(pc.is_in(documents, pa.array(judged.get(query, ()), documents.type)))
        if len(documents):
            yield query, documents[: 1 + max(hits, default=0)].to_pylist()
