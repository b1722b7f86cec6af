"""``--data.stats``: what is in a data set, before anything is trained on it."""

from __future__ import annotations

import json

import numpy as np
from rich.console import Console
from rich.table import Table

from datamodules.retrieval_data import RetrievalData
from pipeline.command_line import parse_data
from pipeline.configs import Resolved


def print_statistics(resolved: Resolved) -> None:
    """Counts, lengths, what was left out, and for the embedded data the licence of each source package."""
    _, built = parse_data(resolved, "What is in the data.", [])
    data: RetrievalData = built.data
    console = Console(width=None if Console().is_terminal else 140)
    console.print(_collection_table(data))
    console.print(_query_table(data))
    origin = data.prepared.texts / "origin.json"
    if origin.is_file():
        content = json.loads(origin.read_text(encoding="utf-8"))
        console.print(_source_table(content["sources"]))
        left_out = ", ".join(f"{why} {count:,}" for why, count in content["left_out"].items())
        console.print(f"docstrings left out: {left_out}", markup=False)
        console.print(f"content hash: {content['content_hash']}", markup=False)
    console.print(f"prepared in {data.prepared.folder}", markup=False, soft_wrap=True)


def _collection_table(data: RetrievalData) -> Table:
    table = Table("field", "documents", "tokens, mean", "median", "95%", "vocabulary", title=f"{data.name}: collection")
    for name in ("word_all", "word", "lemm", "bwps"):
        index = data.prepared.field(name).forward
        lengths = np.asarray(index.lengths)
        median, high = np.percentile(lengths, [50, 95])
        found = int(np.count_nonzero(index.document_frequency))
        table.add_row(
            name, f"{index.documents:,}", f"{lengths.mean():.1f}", f"{median:.0f}", f"{high:.0f}", f"{found:,}"
        )
    return table


def _query_table(data: RetrievalData) -> Table:
    table = Table(
        "query set", "queries", "judged", "relevant", "words, mean", "lemmas, mean", title=f"{data.name}: queries"
    )
    for name, query_set in data.prepared.query_sets.items():
        words, lemmas = (data.prepared.query_tokens(name, field).lengths().mean() for field in ("word_all", "lemm"))
        relevant = len(query_set.relevant.values)
        judged = f"{len(query_set.judged.values):,}"
        table.add_row(name, f"{len(query_set):,}", judged, f"{relevant:,}", f"{words:.1f}", f"{lemmas:.1f}")
    return table


def _source_table(sources: list[dict[str, object]]) -> Table:
    table = Table(*sources[0], title="sources")
    for source in sources:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in source.values()))
    return table
