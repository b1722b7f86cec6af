"""The paper's non-parametric Model 1: T(q|d) learned by EM from queries and pieces of their relevant documents.

One epoch is one iteration of `lexical.model1.em`: the trainer passes the bitext block by block, the counts of all
processes are summed, the table is normalised. After the last iteration the pruning threshold, p_self and lambda are
chosen on the development queries. With several fields (words without and with stop words) each has its own table, and
the best one on development is kept.
"""

from __future__ import annotations

from typing import Any, cast

import numba
import torch
import torch.distributed as dist

from lexical.batches import BitextBatch, DataNeeds
from lexical.errors import UserError, require
from lexical.model1.bitext import CHUNK, BitextOptions
from lexical.model1.em import Model1EM, PairCounts, merged
from lexical.model1.table import Translations
from lexical.model1.tuning import THRESHOLDS
from lexical.terminal import detail, say
from lightning_modules.model1.translation_ranker import ChosenTable, TranslationRanker, found_settings
from lightning_modules.ranker import require_settings
from lightning_modules.strategy import UnwrappedStrategy

LOG_STEPS_PER_FIELD = 1000  # trials of different fields are logged at different steps


class Model1(TranslationRanker):
    """Model 1 trained by EM.

    Args:
        fields: word, lemm, word_all or bwps; the best one on development is kept.
        iterations: of EM; training ends with the last one.
        chunk: documents are cut into chunks of this many tokens per query token; 0 leaves them whole.
        symmetric: learn from both directions of each pair.
        vocabulary: most frequent tokens that translations are learned for; others only translate to themselves.
        min_documents: tokens of fewer documents only translate to themselves, too; 1, as in the paper, excludes none.
        threshold: smaller translation probabilities are dropped; tuned on development when not given.
        p_self: T(t|t); tuned on development when not given.
        smoothing: lambda, the weight of P(q|C); tuned on development when not given.
        fused: the row of the results table is this ranker fused with the first stage, BM25 (lemm).
        rerank_depth: candidates of a query that are re-ranked.
    """

    single_process = False

    def __init__(
        self,
        fields: list[str] = ["word", "word_all"],  # noqa: B006 - jsonargparse shows it; never changed
        iterations: int = 5,
        chunk: float = CHUNK,
        symmetric: bool = True,
        vocabulary: int = 1_000_000,
        min_documents: int = 1,
        threshold: float | None = None,
        p_self: float | None = None,
        smoothing: float | None = None,
        fused: bool = True,
        rerank_depth: int = 1000,
    ) -> None:
        require(len(fields) > 0, "--model.fields", fields, "one field or more")
        super().__init__(fields[0], threshold, p_self, smoothing, fused, rerank_depth)
        require_settings("1 or more", iterations=iterations, vocabulary=vocabulary, min_documents=min_documents)
        require(0 <= chunk <= 1000, "--model.chunk", chunk, "from 0 (whole documents) to 1000")
        self.fields, self.iterations = tuple(dict.fromkeys(fields)), iterations
        self.bitext = BitextOptions(chunk, symmetric, vocabulary=vocabulary, min_documents=min_documents)
        self.em: dict[str, Model1EM] = {}
        self.tables: list[ChosenTable] = []  # the best one of each field

    def needs(self) -> DataNeeds:
        return DataNeeds((self.field,), "bitext", self.rerank_depth, train_fields=self.fields, bitext=self.bitext)

    def default_strategy(self, processes: int) -> Any:
        return UnwrappedStrategy(process_group_backend="gloo") if processes > 1 else "auto"

    def on_fit_start(self) -> None:
        self.em, self.tables, self.chosen = {}, [], None
        self._threads = numba.get_num_threads()
        numba.set_num_threads(max(1, self._threads // self.trainer.num_devices))

    def on_fit_end(self) -> None:
        self.em = {}  # gigabytes, on large data
        numba.set_num_threads(self._threads)

    def training_step(self, batch: BitextBatch, batch_idx: int) -> None:
        """Run the expectation step of one block; after the last block of the epoch, the maximisation step."""
        if batch.field not in self.em:
            self.em[batch.field] = Model1EM(batch.vocabulary_size)
        self.em[batch.field].accumulate(batch.bitext)
        if batch_idx + 1 == self.trainer.num_training_batches:
            for field, em in self.em.items():
                self._maximise(field, em)
            if self.current_epoch + 1 in (self.iterations, self.trainer.max_epochs):
                self._choose_tables()
                self.trainer.should_stop = True

    def _maximise(self, field: str, em: Model1EM) -> None:
        sum_over_ranks(em)
        tokens, dropped = em.target_tokens, em.dropped_pairs
        log_likelihood = em.maximise()
        if em.iteration == 1 and tokens == 0:
            raise UserError(
                f"the training queries and their relevant documents give no sentence pairs in the field {field}: "
                "there is nothing that EM could learn from"
            )
        if em.iteration == 1 and dropped:
            ratio = f"lengths differ by more than a factor of {self.bitext.length_ratio:g}"
            say(f"bitext ({field}): {dropped:,} pairs are dropped because their {ratio}")
        self.log_metrics(em.iteration, {f"train/log_likelihood_{field}": log_likelihood})
        detail(
            f"EM ({field}): iteration {em.iteration} of {self.iterations} started at log-likelihood "
            f"{log_likelihood:,.0f} ({log_likelihood / tokens:.4f} per token), {len(em.pairs.values):,} distinct pairs"
        )

    def _choose_tables(self) -> None:
        """Choose the best table of each field on development, and the best field. Every process does the same."""
        for number, batch in enumerate(self.data.development_batches(self.fields, self.rerank_depth)):
            em = self.em[batch.field]
            learned = Translations(em.pairs, em.translation)
            best = self.choose_table(learned, batch, THRESHOLDS, first_step=number * LOG_STEPS_PER_FIELD)
            self.tables.append(best)
            settings = ", ".join(f"{name} {value:g}" for name, value in found_settings(best.settings).items())
            mrr, entries = f"development MRR {best.mrr:.4f}", f"{best.table.entries:,} entries"
            detail(f"Model 1 ({best.field}): {mrr} with {settings}, {entries}")
        self.use(max(self.tables, key=lambda table: table.mrr))

    def findings(self) -> dict[str, float]:
        tuned = {f"development/mrr_tuned_{table.field}": table.mrr for table in self.tables}
        return {**super().findings(), **tuned}

    def source(self) -> dict[str, Any]:
        return {"ranker": "Model 1 by EM", "iterations": self.iterations, "bitext": self.bitext._asdict()}


# --- several processes that count together


def sum_over_ranks(em: Model1EM) -> None:
    """Sum the counts and the log-likelihood of all ranks' shares of the bitext, before each maximisation."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if em.iteration == 0:  # each rank has found pairs of its own
        em.expected = _merged_over_ranks(em.expected)
    else:
        dist.all_reduce(torch.from_numpy(em.expected.values))
        dist.all_reduce(torch.from_numpy(em.expected.null))
    totals = torch.tensor([em.log_likelihood, em.target_tokens, em.dropped_pairs], dtype=torch.float64)
    dist.all_reduce(totals)
    em.log_likelihood, em.target_tokens, em.dropped_pairs = float(totals[0]), int(totals[1]), int(totals[2])


def _merged_over_ranks(counts: PairCounts) -> PairCounts:
    """Return the sum over the union of all ranks' pairs; every rank adds them in the same order."""
    total = None
    for rank in range(dist.get_world_size()):  # one after the other: memory holds the counts of one other rank
        received: list[Any] = [counts if rank == dist.get_rank() else None]
        dist.broadcast_object_list(received, rank)
        total = received[0] if total is None else merged(total, received[0])
    return cast(PairCounts, total)
