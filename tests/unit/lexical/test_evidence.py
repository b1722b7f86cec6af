"""The parts of a score add up to what the scorers compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.bm25 import BM25Parameters, normalised_bm25
from lexical.evidence import bm25_evidence, model1_evidence, table_translation
from lexical.index.forward_index import ForwardIndex, build_forward_index, open_forward_index
from lexical.index.ragged import ragged
from lexical.model1.scorer import collection_probability, model1_scores, per_query_token
from lexical.model1.table import TranslationTable

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 12  # tokens of the vocabulary


def index_of(documents: list[list[int]], folder: Any) -> ForwardIndex:
    build_forward_index([ragged(documents, np.int32)], SIZE, folder)
    return open_forward_index(folder)


def table_of(rng: np.random.Generator) -> TranslationTable:
    dense = rng.random((SIZE, SIZE)) * (rng.random((SIZE, SIZE)) < 0.4)
    rows = [np.flatnonzero(row) for row in dense]
    return TranslationTable(ragged(rows, np.int32), np.concatenate([row[row > 0] for row in dense]).astype(np.float32))


tokens = st.lists(st.integers(0, SIZE - 1), max_size=9)


@settings(deadline=None, max_examples=60)
@given(st.lists(tokens, min_size=1, max_size=4), st.lists(st.integers(-1, SIZE - 1), min_size=1, max_size=9),
       st.sampled_from([0.0, 0.1, 0.7]), st.integers(0, 1000))  # fmt: skip
def test_the_parts_of_a_model1_score_add_up_to_it(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], query: list[int], smoothing: float, seed: int
) -> None:
    index = index_of(documents, tmp_path_factory.mktemp("index"))
    table = table_of(np.random.default_rng(seed))
    queries, candidates = ragged([query], np.int32), ragged([range(len(documents))], np.int32)  # type: ignore[list-item]
    background = collection_probability(index)
    scores = per_query_token(
        model1_scores(table, index, queries, candidates, smoothing, background, 1e-3), queries, candidates
    )
    for document, score in zip(documents, scores.tolist(), strict=True):
        translation = (1 - smoothing) * table_translation(table, np.array(query), np.array(document, np.int32))
        prior = smoothing * np.array([background[q] if q >= 0 else 1e-9 for q in query])
        evidence = model1_evidence(translation, prior, 0.0 if smoothing else 1e-3, len(query))
        assert evidence.score == pytest.approx(score, abs=1e-6 * max(1, abs(score)))
        assert evidence.values * len(query) == pytest.approx(np.log(evidence.probabilities))
        for i, q in enumerate(query):  # by the definition, entry by entry
            for j, d in enumerate(document):
                row = dict(zip(table.rows.row(q).tolist(), table.probabilities[table.rows.offsets[q] :], strict=False))
                expected = (1 - smoothing) * (row.get(d, 0.0) if q >= 0 else 0.0) / len(document)
                assert evidence.shares[i, j] == pytest.approx(expected, rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.lists(tokens, min_size=1, max_size=4), st.lists(st.integers(-1, SIZE - 1), min_size=1, max_size=9))
def test_the_parts_of_bm25_add_up_to_it(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], query: list[int]
) -> None:
    index, parameters = index_of(documents, tmp_path_factory.mktemp("index")), BM25Parameters(0.9, 0.4)
    queries, candidates = ragged([query], np.int32), ragged([range(len(documents))], np.int32)  # type: ignore[list-item]
    scores = normalised_bm25(index, queries, candidates, parameters)
    for document, score in zip(documents, scores.tolist(), strict=True):
        evidence = bm25_evidence(index, np.array(query), np.array(document, np.int64), parameters)
        assert evidence.score == pytest.approx(score, abs=1e-6)
        assert ((evidence.shares > 0) == (np.array(query)[:, None] == np.array(document, np.int64)[None, :])).all()
