"""Vectors of single tokens: the encoder's mean output for the token alone, and their principal components."""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from callbacks.start_vectors import principal_components, token_outputs
from tests.fixtures.tiny_bert import tiny_backbone


def test_a_token_s_vector_is_the_mean_of_its_pieces_and_the_specials() -> None:
    """Of different lengths in one batch; a word that is too long for the encoder is cut."""
    backbone = tiny_backbone()
    tokens = ["sort", "##ing", "x" * 300 + " " + "sort " * 200, "list"]
    outputs = token_outputs(backbone, tokens, torch.device("cpu"))
    model, tokenizer = AutoModel.from_pretrained(backbone).eval(), Tokenizer.from_file(f"{backbone}/tokenizer.json")
    tokenizer.no_truncation()
    for token, output in zip(tokens, outputs, strict=True):
        number = tokenizer.token_to_id(token)
        pieces = [number] if number is not None else tokenizer.encode(token, add_special_tokens=False).ids
        ends = [tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")]
        ids = [ends[0], *pieces[: model.config.max_position_embeddings - 2], ends[1]]
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(output, expected.numpy(), atol=1e-5)


def test_principal_components_are_those_of_the_singular_value_decomposition() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 6)) * [5, 4, 3, 2, 1, 0.5]
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    projected = principal_components(vectors, 3)
    np.testing.assert_allclose(np.abs(projected), np.abs(centred @ directions[:3].T), rtol=1e-4, atol=1e-4)
