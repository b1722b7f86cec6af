"""The paper's non-parametric Model 1: T(q|d) learned by EM from queries and pieces of their relevant documents.

One epoch is one iteration of `lexical.model1.em`: the trainer hands over the bitext block by block, the counts of all
processes are summed, the table is normalised. After the last iteration the table is pruned, given its
self-translations and smoothed as the development queries like it best. With several fields (words without and with
stop words) each has its own table, and development chooses.
"""

from __future__ import annotations

from typing import Any

import numba
from rich.progress import Progress

from lexical.batches import BitextBatch, Needs, TuningBatch
from lexical.errors import UserError, require
from lexical.model1.bitext import CHUNK, BitextOptions
from lexical.model1.em import Model1EM
from lexical.model1.table import Translations
from lexical.model1.tuning import THRESHOLDS
from lexical.terminal import progress_bar, say
from lightning_modules.model1.counting import CountingStrategy, sum_over_ranks
from lightning_modules.model1.translation_ranker import ChosenTable, TranslationRanker


class Model1(TranslationRanker):
    """Model 1 trained by EM.

    Args:
        fields: word, lemm, word_all or bwps; the best one on development is kept.
        iterations: of EM.
        chunk: documents are cut into chunks of so many tokens for each query token; 0 leaves them whole.
        symmetric: learn from both directions of each pair.
        vocabulary: most frequent tokens that translations are learned for; others only translate to themselves.
        min_documents: the same for tokens of fewer documents.
        threshold: smaller translation probabilities are dropped; tuned on development when not given.
        p_self: T(t|t); tuned on development when not given.
        smoothing: lambda, the weight of P(q|C); tuned on development when not given.
        fused: the row is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    def __init__(
        self,
        fields: list[str],
        iterations: int = 5,
        chunk: float = CHUNK,
        symmetric: bool = True,
        vocabulary: int = 1_000_000,
        min_documents: int = 2,
        threshold: float | None = None,
        p_self: float | None = None,
        smoothing: float | None = None,
        fused: bool = True,
        rerank_depth: int = 1000,
    ) -> None:
        require(len(fields) > 0, "--model.fields", fields, "one field or more")
        super().__init__(fields[0], threshold, p_self, smoothing, fused, rerank_depth)
        require(iterations >= 1, "--model.iterations", iterations, "1 or more")
        require(0 <= chunk <= 1000, "--model.chunk", chunk, "from 0 (whole documents) to 1000")
        require(min_documents >= 1, "--model.min_documents", min_documents, "1 or more")
        require(vocabulary >= 1, "--model.vocabulary", vocabulary, "1 or more")
        self.fields, self.iterations = tuple(dict.fromkeys(fields)), iterations
        self.bitext = BitextOptions(chunk, symmetric, vocabulary=vocabulary, min_documents=min_documents)
        self.em: dict[str, Model1EM] = {}
        self.tables: list[ChosenTable] = []  # the best one of each field
        self._bar: Progress | None = None

    def needs(self) -> Needs:
        return Needs(self.fields, "bitext", "development", self.rerank_depth, self.bitext)

    def trainer_settings(self) -> dict[str, Any]:
        """One epoch an iteration; several processes where the user asks for them."""
        fixed = super().trainer_settings()
        for key in ("devices", "num_nodes"):
            del fixed[key]
        return {**fixed, "max_epochs": self.iterations, "check_val_every_n_epoch": self.iterations}

    def strategy(self, processes: int) -> Any:
        return CountingStrategy(process_group_backend="gloo") if processes > 1 else "auto"

    def on_fit_start(self) -> None:
        self.em, self.tables = {}, []
        self._threads = numba.get_num_threads()
        numba.set_num_threads(max(1, self._threads // self.trainer.num_devices))

    def on_fit_end(self) -> None:
        self.em = {}  # gigabytes, on large data
        numba.set_num_threads(self._threads)

    def end_progress(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    # --- EM

    def on_train_start(self) -> None:
        self._bar = progress_bar()
        self._row = self._bar.add_task("EM", total=self.iterations * int(self.trainer.num_training_batches))
        self._bar.start()

    def training_step(self, batch: BitextBatch, batch_idx: int) -> None:
        """The expectation step of one block; after the last block of the epoch, the maximisation."""
        if batch.field not in self.em:
            self.em[batch.field] = Model1EM(batch.vocabulary_size)
        self.em[batch.field].accumulate(batch.bitext)
        if self._bar is not None:
            self._bar.advance(self._row)
        if batch_idx + 1 == self.trainer.num_training_batches:
            for field, em in self.em.items():
                self._maximise(field, em)

    def _maximise(self, field: str, em: Model1EM) -> None:
        sum_over_ranks(em)
        tokens, dropped = em.target_tokens, em.dropped_pairs
        reached = em.maximise()
        if em.iteration == 1 and tokens == 0:
            raise UserError(
                f"the training queries and their relevant documents give no sentence pairs in the field {field}: "
                "there is nothing that EM could learn from"
            )
        if em.iteration == 1 and dropped:
            ratio = f"lengths differ by more than a factor of {self.bitext.length_ratio:g}"
            say(f"bitext ({field}): {dropped:,} pairs are left out, as their {ratio}")
        self.record(em.iteration, {f"train/log_likelihood_{field}": reached})
        say(
            f"EM ({field}): iteration {em.iteration} of {self.iterations} began at log-likelihood "
            f"{reached:,.0f} ({reached / tokens:.4f} a token), {len(em.pairs.values):,} distinct pairs"
        )

    # --- the table

    def on_validation_start(self) -> None:
        self.end_progress()
        numba.set_num_threads(self._threads)  # one process tunes, the others wait

    def validation_step(self, batch: TuningBatch, batch_idx: int) -> None:
        """After the last iteration: the table of this field, as development likes it best."""
        if not self.trainer.is_global_zero:
            return
        em = self.em[batch.field]
        learned = Translations(em.pairs, em.translation)
        best = self.choose_table(learned, batch, THRESHOLDS, first_step=batch_idx * 1000)
        self.tables.append(best)
        settings = ", ".join(f"{name} {value:g}" for name, value in best.settings._asdict().items())
        say(f"Model 1 ({best.field}): development MRR {best.mrr:.4f} with {settings}, {best.table.entries:,} entries")

    def on_validation_epoch_end(self) -> None:
        """Before callbacks hear of the end of the validation: they find a ranker that can score."""
        if self.tables:
            self.use(max(self.tables, key=lambda table: table.mrr))

    def findings(self) -> dict[str, float]:
        tuned = {f"development/mrr_tuned_{table.field}": table.mrr for table in self.tables}
        return {**super().findings(), **tuned}

    def source(self) -> dict[str, Any]:
        options = self.bitext._asdict()
        return {"ranker": "Model 1 by EM", "iterations": self.iterations, "bitext": options}
