"""Exports a trained neural Model 1 to a sparse translation table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

from lexical.terminal import say
from lightning_modules.neural_model1.export import ExportReport, ExportSettings, export_table
from lightning_modules.neural_model1.exported import describe
from lightning_modules.neural_model1.ranker import NNModel1


class SparseExport(L.Callback):
    """When training has ended, on rank zero: the table of the ranker's best weights.

    Args:
        folder: of the table.
        vocabulary: tokens of the ranker's field.
        in_collection: (vocabulary,) bool, the tokens that occur in the collection.
        settings: threshold, top-k, document side.
    """

    def __init__(
        self, folder: Path, vocabulary: list[str], in_collection: np.ndarray, settings: ExportSettings
    ) -> None:
        self.folder, self.vocabulary, self.in_collection, self.settings = folder, vocabulary, in_collection, settings
        self.report: ExportReport | None = None

    def export(self, model: NNModel1) -> ExportReport:
        source: dict[str, Any] = {"ranker": "neural Model 1", "seed": model.seed, "checkpoint": model.fingerprint()}
        self.report = export_table(model, self.vocabulary, self.in_collection, self.settings, self.folder, source)
        say(f"exported to {self.folder}: {describe(self.report._asdict())}")
        return self.report

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, NNModel1)
        pl_module.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU
        pl_module.use_best_weights()
        report = self.export(pl_module)
        values = {f"export/{name}": float(value) for name, value in report._asdict().items()}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
