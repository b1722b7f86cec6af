"""Base class of the rankers that score with a translation table: learned by EM, from embeddings, given, or exported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lexical.batches import DataNeeds, DevelopmentBatch, RankingBatch
from lexical.errors import UserError, require
from lexical.evidence import Evidence, model1_evidence, table_translation
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged
from lexical.model1.scorer import FLOOR, UNSEEN, collection_probability, model1_scores, per_query_token
from lexical.model1.table import Translations, TranslationTable, others_rescaled, with_self_translation
from lexical.model1.table_files import TABLE, load_table, read_meta, save_table
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
from lightning_modules.ranker import Ranker, require_settings

TABLE_FOLDER = "table"  # in the run's folder


class ChosenTable(NamedTuple):
    """A finished table of one field, with the settings that were best on development."""

    field: str
    vocabulary: list[str]
    table: TranslationTable
    settings: TableSettings
    mrr: float  # on development; fused where the row is a fusion


class TranslationRanker(Ranker):
    """Model 1 with a table T(q|d), smoothed by the collection (equation 2 of the paper).

    Args:
        field: word, lemm, word_all or bwps.
        threshold: smaller translation probabilities are dropped; tuned on development when not given.
        p_self: T(t|t); tuned on development when not given.
        smoothing: lambda, the weight of P(q|C); tuned on development when not given.
        fused: the row of the results table is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    explains = single_process = True

    def __init__(
        self, field: str, threshold: float | None, p_self: float | None, smoothing: float | None, fused: bool,
        rerank_depth: int,
    ) -> None:  # fmt: skip
        super().__init__(field, fused, rerank_depth)
        require_settings("from 0 to less than 1", threshold=threshold, p_self=p_self)
        expected = "0, or from 0.000001 to 1"
        require(smoothing is None or smoothing == 0 or 1e-6 <= smoothing <= 1, "--model.smoothing", smoothing, expected)
        self.given = TableGrid(
            () if threshold is None else (threshold,),
            P_SELF if p_self is None else (p_self,),
            SMOOTHING if smoothing is None else (smoothing,),
        )
        self.floor = FLOOR  # smallest P(q|D), where lambda is 0
        self.chosen: ChosenTable | None = None
        self.table_beside: Path | None = None  # the saved table, where checkpoints need not hold it
        self._learned: dict[str, Any] = {}  # of a checkpoint, until its table is read
        self._background: tuple[ForwardIndex, np.ndarray] | None = None

    def needs(self) -> DataNeeds:
        return DataNeeds((self.field,), train="development", depth=self.rerank_depth)

    @property
    def is_trained(self) -> bool:
        return self.chosen is not None

    # --- choice of a table

    def choose_table(
        self, learned: Translations, batch: DevelopmentBatch, thresholds: tuple[float, ...], first_step: int = 0
    ) -> ChosenTable:
        """Return the table of the settings that are best on the development queries; log each trial."""
        grid = self.given._replace(thresholds=self.given.thresholds or thresholds)
        trials: list[TableTrial] = []
        best = tune_table(learned, self._judged(batch), grid, trials.append)
        self._log_trials(batch.field, trials, first_step)
        others = others_rescaled(learned.pruned(best.settings.threshold))
        table = with_self_translation(others, best.settings.p_self)
        return ChosenTable(batch.field, batch.vocabulary, table, best.settings, best.mrr)

    def choose_smoothing(
        self, table: TranslationTable, batch: DevelopmentBatch, also: float | None = None
    ) -> ChosenTable:
        """Return a table that is final already with the best lambda; `also` is tried, too, before the others."""
        given = self.given.smoothing
        grid = given if also is None or len(given) == 1 else tuple(dict.fromkeys((also, *given)))
        trials: list[TableTrial] = []
        best = tune_smoothing(table, self._judged(batch), grid, trials.append, self.floor)
        self._log_trials(batch.field, trials)
        return ChosenTable(batch.field, batch.vocabulary, table, best.settings, best.mrr)

    def use(self, chosen: ChosenTable) -> None:
        """Rank with this table from now on."""
        self.chosen, self.field, self.table_beside = chosen, chosen.field, None

    def _judged(self, batch: DevelopmentBatch) -> JudgedQueries:
        return JudgedQueries(batch.forward, batch.queries, batch.task, batch.first_stage if self.fused else None)

    def _log_trials(self, field: str, trials: Sequence[TableTrial], first_step: int = 0) -> None:
        for step, trial in enumerate(trials, start=first_step):
            settings = {f"tune/{name}": value for name, value in found_settings(trial.settings).items()}
            self.log_metrics(step, {**settings, f"tune/mrr_{field}": trial.mrr})

    # --- scoring

    def score(self, batch: RankingBatch) -> np.ndarray:
        table, settings = self._chosen.table, self._chosen.settings
        background = self._collection_probability(batch.forward)
        scores = model1_scores(table, *batch[:3], settings.smoothing, background, self.floor)
        return per_query_token(scores, batch.queries, batch.candidates)

    def evidence(self, batch: RankingBatch) -> list[Evidence]:
        background, smoothing = self._collection_probability(batch.forward), self._chosen.settings.smoothing
        evidence = []
        for query, document in batch.pairs():
            translation = (1 - smoothing) * table_translation(self._chosen.table, query, document)
            prior = smoothing * np.where(query >= 0, background[query], UNSEEN)
            evidence.append(model1_evidence(translation, prior, 0.0 if smoothing else self.floor, len(query)))
        return evidence

    @property
    def _chosen(self) -> ChosenTable:
        if self.chosen is None:
            raise UserError("there is no translation table: train this ranker, or load it by load_from_checkpoint")
        return self.chosen

    def _collection_probability(self, forward: ForwardIndex) -> np.ndarray:
        if self._background is None or self._background[0] is not forward:
            self._background = (forward, collection_probability(forward))
        return self._background[1]

    # --- checkpoint and files

    def learned(self) -> dict[str, Any]:
        """Return the table with its settings; of a table that stands beside the checkpoint only its hash."""
        if self.chosen is None:
            return {}
        field, vocabulary, table, settings, mrr = self.chosen
        rest = {"field": field, "settings": settings._asdict(), "mrr": mrr, "floor": self.floor}
        if self.table_beside is not None:
            return {"sha256": read_meta(self.table_beside)["sha256"][TABLE], **rest}
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in (*table.rows, table.probabilities)]
        return {"table": tensors, "vocabulary": vocabulary, **rest}

    def load_learned(self, learned: dict[str, Any]) -> None:
        self._learned, self.chosen = learned, None
        if "table" in learned:
            offsets, document_tokens, probabilities = (tensor.cpu().numpy() for tensor in learned["table"])
            table = TranslationTable(Ragged(offsets, document_tokens), probabilities)
            self._restore(table, learned["vocabulary"])

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *options: Any, **settings: Any) -> Any:
        """Load a checkpoint; that of a run's folder has its table beside it, in the folder `table/`."""
        ranker = super().load_from_checkpoint(checkpoint_path, *options, **settings)
        if "sha256" in ranker._learned:
            folder = Path(checkpoint_path).parent.parent / TABLE_FOLDER
            saved = load_table(folder)
            if saved.meta["sha256"][TABLE] != ranker._learned["sha256"]:
                raise UserError(f"{folder} is not the table of {checkpoint_path}")
            ranker._restore(saved.table, saved.vocabulary)
        return ranker

    def _restore(self, table: TranslationTable, vocabulary: list[str]) -> None:
        learned, self._learned = self._learned, {}
        self.floor, settings = learned["floor"], TableSettings(**learned["settings"])
        self.use(ChosenTable(learned["field"], vocabulary, table, settings, learned["mrr"]))

    def check_vocabulary(self, vocabulary: list[str]) -> None:
        if self.chosen is not None and self.chosen.vocabulary != vocabulary:
            raise UserError(
                f"the translation table was made for other tokens than the field {self.field} has: "
                "give the same --data settings, or train this ranker again"
            )

    def findings(self) -> dict[str, float]:
        return found_settings(self._chosen.settings)

    def source(self) -> dict[str, Any]:
        """Return what produced the table, for its meta.json."""
        return {"ranker": type(self).__name__}

    def scored_with(self) -> dict[str, float]:
        """Return lambda, and the floor where lambda is 0, for the table's meta.json."""
        smoothing = self._chosen.settings.smoothing
        return {"smoothing": smoothing} if smoothing else {"smoothing": smoothing, "floor": self.floor}

    def save_artifacts(self, folder: Path) -> None:
        """Write the table; checkpoints that are saved from now on belong into `folder`/checkpoints."""
        self.save_table(folder / TABLE_FOLDER)
        self.table_beside = folder / TABLE_FOLDER

    def save_table(self, folder: Path) -> None:
        parameters = found_settings(self._chosen.settings)
        del parameters["smoothing"]
        meta = {
            "field": self._chosen.field,
            "source": self.source(),
            "parameters": parameters,
            "scored_with": self.scored_with(),
            "development_mrr": self._chosen.mrr,
        }
        save_table(self._chosen.table, self._chosen.vocabulary, meta, folder)


def found_settings(settings: TableSettings) -> dict[str, float]:
    """Return the settings that the table has, by name; those of a table made elsewhere are NaN."""
    return {name: value for name, value in settings._asdict().items() if math.isfinite(value)}
