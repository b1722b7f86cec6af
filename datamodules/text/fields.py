"""The collection's tokens in each field: computed once, in parallel processes, stored as memory-mapped arrays.

Memory does not grow with the collection: shards of a fixed number of documents go to the workers and come back in
order, so the result does not depend on the number of workers. Only the vocabulary is kept in memory.

A field folder holds ``tokens.npy`` and ``offsets.npy`` (documents in the order of the text), ``vocab.txt`` (line i =
token i; most frequent first, ties by text; word pieces keep the tokenizer's numbers), ``forward/`` (the forward index)
and ``queries/`` (token ids of the query sets).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from datamodules.text.analysis import WORD_PIECES, AnalysisSettings, FieldTokens, WordPieceAnalyser, analyser_of
from datamodules.text.collection import Collection, read_texts
from datamodules.text.query_sets import QuerySet
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
    collection: Collection, fields: tuple[str, ...], settings: AnalysisSettings, workers: int, folder: Path
) -> None:
    """Tokenise a collection into ``folder/FIELD`` for `fields` of one analyser."""
    writers = {field: _FieldWriter(folder / field) for field in fields}
    shards = range(0, len(collection), DOCUMENTS_PER_SHARD)
    if len(shards) <= SHARDS_IN_ONE_PROCESS:
        workers = 1
    results = in_order(partial(_analyse_shard, collection.path, fields[0], settings), shards, workers)
    for tokens in track(results, f"tokenise {', '.join(fields)}", total=len(shards)):
        for field, writer in writers.items():
            writer.append(_cut(tokens[field], settings.max_doc_tokens))
    for field, writer in writers.items():
        writer.finish(WordPieceAnalyser(settings.tokenizer).vocabulary if field == WORD_PIECES else None)


def tokenise_queries(query_sets: Iterable[QuerySet], fields: dict[str, Field], settings: AnalysisSettings) -> None:
    """Write the token ids of query sets into the folders of prepared fields of one analyser."""
    tokeniser = QueryTokeniser(fields, settings)
    for query_set in query_sets:
        for name, tokens in tokeniser.tokenise(query_set.texts).items():
            folder = fields[name].folder / "queries"
            folder.mkdir(exist_ok=True)
            np.save(folder / f"{query_set.name}.offsets.npy", tokens.offsets)
            np.save(folder / f"{query_set.name}.tokens.npy", tokens.values)


class QueryTokeniser:
    """Token ids of queries in prepared fields of one analyser. Documents may be cut, queries are not."""

    def __init__(self, fields: dict[str, Field], settings: AnalysisSettings) -> None:
        self._analyser = analyser_of(next(iter(fields)), settings)
        self._ids = {
            name: {} if name == WORD_PIECES else {token: i for i, token in enumerate(field.vocabulary())}
            for name, field in fields.items()
        }

    def tokenise(self, texts: list[str]) -> dict[str, Ragged]:
        """Return field -> (row = text, values = token ids, -1 for a token that the collection does not have)."""
        parts: dict[str, list[Ragged]] = {name: [] for name in self._ids}
        for start in range(0, max(1, len(texts)), QUERIES_PER_SHARD):
            analysed = self._analyser.analyse(texts[start : start + QUERIES_PER_SHARD])
            for name, ids in self._ids.items():
                vocabulary, tokens, lengths = analysed[name]
                if vocabulary:
                    tokens = np.array([ids.get(token, -1) for token in vocabulary], np.int32)[tokens]
                parts[name].append(Ragged(offsets_of(lengths), tokens))
        return {name: concatenated(rows) for name, rows in parts.items()}


_analyser = lru_cache(maxsize=1)(analyser_of)  # a process keeps it between shards


def _analyse_shard(documents: Path, field: str, settings: AnalysisSettings, start: int) -> dict[str, FieldTokens]:
    return _analyser(field, settings).analyse(read_texts(documents, start, start + DOCUMENTS_PER_SHARD))


def _cut(field: FieldTokens, max_tokens: int | None) -> FieldTokens:
    if max_tokens is None or not len(field.lengths) or field.lengths.max() <= max_tokens:
        return field
    cut = Ragged(offsets_of(field.lengths), field.tokens).head(max_tokens)
    if field.vocabulary is None:
        return FieldTokens(None, cut.values, cut.lengths())
    used, tokens = np.unique(cut.values, return_inverse=True)  # a word that is always cut off is not in the vocabulary
    return FieldTokens([field.vocabulary[i] for i in used], tokens.astype(np.int32), cut.lengths())


class _FieldWriter:
    """Collects the shards of one field: with provisional token ids first, with the final ones when all are known."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._ids: dict[str, int] = {}  # token -> provisional id
        self._counts = np.zeros(0, np.int64)
        self._lengths: list[np.ndarray] = []
        self._tokens = ArrayWriter(folder / "provisional.npy", np.int32)

    def append(self, shard: FieldTokens) -> None:
        tokens = shard.tokens
        if shard.vocabulary:
            ids = np.array([self._ids.setdefault(token, len(self._ids)) for token in shard.vocabulary], np.int32)
            self._counts = np.pad(self._counts, (0, len(self._ids) - len(self._counts)))
            self._counts[ids] += np.bincount(tokens, minlength=len(ids))
            tokens = ids[tokens]
        self._tokens.append(tokens)
        self._lengths.append(shard.lengths.astype(np.int32))

    def finish(self, fixed_vocabulary: list[str] | None) -> None:
        """Number the tokens by frequency, unless their ids are those of a fixed vocabulary; build the forward index."""
        self._tokens.close()
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int32)
        np.save(self.folder / "offsets.npy", offsets_of(lengths))
        provisional, final = self.folder / "provisional.npy", self.folder / "tokens.npy"
        if fixed_vocabulary is not None:
            vocabulary = fixed_vocabulary
            provisional.rename(final)
        else:
            vocabulary = sorted(sorted(self._ids), key=lambda token: -self._counts[self._ids[token]])
            final_ids = np.empty(len(vocabulary), np.int32)
            final_ids[[self._ids[token] for token in vocabulary]] = np.arange(len(vocabulary))
            with ArrayWriter(final, np.int32) as writer:
                for block in read_blocks(provisional):
                    writer.append(final_ids[block])
            provisional.unlink()
        with (self.folder / "vocab.txt").open("w", encoding="utf-8") as file:
            file.writelines(f"{token}\n" for token in vocabulary)
        self._ids.clear()
        build_forward_index(read_document_blocks(self.folder), len(vocabulary), self.folder / "forward")
