"""The development queries whose evidence is watched while a Model 1 ranker trains."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from apps.searching import Query, Row, Searcher
from apps.watched_evidence import WatchedQuery
from callbacks.explanations import EvidenceMonitor
from datamodules.retrieval_data import RetrievalData
from datamodules.text.query_sets import DEVELOPMENT, SPLIT_SEED
from lexical.ranking.order import RankedTask
from lightning_modules.ranker import Ranker
from pipeline.tracking import never_fatal

QUERIES = 5


class SampledQuery(NamedTuple):
    number: int  # of the query in its set
    documents: np.ndarray  # (1 or 2,) rows of its best relevant and its best other candidate of the first stage


def sampled_queries(task: RankedTask, most: int = QUERIES) -> list[SampledQuery]:
    """A fixed sample of the queries that have a relevant document among their candidates, in their order."""
    candidates = task.candidates
    able = np.unique(candidates.row_numbers()[task.relevant])
    sample = []
    for number in np.sort(np.random.default_rng(SPLIT_SEED).permutation(able)[:most]):
        mine = slice(*candidates.offsets[number : number + 2])
        documents, relevant = candidates.values[mine], task.relevant[mine]  # best first
        sample.append(SampledQuery(int(number), np.concatenate([documents[relevant][:1], documents[~relevant][:1]])))
    return sample


class WatchedSample:
    """Explains the sample by a ranker alone: fusion weights are learned when training has ended.

    Args:
        name: of the ranker.
        data: its development queries.
        depth: candidates of a query.
    """

    def __init__(self, name: str, data: RetrievalData, depth: int) -> None:
        self.name, self.data, self.depth = name, data, depth
        self._searcher = Searcher(data)

    @cached_property
    def sample(self) -> list[SampledQuery]:
        return sampled_queries(self.data.ranked_task(DEVELOPMENT, self.depth))

    def explained(self, ranker: Ranker) -> list[WatchedQuery]:
        """In the field that the ranker reads by now: EM chooses one of several at its end."""
        if not self.sample:
            raise ValueError("there is nothing to explain: no development query has a relevant candidate")
        fields = {self._searcher.first_field, ranker.field}
        tokens = {field: self.data.prepared.query_tokens(DEVELOPMENT, field) for field in fields}
        texts, row, found = self.data.query_set(DEVELOPMENT).texts, Row(self.name, ranker, None), []
        for number, documents in self.sample:
            query = Query(texts[number], {field: tokens[field].row(number) for field in fields})
            relevant, *others = self._searcher.explain_alone(row, query, documents)
            found.append(WatchedQuery(relevant, others[0] if others else None))
        return found


def evidence_monitor(model: Ranker, name: str, data: RetrievalData) -> EvidenceMonitor:
    sample = WatchedSample(name, data, model.rerank_depth)
    return EvidenceMonitor(sample.explained, f"{data.name} ({DEVELOPMENT})", never_fatal)
