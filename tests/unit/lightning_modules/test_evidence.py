"""The evidence of neural rankers adds up to their scores, and changes only where the text changes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.batches import RankingBatch
from lexical.index.forward_index import build_forward_index, open_forward_index
from lexical.index.ragged import Ragged, ragged
from lightning_modules.bert.ranker import BertRanker
from lightning_modules.neural_model1.ranker import NeuralModel1, NeuralModel1Cosine
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 12  # tokens of the vocabulary


def batch_of(documents: list[list[int]], query: list[int], folder: Any) -> RankingBatch:
    candidates = Ragged(np.array([0, len(documents)]), np.arange(len(documents), dtype=np.int32))
    build_forward_index([ragged(documents, np.int32)], SIZE, folder)
    forward = open_forward_index(folder)
    return RankingBatch(forward, ragged([query], np.int32), candidates, ragged(documents, np.int32))


@pytest.mark.parametrize("kind", [NeuralModel1, NeuralModel1Cosine])
def test_the_evidence_of_the_network_adds_up_to_its_score(kind: type[NeuralModel1], tmp_path: Any) -> None:
    ranker = kind(embedding=8, projection=4, hidden=[6, 4], start=0.1, p_self=0.3)
    ranker.build([f"w{i}" for i in range(SIZE)])
    ranker.eval()
    batch = batch_of([[1, 2, 3, 2], [], [5], [-1, 2, -1]], [2, 2, 7, -1], tmp_path)
    evidence = ranker.evidence(batch)
    assert [document.score for document in evidence] == pytest.approx(ranker.score(batch).tolist(), abs=1e-6)
    assert evidence[0].shares[0, 1] == evidence[0].shares[0, 3] == pytest.approx(0.3 / 4)  # T(t|t) = p_self, twice
    assert evidence[1].floor == pytest.approx(np.full(4, 1e-8))
    assert (evidence[0].shares[3] == 0).all()  # an unknown word
    assert (evidence[3].shares[:, [0, 2]] == 0).all() and evidence[3].shares[0, 1] == pytest.approx(0.3 / 3)


def test_without_p_self_an_exact_match_has_the_networks_own_probability(tmp_path: Any) -> None:
    ranker = NeuralModel1(embedding=8, projection=4, hidden=[6, 4], start=0.1, p_self=None)
    ranker.build([f"w{i}" for i in range(SIZE)])
    ranker.eval()
    batch = batch_of([[1, 2]], [2], tmp_path)
    (evidence,) = ranker.evidence(batch)
    token = torch.tensor([2])
    x_q, x_d = ranker.network.query(ranker.embed_q(token)), ranker.network.document(ranker.embed_d(token))
    own = ranker.network(x_q, x_d, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)).item()
    assert evidence.shares[0, 1] == pytest.approx(own / 2)
    assert evidence.score == pytest.approx(float(ranker.score(batch)[0]), rel=1e-6)


def test_a_changed_word_changes_only_its_own_shares(tmp_path: Any) -> None:
    ranker = NeuralModel1(embedding=8, projection=4, hidden=[6, 4], start=0.1, p_self=0.3)
    ranker.build([f"w{i}" for i in range(SIZE)])
    torch.manual_seed(3)
    for parameter in ranker.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # an untrained network translates all tokens alike
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
    ranker.build((backbone / "vocab.txt").read_text().splitlines())
    return ranker.eval()


@pytest.mark.parametrize("length", [0, 1, 28, 29, 30, 58, 87, 200])
def test_the_evidence_of_a_bert_ranker_adds_up_to_its_score(bert: BertRanker, length: int) -> None:
    rng = np.random.default_rng(length)
    nothing: Any = None
    documents = ragged([rng.integers(1000, 2000, length)], np.int32)
    query = ragged([rng.integers(1000, 2000, 12)], np.int32)  # more than it reads
    batch = RankingBatch(nothing, query, Ragged(np.array([0, 1]), np.zeros(1, np.int32)), documents)
    (evidence,) = bert.evidence(batch)
    assert bert.explains
    assert evidence.score == pytest.approx(float(bert.score(batch)[0]), rel=1e-6)
    assert evidence.shares.shape == (8, min(length, 87))
    read = min(length, 87)
    count = max(1, -(-read // 29))
    assert evidence.chunks == tuple(range(0, max(1, read), max(1, -(-read // count))))


def test_a_changed_word_of_one_chunk_leaves_the_other_chunks_shares_alone(bert: BertRanker) -> None:
    """Only the first chunk also changes the vectors of the query."""
    rng, nothing = np.random.default_rng(5), None
    text = rng.integers(1000, 2000, 80)
    other = text.copy()
    other[70] += 1  # of the third chunk
    documents, query = ragged([text, other], np.int32), ragged([rng.integers(1000, 2000, 4)], np.int32)
    batch: Any = RankingBatch(nothing, query, Ragged(np.array([0, 2]), np.arange(2, dtype=np.int32)), documents)  # type: ignore[arg-type]
    before, after = bert.evidence(batch)
    third = before.chunks[2]
    assert before.shares[:, :third] == pytest.approx(after.shares[:, :third], rel=1e-5)
    assert not np.allclose(before.shares[:, third:], after.shares[:, third:], rtol=1e-5)


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
def wide_network() -> NeuralModel1:
    ranker = NeuralModel1(embedding=48, projection=32, hidden=[32, 16], start=0.01)
    ranker.build([f"w{i}" for i in range(700)])
    return ranker.eval()
