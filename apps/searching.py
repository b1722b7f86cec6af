"""Queries that nobody has prepared: retrieved by BM25, ranked by trained rankers, and explained.

The way of a query is that of the query sets (`datamodules.preparation`, `pipeline.reranking`): the same tokens, the
same index, the same fusion. A query text of a query set gets the scores of its run file: to the last digit, but for
runs of a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from apps.explanation import Explanation, Feature
from datamodules.candidates.samples import SAMPLES, TEST_CPU
from datamodules.retrieval_data import RetrievalData
from datamodules.text.fields import QueryTokeniser
from datamodules.text.token_spans import SpanFinder
from lexical.batches import RankingBatch
from lexical.bm25 import normalised_bm25
from lexical.errors import UserError
from lexical.evidence import Evidence, TokenSpan, bm25_evidence
from lexical.index.ragged import Ragged, ragged
from lexical.index.retrieval import RetrievalIndex
from lexical.ranking.fusion import fuse
from lexical.ranking.order import ranking_order
from lexical.terminal import say
from lightning_modules.bm25 import BM25
from lightning_modules.ranker import Ranker
from pipeline.configs import names
from pipeline.loading import check_trained_on, fusion_weights, load_ranker
from pipeline.run_folder import RunFolder, trained_models

FIRST_STAGE = "bm25_lemm"
LONGEST_QUERY = 2_000  # characters: evidence is a number for each query and document token


class Row(NamedTuple):
    """A trained ranker as a row of the results table: fused with the first stage where it is so there."""

    name: str
    ranker: Ranker
    weights: tuple[float, float] | None  # of first stage and ranker


class Hits(NamedTuple):
    """Candidates of one query, best first."""

    documents: np.ndarray  # (hits,) document rows
    scores: np.ndarray  # (hits,) float32 scores of the row
    first_stage: np.ndarray  # (hits,) float32 normalised BM25
    alone: np.ndarray  # (hits,) float32 the ranker's own scores


class Query(NamedTuple):
    """A query text with its tokens in the fields that were asked for."""

    text: str
    tokens: dict[str, np.ndarray]


class Searcher:
    """Search in one prepared collection."""

    def __init__(self, data: RetrievalData) -> None:
        self.data, self.prepared = data, data.prepared
        self.first_field = self.prepared.settings.first_stage_field
        self._tokenisers: dict[str, QueryTokeniser] = {}
        self._finders: dict[str, SpanFinder] = {}
        settings = self.prepared.settings
        if settings.candidates is not None or settings.first_stage != "bm25":
            say("documents are found by BM25 here, not by the first stage that this data was prepared with")

    @cached_property
    def index(self) -> RetrievalIndex:
        return RetrievalIndex.load(self.prepared.index_folder(self.prepared.first_stage_parameters))

    @cached_property
    def id_order(self) -> np.ndarray:
        return np.asarray(self.prepared.collection.id_order)

    def first_stage(self) -> Row:
        """BM25 as candidates are found with."""
        return Row(FIRST_STAGE, BM25(self.first_field, *self.prepared.first_stage_parameters), None)

    def query(self, text: str, *fields: str) -> Query:
        """The text analysed for the first stage and for other fields."""
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)  # half a character is no text
        return Query(text, {field: self._tokens(text, field) for field in {self.first_field, *fields}})

    def _tokens(self, text: str, field: str) -> np.ndarray:
        if field not in self._tokenisers:
            known = {field: self.prepared.field(field)}
            self._tokenisers[field] = QueryTokeniser(known, self.prepared.settings.analysis)
        return self._tokenisers[field].tokenise([text])[field].row(0)

    def retrieve(self, query: Query, depth: int) -> np.ndarray:
        """(documents,) rows of the best documents by BM25, best first."""
        tokens = ragged([query.tokens[self.first_field]], np.int32)
        return self.index.top(tokens, depth, 1, id_order=self.id_order)[0].values

    def candidates(self, row: Row, query: Query) -> np.ndarray:
        """BM25's best documents, as many as the row is measured with."""
        depth = min(row.ranker.rerank_depth, self.prepared.settings.depth)
        return self.retrieve(query, min(depth, SAMPLES[TEST_CPU].depth) if row.ranker.sampled else depth)

    def rank(self, row: Row, query: Query, documents: np.ndarray) -> Hits:
        """The documents by the row's score, ties by id."""
        if not len(documents):
            return Hits(documents, *(np.zeros(0, np.float32) for _ in range(3)))
        first = self.batch(query, self.first_field, documents)
        bm25 = normalised_bm25(*first[:3], self.prepared.first_stage_parameters)
        alone = self._alone(row.ranker, query, documents)
        scores = alone if row.weights is None else fuse(np.stack([bm25, alone]), np.asarray(row.weights))
        order = ranking_order(first.candidates, scores, self.id_order)
        return Hits(documents[order], scores[order], bm25[order], alone[order])

    def _alone(self, ranker: Ranker, query: Query, documents: np.ndarray) -> np.ndarray:
        """(documents,) float32 the ranker's own scores."""
        return ranker.score(self.batch(query, ranker.field, documents, ranker.reads_texts))

    def batch(self, query: Query, field: str, documents: np.ndarray, as_read: bool = False) -> RankingBatch:
        """The query with these candidates; `as_read`: their tokens are those that an encoder reads."""
        source = self.data.unexpanded if as_read else self.prepared  # encoders read no expansion
        queries = ragged([query.tokens[field]], np.int32)
        candidates = Ragged(np.array([0, len(documents)]), np.asarray(documents, np.int32))
        return RankingBatch(self.prepared.field(field).forward, queries, candidates, source.field(field).sequences)

    # --- explanations

    def explain(self, row: Row, query: Query, hits: Hits, most: int, first_rank: int = 1) -> Iterator[Explanation]:
        """The first `most` hits, each with the parts of its score; one by one, as evidence takes memory."""
        ids = self.prepared.collection.ids(hits.documents[:most]).to_pylist()
        for number, (name, document) in enumerate(zip(ids, hits.documents[:most], strict=True)):
            text, alone = self.prepared.collection.text(document), np.array([document])
            ranker, features = row.ranker, []
            if row.weights is not None:
                ((tokens, words),) = self.batch(query, self.first_field, alone).pairs()
                forward = self.prepared.field(self.first_field).forward
                bm25 = bm25_evidence(forward, tokens, words, self.prepared.first_stage_parameters)
                value = float(hits.first_stage[number])
                features.append(self._feature(FIRST_STAGE, row.weights[0], value, bm25, self.first_field, query, text))
            (own,) = ranker.evidence(self.batch(query, ranker.field, alone, ranker.reads_texts))
            weight, label = (1.0, row.name) if row.weights is None else (row.weights[1], f"{row.name} (alone)")
            value = float(hits.alone[number])
            features.append(self._feature(label, weight, value, own, ranker.field, query, text))
            rank, score = first_rank + number if first_rank else None, float(hits.scores[number])
            yield Explanation(row.name, query.text, name, text, score, tuple(features), rank).checked()

    def explain_alone(self, row: Row, query: Query, documents: np.ndarray) -> list[Explanation]:
        """The documents in this order, each with the parts of the ranker's own score; nothing is fused or ranked."""
        alone = self._alone(row.ranker, query, documents)
        hits = Hits(documents, alone, np.zeros_like(alone), alone)
        return list(self.explain(row._replace(weights=None), query, hits, len(documents), first_rank=0))

    def _feature(
        self, name: str, weight: float, value: float, evidence: Evidence, field: str, query: Query, text: str
    ) -> Feature:
        spans = self.spans(query.text, field), self.spans(text, field)
        if any(len(one) < read for one, read in zip(spans, evidence.shares.shape, strict=True)):
            raise ValueError(f"the field {field} has other tokens than the text: prepare the data again")
        return Feature(name, weight, value, evidence, *spans)

    @lru_cache(maxsize=256)  # noqa: B019 - a searcher lives as long as the program; the same documents come again
    def spans(self, text: str, field: str) -> list[TokenSpan]:
        """Tokens of a text with their places."""
        if field not in self._finders:
            self._finders[field] = SpanFinder(field, self.prepared.settings.analysis)
        return self._finders[field].spans(text)

    def document_row(self, flag: str, document: str) -> int:
        row = int(self.prepared.collection.rows([document.encode(errors="replace").decode()])[0])
        if row < 0:
            raise UserError(f"{flag}: there is no document {document!r} in {self.data.name}")
        return row


def load_row(name: str, data: RetrievalData, output_dir: str | Path, seed: int) -> Row:
    """A trained ranker, ready to rank."""
    trained = trained_models(Path(output_dir).expanduser() / data.name)
    if name not in trained and name not in names("model"):
        raise UserError(f"--model: there is no ranker {name!r}; known are: {', '.join(names('model'))}")
    if name not in trained:
        there = f"trained are: {', '.join(trained)}" if trained else "nothing is trained yet"
        raise UserError(f"{name!r} is not trained on {data.name} ({there}): python train.py --model {name}")
    found = seed if seed in trained[name] else trained[name][0]
    folder = RunFolder.of(output_dir, data.name, name, found)
    data.prepare_data()
    ranker = load_ranker(folder, name, data)
    if found != seed and ranker.random:  # others live in seed-1, whatever the seed
        seeds = ", ".join(map(str, trained[name]))
        raise UserError(f"--seed {seed}: {name} is trained with the seeds {seeds}")
    check_trained_on(folder, name, data)
    weights = fusion_weights(folder) if ranker.fused else None
    return Row(name, ranker, None if weights is None else (weights[0], weights[1]))


def explaining_row(name: str, data: RetrievalData, output_dir: str | Path, seed: int) -> Row:
    """The same, of a ranker whose score is a sum over words."""
    row = load_row(name, data, output_dir, seed)
    if not row.ranker.explains:
        raise UserError(
            f"--model {name}: its score is no sum over words that could be shown; choose a Model 1 or BM25 row, such "
            "as nn_model1_exp, model1_bwps, bert_model1_short"
        )
    return row
