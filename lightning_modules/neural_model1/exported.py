"""The neural Model 1 exported to a sparse table and run by the CPU scorer, without any network.

The table is an artifact of the trained network, `NeuralModel1` or `NeuralModel1EM`, and written when that has been
trained; here it is read, or exported again with other settings. As any table it is smoothed with lambda P(q|C); lambda
is chosen on development.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from callbacks.sparse_export import ExportSettings, export_table, is_exported
from lexical.batches import DevelopmentBatch
from lexical.errors import UserError
from lexical.model1.table_files import META, link_table, load_table, read_meta
from lexical.model1.tuning import SMOOTHING_OF_EXPORT, TableSettings
from lexical.terminal import detail
from lightning_modules.model1.translation_ranker import TABLE_FOLDER, TranslationRanker
from lightning_modules.neural_model1.context_free import ContextFreeRanker
from lightning_modules.ranker import require_settings
from lightning_modules.trained import dependency_folder, load_ranker


class ExportedModel1(TranslationRanker):
    """A trained context-free ranker as a sparse table.

    Args:
        network: the folder of its run, or the name of its row beside this one.
        threshold: smaller T(q|d) are dropped; as the network was exported when not given.
        top_k: at most this many document tokens per query token; as the network was exported when not given.
        whole_vocabulary: also document tokens that do not occur in the collection; as exported when not given.
        smoothing: lambda, the weight of P(q|C), which stands for the T(q|d) that are dropped; tuned on development when
            not given. With 0 the network's floor does.
        field: the one that the network was trained on.
        fused: the row of the results table is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    has_seeds = True

    def __init__(
        self,
        network: str = "nn_model1",
        threshold: float | None = None,
        top_k: int | None = None,
        whole_vocabulary: bool | None = None,
        smoothing: float | None = None,
        field: str = "bwps",
        fused: bool = True,
        rerank_depth: int = 1000,
    ) -> None:
        super().__init__(field, threshold, None, smoothing, fused, rerank_depth)
        if smoothing is None:
            self.given = self.given._replace(smoothing=SMOOTHING_OF_EXPORT)
        require_settings("1 or more", top_k=top_k)
        self.network = network
        self.given_export = {"threshold": threshold, "top_k": top_k, "whole_vocabulary": whole_vocabulary}
        self.table_folder: Path | None = None

    @property
    def dependencies(self) -> tuple[str, ...]:
        return (self.network,)

    def training_step(self, batch: DevelopmentBatch, batch_idx: int) -> None:  # noqa: ARG002
        run = dependency_folder(self.network, self.trainer.default_root_dir)
        network = load_ranker(run)
        if not isinstance(network, ContextFreeRanker):
            raise UserError(f"--model.network {self.network}: {run} is not a run of a neural Model 1")
        network.check_vocabulary(batch.vocabulary)
        as_exported = (network.export or ExportSettings())._asdict()
        given = {name: value for name, value in self.given_export.items() if value is not None}
        settings = ExportSettings(**(as_exported | given))
        self.table_folder = run / TABLE_FOLDER
        meta = read_meta(self.table_folder) if (self.table_folder / META).is_file() else {}
        if not is_exported(network, settings, meta):
            self.table_folder = Path(self.trainer.default_root_dir) / ".table.exported"
            in_collection = self.data.tokens_in_collection(batch.field)
            report = export_table(network, in_collection, settings, self.table_folder)
            detail(f"exported: {report}")
        self.floor = network.floor
        chosen = self.choose_smoothing(load_table(self.table_folder).table, batch)
        p_self = math.nan if network.p_self is None else network.p_self
        self.use(chosen._replace(settings=TableSettings(settings.threshold, p_self, chosen.settings.smoothing)))
        self.trainer.should_stop = True

    def save_table(self, folder: Path) -> None:
        assert self.table_folder is not None
        chosen = {"scored_with": self.scored_with(), "development_mrr": self._chosen.mrr}
        link_table(self.table_folder, folder, **chosen)
        if self.table_folder.parent == folder.parent:
            shutil.rmtree(self.table_folder)

    def findings(self) -> dict[str, float]:
        return {**super().findings(), "table/entries": float(self._chosen.table.entries)}
