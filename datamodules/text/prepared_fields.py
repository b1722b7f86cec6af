"""Texts and fields of one collection, each step cached on disk: what everything else is prepared from.

cache/<data>/<fingerprint>/texts     collection (Arrow), query sets, what was left out and why
                           fields-*  tokens and forward index of the fields, and the queries' tokens
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from datamodules.cached_step import cached_step, code_version, fingerprint
from datamodules.candidates.dense import DenseSettings
from datamodules.text.analysis import SPACY_FIELDS, WORD_PIECES, AnalysisSettings, analyser_identity
from datamodules.text.collection import TABLE, Collection
from datamodules.text.fields import Field, QueryTokeniser, build_fields
from datamodules.text.query_sets import QuerySet
from datamodules.worker_pool import cores
from lexical.index.array_file import map_array
from lexical.index.ragged import Ragged
from lexical.terminal import say

_FIELD_CODE = ["datamodules.text.analysis", "datamodules.text.fields", "datamodules.text.prepared_fields"]
_FIELD_CODE += ["lexical.index.forward_index", "lexical.index.ragged", "lexical.index.array_file"]
BM25 = "bm25"


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
    first_stage: str = BM25  # where candidates come from: bm25, dense (vectors of an encoder) or hybrid (both)
    dense: DenseSettings = field(default_factory=DenseSettings)
    workers: int = 0  # processes of the tokenisation; 0: one a core

    def worker_count(self) -> int:
        return self.workers or cores()


class PreparedFields:
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
            "code": code_version(_FIELD_CODE),
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
