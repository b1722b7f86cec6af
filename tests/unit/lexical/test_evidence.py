"""Scores taken apart: against the scorers, against loops, and word by word."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.batches import RankingBatch
from lexical.bm25 import BM25Parameters, normalised_bm25
from lexical.evidence import bm25_evidence, model1_evidence, table_translation
from lexical.index.forward_index import ForwardIndex, build_forward_index, open_forward_index
from lexical.index.ragged import Ragged, ragged
from lexical.model1.scorer import collection_probability, model1_scores, per_query_token
from lexical.model1.table import TranslationTable
from lightning_modules.bert.ranker import BertRanker
from lightning_modules.neural_model1.ranker import NNModel1, NNModel1Cosine
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert

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
        found = model1_evidence(translation, prior, 0.0 if smoothing else 1e-3, len(query))
        assert found.score == pytest.approx(score, abs=1e-6 * max(1, abs(score)))
        assert found.values * len(query) == pytest.approx(np.log(found.probabilities))
        for i, q in enumerate(query):  # by the definition, entry by entry
            for j, d in enumerate(document):
                row = dict(zip(table.rows.row(q).tolist(), table.probabilities[table.rows.offsets[q] :], strict=False))
                wanted = (1 - smoothing) * (row.get(d, 0.0) if q >= 0 else 0.0) / len(document)
                assert found.shares[i, j] == pytest.approx(wanted, rel=1e-6)
        parts = found.fractions()
        assert parts.shares.sum(axis=1) + parts.smoothing + parts.floor == pytest.approx(np.ones(len(query)))


@settings(deadline=None, max_examples=60)
@given(st.lists(tokens, min_size=1, max_size=4), st.lists(st.integers(-1, SIZE - 1), min_size=1, max_size=9))
def test_the_parts_of_bm25_add_up_to_it(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], query: list[int]
) -> None:
    index, parameters = index_of(documents, tmp_path_factory.mktemp("index")), BM25Parameters(0.9, 0.4)
    queries, candidates = ragged([query], np.int32), ragged([range(len(documents))], np.int32)  # type: ignore[list-item]
    scores = normalised_bm25(index, queries, candidates, parameters)
    for document, score in zip(documents, scores.tolist(), strict=True):
        found = bm25_evidence(index, np.array(query), np.array(document, np.int64), parameters)
        assert found.score == pytest.approx(score, abs=1e-6)
        assert ((found.shares > 0) == (np.array(query)[:, None] == np.array(document, np.int64)[None, :])).all()


# --- rankers


def batch_of(documents: list[list[int]], query: list[int], folder: Any) -> RankingBatch:
    candidates = Ragged(np.array([0, len(documents)]), np.arange(len(documents), dtype=np.int32))
    return RankingBatch(index_of(documents, folder), ragged([query], np.int32), candidates, ragged(documents, np.int32))


@pytest.mark.parametrize("kind", [NNModel1, NNModel1Cosine])
def test_the_network_s_evidence_is_its_score(kind: type[NNModel1], tmp_path: Any) -> None:
    ranker = kind(embedding=8, projection=4, hidden=[6, 4], start=0.1, p_self=0.3)
    ranker.use_vocabulary([f"w{i}" for i in range(SIZE)])
    ranker.eval()
    batch = batch_of([[1, 2, 3, 2], [], [5]], [2, 2, 7, -1], tmp_path)
    found = ranker.evidence(batch)
    assert [one.score for one in found] == pytest.approx(ranker.score(batch).tolist(), abs=1e-6)
    assert found[0].shares[0, 1] == found[0].shares[0, 3] == pytest.approx(0.3 / 4)  # T(t|t) = p_self, twice
    assert found[1].floor == pytest.approx(np.full(4, 1e-8))
    assert (found[0].shares[3] == 0).all()  # an unknown word


def test_one_changed_word_changes_its_own_shares_and_no_others(tmp_path: Any) -> None:
    ranker = NNModel1(embedding=8, projection=4, hidden=[6, 4], start=0.1, p_self=0.3)
    ranker.use_vocabulary([f"w{i}" for i in range(SIZE)])
    ranker.eval()
    before, after = ranker.evidence(batch_of([[1, 2, 3, 4], [1, 2, 6, 4]], [2, 5], tmp_path))
    kept = [0, 1, 3]
    assert before.shares[:, kept] == pytest.approx(after.shares[:, kept], rel=1e-6)
    assert (np.abs(before.shares[:, 2] - after.shares[:, 2]) > 1e-6).all()
    changed = after.shares[:, 2] - before.shares[:, 2]
    assert after.probabilities - before.probabilities == pytest.approx(changed, rel=1e-4)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> BertRanker:
    backbone = with_packaged_tokenizer(write_tiny_bert(tmp_path_factory.mktemp("bert"), positions=64))
    ranker = BertRanker(
        "model1", 3, str(backbone), positions=40, query_pieces=8, projection=4, hidden=[6, 4], start=0.01
    )
    ranker.use_vocabulary((backbone / "vocab.txt").read_text().splitlines())
    return ranker.eval()


@pytest.mark.parametrize("length", [0, 1, 28, 29, 30, 58, 87, 200])
def test_a_bert_ranker_s_evidence_is_its_score_whatever_the_length(bert: BertRanker, length: int) -> None:
    rng = np.random.default_rng(length)
    nothing: Any = None
    documents = ragged([rng.integers(1000, 2000, length)], np.int32)
    query = ragged([rng.integers(1000, 2000, 12)], np.int32)  # more than it reads
    batch = RankingBatch(nothing, query, Ragged(np.array([0, 1]), np.zeros(1, np.int32)), documents)
    (found,) = bert.evidence(batch)
    assert bert.explains
    assert found.score == pytest.approx(float(bert.score(batch)[0]), rel=1e-6)
    assert found.shares.shape == (8, min(length, 87))
    read = min(length, 87)
    count = max(1, -(-read // 29))
    assert found.chunks == tuple(range(0, max(1, read), max(1, -(-read // count))))


def test_a_changed_word_of_one_chunk_leaves_the_other_chunks_shares_alone(bert: BertRanker) -> None:
    """But for the query's vectors, which are the first chunk's."""
    rng, nothing = np.random.default_rng(5), None
    text = rng.integers(1000, 2000, 80)
    other = text.copy()
    other[70] += 1  # of the third chunk
    documents, query = ragged([text, other], np.int32), ragged([rng.integers(1000, 2000, 4)], np.int32)
    batch: Any = RankingBatch(nothing, query, Ragged(np.array([0, 2]), np.arange(2, dtype=np.int32)), documents)  # type: ignore[arg-type]
    one, two = bert.evidence(batch)
    third = one.chunks[2]
    assert one.shares[:, :third] == pytest.approx(two.shares[:, :third], rel=1e-5)
    assert not np.allclose(one.shares[:, third:], two.shares[:, third:], rtol=1e-5)


def test_heads_without_model1_explain_nothing() -> None:
    assert not BertRanker("vanilla").explains and BertRanker("model1").explains


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 99))
def test_a_translation_does_not_depend_on_the_other_tokens(documents: int, queries: int, seed: int) -> None:
    """So the score of one document, explained, is to the last digit that of the run file."""
    ranker, rng = wide_network(), np.random.default_rng(seed)
    q, d = (np.sort(rng.choice(700, count, replace=False)) for count in (queries, documents))
    everything = np.arange(700)
    rows = ranker.translation_rows(everything, everything)
    whole = {token: row.copy() for token, row in zip(everything, rows, strict=True)}
    for token, row in zip(q, ranker.translation_rows(q, d), strict=True):
        assert (row == whole[token][d]).all()


@cache
def wide_network() -> NNModel1:
    ranker = NNModel1(embedding=48, projection=32, hidden=[32, 16], start=0.01)
    ranker.use_vocabulary([f"w{i}" for i in range(700)])
    return ranker.eval()
