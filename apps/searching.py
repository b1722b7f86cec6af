"""Search in a prepared collection: any query is retrieved by BM25, ranked by a trained ranker, and explained.

Queries take the path of the query sets (`datamodules.preparation`): the same tokens, index, candidates and fusion. So a
query text of a query set gets the scores of its run file, to the last digit unless those were computed on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from apps.explanation import Explanation, Feature
from datamodules.retrieval_data import RetrievalData
from datamodules.text.analysis import Analyser, analyser_of
from datamodules.text.fields import QueryTokeniser
from datamodules.text.query_sets import SAMPLES, TEST_CPU
from lexical.batches import RankingBatch
from lexical.errors import UserError
from lexical.evidence import TokenSpan
from lexical.index.ragged import Ragged, ragged
from lexical.index.retrieval import RetrievalIndex
from lexical.ranking.order import ranking_order
from lexical.terminal import say
from lightning_modules.bm25 import BM25
from lightning_modules.ranker import FIRST_STAGE, Ranker

LONGEST_QUERY = 2_000  # characters: evidence is a number for each query and document token


class Query(NamedTuple):
    """A query text with its token ids in one or more fields."""

    text: str
    tokens: dict[str, np.ndarray]


class Hits(NamedTuple):
    """Scored documents of one query."""

    documents: np.ndarray  # (hits,) document rows
    ranks: np.ndarray  # (hits,) int64 rank among the candidates, from 1; 0 for a document that is not ranked
    scores: np.ndarray  # (hits,) float32 scores of the row, fused where it is a fusion
    alone: np.ndarray  # (hits,) float32 the ranker's own scores
    first_stage: np.ndarray | None = None  # (hits,) float32 normalised BM25, where it is fused with

    def part(self, first: int, last: int) -> Hits:
        return Hits._make(None if array is None else array[first:last] for array in self)


class Searcher:
    """Search in one prepared collection."""

    def __init__(self, data: RetrievalData) -> None:
        self.data, self.prepared = data, data.prepared
        self.first_field, self.id_order = self.prepared.settings.first_stage_field, self.prepared.collection.id_order

    @cached_property
    def index(self) -> RetrievalIndex:
        settings = self.prepared.settings
        if settings.candidates is not None or settings.first_stage != "bm25":
            say("documents are retrieved by BM25 here, not by the first stage that this data was prepared with")
        return RetrievalIndex.load(self.prepared.index_folder(self.prepared.first_stage_parameters))

    @cached_property
    def first_stage(self) -> BM25:
        """BM25 as it retrieves the candidates."""
        return BM25(self.first_field, *self.prepared.first_stage_parameters)

    def query(self, text: str, *fields: str) -> Query:
        """Tokenise a text for the first stage and for further fields."""
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)  # lone surrogates cannot be encoded
        fields = (self.first_field, *fields)
        return Query(text, {field: self._tokeniser(field).tokenise([text])[field].row(0) for field in fields})

    @cache  # noqa: B019 - a searcher lives as long as the program
    def _tokeniser(self, field: str) -> QueryTokeniser:
        return QueryTokeniser({field: self.prepared.field(field)}, self.prepared.settings.analysis)

    def candidates(self, ranker: Ranker, query: Query) -> np.ndarray:
        """Return (documents,) rows of BM25's best documents, as many as the ranker is measured with."""
        depth = min(ranker.rerank_depth, self.prepared.settings.depth)
        if ranker.sampled:
            depth = min(depth, SAMPLES[TEST_CPU].depth)
        tokens = ragged([query.tokens[self.first_field]], np.int32)
        return self.index.top(tokens, depth, 1, id_order=self.id_order)[0].values

    def rank(self, ranker: Ranker, query: Query, documents: np.ndarray) -> Hits:
        """Return the documents in the order of the row's scores, ties by document id."""
        ranks = np.arange(1, len(documents) + 1)
        if not len(documents):
            return Hits(documents, ranks, np.zeros(0, np.float32), np.zeros(0, np.float32))
        batch = self._batch(ranker, query, documents)
        scores = alone = ranker.score(batch)
        first_stage = None
        if ranker.fused:
            first_stage = self.first_stage.score(self._batch(self.first_stage, query, documents))
            scores = ranker.fuse(first_stage, alone)
        order = ranking_order(batch.candidates, scores, self.id_order)
        return Hits(
            documents[order], ranks, scores[order], alone[order], None if first_stage is None else first_stage[order]
        )

    def _batch(self, ranker: Ranker, query: Query, documents: np.ndarray) -> RankingBatch:
        """Return the query with these candidates as the ranker reads them: encoders read no expansion."""
        fields = self.data.unexpanded if ranker.reads_texts else self.prepared
        queries = ragged([query.tokens[ranker.field]], np.int32)
        candidates = Ragged(np.array([0, len(documents)]), np.asarray(documents, np.int32))
        forward = self.prepared.field(ranker.field).forward
        return RankingBatch(forward, queries, candidates, fields.field(ranker.field).sequences)

    def document_row(self, flag: str, document: str) -> int:
        """Return the row of a document id; a `UserError` that names the flag if there is none."""
        row = int(self.prepared.collection.rows([document.encode(errors="replace").decode()])[0])
        if row < 0:
            raise UserError(f"{flag}: there is no document {document!r} in {self.data.name}")
        return row

    # --- explanations

    def explain(self, name: str, ranker: Ranker, query: Query, hits: Hits) -> Iterator[Explanation]:
        """Yield each hit with the parts of its score, one after the other because evidence takes memory."""
        scored: list[tuple[str, float, Ranker, np.ndarray]] = [(name, 1.0, ranker, hits.alone)]
        if hits.first_stage is not None:
            weights = ranker.fusion_weights.tolist()
            scored = [
                (FIRST_STAGE, weights[0], self.first_stage, hits.first_stage),
                (f"{name} (alone)", weights[1], ranker, hits.alone),
            ]
        ids = self.prepared.collection.ids(hits.documents).to_pylist()
        for number, (document_id, row) in enumerate(zip(ids, hits.documents, strict=True)):
            text = self.prepared.collection.text(row)
            features = []
            for label, weight, part, values in scored:
                (evidence,) = part.evidence(self._batch(part, query, np.array([row])))
                spans = self.spans(query.text, part.field), self.spans(text, part.field)
                if any(len(tokens) < read for tokens, read in zip(spans, evidence.shares.shape, strict=True)):
                    raise ValueError(f"the field {part.field} has other tokens than the text: prepare the data again")
                features.append(Feature(label, weight, float(values[number]), evidence, *spans))
            rank, score = int(hits.ranks[number]) or None, float(hits.scores[number])
            yield Explanation(name, query.text, document_id, text, score, tuple(features), rank).checked()

    def explain_alone(self, name: str, ranker: Ranker, query: Query, documents: np.ndarray) -> list[Explanation]:
        """Explain the ranker's own scores of the documents, in this order; nothing is fused or ranked."""
        alone = ranker.score(self._batch(ranker, query, documents))
        hits = Hits(documents, np.zeros(len(documents), np.int64), alone, alone)
        return list(self.explain(name, ranker, query, hits))

    @lru_cache(maxsize=256)  # noqa: B019 - the same documents come again
    def spans(self, text: str, field: str) -> list[TokenSpan]:
        """Return the tokens of a text with their characters."""
        return self._analyser(field).spans(text, field)

    @cache  # noqa: B019
    def _analyser(self, field: str) -> Analyser:
        return analyser_of(field, self.prepared.settings.analysis)
