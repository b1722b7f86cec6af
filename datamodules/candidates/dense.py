"""Dense first stage: mean-pooled vectors of an encoder in a faiss index.

A text is read as [CLS] its first pieces [SEP]; its vector is the mean of the last layer over all of these, of length 1,
as sentence-transformers makes it. Small collections are searched exactly; larger ones by an inverted file of
half-precision vectors. Indexes are memory-mapped. torch and faiss are imported where this stage is really used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datamodules.candidates.candidate_sets import CandidateSet
from lexical.encoders import PACKAGED, check_pieces, trained_encoder
from lexical.errors import UserError
from lexical.index.ragged import Ragged, offsets_of
from lexical.terminal import progress_bar

FLAG = "--data.dense_encoder"
EXACT = 200_000  # documents; beyond that an inverted file is searched
TEXTS_AT_ONCE = 2048  # sorted by length before they are padded
POSITIONS_AT_ONCE = {"cpu": 4096}
POSITIONS_ELSEWHERE = 1 << 17
LISTS_SEARCHED = 64  # of an inverted file
INDEX = "index.faiss"


class DenseSettings(NamedTuple):
    encoder: str = PACKAGED  # a Hugging Face name, or a folder
    pieces: int = 128  # of a text that are read, special ones included


class DenseEncoder:
    """Vectors of texts that are given as word pieces of the encoder's own tokenizer."""

    def __init__(self, settings: DenseSettings, vocabulary: list[str]) -> None:
        import torch

        self.model: Any = trained_encoder(FLAG, settings.encoder).eval()
        check_pieces(FLAG, settings.encoder, self.model.config.vocab_size, vocabulary)
        place = {piece: number for number, piece in enumerate(vocabulary) if piece in ("[CLS]", "[SEP]")}
        if len(place) < 2:
            raise UserError(f"{FLAG} {settings.encoder}: the word pieces of this data have no [CLS] and [SEP]")
        self.cls, self.sep, self.pieces = place["[CLS]"], place["[SEP]"], settings.pieces
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(self.device)

    @property
    def width(self) -> int:
        return int(self.model.config.hidden_size)

    def encode(self, texts: Ragged, first: int, end: int) -> np.ndarray:
        """(end - first, width) float32 vectors of length 1 of the rows from `first` to before `end`."""
        rows = [texts.row(i)[: self.pieces - 2] for i in range(first, end)]
        lengths = np.array([len(row) + 2 for row in rows])
        order = np.argsort(-lengths, kind="stable")
        vectors = np.empty((len(rows), self.width), np.float32)
        positions, at = POSITIONS_AT_ONCE.get(self.device.type, POSITIONS_ELSEWHERE), 0
        while at < len(order):
            members = order[at : at + max(1, positions // int(lengths[order[at]]))]
            vectors[members] = self._pooled([rows[i] for i in members], int(lengths[members[0]]))
            at += len(members)
        return vectors

    def _pooled(self, rows: list[np.ndarray], longest: int) -> np.ndarray:
        import torch

        tokens = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for place, row in enumerate(rows):
            known = np.asarray(row)[np.asarray(row) >= 0]
            tokens[place, : len(known) + 2] = [self.cls, *known, self.sep]
            mask[place, : len(known) + 2] = 1
        on_device = [torch.from_numpy(one).to(self.device) for one in (tokens, mask)]
        with torch.inference_mode(), torch.autocast(self.device.type, torch.float16, self.device.type != "cpu"):
            hidden = self.model(input_ids=on_device[0], attention_mask=on_device[1]).last_hidden_state.float()
        weights = on_device[1][:, :, None].float()
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        return torch.nn.functional.normalize(mean, dim=1).cpu().numpy()


class DenseIndex:
    """Top-k retrieval by the inner product of vectors of length 1."""

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def build(cls, encoder: DenseEncoder, documents: Ragged, folder: Path, exact: int = EXACT) -> None:
        """Encodes all documents, to disk, and writes the index to `folder`; the index itself is made in memory."""
        import faiss

        beside = folder / "vectors.npy"
        vectors = np.lib.format.open_memmap(beside, "w+", np.float32, (documents.rows, encoder.width))
        with progress_bar() as bar:
            task = bar.add_task("encode documents", total=documents.rows)
            for first in range(0, documents.rows, TEXTS_AT_ONCE):
                end = min(first + TEXTS_AT_ONCE, documents.rows)
                vectors[first:end] = encoder.encode(documents, first, end)
                bar.advance(task, end - first)
        index = _new_index(vectors, exact)
        for first in range(0, documents.rows, TEXTS_AT_ONCE):
            index.add(vectors[first : first + TEXTS_AT_ONCE])
        faiss.write_index(index, str(folder / INDEX))
        del vectors
        beside.unlink()

    @classmethod
    def load(cls, folder: Path) -> DenseIndex:
        import faiss

        index = faiss.read_index(str(folder / INDEX), faiss.IO_FLAG_MMAP_IFC)
        if isinstance(index, faiss.IndexIVF):
            index.nprobe = LISTS_SEARCHED
        return cls(index)

    def top(
        self, encoder: DenseEncoder, queries: Ragged, depth: int, on_batch: Callable[[int], None] = lambda done: None
    ) -> CandidateSet:
        """The `depth` best documents of every query, best first; an empty query has none."""
        depth = min(depth, self._index.ntotal)
        docs = np.full((queries.rows, depth), -1, np.int64)
        scores = np.zeros((queries.rows, depth), np.float32)
        for first in range(0, queries.rows, TEXTS_AT_ONCE):
            end = min(first + TEXTS_AT_ONCE, queries.rows)
            scores[first:end], docs[first:end] = self._index.search(encoder.encode(queries, first, end), depth)
            on_batch(end - first)
        docs[queries.lengths() == 0] = -1
        kept = docs >= 0
        return CandidateSet(Ragged(offsets_of(kept.sum(axis=1)), docs[kept].astype(np.int32)), scores[kept])


def retrieve_dense(
    encoder: DenseEncoder, index: DenseIndex, queries: Ragged, name: str, depth: int
) -> CandidateSet:  # fmt: skip
    with progress_bar() as bar:
        task = bar.add_task(f"dense candidates of {name}", total=queries.rows)
        return index.top(encoder, queries, depth, lambda done: bar.advance(task, done))


def _new_index(vectors: np.ndarray, exact: int) -> Any:
    """An empty index for these vectors."""
    import faiss

    count, width = vectors.shape
    if count <= exact:
        return faiss.IndexFlatIP(width)
    lists = int(4 * count**0.5)
    index = faiss.index_factory(width, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
    drawn = np.random.default_rng(1).permutation(count)[: 64 * lists]
    index.train(np.asarray(vectors[np.sort(drawn)]))
    return index


def recall(found: Ragged, relevant: Ragged, depth: int) -> float:
    """Mean over the queries of the share of their relevant documents among the first `depth`."""
    judged = [row for row in range(found.rows) if len(relevant.row(row))]
    shares = [np.isin(relevant.row(row), found.row(row)[:depth]).mean() for row in judged]
    return float(np.mean(shares)) if shares else 0.0
