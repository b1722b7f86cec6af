"""Evidence of the same few development queries at each validation of a Model 1 ranker, logged to W&B.

explanations/page   each query with a relevant document and another one, their evidence highlighted
explanations/words  the same as a table: what each query word adds, and which document words that comes from

Callbacks that measure time should stand behind this one: its time is part of the validation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
            self.log_explanations(trainer, logger.experiment, watched)
        except Exception as error:  # whatever it is: explanations never stop a training
            self.works = False
            say(f"nothing is explained in W&B: {' '.join(str(error).split())[:200]}")

    def explain(self, ranker: Ranker, name: str) -> list[list[Explanation]]:
        """Return the documents of each sampled query as the ranker scores them now, the relevant one first."""
        data: Any = ranker.data
        if self._searcher is None or self._searcher.data is not data:
            self._searcher = Searcher(data)
        texts, tokens = data.query_set(DEVELOPMENT).texts, data.prepared.query_tokens(DEVELOPMENT, ranker.field)
        watched = []
        for number, documents in sampled_queries(data.ranked_task(DEVELOPMENT, ranker.rerank_depth)):
            query = Query(texts[number], {ranker.field: tokens.row(number)})
            watched.append(self._searcher.explain_alone(name, ranker, query, documents))
        if not watched:
            raise ValueError("no development query has a relevant candidate")
        return watched

    def log_explanations(self, trainer: L.Trainer, run: Any, watched: Sequence[Sequence[Explanation]]) -> None:
        """Log page and table to a W&B run, with the step under the name that Lightning's logger gives it."""
        import wandb

        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        step, epoch = trainer.global_step, trainer.current_epoch + 1
        about = f"{data.name} ({DEVELOPMENT}), epoch {epoch}, step {step}: a relevant document, then the best other one"
        contents = [explanations_json(documents, about, compared=len(documents) > 1) for documents in watched]
        page = wandb.Html(explanation_page(contents), inject=False)
        rows = [[step, epoch, *row] for documents in watched for row in word_rows(documents)]
        table = wandb.Table(columns=list(COLUMNS), data=rows)
        run.log({"explanations/page": page, "explanations/words": table, "trainer/global_step": step})


def sampled_queries(task: RankedTask, most: int = QUERIES) -> list[tuple[int, np.ndarray]]:
    """Return a fixed sample of the queries that have a relevant document among their candidates, in their order.

    Each is the query's number in its set, and the (1 or 2,) rows of the first stage's best relevant and best other
    candidate.
    """
    candidates = task.candidates
    judged = np.unique(candidates.row_numbers()[task.relevant])
    sample = []
    for number in np.sort(np.random.default_rng(SPLIT_SEED).permutation(judged)[:most]):
        row = slice(*candidates.offsets[number : number + 2])
        documents, relevant = candidates.values[row], task.relevant[row]  # best first
        sample.append((int(number), np.concatenate([documents[relevant][:1], documents[~relevant][:1]])))
    return sample


def word_rows(documents: Sequence[Explanation]) -> list[list[Any]]:
    """Return `COLUMNS`, from the third on, for every query word of each document of a query, the relevant one first.

    log_score is ln P(q|D) of the word, score the ranker's own score of the document: the sum of the log-scores divided
    by the number of query tokens, or by 1 for rankers that do not normalise.
    """
    rows = []
    for number, document in enumerate(documents):
        view = feature_view(document.main, document.query, document.text)
        for word in view.query:
            shares = ", ".join(f"{share.text} {100 * share.share:.0f}%" for share in view.strongest(word))
            evidence = [word.text, word.log_score, shares or "nothing"]
            rows.append([document.query, document.document, number == 0, *evidence, document.score])
    return rows


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
