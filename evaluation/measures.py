"""Measures of a run by ``ir-measures``, per query and on average.

MRR for sparsely judged sets, nDCG@10 for graded ones, the recall of the whole list beside them. The run comes in its
final order (the project's tie rule) and is handed on with its ranks as scores, so that no library breaks ties its own
way. A query missing from the run counts as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lexical.ranking.trec_run import Run

MRR, NDCG = "MRR", "nDCG@10"
_IR_MEASURES = {MRR: ir_measures.RR, NDCG: ir_measures.nDCG @ 10}


class Measured(NamedTuple):
    measure: str
    per_query: dict[str, float]  # every judged query of the set

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.per_query.values())))


def main_measure(graded: bool) -> str:
    return NDCG if graded else MRR


def recall_at(depth: int) -> str:
    return f"recall@{depth}"


def measure(run: Run, qrels: Sequence[tuple[str, str, int]], names: Sequence[str]) -> list[Measured]:
    """The measures `names` (MRR, nDCG@10, recall@K) of `run`."""
    wanted = {name: _ir_measure(name) for name in names}
    judgements = [ir_measures.Qrel(query, document, grade) for query, document, grade in qrels]
    ranked = {
        query: {document: -float(rank) for rank, document in enumerate(listed)}
        for query, listed in _as_far_as_judged(run, qrels)
    }
    values: dict[str, dict[str, float]] = {name: dict.fromkeys((q for q, _, _ in qrels), 0.0) for name in names}
    by_measure = {str(one): name for name, one in wanted.items()}
    for metric in ir_measures.iter_calc(list(wanted.values()), judgements, ranked):
        values[by_measure[str(metric.measure)]][metric.query_id] = float(metric.value)
    return [Measured(name, values[name]) for name in names]


def per_query_tsv(measured: Sequence[Measured]) -> str:
    """``query \\t measure \\t value`` lines under a header, queries in the order of the judgements."""
    lines = ["query\tmeasure\tvalue"]
    lines += [f"{query}\t{one.measure}\t{value:.6f}" for one in measured for query, value in one.per_query.items()]
    return "\n".join(lines) + "\n"


def _as_far_as_judged(run: Run, qrels: Sequence[tuple[str, str, int]]) -> Iterator[tuple[str, list[str]]]:
    """The documents of each query up to the last judged one: none of the measures looks at those behind it.

    Of a thousand candidates that is usually a handful, and the library is spared millions of strings.
    """
    judged: dict[str, set[str]] = {}
    for query, document, _ in qrels:
        judged.setdefault(query, set()).add(document)
    known = pa.array(sorted(set().union(*judged.values())), run.document_ids.type)
    places = np.flatnonzero(pc.is_in(run.document_ids, known).to_numpy(zero_copy_only=False))
    first = np.searchsorted(places, run.offsets)
    for i, query in enumerate(run.query_ids):
        mine = places[first[i] : first[i + 1]]
        names = run.document_ids.take(pa.array(mine)).to_pylist()
        last = max((int(at) for at, name in zip(mine, names, strict=True) if name in judged.get(query, ())), default=-1)
        if run.offsets[i + 1] > run.offsets[i]:
            yield query, run.document_ids[run.offsets[i] : max(last, run.offsets[i]) + 1].to_pylist()


def _ir_measure(name: str) -> ir_measures.Measure:
    if name.startswith("recall@"):
        return ir_measures.R @ int(name.removeprefix("recall@"))
    return _IR_MEASURES[name]
