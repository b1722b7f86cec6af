"""Evidence of the same few development queries at each validation of a Model 1 ranker, logged to W&B.

explanations/page   each query with a relevant document and another one, their evidence highlighted
explanations/words  the same as a table: what each query word adds, and which document words that comes from

Callbacks that measure time should stand behind this one: its time is part of the validation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import WandbLogger

from apps.explanation import Explanation, feature_view
from apps.explanation_page import explanation_page, explanations_json
from apps.searching import Query, Searcher
from datamodules.text.query_sets import DEVELOPMENT, SPLIT_SEED
from lexical.ranking.order import RankedTask
from lexical.terminal import say
from lightning_modules.ranker import Ranker

QUERIES = 5
COLUMNS = ("step", "epoch", "query", "document", "relevant", "query word", "log_score", "rests on", "score")


class Explanations(L.Callback):
    """Explains the ranker's own scores after each validation, on rank zero; the fusion is learned after the training.

    The training stays bit for bit the same. After a first failure, which costs one line, nothing is explained.
    """

    def __init__(self) -> None:
        self.works = True
        self._searcher: Searcher | None = None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        logger = next((logger for logger in trainer.loggers if isinstance(logger, WandbLogger)), None)
        if logger is None or not trainer.is_global_zero or not self.works or trainer.sanity_checking:
            return
        if not isinstance(pl_module, Ranker) or not pl_module.explains or not pl_module.is_trained:
            return
        try:
            with undisturbed(pl_module):
                watched = self.explain(pl_module, logger.experiment.name or type(pl_module).__name__)
            log_explanations(logger.experiment, watched, trainer.global_step, trainer.current_epoch + 1)
        except Exception as error:  # whatever it is: explanations never stop a training
            self.works = False
            say(f"nothing is explained in W&B: {' '.join(str(error).split())[:200]}")

    def explain(self, ranker: Ranker, name: str) -> list[WatchedQuery]:
        """Return the sample as the ranker scores it now, in the field that it reads now: EM chooses one at its end."""
        data: Any = ranker.data
        if self._searcher is None or self._searcher.data is not data:
            self._searcher = Searcher(data)
        texts, tokens = data.query_set(DEVELOPMENT).texts, data.prepared.query_tokens(DEVELOPMENT, ranker.field)
        watched = []
        for number, documents in sampled_queries(data.ranked_task(DEVELOPMENT, ranker.rerank_depth)):
            query = Query(texts[number], {ranker.field: tokens.row(number)})
            relevant, *others = self._searcher.explain_alone(name, ranker, query, documents)
            watched.append(WatchedQuery(data.name, relevant, others[0] if others else None))
        if not watched:
            raise ValueError("no development query has a relevant candidate")
        return watched


class WatchedQuery(NamedTuple):
    """A query with a document that should be above another one."""

    data: str  # name
    relevant: Explanation
    other: Explanation | None  # None: all candidates are relevant

    @property
    def explanations(self) -> list[Explanation]:
        return [self.relevant] if self.other is None else [self.relevant, self.other]


class SampledQuery(NamedTuple):
    number: int  # of the query in its set
    documents: np.ndarray  # (1 or 2,) rows of the first stage's best relevant and best other candidate


def sampled_queries(task: RankedTask, most: int = QUERIES) -> list[SampledQuery]:
    """Return a fixed sample of the queries that have a relevant document among their candidates, in their order."""
    candidates = task.candidates
    judged = np.unique(candidates.row_numbers()[task.relevant])
    sample = []
    for number in np.sort(np.random.default_rng(SPLIT_SEED).permutation(judged)[:most]):
        row = slice(*candidates.offsets[number : number + 2])
        documents, relevant = candidates.values[row], task.relevant[row]  # best first
        sample.append(SampledQuery(int(number), np.concatenate([documents[relevant][:1], documents[~relevant][:1]])))
    return sample


def word_rows(watched: Sequence[WatchedQuery], step: int, epoch: int) -> list[list[Any]]:
    """Return `COLUMNS` for every document and query word.

    log_score is ln P(q|D) of the word, score the ranker's own score of the document: the sum of the log-scores divided
    by the number of query tokens, or by 1 for rankers that do not normalise.
    """
    rows = []
    for query in watched:
        for item in query.explanations:
            view = feature_view(item.main, item.query, item.text)
            for word in view.query:
                shares = (f"{share.text} {100 * share.share:.0f}%" for share in view.strongest(word))
                evidence = ", ".join(shares) or "nothing"
                row = [item.query, item.document, item is query.relevant, word.word.text, word.log_score, evidence]
                rows.append([step, epoch, *row, item.score])
    return rows


def watched_page(watched: Sequence[WatchedQuery], step: int, epoch: int) -> str:
    """Return one page, the queries one below the other, the relevant document first."""
    about = f"in epoch {epoch}, step {step}: the relevant document, then the first stage's best other"
    return explanation_page(
        [
            explanations_json(query.explanations, f"{query.data} ({DEVELOPMENT}) {about}", compared=bool(query.other))
            for query in watched
        ]
    )


def log_explanations(run: Any, watched: Sequence[WatchedQuery], step: int, epoch: int) -> None:
    """Log page and table to a W&B run, with the step under the name that Lightning's logger gives it."""
    import wandb

    page = wandb.Html(watched_page(watched, step, epoch), inject=False)
    table = wandb.Table(columns=list(COLUMNS), data=word_rows(watched, step, epoch))
    run.log({"explanations/page": page, "explanations/words": table, "trainer/global_step": step})


@contextmanager
def undisturbed(module: torch.nn.Module) -> Iterator[None]:
    """Score in the middle of a training: afterwards modes, random numbers and threads are as they were."""
    modes = [(part, part.training) for part in module.modules()]
    threads = torch.get_num_threads()  # numba's kernels may change OpenMP's; it would change the rounding
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module.eval()
            yield
    finally:
        torch.set_num_threads(threads)
        for part, training in modes:
            part.training = training
