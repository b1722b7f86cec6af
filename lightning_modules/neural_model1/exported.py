"""The neural Model 1 exported to a sparse table and run by the CPU scorer, without any network.

Nothing is learned: the table is the trained network's. It is made when `nn_model1` has been trained; here it is taken
over, or exported again with other settings.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lexical.batches import Needs, TuningBatch
from lexical.model1.table_files import META, load_table, read_meta, share_table
from lexical.model1.tuning import TableSettings
from lexical.terminal import say
from lightning_modules.model1.translation_ranker import TABLE_FOLDER, ChosenTable, TranslationRanker
from lightning_modules.neural_model1.export import ExportSettings, export_table
from lightning_modules.neural_model1.ranker import NNModel1
from lightning_modules.ranker import Source


class NNModel1Exp(TranslationRanker):
    """A trained `NNModel1` as a sparse table.

    Args:
        threshold: smaller T(q|d) are dropped.
        top_k: at most so many document tokens for each query token; all when not given.
        whole_vocabulary: also document tokens that do not occur in the collection.
        field: the one that the network was trained on.
        fused: the row is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    random = True
    made_from = ("nn_model1",)

    def __init__(
        self,
        threshold: float = 1e-4,
        top_k: int | None = None,
        whole_vocabulary: bool = False,
        field: str = "bwps",
        fused: bool = True,
        rerank_depth: int = 1000,
    ) -> None:
        super().__init__(field, threshold, None, 0.0, fused, rerank_depth)
        self.export = ExportSettings(threshold, top_k, whole_vocabulary).check()
        self.made_of: Source | None = None
        self.table_folder: Path | None = None

    def use_sources(self, sources: Sequence[Source]) -> None:
        (self.made_of,) = sources
        self.field = self.made_of.ranker.field

    def needs(self) -> Needs:
        return Needs((self.field,), train="development", depth=self.rerank_depth)

    def training_step(self, batch: TuningBatch, batch_idx: int) -> None:  # noqa: ARG002
        assert self.made_of is not None
        network = self.made_of.ranker
        assert isinstance(network, NNModel1)
        self.table_folder = self.made_of.folder / TABLE_FOLDER
        if not self._is_exported(network, self.table_folder):
            self.table_folder = Path(self.trainer.default_root_dir) / ".table.again"
            report = export_table(
                network, batch.vocabulary, batch.forward.document_frequency > 0, self.export,
                self.table_folder, {"ranker": "a trained network", "checkpoint": network.fingerprint()},
            )  # fmt: skip
            say(f"exported: {describe(report._asdict())}")
        table = load_table(self.table_folder).table
        self.floor = network.floor
        settings = TableSettings(self.export.threshold, network.p_self, 0.0)
        self.use(ChosenTable(batch.field, batch.vocabulary, table, settings, mrr=0.0))  # nothing is left to choose

    def _is_exported(self, network: NNModel1, folder: Path) -> bool:
        """The table there was exported from this very network with these settings."""
        if not (folder / META).is_file():
            return False
        meta = read_meta(folder)
        asked, found = self.export._asdict(), meta.get("export")
        same = isinstance(found, dict) and {key: found.get(key) for key in asked} == asked
        return same and meta.get("source", {}).get("checkpoint") == network.fingerprint()

    def save_files(self, folder: Path) -> None:
        assert self.table_folder is not None
        share_table(self.table_folder, folder / TABLE_FOLDER)
        if self.table_folder.parent == folder:
            shutil.rmtree(self.table_folder)

    def findings(self) -> dict[str, float]:
        entries = float(self.chosen.table.entries) if self.chosen else 0.0
        return {**super().findings(), "table/entries": entries}


def describe(report: dict[str, Any]) -> str:
    """An export in one line."""
    return (
        f"{report['entries']:,} of {report['pairs']:,} pairs ({100 * report['share_of_pairs']:.2f}%), "
        f"{100 * report['share_of_mass']:.1f}% of the mass of T, {report['bytes'] / 1e6:.1f} MB, "
        f"{report['seconds']:.0f} s"
    )
