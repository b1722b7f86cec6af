"""The strongest translations T(q|d) of the most frequent query words q, one translation table beside the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from datamodules.retrieval_data import RetrievalData
from datamodules.text.analysis import stop_words
from datamodules.text.query_sets import DEVELOPMENT
from lexical.errors import UserError
from lexical.model1.table_files import SavedTable, load_table
from lexical.terminal import say
from pipeline.run_folder import RunFolder

TABLES = {
    "EM": ("model1_bwps", "model1_word"),
    "neural": ("nn_model1_em_exp", "nn_model1_exp"),
}  # the first row that is there
WORDS = 16  # query words on the page
TOP = 6  # document words of each
MIN_DOCUMENTS = 20
MIN_CHARACTERS = 3  # of a query word
PIECE = "##"  # starts a word piece that continues a word


class QueryWord(NamedTuple):
    """A query word with its strongest translations."""

    word: str
    times: int  # in the development queries
    tables: dict[str, dict[str, float]]  # name of a table -> document word d -> T(q|d), strongest first


def min_documents(documents: int) -> int:
    """Return how many documents of a collection must contain a word: rare words were learned from little."""
    return max(1, min(MIN_DOCUMENTS, documents // 100))


def strongest_translations(runs: Sequence[RunFolder], data: RetrievalData) -> list[QueryWord]:
    """Return the most frequent content words of development queries that every shown table translates.

    The words are counted in the field of the first table. None are returned where there is no table, or, after a line
    that says so, where one is damaged.
    """
    by_row = {run.model: run for run in runs}
    chosen = {kind: next((by_row[row] for row in rows if row in by_row), None) for kind, rows in TABLES.items()}
    try:
        tables = {f"{kind}: {run.model}, seed {run.seed}": load_table(run.table) for kind, run in chosen.items() if run}
    except UserError as error:
        say(f"results.html does not show translations: {error}")
        return []
    if not tables:
        return []
    least = min_documents(len(data.prepared.collection))
    fields = {name: table.meta["field"] for name, table in tables.items()}
    common = {name: data.prepared.field(fields[name]).forward.document_frequency >= least for name in tables}
    field = next(iter(fields.values()))
    counted = content_words(
        data.prepared.query_tokens(DEVELOPMENT, field).values, data.prepared.field(field).vocabulary()
    )
    words = (
        QueryWord(word, times, {name: strongest(table, word, common[name]) for name, table in tables.items()})
        for word, times in counted
    )
    return list(islice((word for word in words if all(word.tables.values())), WORDS))


def content_words(tokens: np.ndarray, vocabulary: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the content words of token ids (-1: unknown) with their counts, most frequent first, equal ones by word.

    A content word has a letter and is neither a part of a word nor a special token such as [UNK] nor a stop word.
    """
    counts = Counter(vocabulary[token] for token in tokens[tokens >= 0].tolist())
    stop = stop_words()
    for word, times in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        special = word.startswith(PIECE) or (word.startswith("[") and word.endswith("]"))
        if len(word) >= MIN_CHARACTERS and any(map(str.isalpha, word)) and not special and word not in stop:
            yield word, times


def strongest(saved: SavedTable, q: str, common: np.ndarray) -> dict[str, float]:
    """Return the TOP document words d of the query word q with T(q|d), strongest first, equal ones by word; not q.

    Args:
        common: (vocabulary,) bool, document words that are shown.
    """
    if q not in saved.vocabulary:
        return {}
    token, rows = saved.vocabulary.index(q), saved.table.rows
    row = slice(rows.offsets[token], rows.offsets[token + 1])
    d, translation_prob = rows.values[row], saved.table.probabilities[row]
    shown = (d != token) & (translation_prob > 0) & common[d]
    words = (saved.vocabulary[other] for other in d[shown])
    entries = zip(words, translation_prob[shown].tolist(), strict=True)
    return dict(sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:TOP])
