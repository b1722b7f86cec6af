"""`train.py --data NAME --data.stats`: what is in a data set, before anything is trained on it."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from lexical.small_files import read_json
from pipeline.command_line import parse_data
from pipeline.configs import Resolved


def print_statistics(resolved: Resolved) -> None:
    """Print counts and lengths; for the embedded data also each source package and what was left out."""
    data = parse_data(resolved)[1]
    prepared = data.prepared
    console = Console(width=None if Console().is_terminal else 140)

    table = Table("field", "documents", "tokens, mean", "median", "95%", "vocabulary", title=f"{data.name}: collection")
    for name in ("word_all", "word", "lemm", "bwps"):
        index = prepared.field(name).forward
        lengths = np.asarray(index.lengths)
        tokens = (f"{lengths.mean():.1f}", *(f"{length:.0f}" for length in np.percentile(lengths, [50, 95])))
        table.add_row(name, f"{index.documents:,}", *tokens, f"{np.count_nonzero(index.document_frequency):,}")
    console.print(table)

    header = ("query set", "queries", "judged", "relevant", "words, mean", "lemmas, mean")
    table = Table(*header, title=f"{data.name}: queries")
    for name, query_set in prepared.query_sets.items():
        counts = (len(query_set), len(query_set.judged.values), len(query_set.relevant.values))
        means = (prepared.query_tokens(name, field).lengths().mean() for field in ("word_all", "lemm"))
        table.add_row(name, *(f"{count:,}" for count in counts), *(f"{mean:.1f}" for mean in means))
    console.print(table)

    origin = prepared.texts / "origin.json"
    if origin.is_file():
        content = read_json(origin)
        table = Table(*content["sources"][0], title="sources")
        for source in content["sources"]:
            table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in source.values()))
        console.print(table)
        left_out = ", ".join(f"{reason} {count:,}" for reason, count in content["left_out"].items())
        console.print(f"docstrings left out: {left_out}\ncontent hash: {content['content_hash']}", markup=False)
    console.print(f"prepared in {prepared.folder}", markup=False, soft_wrap=True)
