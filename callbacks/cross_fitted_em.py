"""EM as the prior of a ranker: the table of all training queries, cross-fitted ones, and hard negatives.

    cache/<data>/<fingerprint>/em-<hash>/   whole/, fold-0/, fold-1/, ...      translation tables
                                            fold.npy, negatives.*.npy           of the training queries
                                            prior.json                          settings chosen on development

EM draws nothing at random, so all seeds of a ranker share this folder: the first training makes it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import lightning as L
import numpy as np

from datamodules.cached_step import cached_step, code_version, fingerprint
from lexical.batches import DevelopmentBatch, RankerData
from lexical.errors import UserError
from lexical.index.array_file import map_array
from lexical.index.ragged import Ragged
from lexical.model1.bitext import BitextOptions
from lexical.model1.cross_fitting import (
    CrossFitted,
    cross_fitted_scores,
    fold_of,
    hard_negatives,
    learn_translations,
    prepared_table,
)
from lexical.model1.scorer import model1_scores, per_query_token
from lexical.model1.table import Translations, TranslationTable
from lexical.model1.table_files import load_table, save_table
from lexical.model1.tuning import JudgedQueries, TableSettings, tune_table
from lexical.ranking.fusion import TRIAL_WEIGHTS, trial_reciprocal_ranks
from lexical.small_files import read_json, write_json
from lexical.terminal import say

if TYPE_CHECKING:
    from lightning_modules.neural_model1.em_prior import NeuralModel1EM

FOLD_SEED = 1  # the folds do not depend on the seed of the training
REPORT = "prior.json"
CODE = [f"lexical.model1.{name}" for name in ("bitext", "cross_fitting", "em", "scorer", "table", "tuning")]
CODE += ["callbacks.cross_fitted_em", "lexical.ranking.fusion"]


class PriorOptions(NamedTuple):
    """How the prior is learned, and which negatives are hard."""

    bitext: BitextOptions
    iterations: int  # of EM
    folds: int  # of the training queries
    candidates: int  # of the first stage for each training query
    negatives_from: int  # the best of these, by BM25 and EM
    depth: int  # candidates of a development query
    fused: bool  # settings are chosen by the MRR of the fusion with the first stage


class CrossFittedEM(L.Callback):
    """When fitting begins: runs EM, or takes its result from the cache, and gives it to the ranker."""

    def __init__(self, options: PriorOptions) -> None:
        self.options = options

    def setup(self, trainer: L.Trainer, pl_module: NeuralModel1EM, stage: str) -> None:  # type: ignore[override]  # noqa: ARG002
        if stage != "fit":
            return
        data, field = pl_module.data, pl_module.field
        tokens = data.sequences_folder(field)
        parameters = {
            "data": data.fingerprint(), "field": field, "tokens": tokens.name, "options": self.options,
            "code": code_version(CODE),
        }  # fmt: skip
        folder = tokens.with_name(f"em-{fingerprint(parameters)}")
        # every process may build it: the others wait for its lock, as a collective gives up after half an hour
        cached_step(folder, lambda target: learn_prior(data, field, self.options, target), "EM", parameters)
        fitted = load_prior(folder, data.vocabulary(field))
        say(f"prior by EM: {_described(fitted)}, development MRR {read_json(folder / REPORT)['mrr']:.4f}")
        pl_module.use_prior(fitted)


def learn_prior(data: RankerData, field: str, options: PriorOptions, folder: Path) -> None:
    """Run EM on all training queries, choose its settings, run it again for each fold, and look for hard negatives."""
    training, vocabulary = data.training_queries(field, options.candidates), data.vocabulary(field)
    fold = fold_of(training.queries.rows, options.folds, FOLD_SEED)
    (batch,) = data.development_batches((field,), options.depth)
    judged = JudgedQueries(batch.forward, batch.queries, batch.task, batch.first_stage if options.fused else None)

    def learn(name: str, queries: np.ndarray | None) -> Translations:
        started, blocks = time.perf_counter(), data.bitext(field, options.bitext, queries)
        learned = learn_translations(
            lambda: (blocks[number].bitext for number in range(len(blocks))), len(vocabulary), options.iterations
        )
        say(f"EM ({name}): {len(learned.rows.values):,} pairs, {time.perf_counter() - started:.0f} s")
        return learned

    def save(table: TranslationTable, name: str) -> TranslationTable:
        save_table(table, vocabulary, {"field": field, "source": {"ranker": "Model 1 by EM"}}, folder / name)
        return table

    learned = learn("all training queries", None)
    best = tune_table(learned, judged)
    whole = save(prepared_table(learned, best.settings), "whole")
    del learned
    tables = []
    for number in range(options.folds):  # no name for what EM has learned: memory holds one such result
        others, name = np.flatnonzero(fold != number), f"without fold {number + 1} of {options.folds}"
        tables.append(save(prepared_table(learn(name, others), best.settings), f"fold-{number}"))
    weight = _fusion_weight(whole, batch, judged, best.settings.smoothing)
    scores = cross_fitted_scores(tables, fold, training, best.settings.smoothing)
    negatives = hard_negatives(training, (1 - weight) * training.first_stage + weight * scores, options.negatives_from)
    np.save(folder / "fold.npy", fold)
    np.save(folder / "negatives.offsets.npy", negatives.offsets)
    np.save(folder / "negatives.rows.npy", negatives.values.astype(np.int32))
    report = {"settings": best.settings._asdict(), "mrr": best.mrr, "weight": weight, "folds": options.folds}
    write_json(folder / REPORT, report)


def _fusion_weight(table: TranslationTable, batch: DevelopmentBatch, judged: JudgedQueries, smoothing: float) -> float:
    """Return the weight of Model 1, of a few, with the best fused MRR on development."""
    scores = model1_scores(table, batch.forward, batch.queries, batch.task.candidates, smoothing)
    alone = per_query_token(scores, batch.queries, batch.task.candidates)
    return TRIAL_WEIGHTS[int(trial_reciprocal_ranks(judged.task, batch.first_stage, alone).mean(axis=0).argmax())]


def load_prior(folder: Path, vocabulary: list[str]) -> CrossFitted:
    """Read what `learn_prior` has written."""
    report = read_json(folder / REPORT)
    names = ["whole", *(f"fold-{number}" for number in range(report["folds"]))]
    tables = [load_table(folder / name) for name in names]
    if any(table.vocabulary != vocabulary for table in tables):
        raise UserError(f"{folder} has tables of other tokens: remove it")
    whole, *without = (table.table for table in tables)
    negatives = Ragged(*(map_array(folder / f"negatives.{part}.npy") for part in ("offsets", "rows")))
    settings = TableSettings(**report["settings"])
    return CrossFitted(whole, without, np.load(folder / "fold.npy"), negatives, settings, report["weight"])


def _described(fitted: CrossFitted) -> str:
    settings = ", ".join(f"{name} {value:g}" for name, value in fitted.settings._asdict().items())
    usable = np.count_nonzero(fitted.negatives.lengths())
    return f"{settings}, {fitted.whole.entries:,} entries, {usable:,} of {fitted.negatives.rows:,} queries to train on"
