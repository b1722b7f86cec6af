"""The base of all data modules: prepares a collection for a ranker and computes its batches.

A data module asks the ranker that it serves, `trainer.lightning_module`, what it needs (`DataNeeds`). So the same data
module trains, validates and tests any ranker, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch.utils.data import ConcatDataset

from datamodules.batches.bitext_blocks import BitextBlocks
from datamodules.batches.epoch_loader import Batches, EpochLoader
from datamodules.batches.training_pairs import TrainingPairs
from datamodules.cached_step import fingerprint
from datamodules.preparation import Preparation, PreparationSettings
from datamodules.text.analysis import WORD_PIECES
from datamodules.text.expansion import ExpandedTexts
from datamodules.text.query_sets import (
    DEVELOPMENT,
    DEVELOPMENT_CPU,
    SPLIT_SEED,
    SPLIT_SETS,
    TEST,
    TEST_CPU,
    TRAIN_FUSION,
    TRAIN_FUSION_CPU,
    TRAIN_MODELING,
    QuerySet,
)
from datamodules.text.sources import TextSource, existing_path
from lexical.batches import (
    DataNeeds,
    DevelopmentBatch,
    EvaluationBatch,
    EvaluationSet,
    FusionBatch,
    JointBatch,
    RankingBatch,
    TrainingQueries,
    ValidationBatch,
)
from lexical.bm25 import normalised_bm25
from lexical.errors import UserError
from lexical.index.ragged import Ragged
from lexical.model1.bitext import BitextOptions, largest_block
from lexical.ranking.order import RankedTask

QUERIES_PER_RANKING_BATCH = 1024  # the more, the more query tokens they share; their T(q|d) are computed once
SAMPLE_OF = {TRAIN_FUSION: TRAIN_FUSION_CPU, DEVELOPMENT: DEVELOPMENT_CPU}


class RetrievalData(L.LightningDataModule):
    """Collection, query sets, fields, first stage and candidates of one data set.

    Args:
        name: folder name under the cache and the outputs.
        texts: where collection and queries come from.
        cache_dir: prepared data goes here.
        expansion: a file of lines "document id, tab, text" (gz accepted), such as predicted queries, which are appended
            to the documents in all fields that are indexed (max_doc_tokens counts both). BERT rankers read the
            documents without it.
        settings: those of `PreparationSettings`.
    """

    def __init__(
        self, name: str, texts: TextSource, cache_dir: str = "cache", expansion: str | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self.name: str = name  # Lightning's own may be None
        preparation, cache_folder = PreparationSettings(**settings), Path(cache_dir).expanduser()
        self.unexpanded = self.prepared = Preparation(name, texts, preparation, cache_folder)
        if expansion is not None:
            expanded = ExpandedTexts(self.unexpanded, existing_path("--data.expansion", expansion, "file"))
            self.prepared = Preparation(name, expanded, preparation, cache_folder)

    # --- Lightning's hooks

    @property
    def needs(self) -> DataNeeds:
        """What the ranker needs that the trainer was given together with this data."""
        ranker: Any = self.trainer and self.trainer.lightning_module
        if ranker is None:
            raise UserError("batches are made for a ranker: trainer.fit(model, data), trainer.test(model, data), ...")
        return ranker.needs()

    def prepare_data(self) -> None:
        """Put everything on disk that training and ranking need. Runs in one process, before any other starts."""
        needs = self.needs if self.trainer is not None else None
        for field in (*needs.fields, *needs.train_fields) if needs else ():
            self.prepared.field(field)
            self.sequences(field)
        for query_set in self.prepared.ranked_sets:
            self.prepared.candidates(query_set)
        if needs and needs.training_depth:
            self.prepared.training_candidates(needs.training_depth)
        elif needs and needs.pairs:
            self.prepared.negatives(needs.pairs.negatives_from)

    def train_dataloader(self) -> Any:
        needs = self.needs
        fields = needs.train_fields or needs.fields
        if needs.train == "candidates":
            return Batches([self._development_batch(field, self.prepared.tuning_task()) for field in fields])
        if needs.train == "development":
            return Batches(self.development_batches(fields, needs.depth))
        if needs.train == "fusion":
            batches = []
            for name in (TRAIN_FUSION, *([TRAIN_FUSION_CPU] if needs.sampled else [])):
                joint = self._joint_batches(name, needs.fields, needs.depth)
                batches.append(FusionBatch(name, joint, self.ranked_task(name, needs.depth)))
            return Batches(batches)
        if needs.train == "pairs":
            return self._pair_loader(needs)
        assert self.trainer is not None
        largest = self.trainer.strategy.broadcast(largest_block())  # the same blocks on machines of different size
        blocks = [BitextBlocks(self.prepared, field, needs.bitext, self._process, largest) for field in fields]
        return Batches(ConcatDataset(blocks))

    def val_dataloader(self) -> Any:
        """Return a loader of development queries: those of this process, or all of them."""
        needs = self.needs
        if needs.validation is not None:
            return Batches(self.validation_batches(needs, self._process))
        # computed when validation starts: EM chooses the field that it scores when its training ends
        return Batches(lambda: self.evaluation_batches(DEVELOPMENT, self.needs))

    def test_dataloader(self) -> Any:
        """Return a loader for each query set that is evaluated."""
        needs = self.needs
        return [Batches(self.evaluation_batches(name, needs)) for name in self.evaluation_sets(needs.sampled)]

    def predict_dataloader(self) -> Any:
        return self.test_dataloader()

    # --- what rankers use (`RankerData`)

    def vocabulary(self, field: str) -> list[str]:
        """Return the tokens of a field; token i is line i."""
        return self.prepared.field(field).vocabulary()

    def tokens_in_collection(self, field: str) -> np.ndarray:
        """Return (vocabulary,) bool: the tokens that occur in the collection."""
        return np.asarray(self.prepared.field(field).forward.document_frequency > 0)

    def sequences(self, field: str) -> Ragged:
        """Return the documents as an encoder reads them: word pieces without the expansion, which is for the index."""
        return self._unexpanded_pieces(field).field(field).sequences

    def sequences_folder(self, field: str) -> Path:
        """Return the prepared folder of `sequences`."""
        return self._unexpanded_pieces(field).field_folder(field)

    def _unexpanded_pieces(self, field: str) -> Preparation:
        return self.unexpanded if field == WORD_PIECES else self.prepared

    def development_batches(self, fields: Sequence[str], depth: int) -> list[DevelopmentBatch]:
        """Return all development queries with the candidates that will be re-ranked, once per field."""
        task = self.ranked_task(DEVELOPMENT, depth)
        return [self._development_batch(field, task) for field in fields]

    def training_queries(self, field: str, depth: int) -> TrainingQueries:
        """Return all training queries with the `depth` best candidates of the first stage."""
        prepared = self.prepared
        task = prepared.judged(TRAIN_MODELING, prepared.training_candidates(depth).candidates)
        first_stage = self.score_first_stage(self._first_stage_batch(TRAIN_MODELING, task.candidates))
        tokens = prepared.query_tokens(TRAIN_MODELING, field)
        return TrainingQueries(prepared.field(field).forward, tokens, task.candidates, first_stage, task.relevant)

    def bitext(self, field: str, options: BitextOptions, queries: np.ndarray | None = None) -> BitextBlocks:
        """Return the bitext of the training queries (of these rows only), block by block."""
        return BitextBlocks(self.prepared, field, options, (0, 1), largest_block(), queries)

    def evaluation_batches(self, query_set: str, needs: DataNeeds) -> list[EvaluationBatch]:
        """Return a judged query set, batch by batch; its sample for rankers that are measured on samples."""
        name = SAMPLE_OF.get(query_set, query_set) if needs.sampled else query_set
        task, queries = self.ranked_task(name, needs.depth), self.query_set(name)
        evaluation_set = EvaluationSet(
            name, queries.ids, queries.qrels(), queries.graded, queries.relevant_from, task,
            self.prepared.collection.ids, min(needs.depth, self.prepared.depth(name)),
        )  # fmt: skip
        rankings: list[Any] = self._ranking_batches(name, needs.fields[0], needs.depth)
        if needs.joint:
            rankings = self._joint_batches(name, needs.fields, needs.depth)
        sizes = [len(ranking.candidates.values) for ranking in rankings]
        scores = np.split(self.first_stage_scores(name, needs.depth), np.cumsum(sizes)[:-1])
        return [
            EvaluationBatch(evaluation_set, ranking, first_stage, number == len(rankings))
            for number, (ranking, first_stage) in enumerate(zip(rankings, scores, strict=True), start=1)
        ]

    def evaluation_sets(self, sampled: bool = False) -> list[str]:
        """Return test, the further judged sets and the sample of test; with `sampled` that sample alone."""
        complete = [] if sampled else [TEST, *(name for name in self.prepared.query_sets if name not in SPLIT_SETS)]
        return [*complete, TEST_CPU]

    def fingerprint(self) -> str:
        """Return a hash that is equal for two runs that rank the same candidates of the same data."""
        prepared = self.prepared
        steps = [prepared.candidate_folder(name).name for name in prepared.ranked_sets]
        field = prepared.field_folder(prepared.settings.first_stage_field)
        return fingerprint([prepared.folder.name, field.name, prepared.first_stage_parameters, steps])

    # --- training and validation batches

    @property
    def _process(self) -> tuple[int, int]:
        """(rank, number of processes)"""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _pair_loader(self, needs: DataNeeds) -> EpochLoader[Any]:
        options, prepared, field = needs.pairs, self.prepared, needs.fields[0]
        trainer: Any = self.trainer
        assert options is not None
        depth, relevant = options.negatives_from, self.query_set(TRAIN_MODELING).relevant
        if options.retrieved_only:
            relevant = prepared.retrieved_relevant(depth)
        if options.mined is None:
            negatives = prepared.negatives(depth)
        else:
            assert needs.training_depth is not None
            candidates = prepared.training_candidates(needs.training_depth).candidates
            relevant = candidates.select(prepared.judged(TRAIN_MODELING, candidates).relevant)
            negatives = options.mined.padded(-1)
        pairs = TrainingPairs(
            prepared.field(field).forward, prepared.query_tokens(TRAIN_MODELING, field), relevant,
            negatives, options, self._process, self.sequences(field),
        )  # fmt: skip

        def make(epoch: int, number: int) -> Any:
            batch = pairs.batch(epoch, number)
            if not options.first_stage:
                return options.collate(batch)
            first = self._first_stage_batch(TRAIN_MODELING, batch.candidates, batch.rows)
            return options.collate(batch._replace(first_stage=self.score_first_stage(first)))

        def position() -> tuple[int, int]:
            return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready

        return EpochLoader(make, len(pairs), position)

    def validation_batches(self, needs: DataNeeds, process: tuple[int, int] = (0, 1)) -> list[ValidationBatch]:
        """Return the development queries of this process; every query belongs to exactly one process."""
        assert needs.validation is not None
        field, sample = needs.fields[0], needs.validation
        task = self.ranked_task(DEVELOPMENT, sample.depth)
        drawn = np.random.default_rng(SPLIT_SEED).permutation(task.candidates.rows)[: sample.queries]
        own = np.sort(drawn)[process[0] :: process[1]]
        tokens, rows = self.prepared.query_tokens(DEVELOPMENT, field), task.candidates.row_numbers()
        first_stage = self.first_stage_scores(DEVELOPMENT, sample.depth)
        forward, sequences = self.prepared.field(field).forward, self.sequences(field)
        batches = []
        for start in range(0, len(own), QUERIES_PER_RANKING_BATCH):
            queries = own[start : start + QUERIES_PER_RANKING_BATCH]
            pairs, candidates = np.isin(rows, queries), task.candidates.take(queries)
            ranking = RankingBatch(forward, tokens.take(queries), candidates, sequences)
            part = RankedTask(candidates, task.id_order, task.relevant[pairs])
            batches.append(ValidationBatch(ranking, part, first_stage[pairs]))
        return batches

    def _development_batch(self, field: str, task: RankedTask) -> DevelopmentBatch:
        prepared = self.prepared
        first_stage = self.score_first_stage(self._first_stage_batch(DEVELOPMENT, task.candidates))
        forward, queries = prepared.field(field).forward, prepared.query_tokens(DEVELOPMENT, field)
        return DevelopmentBatch(field, self.vocabulary(field), forward, queries, task, first_stage)

    # --- query sets and their candidates; the samples of query sets have names like any other set

    def query_set(self, name: str) -> QuerySet:
        return self.prepared.query_set(name)

    def ranked_task(self, query_set: str, depth: int) -> RankedTask:
        """Return the `depth` best candidates of every query, with what is needed to judge a ranking of them."""
        return self.prepared.ranked_task(query_set, depth)

    @cache  # noqa: B019 - lives as long as the program; every fused row needs it
    def first_stage_scores(self, query_set: str, depth: int) -> np.ndarray:
        """Return (pairs,) BM25 of the first-stage field divided by the sum of query idf values."""
        batches = self.first_stage_batches(query_set, depth)
        scores = np.concatenate([np.zeros(0, np.float32), *map(self.score_first_stage, batches)])
        scores.setflags(write=False)
        return scores

    def first_stage_batches(self, query_set: str, depth: int) -> list[RankingBatch]:
        return self._ranking_batches(query_set, self.prepared.settings.first_stage_field, depth)

    def _first_stage_batch(self, query_set: str, candidates: Ragged, rows: np.ndarray | None = None) -> RankingBatch:
        """Return candidates of the queries of a set (of these rows only) in the field of the first stage."""
        field = self.prepared.settings.first_stage_field
        queries = self.prepared.query_tokens(query_set, field)
        queries = queries if rows is None else queries.take(rows)
        return RankingBatch(self.prepared.field(field).forward, queries, candidates)

    def score_first_stage(self, batch: RankingBatch) -> np.ndarray:
        return normalised_bm25(*batch[:3], self.prepared.first_stage_parameters)

    @cache  # noqa: B019 - timing a row must not time the opening of files
    def _ranking_batches(self, query_set: str, field: str, depth: int) -> list[RankingBatch]:
        tokens, candidates = self.prepared.query_tokens(query_set, field), self.ranked_task(query_set, depth).candidates
        forward, sequences, size = self.prepared.field(field).forward, self.sequences(field), QUERIES_PER_RANKING_BATCH
        return [
            RankingBatch(forward, tokens.rows_between(i, i + size), candidates.rows_between(i, i + size), sequences)
            for i in range(0, candidates.rows, size)
        ]

    def _joint_batches(self, query_set: str, fields: Sequence[str], depth: int) -> list[JointBatch]:
        id_order = np.asarray(self.prepared.collection.id_order)
        by_field = [self._ranking_batches(query_set, field, depth) for field in fields]
        return [JointBatch(dict(zip(fields, rows, strict=True)), id_order) for rows in zip(*by_field, strict=True)]
