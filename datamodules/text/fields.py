"""The collection's tokens in each field: computed once, in parallel processes, kept as memory-mapped arrays.

Memory does not grow with the collection: shards of a fixed number of documents go to the workers and come back in
order, so the result does not depend on the number of workers. What is kept in memory is the vocabulary.

A field folder holds ``tokens.npy`` and ``offsets.npy`` (documents as they were written), ``vocab.txt`` (line i =
token i; most frequent first, ties by text; word pieces keep the tokenizer's numbers) and ``forward/`` (the forward
index).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.text.analysis import WORD_PIECES, AnalysisSettings, FieldTokens, WordPieceAnalyser, analyser_of
from datamodules.text.collection import read_texts
from datamodules.worker_pool import in_order
from lexical.index.array_file import ArrayWriter, map_array, read_blocks
from lexical.index.forward_index import ForwardIndex, build_forward_index, open_forward_index, read_document_blocks
from lexical.index.ragged import Ragged, concatenated, offsets_of
from lexical.terminal import track

DOCUMENTS_PER_SHARD = 4096
QUERIES_PER_SHARD = 50_000
SHARDS_IN_ONE_PROCESS = 2  # a smaller collection is done before a worker process has started


class Field:
    """One prepared field on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def sequences(self) -> Ragged:
        """Row = document, values = token ids in the order of the text."""
        return Ragged(map_array(self.folder / "offsets.npy"), map_array(self.folder / "tokens.npy"))

    @cached_property
    def forward(self) -> ForwardIndex:
        return open_forward_index(self.folder / "forward")

    def vocabulary(self) -> list[str]:
        return (self.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]


def build_fields(
    documents: Path,
    count: int,
    fields: tuple[str, ...],
    settings: AnalysisSettings,
    workers: int,
    folder: Path,
) -> None:
    """Tokenises the `count` texts of the Arrow file `documents` into ``folder/FIELD`` for `fields` (one analyser's)."""
    writers = {field: _FieldWriter(folder / field) for field in fields}
    shards = range(0, count, DOCUMENTS_PER_SHARD)
    if len(shards) <= SHARDS_IN_ONE_PROCESS:
        workers = 1
    results = in_order(_analyse_shard, shards, workers, _start_worker, (documents, fields[0], settings))
    for result in track(results, f"tokenise {', '.join(fields)}", total=len(shards)):
        for field, writer in writers.items():
            writer.append(_cut(result[field], settings.max_doc_tokens))
    fixed = None
    if next(iter(writers.values())).fixed_ids:
        analyser = analyser_of(fields[0], settings)
        assert isinstance(analyser, WordPieceAnalyser)
        fixed = analyser.vocabulary
    for writer in writers.values():
        writer.finish(fixed)


class QueryTokeniser:
    """Token ids of queries in prepared fields of one analyser. Documents may be cut, queries are not."""

    def __init__(self, fields: dict[str, Field], settings: AnalysisSettings) -> None:
        self._analyser = analyser_of(next(iter(fields)), settings)
        self._numbers: dict[str, dict[str, int]] = {}
        for name, field in fields.items():
            if name != WORD_PIECES:
                self._numbers[name] = {token: i for i, token in enumerate(field.vocabulary())}
        self._fields = tuple(fields)

    def tokenise(self, texts: list[str]) -> dict[str, Ragged]:
        """field -> (row = text, values = token ids, -1 for a token that the collection does not have)."""
        parts: dict[str, list[Ragged]] = {name: [] for name in self._fields}
        for start in range(0, max(1, len(texts)), QUERIES_PER_SHARD):
            analysed = self._analyser.analyse(texts[start : start + QUERIES_PER_SHARD])
            for name in self._fields:
                parts[name].append(self._numbered(name, analysed[name]))
        return {name: concatenated(rows) for name, rows in parts.items()}

    def _numbered(self, name: str, found: FieldTokens) -> Ragged:
        tokens = found.tokens
        if found.vocabulary is not None and len(tokens):
            number = self._numbers[name]
            tokens = np.array([number.get(token, -1) for token in found.vocabulary], np.int32)[tokens]
        return Ragged(offsets_of(found.lengths), tokens)


_worker: dict[str, Any] = {}  # what a worker process keeps between shards


def _start_worker(documents: Path, field: str, settings: AnalysisSettings) -> None:
    _worker["documents"] = documents
    _worker["analyser"] = analyser_of(field, settings)


def _analyse_shard(start: int) -> dict[str, FieldTokens]:
    return _worker["analyser"].analyse(read_texts(_worker["documents"], start, start + DOCUMENTS_PER_SHARD))


def _cut(field: FieldTokens, most: int | None) -> FieldTokens:
    if most is None or not len(field.lengths) or field.lengths.max() <= most:
        return field
    cut = Ragged(offsets_of(field.lengths), field.tokens).head(most)
    if field.vocabulary is None:
        return FieldTokens(None, cut.values, cut.lengths())
    used, tokens = np.unique(cut.values, return_inverse=True)  # what is cut off is no word of the field
    return FieldTokens([field.vocabulary[i] for i in used], tokens.astype(np.int32), cut.lengths())


class _FieldWriter:
    """Collects the shards of one field: provisional token numbers first, the final ones when all have been seen."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.fixed_ids = False
        self._number: dict[str, int] = {}  # token -> provisional id
        self._counts = np.zeros(0, np.int64)
        self._lengths: list[np.ndarray] = []
        self._tokens = ArrayWriter(folder / "provisional.npy", np.int32)

    def append(self, shard: FieldTokens) -> None:
        if shard.vocabulary is None:
            self.fixed_ids = True
            self._tokens.append(shard.tokens)
        else:
            numbers = np.array([self._number.setdefault(t, len(self._number)) for t in shard.vocabulary], np.int32)
            tokens = numbers[shard.tokens] if len(numbers) else shard.tokens
            if len(self._number) > len(self._counts):
                self._counts = np.concatenate([self._counts, np.zeros(len(self._number) - len(self._counts), np.int64)])
            self._counts[numbers] += np.bincount(shard.tokens, minlength=len(numbers))
            self._tokens.append(tokens)
        self._lengths.append(shard.lengths.astype(np.int32))

    def finish(self, fixed_vocabulary: list[str] | None) -> None:
        self._tokens.close()
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int32)
        np.save(self.folder / "offsets.npy", offsets_of(lengths))
        provisional, final = self.folder / "provisional.npy", self.folder / "tokens.npy"
        if fixed_vocabulary is not None:
            vocabulary = fixed_vocabulary
            provisional.rename(final)
        else:
            by_text = sorted(self._number)
            numbers = np.array([self._number[token] for token in by_text], np.int64)
            order = np.argsort(-self._counts[numbers], kind="stable")
            vocabulary = [by_text[i] for i in order]
            place = np.empty(len(vocabulary), np.int32)
            place[numbers[order]] = np.arange(len(vocabulary), dtype=np.int32)
            with ArrayWriter(final, np.int32) as writer:
                for block in read_blocks(provisional):
                    writer.append(place[block])
            provisional.unlink()
        with (self.folder / "vocab.txt").open("w", encoding="utf-8") as file:
            file.writelines(f"{token}\n" for token in vocabulary)
        self._number.clear()
        build_forward_index(read_document_blocks(self.folder), len(vocabulary), self.folder / "forward")
