"""Base of the rankers that score with a translation table: Model 1 by EM, by embeddings, by a table that was given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lexical.batches import RankingBatch, TuningBatch
from lexical.errors import UserError, require
from lexical.evidence import Evidence, model1_evidence, table_translation
from lexical.index.forward_index import ForwardIndex
from lexical.model1.scorer import FLOOR, UNSEEN, collection_probability, model1_scores, per_query_token
from lexical.model1.table import Translations, TranslationTable, others_rescaled, with_self_translation
from lexical.model1.table_files import load_table, save_table
from lexical.model1.tuning import (
    P_SELF,
    SMOOTHING,
    JudgedQueries,
    TableGrid,
    TableSettings,
    TableTrial,
    tune_smoothing,
    tune_table,
)
from lexical.terminal import progress_bar
from lightning_modules.lexical_ranker import LexicalRanker
from lightning_modules.ranker import finite

TABLE_FOLDER = "table"  # in the run's folder


class ChosenTable(NamedTuple):
    """A finished table of one field, with the settings that were best on development."""

    field: str
    vocabulary: list[str]
    table: TranslationTable
    settings: TableSettings
    mrr: float  # on development; fused where the row is a fusion


class TranslationRanker(LexicalRanker):
    """Model 1 with a table T(q|d), smoothed by the collection (equation 2 of the paper).

    Args:
        field: word, lemm, word_all or bwps.
        threshold: smaller translation probabilities are dropped; tuned on development when not given.
        p_self: T(t|t); tuned on development when not given.
        smoothing: lambda, the weight of P(q|C); tuned on development when not given.
        fused: the row is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    explains = True
    threshold: torch.Tensor
    p_self: torch.Tensor
    smoothing: torch.Tensor

    def __init__(
        self,
        field: str,
        threshold: float | None,
        p_self: float | None,
        smoothing: float | None,
        fused: bool,
        rerank_depth: int,
    ) -> None:
        super().__init__(field, fused, rerank_depth)
        require(threshold is None or 0 <= threshold < 1, "--model.threshold", threshold, "from 0 to less than 1")
        require(p_self is None or 0 <= p_self < 1, "--model.p_self", p_self, "from 0 to less than 1")
        wanted = "0, or from 0.000001 to 1"
        require(smoothing is None or smoothing == 0 or 1e-6 <= smoothing <= 1, "--model.smoothing", smoothing, wanted)
        self.given = TableGrid(
            () if threshold is None else (threshold,),
            P_SELF if p_self is None else (p_self,),
            SMOOTHING if smoothing is None else (smoothing,),
        )
        for name in TableSettings._fields:
            self.register_buffer(name, torch.tensor(math.nan, dtype=torch.float64))
        self.floor = FLOOR  # P(q|D) at the least, where lambda is 0
        self.chosen: ChosenTable | None = None
        self._background: tuple[ForwardIndex, np.ndarray] | None = None

    def choose_table(
        self, learned: Translations, batch: TuningBatch, thresholds: tuple[float, ...], first_step: int = 0
    ) -> ChosenTable:
        """The table of the settings that are best on the development queries of `batch`; each trial is logged."""
        grid = self.given._replace(thresholds=self.given.thresholds or thresholds)
        with self._trials_shown(batch, grid.size, first_step) as record:
            best = tune_table(learned, self._judged(batch), grid, record)
        others = others_rescaled(learned.pruned(best.settings.threshold))
        table = with_self_translation(others, best.settings.p_self)
        return ChosenTable(batch.field, batch.vocabulary, table, best.settings, best.mrr)

    def choose_smoothing(self, table: TranslationTable, batch: TuningBatch) -> ChosenTable:
        """A table that is final already: only lambda is chosen."""
        with self._trials_shown(batch, len(self.given.smoothing), 0) as record:
            best = tune_smoothing(table, self._judged(batch), self.given.smoothing, record)
        return ChosenTable(batch.field, batch.vocabulary, table, best.settings, best.mrr)

    def _judged(self, batch: TuningBatch) -> JudgedQueries:
        return JudgedQueries(batch.forward, batch.queries, batch.task, batch.first_stage if self.fused else None)

    @contextmanager
    def _trials_shown(self, batch: TuningBatch, total: int, first_step: int) -> Iterator[Callable[[TableTrial], None]]:
        """A function that shows each trial in a bar and sends it to the loggers."""
        steps = count(first_step)
        so_far = 0.0
        with progress_bar() as bar:
            row = bar.add_task(f"tune the table ({batch.field})", total=total)

            def record(trial: TableTrial) -> None:
                nonlocal so_far
                so_far = max(so_far, trial.mrr)
                bar.update(row, advance=1, description=f"tune the table ({batch.field}), MRR {so_far:.4f}")
                settings = {f"tune/{name}": value for name, value in finite(trial.settings._asdict()).items()}
                self.record(next(steps), {**settings, f"tune/mrr_{batch.field}": trial.mrr})

            yield record

    def use(self, chosen: ChosenTable) -> None:
        """Ranks with this table from now on."""
        self.chosen, self.field = chosen, chosen.field
        for name, value in chosen.settings._asdict().items():
            getattr(self, name).fill_(value)

    def score(self, batch: RankingBatch) -> np.ndarray:
        background = self._collection_probability(batch.forward)
        scores = model1_scores(self._table, *batch[:3], float(self.smoothing), background, self.floor)
        return per_query_token(scores, batch.queries, batch.candidates)

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        background, smoothing = self._collection_probability(batch.forward), float(self.smoothing)
        found = []
        for query, document in batch.pairs():
            translation = (1 - smoothing) * table_translation(self._table, query, document)
            prior = smoothing * np.where(query >= 0, background[query], UNSEEN)
            found.append(model1_evidence(translation, prior, 0.0 if smoothing else self.floor, len(query)))
        return found

    @property
    def _table(self) -> TranslationTable:
        if self.chosen is None:
            raise ValueError("there is no table yet: train this ranker first")
        return self.chosen.table

    def _collection_probability(self, forward: ForwardIndex) -> np.ndarray:
        if self._background is None or self._background[0] is not forward:
            self._background = (forward, collection_probability(forward))
        return self._background[1]

    def source(self) -> dict[str, Any]:
        """What made the table, for its meta.json."""
        return {"ranker": type(self).__name__}

    def save_files(self, folder: Path) -> None:
        assert self.chosen is not None
        settings = self.chosen.settings._asdict()
        meta = {
            "field": self.chosen.field,
            "source": self.source(),
            "parameters": finite({name: settings[name] for name in ("threshold", "p_self")}),
            "scored_with": {"smoothing": settings["smoothing"]},
            "development_mrr": self.chosen.mrr,
        }
        save_table(self.chosen.table, self.chosen.vocabulary, meta, folder / TABLE_FOLDER)

    def load_files(self, folder: Path) -> None:
        saved = load_table(folder / TABLE_FOLDER)
        settings = TableSettings(*(float(getattr(self, name)) for name in TableSettings._fields))
        recorded = {**saved.meta.get("parameters", {}), **saved.meta.get("scored_with", {})}
        floor = recorded.pop("floor", FLOOR)
        if recorded != finite(settings._asdict()):
            raise UserError(f"{folder / TABLE_FOLDER} and the checkpoint are of different trainings")
        if not (isinstance(floor, float) and 0 < floor < 1):
            raise UserError(f"{folder / TABLE_FOLDER}: the floor {floor!r} is not between 0 and 1")
        self.floor = floor
        mrr = float(saved.meta.get("development_mrr", 0.0))
        self.use(ChosenTable(str(saved.meta.get("field")), saved.vocabulary, saved.table, settings, mrr))

    def check_vocabulary(self, vocabulary: list[str]) -> None:
        if self.chosen is not None and self.chosen.vocabulary != vocabulary:
            raise UserError(
                f"the translation table was made for other tokens than the field {self.field} has: "
                "give the same --data settings, or train this ranker again"
            )
