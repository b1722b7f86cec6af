"""The collection's tokens in each field: computed once, in parallel processes, stored as memory-mapped arrays.

Memory does not grow with the collection: shards of a fixed number of documents go to the workers and come back in
order, so the result does not depend on the number of workers. Only the vocabulary is kept in memory, and that of the
spaCy fields is bounded: the `max_vocabulary` most frequent tokens are numbered. Any other token is -1, as an unknown
word of a query is. It counts towards the length of its document and matches nothing: it has no posting, no idf, and no
translation, and its share of the collection is nobody's.

Counts are exact. Only a collection with more than twice `max_vocabulary` distinct tokens is counted in bounded memory
first (`BoundedCounter`): which of its rarest tokens are numbered may then depend on the order of the documents.

A field folder holds ``tokens.npy`` and ``offsets.npy`` (documents in the order of the text), ``vocab.txt`` (line i =
token i; most frequent first, ties by text; word pieces keep the tokenizer's numbers), ``forward/`` (the forward index)
and ``queries/`` (token ids of the query sets).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from datamodules.text.analysis import WORD_PIECES, AnalysisSettings, FieldTokens, WordPieceAnalyser, analyser_of
from datamodules.text.collection import Collection, read_texts
from datamodules.text.query_sets import QuerySet
from datamodules.text.vocabulary import BoundedCounter
from datamodules.worker_pool import in_order
from lexical.index.array_file import ArrayWriter, map_array, read_range
from lexical.index.forward_index import ForwardIndex, build_forward_index, open_forward_index, read_document_blocks
from lexical.index.ragged import Ragged, concatenated, offsets_of
from lexical.terminal import say, track

DOCUMENTS_PER_SHARD = 4096
QUERIES_PER_SHARD = 50_000
SHARD_WORDS = pa.schema([("token", pa.string())])
SHARDS_IN_ONE_PROCESS = 2  # a smaller collection is done before a worker process has started


class Field:
    """One prepared field on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def sequences(self) -> Ragged:
        """Row = document, values = token ids in the order of the text, -1 for a token that is not numbered."""
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
    writers = {field: _FieldWriter(folder / field, settings.max_vocabulary) for field in fields}
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
    """Collects the shards of one field: tokens with the numbers of their shard first, with the final ones when all
    tokens are counted."""

    def __init__(self, folder: Path, max_vocabulary: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self._shards, self._words = folder, folder / "shards.npy", folder / "shards.arrow"
        self._counter = BoundedCounter(max_vocabulary)
        self._lengths: list[np.ndarray] = []
        self._tokens = ArrayWriter(self._shards, np.int32)
        self._word_writer = pa.ipc.new_stream(str(self._words), SHARD_WORDS)  # a batch for each shard

    def append(self, shard: FieldTokens) -> None:
        if shard.vocabulary is not None:
            self._word_writer.write_batch(pa.record_batch([shard.vocabulary], schema=SHARD_WORDS))
            occurrences = np.bincount(shard.tokens, minlength=len(shard.vocabulary))
            self._counter.add(shard.vocabulary, occurrences.tolist())
        self._tokens.append(shard.tokens)
        self._lengths.append(shard.lengths.astype(np.int32))

    def finish(self, fixed_vocabulary: list[str] | None) -> None:
        """Number the tokens by frequency, unless their ids are those of a fixed vocabulary; build the forward index."""
        self._tokens.close()
        self._word_writer.close()
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int32)
        np.save(self.folder / "offsets.npy", offsets_of(lengths))
        if fixed_vocabulary is not None:
            vocabulary = fixed_vocabulary
            self._shards.rename(self.folder / "tokens.npy")
        else:
            vocabulary = self._number_tokens()
            self._shards.unlink()
        self._words.unlink()
        with (self.folder / "vocab.txt").open("w", encoding="utf-8") as file:
            file.writelines(f"{token}\n" for token in vocabulary)
        build_forward_index(read_document_blocks(self.folder), len(vocabulary), self.folder / "forward")

    def _number_tokens(self) -> list[str]:
        """Write ``tokens.npy``; return the vocabulary."""
        counter, others = self._counter, 0
        if counter.missed:  # the counts are too low: count again what was not dropped
            exact: Counter[str] = Counter(dict.fromkeys(counter.counts, 0))
            for words, tokens in self._read_shards():
                occurrences = np.bincount(tokens, minlength=len(words)).tolist()
                exact.update({w: n for w, n in zip(words, occurrences, strict=True) if w in exact})
            counter.counts = exact
        vocabulary = counter.most_common()
        counter.counts = Counter()
        ids = {token: i for i, token in enumerate(vocabulary)}
        with ArrayWriter(self.folder / "tokens.npy", np.int32) as writer:
            for words, tokens in self._read_shards():
                numbered = np.array([ids.get(word, -1) for word in words], np.int32)[tokens]
                others += int(np.count_nonzero(numbered < 0))
                writer.append(numbered)
        if others:
            bound = f"; a word that is left out may occur {counter.missed:,} times" if counter.missed else ""
            say(
                f"{self.folder.name}: {others:,} of {writer.length:,} tokens are not among the {len(vocabulary):,} "
                "most frequent words; they count towards the length of a document and match nothing "
                f"(--data.max_vocabulary N keeps more words{bound})"
            )
        return vocabulary

    def _read_shards(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yield (words, tokens) of each shard; a token is the number of its word."""
        start = 0
        with pa.memory_map(str(self._words)) as file:
            for batch, lengths in zip(pa.ipc.open_stream(file), self._lengths, strict=True):
                end = start + int(lengths.sum(dtype=np.int64))
                yield batch.column(0).to_pylist(), read_range(self._shards, start, end)
                start = end
