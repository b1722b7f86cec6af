"""Vectors of tokens from an encoder's output, to start a ranker's embeddings from.

Each token of the collection is encoded alone, its vectors are averaged over its pieces and [CLS] and [SEP], centred
over the collection's vocabulary and projected to their first principal components.

    cache/<data>/<fingerprint>/vectors-<hash>/vectors.npy   (vocabulary, dimensions) float32, 0 for other tokens
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import lightning as L
import numpy as np
import torch

from datamodules.cached_step import cached_step, code_version, fingerprint
from lexical.encoders import encoder_identity, load_encoder, read_tokenizer
from lexical.terminal import progress_bar

if TYPE_CHECKING:
    from lightning_modules.neural_model1.em_prior import NeuralModel1EM

FLAG, FILE = "--model.vectors", "vectors.npy"
TOKENS_AT_ONCE = 512


class StartVectors(L.Callback):
    """When fitting begins: computes the vectors, or takes them from the cache, and gives them to the ranker.

    Args:
        encoder: by name, see `lexical.encoders`.
        dimensions: of the vectors.
    """

    def __init__(self, encoder: str, dimensions: int) -> None:
        self.encoder, self.dimensions = encoder, dimensions

    def setup(self, trainer: L.Trainer, pl_module: NeuralModel1EM, stage: str) -> None:  # type: ignore[override]
        if stage != "fit" or trainer.ckpt_path or pl_module.is_trained:  # its embeddings are further than this
            return
        data, field = pl_module.data, pl_module.field
        vocabulary, used = data.vocabulary(field), np.flatnonzero(data.tokens_in_collection(field))
        parameters = {
            "tokens": fingerprint([vocabulary, used.tolist()]),
            "encoder": encoder_identity(FLAG, self.encoder),
            "dimensions": self.dimensions,
            "code": code_version(["callbacks.start_vectors"]),
        }
        folder = data.sequences_folder(field).with_name(f"vectors-{fingerprint(parameters)}")

        def build(target: Path) -> None:
            words = [vocabulary[token] for token in used]
            outputs = token_outputs(self.encoder, words, trainer.strategy.root_device)
            vectors = np.zeros((len(vocabulary), self.dimensions), np.float32)
            vectors[used] = principal_components(outputs, self.dimensions)
            np.save(target / FILE, vectors)

        cached_step(folder, build, f"vectors of the tokens ({self.encoder})", parameters)
        pl_module.start_vectors = np.load(folder / FILE)


@torch.inference_mode()
def token_outputs(encoder: str, tokens: list[str], device: torch.device) -> np.ndarray:
    """Return (tokens, width) float32 mean output vectors of tokens, each encoded alone."""
    tokenizer, model = read_tokenizer(encoder), load_encoder(FLAG, encoder).eval().to(device)
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    longest = model.config.max_position_embeddings - 2
    texts = [
        [number] if (number := tokenizer.token_to_id(token)) is not None
        else tokenizer.encode(token, add_special_tokens=False).ids[:longest]
        for token in tokens
    ]  # fmt: skip
    outputs = np.zeros((len(tokens), model.config.hidden_size), np.float32)
    order = sorted(range(len(texts)), key=lambda token: len(texts[token]))  # hardly any padding
    with progress_bar() as bar:
        task = bar.add_task("vectors of the tokens", total=len(tokens))
        for first in range(0, len(order), TOKENS_AT_ONCE):
            rows = order[first : first + TOKENS_AT_ONCE]
            pieces = [torch.tensor([cls, *texts[row], sep]) for row in rows]
            ids = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(each)) for each in pieces], batch_first=True)
            hidden = model(ids.to(device), attention_mask=mask.to(device)).last_hidden_state.float().cpu()
            outputs[rows] = ((hidden * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)).numpy()
            bar.advance(task, len(rows))
    return outputs


def principal_components(vectors: np.ndarray, dimensions: int) -> np.ndarray:
    """Return (n, dimensions) the centred vectors in the directions in which they vary most."""
    centred = vectors - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)  # by growing variance
    return np.asarray(centred @ directions[:, ::-1][:, :dimensions], np.float32)
