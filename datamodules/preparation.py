"""All prepared data of one collection, step by step, each step cached on disk (see `cached_step`).

    cache/<data>/<fingerprint>/texts        collection (Arrow), query sets, what was left out and why
                               fields-*     tokens and forward index of the fields, and the queries' tokens
                               tuning-*     k1 and b of the first stage
                               index-*      bm25s index of the first stage
                               candidates-* top documents of each query set, as TREC runs and arrays
                               negatives-*  sampled negative documents of the training queries

Free of torch and Lightning; `RetrievalData` is its thin face towards the trainer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from datamodules.analysis import SPACY_FIELDS, WORD_PIECES, AnalysisSettings, analyser_identity
from datamodules.cached_step import cached_step, code_version, fingerprint
from datamodules.candidates import (
    CandidateSet,
    external_candidates,
    open_candidates,
    retrieve,
    sample_negatives,
    write_candidates,
)
from datamodules.collection import TABLE, Collection
from datamodules.query_sets import DEVELOPMENT, SPLIT_SEED, TRAIN_MODELING, QuerySet
from datamodules.tokenise import Field, QueryTokeniser, build_fields
from datamodules.worker_pool import cores
from lexical.array_file import map_array
from lexical.bm25 import BM25Parameters, Trial, search_space, tune
from lexical.ragged import Ragged
from lexical.ranking import RankedTask
from lexical.retrieval import RetrievalIndex
from terminal import progress_bar, say

_FIELD_CODE = ["datamodules.analysis", "datamodules.tokenise"]
_FIELD_CODE += ["lexical.forward_index", "lexical.ragged", "lexical.array_file"]
NEGATIVES, NEGATIVES_FROM = 20, 500  # "20 negative examples selected from a set of top-500 candidates"


class TextSource(Protocol):
    """Writes the folder ``texts``: the collection and its query sets."""

    def identity(self) -> Any: ...

    def write(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class PreparationSettings:
    analysis: AnalysisSettings = field(default_factory=AnalysisSettings)
    first_stage_field: str = "lemm"
    k1: float | None = None  # of the first stage; None: tuned on development
    b: float | None = None
    depth: int = 1000  # candidates kept for a query
    candidates: Path | None = None  # an external TREC run instead of the first stage
    workers: int = 0  # processes of the tokenisation; 0: one a core

    def worker_count(self) -> int:
        return self.workers or cores()


class Preparation:
    def __init__(self, name: str, source: TextSource, settings: PreparationSettings, cache_dir: Path) -> None:
        self.name, self.source, self.settings = name, source, settings
        self.folder = cache_dir / name / fingerprint(source.identity())
        self._fields: dict[str, Field] = {}
        self._folders: dict[Any, Path] = {}  # steps that are known to be there: each is checked once a run

    # --- texts

    @cached_property
    def texts(self) -> Path:
        folder = cached_step(self.folder / "texts", self.source.write, f"{self.name}: texts", self.source.identity())
        for note in json.loads((folder / "notes.json").read_text()):
            say(note)
        return folder

    @cached_property
    def collection(self) -> Collection:
        return Collection(self.texts / "collection")

    @cached_property
    def query_sets(self) -> dict[str, QuerySet]:
        names = json.loads((self.texts / "query_sets.json").read_text())
        return {name: QuerySet(self.texts / "query_sets", name) for name in names}

    # --- fields

    def field(self, name: str) -> Field:
        if name not in self._fields:
            for one in SPACY_FIELDS if name in SPACY_FIELDS else (name,):
                self._fields[one] = Field(self.field_folder(name) / one)
        return self._fields[name]

    def query_tokens(self, query_set: str, field: str) -> Ragged:
        folder = self.field_folder(field) / field / "queries"
        return Ragged(map_array(folder / f"{query_set}.offsets.npy"), map_array(folder / f"{query_set}.tokens.npy"))

    def field_folder(self, name: str) -> Path:
        group = SPACY_FIELDS if name in SPACY_FIELDS else (name,)
        if group not in self._folders:
            self._folders[group] = self._built_fields(name, group)
        return self._folders[group]

    def _built_fields(self, name: str, group: tuple[str, ...]) -> Path:
        analysis = self.settings.analysis
        parameters = {
            "fields": group,
            "analyser": analyser_identity(name, analysis),
            "max_doc_tokens": analysis.max_doc_tokens,
            "code": code_version([*_FIELD_CODE, "datamodules.preparation"]),
        }

        documents = self.texts / "collection" / TABLE

        def build(folder: Path) -> None:
            build_fields(documents, len(self.collection), group, analysis, self.settings.worker_count(), folder)
            self._tokenise_queries({one: Field(folder / one) for one in group})

        label = "words and lemmas" if name in SPACY_FIELDS else "word pieces" if name == WORD_PIECES else name
        place = self.folder / f"fields-{group[0]}-{fingerprint(parameters)}"
        return cached_step(place, build, f"{self.name}: {label}", parameters)

    def _tokenise_queries(self, fields: dict[str, Field]) -> None:
        tokeniser = QueryTokeniser(fields, self.settings.analysis)
        for query_set in self.query_sets.values():
            for name, tokens in tokeniser.tokenise(query_set.texts).items():
                folder = fields[name].folder / "queries"
                folder.mkdir(exist_ok=True)
                np.save(folder / f"{query_set.name}.offsets.npy", tokens.offsets)
                np.save(folder / f"{query_set.name}.tokens.npy", tokens.values)

    # --- first stage

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
            "code": code_version(["lexical.bm25", "lexical.ranking", "lexical.retrieval"]),
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
            else:
                self._folders[key] = self._candidate_folder(self.first_stage_parameters, self.ranked_sets)
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

    def negatives(self) -> np.ndarray:
        """(train_modeling queries, 20) document rows, -1 where a query has fewer non-relevant candidates."""
        external = self.settings.candidates is not None
        parameters = {
            "from": self.candidate_folder(TRAIN_MODELING).name if external else self._tuned_index().name,
            "depth": NEGATIVES_FROM,
            "count": NEGATIVES,
            "seed": SPLIT_SEED,
            "code": code_version(["datamodules.candidates"]),
        }

        def build(folder: Path) -> None:
            if external:
                found = self.candidates(TRAIN_MODELING)
                found = CandidateSet(found.candidates.head(NEGATIVES_FROM), found.scores)
            else:
                found = self._retrieved(RetrievalIndex.load(self._tuned_index()), TRAIN_MODELING, NEGATIVES_FROM)
            relevant = self.query_sets[TRAIN_MODELING].relevant
            np.save(folder / "rows.npy", sample_negatives(found, relevant, SPLIT_SEED, NEGATIVES))

        place = self.folder / f"negatives-{fingerprint(parameters)}"
        return map_array(cached_step(place, build, f"{self.name}: negatives", parameters) / "rows.npy")

    def _retrieved(self, index: RetrievalIndex, query_set: str, depth: int) -> CandidateSet:
        tokens = self.query_tokens(query_set, self.settings.first_stage_field)
        return retrieve(index, tokens, query_set, depth, self.settings.worker_count(), self.collection.id_order)

    def _tuned_index(self) -> Path:
        return self.index_folder(self.first_stage_parameters)

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
            "code": code_version(["lexical.retrieval", "lexical.bm25"]),
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
            "code": code_version(["datamodules.candidates", "lexical.trec_run", "lexical.ranking"]),
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
            "code": code_version(["datamodules.candidates", "lexical.trec_run", "lexical.ranking"]),
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
