"""A small random BERT in a folder, as `save_pretrained` writes it."""

from __future__ import annotations

from pathlib import Path

import torch

PIECES = 30_522  # of the packaged tokenizer


def write_tiny_bert(
    folder: Path, pieces: int = PIECES, positions: int = 512, width: int = 32, dropout: float = 0.1, layers: int = 2
) -> Path:  # fmt: skip
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=pieces, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=positions, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def with_packaged_tokenizer(folder: Path) -> Path:
    from packaged_encoder import packaged_encoder

    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / name).write_bytes((packaged_encoder() / name).read_bytes())
    return folder


def write_tiny_tokenizer(folder: Path, vocabulary: list[str]) -> None:
    """A BERT tokenizer of these pieces."""
    from transformers import BertTokenizerFast

    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocabulary))
    BertTokenizerFast(vocab={piece: i for i, piece in enumerate(vocabulary)}).save_pretrained(folder)
