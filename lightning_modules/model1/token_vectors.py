"""Vectors of tokens that were made elsewhere: what `--model.vectors` names."""

from __future__ import annotations

from pathlib import Path

from lexical.encoders import PACKAGED, packaged_encoder
from lexical.errors import UserError
from lexical.model1.embedding_table import TokenVectors, encoder_vectors, file_vectors


def check_vectors(vectors: str) -> None:
    if vectors != PACKAGED and not Path(vectors).expanduser().exists():
        raise UserError(f"--model.vectors: there is no file or folder {vectors}")


def read_vectors(vectors: str, vocabulary: list[str]) -> TokenVectors:
    """Of "packaged" (input embeddings of the packaged encoder), an encoder's folder, or a text file of vectors."""
    if vectors == PACKAGED:
        return encoder_vectors(packaged_encoder(), vocabulary)
    path = Path(vectors).expanduser()
    return encoder_vectors(path, vocabulary) if path.is_dir() else file_vectors(path, vocabulary)
