"""The dense first stage: vectors as sentence-transformers makes them, exact and inverted search, fusion by rank."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules import Folder
from datamodules.candidates.candidate_sets import recall
from datamodules.candidates.dense import DenseEncoder, build_dense_index, retrieve_dense
from lexical.encoders import PACKAGED, packaged_encoder
from lexical.errors import UserError
from lexical.index.ragged import Ragged, ragged
from lexical.ranking.fusion import reciprocal_rank_fusion
from tests.fixtures.tiny_bert import write_tiny_bert

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(str(small_folder), cache_dir=str(tmp_path_factory.mktemp("dense")), first_stage="hybrid")


@pytest.fixture(scope="module")
def encoder(data: Folder) -> DenseEncoder:
    return DenseEncoder(PACKAGED, 128, data.prepared.field("bwps").vocabulary())


def some_texts(data: Folder) -> tuple[Ragged, ...]:
    """120 documents and 10 queries."""
    documents, queries = data.prepared.field("bwps").sequences, data.prepared.query_tokens("test", "bwps")
    return ragged([documents.row(i) for i in range(120)], np.int32), ragged(
        [queries.row(i) for i in range(10)], np.int32
    )


def test_vectors_are_those_of_sentence_transformers(data: Folder, encoder: DenseEncoder) -> None:
    from sentence_transformers import SentenceTransformer

    os.environ["HF_HUB_OFFLINE"] = "1"
    reference = SentenceTransformer(str(packaged_encoder()), device="cpu")
    reference.max_seq_length = 128
    texts = [data.prepared.collection.text(i) for i in range(20)]
    ours = encoder.encode(data.prepared.field("bwps").sequences, 0, 20)
    np.testing.assert_allclose(ours, reference.encode(texts, normalize_embeddings=True), atol=1e-5)


def test_the_index_finds_what_a_product_of_all_vectors_finds(
    data: Folder, encoder: DenseEncoder, tmp_path: Path
) -> None:
    documents, queries = some_texts(data)
    build_dense_index(encoder, documents, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["index.faiss"]
    found = retrieve_dense(tmp_path, encoder, queries, "test", 10)
    every = encoder.encode(queries, 0, queries.rows) @ encoder.encode(documents, 0, documents.rows).T
    expected = np.sort(every, axis=1)[:, ::-1][:, :10]
    np.testing.assert_allclose(found.scores.reshape(-1, 10), expected, atol=1e-5)
    rows = np.repeat(np.arange(queries.rows), 10)
    np.testing.assert_allclose(every[rows, found.candidates.values], found.scores, atol=1e-5)


def test_a_large_collection_gets_an_inverted_file(data: Folder, encoder: DenseEncoder, tmp_path: Path) -> None:
    documents, queries = some_texts(data)
    build_dense_index(encoder, documents, tmp_path, max_exact=100)
    found = retrieve_dense(tmp_path, encoder, queries, "test", 10)  # all of the 43 lists are searched
    every = encoder.encode(queries, 0, queries.rows) @ encoder.encode(documents, 0, documents.rows).T
    best = np.argsort(-every, axis=1)[:, :10]
    shared = [len(set(found.candidates.row(i)) & set(best[i])) for i in range(queries.rows)]
    assert np.mean(shared) > 9


def test_an_empty_query_has_no_dense_candidates(data: Folder, encoder: DenseEncoder, tmp_path: Path) -> None:
    build_dense_index(encoder, ragged([[1037], [2204, 2338], []], np.int32), tmp_path)
    found = retrieve_dense(tmp_path, encoder, ragged([[], [2338]], np.int32), "test", 10)
    assert found.candidates.lengths().tolist() == [0, 3]


def test_hybrid_candidates_are_cached_with_the_recall_of_each(data: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    data.prepare_data()
    folder = data.prepared.candidate_folder("test")
    written = json.loads((folder / "recall.json").read_text())
    assert set(written["test"]) == {"bm25", "dense", "hybrid"}
    assert written["test"]["hybrid"]["1000"] >= written["test"]["bm25"]["1000"]
    assert "hybrid: development recall@100" in capfd.readouterr().err
    assert data.prepared.negatives().shape[1] == 20
    relevant = data.query_set("test").relevant
    assert recall(data.prepared.candidates("test").candidates, relevant, 1000) == written["test"]["hybrid"]["1000"]


def test_recall_by_hand() -> None:
    found, relevant = ragged([[3, 1, 2], [], [5]], np.int32), ragged([[1, 2], [4], []], np.int32)
    assert recall(found, relevant, 2) == (0.5 + 0) / 2
    assert recall(found, relevant, 3) == (1 + 0) / 2


@settings(deadline=None)
@given(st.data())
def test_rank_fusion_is_the_plain_sum(draw: st.DataObject) -> None:
    documents, queries = 12, draw.draw(st.integers(1, 4))
    rows = st.lists(st.integers(0, documents - 1), unique=True, max_size=documents)
    lists = [ragged([draw.draw(rows) for _ in range(queries)], np.int32) for _ in range(2)]
    id_order, depth = np.array(draw.draw(st.permutations(range(documents)))), draw.draw(st.integers(1, 15))
    candidates, scores = reciprocal_rank_fusion(lists, depth, documents, id_order)
    for query in range(queries):
        plain: dict[int, float] = {}
        for one in lists:
            for rank, document in enumerate(one.row(query).tolist(), start=1):
                plain[document] = plain.get(document, 0.0) + 1 / (60 + rank)
        best = sorted(plain, key=lambda document: (-np.float32(plain[document]), id_order[document]))[:depth]
        mine = Ragged(candidates.offsets, scores).row(query)
        assert candidates.row(query).tolist() == best
        np.testing.assert_allclose(mine, [plain[document] for document in best], rtol=1e-6)


def test_an_encoder_of_other_word_pieces_is_refused(data: Folder, tmp_path: Path) -> None:
    write_tiny_bert(tmp_path, pieces=50)
    with pytest.raises(UserError, match="has 50 word pieces and the data 30,522"):
        DenseEncoder(str(tmp_path), 128, data.prepared.field("bwps").vocabulary())
    with pytest.raises(UserError, match="could not be fetched"):
        DenseEncoder(str(tmp_path / "nowhere"), 128, data.prepared.field("bwps").vocabulary())
