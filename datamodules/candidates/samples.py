"""Fixed samples of query sets, with short candidate lists, on which a machine without a GPU can measure slow rankers.

    test_cpu         200 queries of test, 20 candidates each
    development_cpu  100 queries of development, 20 candidates each
    train_fusion_cpu 200 queries of train_fusion, 20 candidates each

Every row can be measured on them; a value of a sample never stands in a column with values of the whole set.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from datamodules.text.query_sets import DEVELOPMENT, SPLIT_SEED, TEST, TRAIN_FUSION, QuerySet
from lexical.index.ragged import Ragged, ragged
from lexical.ranking.order import RankedTask

TEST_CPU, DEVELOPMENT_CPU, TRAIN_FUSION_CPU = "test_cpu", "development_cpu", "train_fusion_cpu"


class Sample(NamedTuple):
    of: str  # the whole set
    queries: int
    depth: int  # candidates of a query


SAMPLES = {
    TEST_CPU: Sample(TEST, 200, 20),
    DEVELOPMENT_CPU: Sample(DEVELOPMENT, 100, 20),
    TRAIN_FUSION_CPU: Sample(TRAIN_FUSION, 200, 20),
}


class SampledSet(QuerySet):
    """A query set of some queries of another one, in its order."""

    def __init__(self, whole: QuerySet, name: str) -> None:
        self.folder, self.name, self.whole = whole.folder, name, whole
        drawn = np.random.default_rng(SPLIT_SEED).permutation(len(whole))[: SAMPLES[name].queries]
        self.rows = np.sort(drawn)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def ids(self) -> list[str]:
        return [self.whole.ids[row] for row in self.rows]

    @cached_property
    def texts(self) -> list[str]:
        return [self.whole.texts[row] for row in self.rows]

    @property
    def judged(self) -> Ragged:
        return self.select(self.whole.judged)

    @property
    def grades(self) -> np.ndarray:
        return self.whole.grades[np.isin(self.whole.judged.row_numbers(), self.rows)]

    @property
    def graded(self) -> bool:
        """As the whole set: the measure must not depend on the draw."""
        return self.whole.graded

    def qrels(self) -> list[tuple[str, str, int]]:
        ids = set(self.ids)
        return [judgement for judgement in self.whole.qrels() if judgement[0] in ids]

    def select(self, rows: Ragged) -> Ragged:
        """Select the rows of the sample's queries from those of all queries."""
        return ragged([rows.row(int(i)) for i in self.rows], rows.values.dtype)

    def task(self, whole: RankedTask) -> RankedTask:
        in_sample = np.isin(whole.candidates.row_numbers(), self.rows)
        return RankedTask(self.select(whole.candidates), whole.id_order, whole.relevant[in_sample])
