"""Dense first stage: mean-pooled vectors of an encoder in a faiss index.

A text is read as [CLS] its first pieces [SEP]; its vector is the mean of the last layer over all of these, of length 1,
as in sentence-transformers (tested equal), but from the word pieces that are prepared already. Small collections are
searched exactly, larger ones by an inverted file of half-precision vectors. Indexes are memory-mapped. torch and faiss
are imported only where this stage is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datamodules.candidates.candidate_sets import CandidateSet
from lexical.encoders import check_word_pieces, load_encoder
from lexical.errors import UserError
from lexical.index.ragged import Ragged, offsets_of
from lexical.terminal import track

FLAG = "--data.dense_encoder"
MAX_EXACT = 200_000  # documents; in a larger collection an inverted file is searched
TEXTS_PER_BLOCK = 2048  # sorted by length before they are padded
TEXTS_PER_BATCH = {"cpu": 32, "cuda": 256}
LISTS_SEARCHED = 64  # of an inverted file
INDEX = "index.faiss"


class DenseEncoder:
    """Computes vectors of texts that are given as word pieces of the encoder's own tokenizer.

    Args:
        name: "packaged", a Hugging Face name, or a folder.
        pieces: word pieces of a text that are read, special ones included.
        vocabulary: word pieces of the data.
    """

    def __init__(self, name: str, pieces: int, vocabulary: list[str]) -> None:
        import torch

        self.model: Any = load_encoder(FLAG, name).eval()
        check_word_pieces(FLAG, name, self.model.config.vocab_size, vocabulary)
        if not {"[CLS]", "[SEP]"} <= set(vocabulary):
            raise UserError(f"{FLAG} {name}: the word pieces of this data have no [CLS] and [SEP]")
        self.cls, self.sep, self.pieces = vocabulary.index("[CLS]"), vocabulary.index("[SEP]"), pieces
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.width = int(self.model.config.hidden_size)
        self.model.to(self.device)

    def encode(self, texts: Ragged, first: int, end: int) -> np.ndarray:
        """Return (end - first, width) float32 vectors of length 1 of the rows from `first` to before `end`."""
        rows = [texts.row(i)[: self.pieces - 2] for i in range(first, end)]
        order = np.argsort([-len(row) for row in rows], kind="stable")
        vectors = np.empty((len(rows), self.width), np.float32)
        size = TEXTS_PER_BATCH[self.device.type]
        for start in range(0, len(order), size):
            members = order[start : start + size]
            vectors[members] = self._pooled([rows[i] for i in members])
        return vectors

    def _pooled(self, rows: list[np.ndarray]) -> np.ndarray:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        pieces = [torch.tensor([self.cls, *row[row >= 0].tolist(), self.sep]) for row in rows]
        tokens = pad_sequence(pieces, batch_first=True).to(self.device)
        mask = pad_sequence([torch.ones_like(row) for row in pieces], batch_first=True).to(self.device)
        with torch.inference_mode(), torch.autocast(self.device.type, torch.float16, self.device.type != "cpu"):
            hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        weights = mask[:, :, None].float()
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        return torch.nn.functional.normalize(mean, dim=1).cpu().numpy()


def build_dense_index(encoder: DenseEncoder, documents: Ragged, folder: Path, max_exact: int = MAX_EXACT) -> None:
    """Encode all documents to disk, then write their index, which is built in memory, to `folder`."""
    import faiss

    path = folder / "vectors.npy"
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (documents.rows, encoder.width))
    blocks = [(i, min(i + TEXTS_PER_BLOCK, documents.rows)) for i in range(0, documents.rows, TEXTS_PER_BLOCK)]
    for first, end in track(blocks, "encode documents"):
        vectors[first:end] = encoder.encode(documents, first, end)
    index = _empty_index(vectors, max_exact)
    for first, end in blocks:
        index.add(vectors[first:end])
    faiss.write_index(index, str(folder / INDEX))
    del vectors
    path.unlink()


def retrieve_dense(folder: Path, encoder: DenseEncoder, queries: Ragged, name: str, depth: int) -> CandidateSet:
    """Return the `depth` best documents of every query of the set `name` by the inner product of vectors of length 1,
    best first; none for an empty query."""
    import faiss

    index = faiss.read_index(str(folder / INDEX), faiss.IO_FLAG_MMAP_IFC)
    if isinstance(index, faiss.IndexIVF):
        index.nprobe = LISTS_SEARCHED
    depth = min(depth, index.ntotal)
    rows = np.full((queries.rows, depth), -1, np.int64)
    scores = np.zeros((queries.rows, depth), np.float32)
    for first in track(range(0, queries.rows, TEXTS_PER_BLOCK), f"dense candidates of {name}"):
        end = min(first + TEXTS_PER_BLOCK, queries.rows)
        scores[first:end], rows[first:end] = index.search(encoder.encode(queries, first, end), depth)
    rows[queries.lengths() == 0] = -1
    kept = rows >= 0
    return CandidateSet(Ragged(offsets_of(kept.sum(axis=1)), rows[kept].astype(np.int32)), scores[kept])


def _empty_index(vectors: np.ndarray, max_exact: int) -> Any:
    """Return an index for these vectors; an inverted file is trained on a sample of them."""
    import faiss

    count, width = vectors.shape
    if count <= max_exact:
        return faiss.IndexFlatIP(width)
    lists = int(4 * count**0.5)
    index = faiss.index_factory(width, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
    drawn = np.random.default_rng(1).permutation(count)[: 64 * lists]
    index.train(np.asarray(vectors[np.sort(drawn)]))
    return index
