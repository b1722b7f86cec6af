"""A trained network as a sparse table (the paper's "Sparsification/Export to Non-Parametric Format").

T(q|d) of all pairs is computed row by row (row = query token), small values are dropped, and the rest goes to disk at
once: memory does not grow with the vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexical.errors import require
from lexical.model1.table_files import TABLE, TableWriter
from lexical.terminal import progress_bar
from lightning_modules.neural_model1.ranker import NNModel1

ROWS_AT_ONCE = 512  # query tokens whose vectors are computed together


class ExportSettings(NamedTuple):
    """What is kept.

    threshold: smaller T(q|d) are dropped; the paper's is 0.0001.
    top_k: at most so many document tokens for each query token; all when not given.
    whole_vocabulary: document tokens that do not occur in the collection, too.
    """

    threshold: float = 1e-4
    top_k: int | None = None
    whole_vocabulary: bool = False

    def check(self) -> ExportSettings:
        require(0 <= self.threshold < 1, "--model.threshold", self.threshold, "from 0 to less than 1")
        require(self.top_k is None or self.top_k >= 1, "--model.top_k", self.top_k, "1 or more")
        return self


class ExportReport(NamedTuple):
    entries: int
    bytes: int  # of table.safetensors
    pairs: int  # that were computed
    share_of_pairs: float
    share_of_mass: float  # sum of the T(q|d) that are kept, of all T(q|d)
    seconds: float


def export_table(
    model: NNModel1, vocabulary: Sequence[str], in_collection: np.ndarray, settings: ExportSettings, folder: Path,
    source: dict[str, Any],
) -> ExportReport:  # fmt: skip
    """Writes the table of `model` into `folder`. `in_collection`: (vocabulary,) bool, the tokens that occur there."""
    started = time.perf_counter()
    document_tokens = np.arange(len(vocabulary)) if settings.whole_vocabulary else np.flatnonzero(in_collection)
    kept = whole = 0.0
    model.eval()
    with progress_bar() as bar, TableWriter(folder, vocabulary) as writer:
        task = bar.add_task("export T(q|d)", total=len(vocabulary))
        for first in range(0, len(vocabulary), ROWS_AT_ONCE):
            queries = np.arange(first, min(first + ROWS_AT_ONCE, len(vocabulary)))
            for row in model.translation_rows(queries, document_tokens):
                chosen = _chosen(row, settings)
                writer.append(document_tokens[chosen], row[chosen])
                kept += float(row[chosen].sum(dtype=np.float64))
                whole += float(row.sum(dtype=np.float64))
            bar.advance(task, len(queries))
        entries, pairs = sum(writer.lengths), len(vocabulary) * len(document_tokens)
        shares = {"share_of_pairs": entries / max(1, pairs), "share_of_mass": kept / max(whole, 1e-30)}
        writer.finish(
            {
                "field": model.field,
                "source": source,
                "parameters": {"threshold": settings.threshold, "p_self": model.p_self},
                "scored_with": {"smoothing": 0.0, "floor": model.floor},
                "export": {**settings._asdict(), "pairs": pairs, **shares},
            }
        )
    size = (Path(folder) / TABLE).stat().st_size
    return ExportReport(entries, size, pairs, **shares, seconds=time.perf_counter() - started)


def _chosen(row: np.ndarray, settings: ExportSettings) -> np.ndarray:
    """Places of the values that are kept, ascending."""
    chosen = np.flatnonzero(row >= settings.threshold)
    if settings.top_k is not None and len(chosen) > settings.top_k:
        best = np.argpartition(-row[chosen], settings.top_k - 1)[: settings.top_k]
        chosen = np.sort(chosen[best])
    return chosen
