"""The data modules: what `--data NAME` chooses, and what the trainer and the rankers get from it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

import lightning as L
import numpy as np
from torch.utils.data import ConcatDataset

from datamodules.batches.bitext_blocks import BitextBlocks
from datamodules.batches.epoch_loader import EpochLoader, ready_made
from datamodules.batches.training_pairs import TrainingPairs
from datamodules.cached_step import fingerprint
from datamodules.candidates.dense import DenseSettings
from datamodules.candidates.samples import TEST_CPU, TRAIN_FUSION_CPU
from datamodules.preparation import Preparation
from datamodules.ranked_sets import RankedSets
from datamodules.text.analysis import LOOKUP, AnalysisSettings
from datamodules.text.expansion import ExpandedTexts, existing_file
from datamodules.text.prepared_fields import PreparationSettings, PreparedFields, TextSource
from datamodules.text.query_sets import DEVELOPMENT, SPLIT_SEED, TEST, TRAIN_FUSION, TRAIN_MODELING, SplitSizes
from datamodules.text.sources import IrDatasetsSource, Source, existing_folder, folder_source, official_source
from datamodules.text.text_folder import FileTexts, PyDocsTexts
from lexical.batches import Loader, Needs, QuerySample, RankingBatch, TuningBatch, ValidationBatch
from lexical.bm25 import normalised_bm25
from lexical.encoders import PACKAGED
from lexical.errors import UserError, require
from lexical.index.ragged import ragged
from lexical.ranking.order import RankedTask

T = TypeVar("T")


class RetrievalData(RankedSets, L.LightningDataModule):
    """Collection, query sets, fields, first stage and candidates of one data set.

    Args:
        name: folder name under the cache and the outputs.
        texts: where collection and queries come from.
        cache_dir: prepared data goes here.
        workers: processes that tokenise; 0 means one a core.
        depth: candidates kept for each query.
        k1: BM25 parameter of the first stage; tuned on development when not given.
        b: BM25 parameter of the first stage; tuned on development when not given.
        candidates: a TREC run (or a folder with QUERY_SET.run) to use instead of the first stage.
        expansion: a file of lines "document id, tab, text" (gz accepted), such as predicted queries, which are put
            behind the documents in all fields that are indexed (max_doc_tokens counts both). BERT rankers read the
            documents without it.
        first_stage: "bm25", "dense" (vectors of an encoder), or "hybrid": both, fused by rank.
        dense_encoder: whose mean-pooled vectors are searched: "packaged", a Hugging Face name, or a folder.
        dense_pieces: word pieces of a document or query that this encoder reads.
        max_doc_tokens: tokens of a document that are indexed, per field; all when not given.
        spacy_model: "lookup" (needs no model), or an installed pipeline such as en_core_web_sm.
        tokenizer: of the field bwps: "packaged", a folder with tokenizer.json, or a Hugging Face name.
    """

    def __init__(
        self,
        name: str,
        texts: TextSource,
        cache_dir: str = "cache",
        workers: int = 0,
        depth: int = 1000,
        k1: float | None = None,
        b: float | None = None,
        candidates: str | None = None,
        expansion: str | None = None,
        first_stage: Literal["bm25", "dense", "hybrid"] = "bm25",
        dense_encoder: str = PACKAGED,
        dense_pieces: int = 128,
        max_doc_tokens: int | None = None,
        spacy_model: str = LOOKUP,
        tokenizer: str = PACKAGED,
    ) -> None:
        super().__init__()
        require(depth >= 1, "--data.depth", depth, "1 or more")
        require(workers >= 0, "--data.workers", workers, "0 (one a core) or more")
        require(max_doc_tokens is None or max_doc_tokens >= 1, "--data.max_doc_tokens", max_doc_tokens, "1 or more")
        require(k1 is None or k1 >= 0, "--data.k1", k1, "0 or more")
        require(b is None or 0 <= b <= 1, "--data.b", b, "between 0 and 1")
        require(3 <= dense_pieces <= 512, "--data.dense_pieces", dense_pieces, "from 3 to 512")
        settings = PreparationSettings(
            analysis=AnalysisSettings(spacy_model, tokenizer, max_doc_tokens),
            k1=k1,
            b=b,
            depth=depth,
            candidates=None if candidates is None else Path(candidates).expanduser(),
            first_stage=first_stage,
            dense=DenseSettings(dense_encoder, dense_pieces),
            workers=workers,
        )
        self.name: str = name
        if settings.candidates is not None and not settings.candidates.exists():
            raise UserError(f"--data.candidates: there is no file or folder {settings.candidates}")
        cache = Path(cache_dir).expanduser()
        self.unexpanded = PreparedFields(name, texts, settings, cache)
        if expansion is not None:
            texts = ExpandedTexts(self.unexpanded, existing_file("--data.expansion", expansion))
        self.prepared = Preparation(name, texts, settings, cache)
        if expansion is None:
            self.unexpanded = self.prepared
        self.needs: Needs | None = None  # of the ranker that is to be trained; see `serve`

    def serve(self, needs: Needs) -> None:
        """What the ranker that is to be trained asks for."""
        self.needs = needs

    def prepare_data(self) -> None:
        """Everything on disk that training and ranking need; runs in one process, before any other starts."""
        for field in self.needs.fields if self.needs else ():
            self.prepared.field(field)
            self.sequences(field)
        for query_set in self.prepared.ranked_sets:
            self.prepared.candidates(query_set)
        if self.needs and self.needs.pairs:
            self.prepared.negatives(self.needs.pairs.negatives_from)
        self.prepared.forget_encoder()

    # --- what rankers get

    def train_dataloader(self) -> Any:
        return self._loader(self._asked.train)

    def val_dataloader(self) -> Any:
        return [] if self._asked.validation is None else self._loader(self._asked.validation)

    @property
    def _asked(self) -> Needs:
        if self.needs is None:
            raise ValueError("say first what the ranker needs: serve(ranker.needs())")
        return self.needs

    @property
    def _share(self) -> tuple[int, int]:
        """(this process, all processes) of the training."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _loader(self, kind: Loader) -> Any:
        fields = self._asked.fields
        if kind == "pool":
            return ready_made([self._tuning_batch(field, self.prepared.tuning_task()) for field in fields])
        if kind == "development":
            task = self.prepared.ranked_task(DEVELOPMENT, self._asked.depth)
            return ready_made([self._tuning_batch(field, task) for field in fields])
        if kind == "pairs":
            return self._pair_loader(fields[0])
        if kind == "sample":
            return ready_made([self.validation_batch(fields[0], self._share)])
        if kind == "fusion":
            sets = (TRAIN_FUSION, TRAIN_FUSION_CPU) if self._asked.sampled else (TRAIN_FUSION,)
            return ready_made([self.fusion_batch(name, fields, self._asked.depth) for name in sets])
        blocks = [BitextBlocks(self.prepared, field, self._asked.bitext, self._share) for field in fields]
        return ready_made(ConcatDataset(blocks))

    def _pair_loader(self, field: str) -> EpochLoader[Any]:
        options, prepared = self._asked.pairs, self.prepared
        assert options is not None
        queries, depth = prepared.query_tokens(TRAIN_MODELING, field), options.negatives_from
        relevant = prepared.relevant_found(depth) if options.found_only else self.query_set(TRAIN_MODELING).relevant
        forward = prepared.field(field).forward
        negatives = prepared.negatives(depth)
        pairs = TrainingPairs(forward, queries, relevant, negatives, options, self._share, self.sequences(field))
        trainer = self.trainer

        def position() -> tuple[int, int]:
            if trainer is None:
                return 0, 0
            return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready

        return EpochLoader(lambda epoch, number: options.collate(pairs.batch(epoch, number)), len(pairs), position)

    def validation_batch(self, field: str, share: tuple[int, int] = (0, 1)) -> ValidationBatch:
        """Development queries of this process: every query belongs to exactly one."""
        sample = self.needs.sample if self.needs else QuerySample()
        task = self.prepared.ranked_task(DEVELOPMENT, sample.depth)
        drawn = np.random.default_rng(SPLIT_SEED).permutation(task.candidates.rows)[: sample.queries]
        numbers = np.sort(drawn)[share[0] :: share[1]]
        tokens = self.prepared.query_tokens(DEVELOPMENT, field)
        mine = np.isin(task.candidates.row_numbers(), numbers)
        queries, candidates = (ragged([rows.row(i) for i in numbers], np.int32) for rows in (tokens, task.candidates))
        ranking = RankingBatch(self.prepared.field(field).forward, queries, candidates, self.sequences(field))
        return ValidationBatch(ranking, numbers, task.relevant[mine], task.id_order)

    def _tuning_batch(self, field: str, task: RankedTask) -> TuningBatch:
        prepared, first = self.prepared, self.prepared.settings.first_stage_field
        bm25 = normalised_bm25(
            prepared.field(first).forward,
            prepared.query_tokens(DEVELOPMENT, first),
            task.candidates,
            prepared.first_stage_parameters,
        )
        own = prepared.field(field)
        queries = prepared.query_tokens(DEVELOPMENT, field)
        return TuningBatch(field, own.vocabulary(), own.forward, queries, task, bm25)

    def fingerprint(self) -> str:
        """Equal for two runs that rank the same candidates of the same data."""
        prepared = self.prepared
        steps = [prepared.candidate_folder(name).name for name in prepared.ranked_sets]
        field = prepared.field_folder(prepared.settings.first_stage_field)
        return fingerprint([prepared.folder.name, field.name, prepared.first_stage_parameters, steps])

    def evaluation_sets(self, sampled: bool = False) -> list[str]:
        """test, the further judged sets and the sample of test; `sampled`: that sample alone."""
        others = (TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT, TEST)
        whole = [] if sampled else [TEST, *(name for name in self.prepared.query_sets if name not in others)]
        return [*whole, TEST_CPU]


class PyDocs(RetrievalData):
    """The embedded data: docstrings of the packages in requirements.txt.

    Args:
        granularity: "passage" (the docstring) or "page" (the class or module it stands in).
    """

    def __init__(self, granularity: Literal["passage", "page"] = "passage", workers: int = 0, **kwargs) -> None:  # type: ignore[no-untyped-def]
        name = {"passage": "pydocs_passage", "page": "pydocs_doc"}[granularity]
        super().__init__(name, PyDocsTexts(granularity, workers), workers=workers, **kwargs)


class Folder(RetrievalData):
    """Any folder in the MS MARCO layout.

    Args:
        path: the folder with collection.tsv, queries.{train,dev,test}.tsv and qrels.{train,dev,test}.tsv.
        train_fusion_queries: training queries that learn fusion weights (default: 10%, at most 20,000).
        development_queries: queries to tune on (default: all of dev, or half of it where there is no test).
        test_queries: queries to measure on (default: all of test, or the other half of dev).
    """

    def __init__(  # type: ignore[no-untyped-def]
        self,
        path: str | None = None,
        train_fusion_queries: int | None = None,
        development_queries: int | None = None,
        test_queries: int | None = None,
        **kwargs,
    ) -> None:
        folder = existing_folder(path)
        digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:6]
        sizes = _sizes(train_fusion_queries, development_queries, test_queries)
        texts = FileTexts(folder_source(folder), "collection.tsv", sizes)
        base = re.sub(r"[^\w.-]", "_", folder.resolve().name)
        super().__init__(f"folder-{base}-{digest}", texts, **kwargs)


class MSMarco(RetrievalData):
    """MS MARCO v1 with TREC DL 2019/2020: the official files of a local folder, or ``ir_datasets``.

    Args:
        kind: "passage" or "document".
        path: folder of the official files (gz accepted); without it ir_datasets downloads them.
        train_fusion_queries: training queries that learn fusion weights.
        development_queries: queries to tune on.
        test_queries: queries to measure on.
    """

    def __init__(  # type: ignore[no-untyped-def]
        self,
        kind: Literal["passage", "document"] = "passage",
        path: str | None = None,
        train_fusion_queries: int | None = None,
        development_queries: int | None = None,
        test_queries: int | None = None,
        **kwargs,
    ) -> None:
        source: Source = IrDatasetsSource(f"msmarco-{kind}")
        if path is not None:
            source = official_source(existing_folder(path), kind)
        sizes = _sizes(train_fusion_queries, development_queries, test_queries)
        name = {"passage": "msmarco_passage", "document": "msmarco_doc"}[kind]
        super().__init__(name, FileTexts(source, f"MS MARCO {kind} collection", sizes), **kwargs)


def _sizes(train_fusion: int | None, development: int | None, test: int | None) -> SplitSizes:
    sizes = SplitSizes(train_fusion, development, test)
    for name, size in sizes._asdict().items():
        require(size is None or size >= 1, f"--data.{name}_queries", size, "1 or more")
    return sizes
