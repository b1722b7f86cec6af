"""Exports a trained neural Model 1 to a sparse translation table."""

from __future__ import annotations

from pathlib import Path

import lightning as L

from lexical.terminal import say
from lightning_modules.model1.translation_ranker import TABLE_FOLDER
from lightning_modules.neural_model1.export import ExportReport, ExportSettings, export_table
from lightning_modules.neural_model1.ranker import NeuralModel1


class SparseExport(L.Callback):
    """When training has ended, on rank zero: writes `table/` in the trainer's root folder, from the best weights.

    Args:
        settings: threshold, top-k, document side.
    """

    def __init__(self, settings: ExportSettings) -> None:
        self.settings = settings
        self.report: ExportReport | None = None

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, NeuralModel1) and pl_module.vocabulary is not None
        pl_module.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU
        in_collection = pl_module.data.tokens_in_collection(pl_module.field)
        folder = Path(trainer.default_root_dir) / TABLE_FOLDER
        self.report = export_table(pl_module, pl_module.vocabulary, in_collection, self.settings, folder)
        say(f"exported to {folder}: {self.report}")
        values = {f"export/{name}": float(value) for name, value in self.report._asdict().items()}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
