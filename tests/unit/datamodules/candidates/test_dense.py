"""The dense first stage: vectors of texts, exact and inverted search, fusion by rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from datamodules import Folder
from datamodules.candidates.candidate_sets import recall
from datamodules.candidates.dense import build_dense_index, encode, load_dense_encoder, retrieve_dense
from datamodules.text.collection import TABLE, read_texts
from lexical.encoders import PACKAGED, packaged_encoder, read_tokenizer
from lexical.errors import UserError
from lexical.index.ragged import Ragged, ragged
from lexical.ranking.fusion import reciprocal_rank_fusion
from tests.fixtures.tiny_bert import VOCABULARY, with_packaged_tokenizer, write_tiny_bert, write_tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(str(small_folder), cache_dir=str(tmp_path_factory.mktemp("dense")), first_stage="hybrid")


@pytest.fixture(scope="module")
def encoder() -> Any:
    return load_dense_encoder(PACKAGED, 128)


def documents_of(data: Folder) -> Path:
    return data.prepared.texts / "collection" / TABLE


def test_vectors_are_means_over_the_prepared_word_pieces(data: Folder, encoder: Any) -> None:
    """[CLS], the pieces of the text, [SEP]: through the encoder alone, without sentence-transformers."""
    texts = [*read_texts(documents_of(data), 0, 20), "what is a [SEP] in a text?"]
    tokenizer, model = read_tokenizer(PACKAGED), AutoModel.from_pretrained(str(packaged_encoder())).eval()
    expected = []
    for text in texts:
        pieces = tokenizer.encode(text, add_special_tokens=False).ids[:126]
        with torch.inference_mode():
            mean = model(torch.tensor([[101, *pieces, 102]])).last_hidden_state[0].mean(dim=0)
        expected.append((mean / mean.norm()).numpy())
    np.testing.assert_allclose(encode(encoder, texts), expected, atol=1e-5)


def test_the_index_finds_what_a_product_of_all_vectors_finds(data: Folder, encoder: Any, tmp_path: Path) -> None:
    documents, queries = documents_of(data), data.query_set("test").texts[:10]
    build_dense_index(encoder, documents, 120, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["index.faiss"]
    found = retrieve_dense(tmp_path, encoder, queries, "test", 10)
    every = encode(encoder, queries) @ encode(encoder, read_texts(documents, 0, 120)).T
    expected = np.sort(every, axis=1)[:, ::-1][:, :10]
    np.testing.assert_allclose(found.scores.reshape(-1, 10), expected, atol=1e-5)
    rows = np.repeat(np.arange(10), 10)
    np.testing.assert_allclose(every[rows, found.candidates.values], found.scores, atol=1e-5)


def test_a_large_collection_gets_an_inverted_file(data: Folder, encoder: Any, tmp_path: Path) -> None:
    documents, queries = documents_of(data), data.query_set("test").texts[:10]
    build_dense_index(encoder, documents, 120, tmp_path, max_exact=100)
    found = retrieve_dense(tmp_path, encoder, queries, "test", 10)  # all of the 43 lists are searched
    every = encode(encoder, queries) @ encode(encoder, read_texts(documents, 0, 120)).T
    best = np.argsort(-every, axis=1)[:, :10]
    shared = [len(set(found.candidates.row(i)) & set(best[i])) for i in range(10)]
    assert np.mean(shared) > 9


def test_an_empty_query_has_no_dense_candidates(data: Folder, encoder: Any, tmp_path: Path) -> None:
    build_dense_index(encoder, documents_of(data), 3, tmp_path)
    assert retrieve_dense(tmp_path, encoder, [" ", "dog"], "test", 10).candidates.lengths().tolist() == [0, 3]


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
        for ranked in lists:
            for rank, document in enumerate(ranked.row(query).tolist(), start=1):
                plain[document] = plain.get(document, 0.0) + 1 / (60 + rank)
        best = sorted(plain, key=lambda document: (-np.float32(plain[document]), id_order[document]))[:depth]
        mine = Ragged(candidates.offsets, scores).row(query)
        assert candidates.row(query).tolist() == best
        np.testing.assert_allclose(mine, [plain[document] for document in best], rtol=1e-6)


def test_an_encoder_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be fetched"):
        load_dense_encoder(str(tmp_path / "nowhere"), 128)


def test_an_encoder_without_all_of_its_weights_is_refused(tmp_path: Path) -> None:
    with_packaged_tokenizer(write_tiny_bert(tmp_path))
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop(next(name for name in weights if "layer.1" in name))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"weights are missing, such as encoder\.layer\.1"):
        load_dense_encoder(str(tmp_path), 128)


def test_an_encoder_may_have_word_pieces_of_its_own(tmp_path: Path) -> None:
    write_tiny_tokenizer(write_tiny_bert(tmp_path, pieces=len(VOCABULARY)), VOCABULARY)
    vectors = encode(load_dense_encoder(str(tmp_path), 128), ["t1 t2 t3", "t4"])
    assert vectors.shape == (2, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
