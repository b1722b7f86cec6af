"""A trained network as a sparse table (the paper's "Sparsification/Export to Non-Parametric Format").

T(q|d) of all pairs is computed row by row (row = query token), small values are dropped, and the rest is written at
once: memory does not grow with the vocabulary.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning as L
import numpy as np

from lexical.model1.table_files import TABLE, TableWriter
from lexical.terminal import detail, progress_bar
from lightning_modules.model1.translation_ranker import TABLE_FOLDER
from lightning_modules.precision import float32_products

if TYPE_CHECKING:
    from lightning_modules.neural_model1.context_free import ContextFreeRanker

ROWS_AT_ONCE = 512  # query tokens whose vectors are computed together


class ExportSettings(NamedTuple):
    """What the table keeps."""

    threshold: float = 1e-4  # smaller T(q|d) are dropped; this is the paper's
    top_k: int | None = None  # at most this many document tokens per query token; all when not given
    whole_vocabulary: bool = False  # document tokens that do not occur in the collection, too


class SparseExport(L.Callback):
    """When training has ended, on rank zero: writes `table/` in the trainer's root folder, from the best weights."""

    def __init__(self, settings: ExportSettings) -> None:
        self.settings = settings

    def on_fit_end(self, trainer: L.Trainer, pl_module: ContextFreeRanker) -> None:  # type: ignore[override]
        if not trainer.is_global_zero:
            return
        pl_module.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU
        in_collection = pl_module.data.tokens_in_collection(pl_module.field)
        folder = Path(trainer.default_root_dir) / TABLE_FOLDER
        report = export_table(pl_module, in_collection, self.settings, folder)
        detail(f"exported to {folder}: {report}")
        pl_module.log_metrics(trainer.global_step, {f"export/{name}": float(x) for name, x in report._asdict().items()})


class ExportReport(NamedTuple):
    entries: int
    bytes: int  # of table.safetensors
    pairs: int  # that were computed
    share_of_pairs: float
    share_of_mass: float  # sum of the T(q|d) that are kept / sum of all T(q|d)
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.entries:,} of {self.pairs:,} pairs ({100 * self.share_of_pairs:.2f}%), "
            f"{100 * self.share_of_mass:.1f}% of the mass of T, {self.bytes / 1e6:.1f} MB, {self.seconds:.0f} s"
        )


def export_table(
    model: ContextFreeRanker, in_collection: np.ndarray, settings: ExportSettings, folder: Path
) -> ExportReport:
    """Write the table of `model` to `folder`. `in_collection`: (vocabulary,) bool, the tokens that occur there."""
    started, vocabulary = time.perf_counter(), model.vocabulary or []
    document_tokens = np.arange(len(vocabulary)) if settings.whole_vocabulary else np.flatnonzero(in_collection)
    kept = total = 0.0
    model.eval()
    with progress_bar() as bar, TableWriter(folder, vocabulary) as writer, float32_products(model.device):
        task = bar.add_task("export T(q|d)", total=len(vocabulary))
        for first in range(0, len(vocabulary), ROWS_AT_ONCE):
            queries = np.arange(first, min(first + ROWS_AT_ONCE, len(vocabulary)))
            for row in model.translation_rows(queries, document_tokens):
                chosen = np.flatnonzero(row >= settings.threshold)
                if settings.top_k is not None and len(chosen) > settings.top_k:
                    chosen = np.sort(chosen[np.argpartition(-row[chosen], settings.top_k - 1)[: settings.top_k]])
                writer.append(document_tokens[chosen], row[chosen])
                kept += float(row[chosen].sum(dtype=np.float64))
                total += float(row.sum(dtype=np.float64))
            bar.advance(task, len(queries))
        entries, pairs = sum(writer.lengths), len(vocabulary) * len(document_tokens)
        shares = {"share_of_pairs": entries / max(1, pairs), "share_of_mass": kept / max(total, 1e-30)}
        writer.finish(
            {
                "field": model.field,
                "source": {"ranker": type(model).__name__, "seed": model.seed, "checkpoint": model.fingerprint()},
                "parameters": {"threshold": settings.threshold, "p_self": model.p_self},
                "scored_with": {"smoothing": model.smoothing, "floor": model.floor},
                "export": {**settings._asdict(), "pairs": pairs, **shares},
            }
        )
    size = (Path(folder) / TABLE).stat().st_size
    return ExportReport(entries, size, pairs, **shares, seconds=time.perf_counter() - started)


def is_exported(model: ContextFreeRanker, settings: ExportSettings, meta: dict[str, Any]) -> bool:
    """Return whether a table with this meta.json is the export of this very network with these settings."""
    same_settings = settings._asdict().items() <= meta.get("export", {}).items()
    return same_settings and meta["source"].get("checkpoint") == model.fingerprint()
