"""All prepared data of one collection, step by step, each step cached on disk (see `cached_step`).

    cache/<data>/<fingerprint>/texts        collection (Arrow), query sets, what was left out and why
                               fields-*     tokens and forward index of the fields, and the queries' tokens
                               tuning-*     k1 and b of the first stage
                               index-*      bm25s index of the first stage
                               candidates-* top documents of each query set, as TREC runs and arrays
                               dense-*      faiss index of the documents' vectors, where it is asked for
                               negatives-*  sampled negative documents of the training queries

Free of Lightning, and of torch but for the dense first stage; `RetrievalData` is its thin face towards the trainer.
"""

from __future__ import annotations

import json
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.cached_step import cached_step, code_version, fingerprint
from datamodules.candidates.candidate_sets import (
    CandidateSet,
    external_candidates,
    open_candidates,
    retrieve,
    sample_negatives,
    write_candidates,
)
from datamodules.candidates.dense import FLAG, DenseEncoder, DenseIndex, recall, retrieve_dense
from datamodules.text.analysis import WORD_PIECES
from datamodules.text.prepared_fields import BM25, PreparedFields
from datamodules.text.query_sets import DEVELOPMENT, SPLIT_SEED, TRAIN_MODELING
from lexical.bm25 import BM25Parameters, Trial, search_space, tune
from lexical.encoders import encoder_identity
from lexical.index.array_file import map_array
from lexical.index.ragged import Ragged
from lexical.index.retrieval import RetrievalIndex
from lexical.ranking.fusion import reciprocal_rank_fusion
from lexical.ranking.order import RankedTask
from lexical.terminal import progress_bar, say

_CANDIDATE_CODE = ["datamodules.candidates.candidate_sets", "lexical.ranking.trec_run", "lexical.ranking.order"]
RECALL = "recall.json"
NEGATIVES, NEGATIVES_FROM = 20, 500  # "20 negative examples selected from a set of top-500 candidates"


class Preparation(PreparedFields):
    """Texts and fields, and all that is found and drawn from them."""

    @cached_property
    def first_stage_parameters(self) -> BM25Parameters:
        """k1 and b of the first stage: as given, or tuned on development over the candidates of an untuned index."""
        settings = self.settings
        if settings.k1 is not None and settings.b is not None:
            return BM25Parameters(settings.k1, settings.b)
        parameters = {
            "field": settings.first_stage_field,
            "k1": settings.k1,
            "b": settings.b,
            "depth": settings.depth,
            "candidates": self.external_identity(),
            "code": code_version(["lexical.bm25", "lexical.ranking.order", "lexical.index.retrieval"]),
            "tokens": self.field_folder(settings.first_stage_field).name,
        }

        def build(folder: Path) -> None:
            trials: list[Trial] = []
            with progress_bar() as bar:
                row = bar.add_task("tune k1 and b", total=None)

                def record(trial: Trial) -> None:
                    trials.append(trial)
                    bar.advance(row)

                best = tune(
                    self.field(settings.first_stage_field).forward,
                    self.query_tokens(DEVELOPMENT, settings.first_stage_field),
                    self.tuning_task(),
                    record,
                    *search_space(settings.k1, settings.b),
                )
            report = {**best._asdict(), "trials": [(*trial.parameters, trial.mrr) for trial in trials]}
            (folder / "tuned.json").write_text(json.dumps(report, indent=1) + "\n")

        place = self.folder / f"tuning-{fingerprint(parameters)}"
        folder = cached_step(place, build, f"{self.name}: k1 and b of BM25 ({settings.first_stage_field})", parameters)
        tuned = json.loads((folder / "tuned.json").read_text())
        return BM25Parameters(tuned["k1"], tuned["b"])

    def tuning_task(self) -> RankedTask:
        """Development queries with the candidates that parameters are tuned on: those of an untuned first stage."""
        if self.settings.candidates is not None:
            return self.ranked_task(DEVELOPMENT, self.settings.depth)
        pool = open_candidates(self._candidate_folder(BM25Parameters(), (DEVELOPMENT,)), DEVELOPMENT)
        return self._task(DEVELOPMENT, pool)

    def candidates(self, query_set: str) -> CandidateSet:
        """Top documents of every query of the set, best first."""
        return open_candidates(self.candidate_folder(query_set), query_set)

    def candidate_folder(self, query_set: str) -> Path:
        key = ("candidates", query_set)
        if key not in self._folders:
            if self.settings.candidates is not None:
                self._folders[key] = self._external_folder(query_set)
            elif self.settings.first_stage == BM25:
                self._folders[key] = self._candidate_folder(self.first_stage_parameters, self.ranked_sets)
            else:
                self._folders[key] = self._mixed_folder(self.ranked_sets)
            lengths = open_candidates(self._folders[key], query_set).candidates.lengths()
            if empty := np.count_nonzero(lengths == 0):
                say(f"{query_set}: queries without any candidate, which count as 0: {empty:,}")
        return self._folders[key]

    @cached_property
    def ranked_sets(self) -> tuple[str, ...]:
        """Query sets that get full candidate lists: all but train_modeling."""
        return tuple(name for name in self.query_sets if name != TRAIN_MODELING)

    def ranked_task(self, query_set: str, depth: int) -> RankedTask:
        found = self.candidates(query_set)
        return self._task(query_set, CandidateSet(found.candidates.head(depth), found.scores))

    def negatives(self, depth: int = NEGATIVES_FROM) -> np.ndarray:
        """(train_modeling queries, 20) document rows of the `depth` best candidates, -1 where a query has fewer that
        are not relevant."""
        return map_array(self._training_documents(depth) / "rows.npy")

    def relevant_found(self, depth: int = NEGATIVES_FROM) -> Ragged:
        """The relevant documents of train_modeling that are among the `depth` best candidates."""
        relevant = self.query_sets[TRAIN_MODELING].relevant
        return relevant.select(map_array(self._training_documents(depth) / "found.npy"))

    def _training_documents(self, depth: int) -> Path:
        external = self.settings.candidates is not None
        parameters = {
            "from": self.candidate_folder(TRAIN_MODELING).name if external else self._indexes(),
            "depth": depth,
            "count": NEGATIVES,
            "files": ["rows", "found"],
            "seed": SPLIT_SEED,
            "code": code_version(["datamodules.candidates.candidate_sets"]),
        }

        def build(folder: Path) -> None:
            if external:
                found = self.candidates(TRAIN_MODELING)
                found = CandidateSet(found.candidates.head(depth), found.scores)
            else:
                found = self._retrieved_by_all(TRAIN_MODELING, depth)[self.settings.first_stage]
            relevant = self.query_sets[TRAIN_MODELING].relevant
            np.save(folder / "rows.npy", sample_negatives(found, relevant, SPLIT_SEED, NEGATIVES))
            rows = zip(relevant.values, relevant.row_numbers(), strict=True)
            np.save(folder / "found.npy", np.array([row in found.candidates.row(i) for row, i in rows], bool))

        place = self.folder / f"negatives-{fingerprint(parameters)}"
        return cached_step(place, build, f"{self.name}: negatives", parameters)

    def _retrieved(self, index: RetrievalIndex, query_set: str, depth: int) -> CandidateSet:
        tokens = self.query_tokens(query_set, self.settings.first_stage_field)
        return retrieve(index, tokens, query_set, depth, self.settings.worker_count(), self.collection.id_order)

    def _retrieved_by_all(self, query_set: str, depth: int) -> dict[str, CandidateSet]:
        """What BM25 finds; and where a dense first stage is in use, what it finds and what both find together."""
        found = {BM25: self._retrieved(RetrievalIndex.load(self._tuned_index()), query_set, depth)}
        if self.settings.first_stage != BM25:
            encoder, tokens = self._dense_encoder, self.query_tokens(query_set, WORD_PIECES)
            found["dense"] = retrieve_dense(encoder, DenseIndex.load(self._dense_index()), tokens, query_set, depth)
            both = [one.candidates for one in found.values()]
            fused = reciprocal_rank_fusion(both, depth, len(self.collection), np.asarray(self.collection.id_order))
            found["hybrid"] = CandidateSet(*fused)
        return found

    def _tuned_index(self) -> Path:
        return self.index_folder(self.first_stage_parameters)

    def _indexes(self) -> Any:
        """What decides which documents are found."""
        dense = [] if self.settings.first_stage == BM25 else [self.settings.first_stage, self._dense_index().name]
        return [self._tuned_index().name, *dense]

    @cached_property
    def _dense_encoder(self) -> DenseEncoder:
        return DenseEncoder(self.settings.dense, self.field(WORD_PIECES).vocabulary())

    def forget_encoder(self) -> None:
        """Frees the dense encoder; it is loaded again where it is needed."""
        self.__dict__.pop("_dense_encoder", None)

    def _dense_index(self) -> Path:
        parameters = {
            "tokens": self.field_folder(WORD_PIECES).name,
            "encoder": [*encoder_identity(FLAG, self.settings.dense.encoder), self.settings.dense.pieces],
            "code": code_version(["datamodules.candidates.dense"]),
        }

        def build(folder: Path) -> None:
            DenseIndex.build(self._dense_encoder, self.field(WORD_PIECES).sequences, folder)

        place = self.folder / f"dense-{fingerprint(parameters)}"
        return cached_step(place, build, f"{self.name}: vectors of the documents", parameters)

    def _mixed_folder(self, query_sets: tuple[str, ...]) -> Path:
        """Candidates of a dense or hybrid first stage, with the recall of each beside BM25's."""
        kind = self.settings.first_stage
        parameters = {
            "indexes": self._indexes(),
            "query_sets": query_sets,
            "depth": self.settings.depth,
            "code": code_version([*_CANDIDATE_CODE, "datamodules.candidates.dense", "lexical.ranking.fusion"]),
        }

        def build(folder: Path) -> None:
            recalls = {}
            for name in query_sets:
                found, queries = self._retrieved_by_all(name, self.settings.depth), self.query_sets[name]
                write_candidates(found[kind], queries, self.collection, kind, folder)
                depths = sorted({100, self.settings.depth})
                recalls[name] = {one: {k: recall(found[one].candidates, queries.relevant, k) for k in depths}
                                 for one in found}  # fmt: skip
            (folder / RECALL).write_text(json.dumps(recalls, indent=1) + "\n")

        place = self.folder / f"candidates-{kind}-{fingerprint(parameters)}"
        folder = cached_step(place, build, f"{self.name}: {kind} candidates of {', '.join(query_sets)}", parameters)
        for name, one in json.loads((folder / RECALL).read_text())[DEVELOPMENT].items():
            say(f"{name}: " + ", ".join(f"development recall@{depth} {value:.4f}" for depth, value in one.items()))
        return folder

    def _task(self, query_set: str, found: CandidateSet) -> RankedTask:
        candidates, relevant = found.candidates, self.query_sets[query_set].relevant
        documents = len(self.collection)
        judged = relevant.row_numbers() * documents + relevant.values
        pairs = candidates.row_numbers() * documents + candidates.values
        return RankedTask(candidates, np.asarray(self.collection.id_order), np.isin(pairs, judged))

    def index_folder(self, bm25: BM25Parameters) -> Path:
        name = self.settings.first_stage_field
        parameters = {
            "tokens": self.field_folder(name).name,
            "field": name,
            "bm25": bm25,
            "bm25s": version("bm25s"),
            "code": code_version(["lexical.index.retrieval", "lexical.bm25"]),
        }

        def build(folder: Path) -> None:
            RetrievalIndex.build(self.field(name).forward, bm25).save(folder)

        place = self.folder / f"index-{fingerprint(parameters)}"
        return cached_step(place, build, f"{self.name}: BM25 ({name}) index, k1 {bm25.k1:g}, b {bm25.b:g}", parameters)

    def _candidate_folder(self, bm25: BM25Parameters, query_sets: tuple[str, ...]) -> Path:
        parameters = {
            "index": self.index_folder(bm25).name,
            "query_sets": query_sets,
            "depth": self.settings.depth,
            "code": code_version(_CANDIDATE_CODE),
        }

        def build(folder: Path) -> None:
            index = RetrievalIndex.load(self.index_folder(bm25))
            for name in query_sets:
                found = self._retrieved(index, name, self.settings.depth)
                write_candidates(found, self.query_sets[name], self.collection, "bm25", folder)

        place = self.folder / f"candidates-{fingerprint(parameters)}"
        return cached_step(place, build, f"{self.name}: candidates of {', '.join(query_sets)}", parameters)

    def _external_folder(self, query_set: str) -> Path:
        path = self.settings.candidates
        assert path is not None
        parameters = {
            "run": self.external_identity(),
            "query_set": query_set,
            "depth": self.settings.depth,
            "code": code_version(_CANDIDATE_CODE),
        }

        def build(folder: Path) -> None:
            queries = self.query_sets[query_set]
            found, notes = external_candidates(path, queries, self.collection, self.settings.depth)
            write_candidates(found, queries, self.collection, "external", folder)
            (folder / "notes.json").write_text(json.dumps(notes) + "\n")

        place = self.folder / f"candidates-external-{fingerprint(parameters)}"
        folder = cached_step(place, build, f"{self.name}: candidates of {query_set} from {path}", parameters)
        for note in json.loads((folder / "notes.json").read_text()):
            say(note)
        return folder

    def external_identity(self) -> Any:
        path = self.settings.candidates
        if path is None:
            return None
        files = sorted(path.glob("*.run")) if path.is_dir() else [path]
        return [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
