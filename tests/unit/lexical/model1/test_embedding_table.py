"""Translations from embeddings, against cosines written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexical.encoders import PACKAGED
from lexical.model1 import embedding_table
from lexical.model1.embedding_table import TokenVectors, encoder_vectors, nearest_translations


def plain(
    vectors: np.ndarray, sources: np.ndarray, tokens: np.ndarray, neighbours: int
) -> dict[tuple[int, int], float]:
    """{(d, q): T(q|d)} by sorting all cosines."""
    translations = {}
    for i, d in enumerate(tokens):
        if sources[d]:
            cosines = [
                (float(vectors[i] @ v / (np.linalg.norm(vectors[i]) * np.linalg.norm(v))), int(tokens[j]))
                for j, v in enumerate(vectors)
                if j != i
            ]
            near = [(cosine, q) for cosine, q in sorted(cosines, reverse=True)[:neighbours] if cosine > 0]
            total = sum(cosine for cosine, _ in near)
            translations |= {(int(d), q): cosine / total for cosine, q in near}
    return translations


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 30), neighbours=st.integers(1, 12))
def test_translations_are_cosines_over_the_nearest_tokens(seed: int, count: int, neighbours: int) -> None:
    rng = np.random.default_rng(seed)
    vocabulary_size = count + 5
    tokens = np.sort(rng.choice(vocabulary_size, count, replace=False)).astype(np.int32)
    vectors = rng.normal(0.3, 1, (count, 6)).astype(np.float32)
    sources = rng.random(vocabulary_size) < 0.8
    learned = nearest_translations(TokenVectors(tokens, vectors), sources, neighbours)
    rows = learned.rows.row_numbers()
    translations = {
        (int(d), int(q)): p for d, q, p in zip(rows, learned.rows.values, learned.probabilities, strict=True)
    }
    expected = plain(vectors.astype(np.float64), sources, tokens, neighbours)
    assert translations.keys() == expected.keys()
    assert all(translations[pair] == pytest.approx(expected[pair], abs=1e-5) for pair in expected)
    assert learned.rows.rows == vocabulary_size


def test_equal_vectors_do_not_hide_the_token_itself() -> None:
    """With many equal vectors faiss may not list the token itself among the nearest."""
    vectors = np.ones((20, 3), np.float32)
    tokens = np.arange(20, dtype=np.int32)
    learned = nearest_translations(TokenVectors(tokens, vectors), np.ones(20, bool), 4)
    assert learned.rows.lengths().tolist() == [4] * 20
    assert not (learned.rows.values == learned.rows.row_numbers()).any()
    assert learned.probabilities == pytest.approx(0.25)


def test_many_vectors_are_searched_by_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_table, "EXACT_UP_TO", 100)
    rng = np.random.default_rng(1)
    vectors, tokens = rng.normal(size=(400, 16)).astype(np.float32), np.arange(400, dtype=np.int32)
    graph = nearest_translations(TokenVectors(tokens, vectors), np.ones(400, bool), 5)
    monkeypatch.setattr(embedding_table, "EXACT_UP_TO", 1000)
    exact = nearest_translations(TokenVectors(tokens, vectors), np.ones(400, bool), 5)
    pairs = [
        set(zip(table.rows.row_numbers().tolist(), table.rows.values.tolist(), strict=True)) for table in (graph, exact)
    ]
    assert len(pairs[0] & pairs[1]) > 0.9 * len(pairs[1])


def test_special_pieces_of_the_encoder_have_no_vector() -> None:
    given = encoder_vectors(PACKAGED, ["[CLS]", "ship", "[unused7]", "nosuchpiece", "boat", "["])
    assert given.tokens.tolist() == [1, 4, 5]
    assert given.vectors.shape == (3, 384) and given.vectors.dtype == np.float32
    assert np.isfinite(given.vectors).all() and not np.array_equal(given.vectors[0], given.vectors[1])
