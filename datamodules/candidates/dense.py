"""Dense first stage: vectors of texts by sentence-transformers, in a faiss index.

The vector of a text is the mean of an encoder's last layer over [CLS], the first pieces of the text and [SEP], of
length 1. Small collections are searched exactly, larger ones by an inverted file of half-precision vectors. Indexes are
memory-mapped. torch and faiss are imported only where this stage is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datamodules.candidates.candidate_sets import CandidateSet
from datamodules.text.collection import read_texts
from lexical.encoders import load_encoder, load_pretrained
from lexical.index.ragged import Ragged, offsets_of
from lexical.terminal import track

FLAG = "--data.dense_encoder"
MAX_EXACT = 200_000  # documents; in a larger collection an inverted file is searched
TEXTS_PER_BLOCK, TEXTS_PER_BATCH = 2048, 128  # a block is sorted by length before it is padded batch by batch
LISTS_SEARCHED = 64  # of an inverted file
INDEX = "index.faiss"


def load_dense_encoder(name: str, pieces: int) -> Any:
    """Return a `SentenceTransformer`.

    Args:
        name: "packaged", a Hugging Face name, or a folder.
        pieces: word pieces of a text that are read, special ones included.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    def load(folder: str) -> Any:
        text_is_text = {"split_special_tokens": True}  # "[SEP]" in a text is not a separator
        return Transformer(folder, max_seq_length=pieces, processor_kwargs=text_is_text)

    load_encoder(FLAG, name)  # refuses an encoder without all of its weights
    transformer = load_pretrained(FLAG, name, load)
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension()), Normalize()])


def encode(encoder: Any, texts: list[str]) -> np.ndarray:
    """Return (texts, width) float32 vectors of length 1."""
    import torch

    with torch.autocast(encoder.device.type, torch.float16, enabled=encoder.device.type == "cuda"):
        return encoder.encode(texts, batch_size=TEXTS_PER_BATCH, show_progress_bar=False).astype(np.float32)


def build_dense_index(encoder: Any, documents: Path, count: int, folder: Path, max_exact: int = MAX_EXACT) -> None:
    """Encode the `count` texts of the Arrow file `documents`, then write their index, which is built in memory."""
    import faiss

    path, width = folder / "vectors.npy", encoder.get_embedding_dimension()
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (count, width))
    blocks = [(first, min(first + TEXTS_PER_BLOCK, count)) for first in range(0, count, TEXTS_PER_BLOCK)]
    for first, end in track(blocks, "encode documents"):
        vectors[first:end] = encode(encoder, read_texts(documents, first, end))
    index: Any = faiss.IndexFlatIP(width)
    if count > max_exact:
        lists = int(4 * count**0.5)
        index = faiss.index_factory(width, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        drawn = np.random.default_rng(1).permutation(count)[: 64 * lists]
        index.train(np.asarray(vectors[np.sort(drawn)]))
    for first, end in blocks:
        index.add(vectors[first:end])
    faiss.write_index(index, str(folder / INDEX))
    del vectors
    path.unlink()


def retrieve_dense(folder: Path, encoder: Any, queries: list[str], name: str, depth: int) -> CandidateSet:
    """Return the `depth` best documents of every query of the set `name`, best first; none for an empty query."""
    import faiss

    index = faiss.read_index(str(folder / INDEX), faiss.IO_FLAG_MMAP_IFC)
    if isinstance(index, faiss.IndexIVF):
        index.nprobe = LISTS_SEARCHED
    depth = min(depth, index.ntotal)
    rows = np.full((len(queries), depth), -1, np.int64)
    scores = np.zeros((len(queries), depth), np.float32)
    for first in track(range(0, len(queries), TEXTS_PER_BLOCK), f"dense candidates of {name}"):
        block = slice(first, first + TEXTS_PER_BLOCK)
        scores[block], rows[block] = index.search(encode(encoder, queries[block]), depth)
    rows[[not text.strip() for text in queries]] = -1
    kept = rows >= 0
    return CandidateSet(Ragged(offsets_of(kept.sum(axis=1)), rows[kept].astype(np.int32)), scores[kept])
