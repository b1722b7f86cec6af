"""Query sets as they are ranked: batches of queries with their candidates, and what the first stage says of them.

Samples of a query set (see `sampled_sets`) are asked for by their names like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from torch.utils.data import DataLoader

from datamodules.batches.epoch_loader import ready_made
from datamodules.candidates.samples import SAMPLES, SampledSet
from datamodules.preparation import Preparation
from datamodules.text.analysis import WORD_PIECES
from datamodules.text.prepared_fields import PreparedFields
from datamodules.text.query_sets import QuerySet
from lexical.batches import FusionBatch, JointBatch, RankingBatch
from lexical.bm25 import normalised_bm25
from lexical.index.ragged import Ragged
from lexical.ranking.order import RankedTask

QUERIES_PER_RANKING_BATCH = 1024  # the more, the more query tokens they share; their T(q|d) are computed once


class RankedSets:
    """What rankers get to score. A base of the data module, which says where `prepared` comes from."""

    prepared: Preparation
    unexpanded: PreparedFields  # the same documents without their expansion; `prepared` where there is none

    def ranking_loader(self, query_set: str, field: str, depth: int) -> DataLoader[RankingBatch]:
        """Batches of queries with their candidates, in the order of the query set."""
        return ready_made(self._ranking_batches(query_set, field, depth))

    def joint_loader(self, query_set: str, fields: Sequence[str], depth: int) -> DataLoader[JointBatch]:
        """The same for a ranker that reads several fields."""
        return ready_made(self._joint_batches(query_set, fields, depth))

    def fusion_batch(self, query_set: str, fields: Sequence[str], depth: int) -> FusionBatch:
        """A whole query set to learn fusion weights on."""
        batches = self._joint_batches(query_set, fields, depth)
        return FusionBatch(query_set, batches, self.ranked_task(query_set, depth))

    def _joint_batches(self, query_set: str, fields: Sequence[str], depth: int) -> list[JointBatch]:
        id_order = np.asarray(self.prepared.collection.id_order)
        by_field = [self._ranking_batches(query_set, field, depth) for field in fields]
        return [JointBatch(dict(zip(fields, some, strict=True)), id_order) for some in zip(*by_field, strict=True)]

    def sequences(self, field: str) -> Ragged:
        """The documents as an encoder reads them: word pieces without the expansion, which is for the index alone."""
        fields = self.unexpanded if field == WORD_PIECES else self.prepared
        return fields.field(field).sequences

    def first_stage_scores(self, query_set: str, depth: int, most_batches: int | None = None) -> np.ndarray:
        """(pairs,) BM25 of the first-stage field divided by the sum of query idf values, over the same candidates."""
        if most_batches is None:
            return self._whole_first_stage(query_set, depth)
        return self._first_stage(self._first_stage_batches(query_set, depth)[:most_batches])

    @cache  # noqa: B019 - every fused row needs it; who times it gives `most_batches`
    def _whole_first_stage(self, query_set: str, depth: int) -> np.ndarray:
        found = self._first_stage(self._first_stage_batches(query_set, depth))
        found.setflags(write=False)
        return found

    def _first_stage(self, batches: list[RankingBatch]) -> np.ndarray:
        parameters = self.prepared.first_stage_parameters
        parts = [normalised_bm25(*batch[:3], parameters) for batch in batches]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    @cache  # noqa: B019 - it lives as long as the program; timing a row must not time the opening of files
    def _first_stage_batches(self, query_set: str, depth: int) -> list[RankingBatch]:
        return self._ranking_batches(query_set, self.prepared.settings.first_stage_field, depth)

    def _ranking_batches(self, query_set: str, field: str, depth: int) -> list[RankingBatch]:
        tokens, candidates = self._query_tokens(query_set, field), self.ranked_task(query_set, depth).candidates
        prepared = self.prepared.field(field)
        batches = []
        for first in range(0, candidates.rows, QUERIES_PER_RANKING_BATCH):
            mine = (one.rows_between(first, first + QUERIES_PER_RANKING_BATCH) for one in (tokens, candidates))
            batches.append(RankingBatch._make([prepared.forward, *mine, self.sequences(field)]))
        return batches

    def ranked_task(self, query_set: str, depth: int) -> RankedTask:
        if query_set not in SAMPLES:
            return self.prepared.ranked_task(query_set, depth)
        sample = SAMPLES[query_set]
        return self._sampled(query_set).task(self.prepared.ranked_task(sample.of, min(depth, sample.depth)))

    def _query_tokens(self, query_set: str, field: str) -> Ragged:
        if query_set not in SAMPLES:
            return self.prepared.query_tokens(query_set, field)
        return self._sampled(query_set).of_whole(self.prepared.query_tokens(SAMPLES[query_set].of, field))

    @cache  # noqa: B019 - it lives as long as the program
    def _sampled(self, name: str) -> SampledSet:
        return SampledSet(self.prepared.query_sets[SAMPLES[name].of], name)

    def depth(self, query_set: str) -> int:
        """Candidates of a query at the most: as asked for, or the longest list of an external run."""
        if query_set in SAMPLES:
            return min(SAMPLES[query_set].depth, self.depth(SAMPLES[query_set].of))
        settings = self.prepared.settings
        if settings.candidates is None:
            return settings.depth
        return int(self.prepared.candidates(query_set).candidates.lengths().max())

    def query_set(self, name: str) -> QuerySet:
        return self._sampled(name) if name in SAMPLES else self.prepared.query_sets[name]
