"""What the scores of a Model 1 ranker rest on, for the same few development queries at each validation (W&B):

explanations/page   each query with its relevant document and a wrong one, the words that count lit up
explanations/words  the same as a table: what each query word adds and which document words that comes from
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import WandbLogger

from apps.watched_evidence import COLUMNS, WatchedQuery, watched_page, word_rows
from lightning_modules.ranker import Ranker


class EvidenceMonitor(L.Callback):
    """Explains and logs, on rank zero; changes nothing.

    It stands before callbacks that measure time: its own is the validation's.

    Args:
        explain: the watched queries as the ranker, as it is now, scores them.
        data: where the queries come from, for the page.
        guard: around all of it; an error must end there.
    """

    def __init__(
        self,
        explain: Callable[[Ranker], Sequence[WatchedQuery]],
        data: str,
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.explain, self.data, self.guard = explain, data, guard
        self._works = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        logger = next((one for one in trainer.loggers if isinstance(one, WandbLogger)), None)
        if logger is None or not trainer.is_global_zero or not self._works:
            return
        assert isinstance(pl_module, Ranker)
        self._works = False  # what has failed once is not tried again: one line about it is enough
        with self.guard():
            with undisturbed(pl_module):
                watched = self.explain(pl_module)
            self._log(logger.experiment, watched, trainer.global_step, trainer.current_epoch + 1)
            self._works = True

    def _log(self, run: Any, watched: Sequence[WatchedQuery], step: int, epoch: int) -> None:
        import wandb

        about = f"{self.data} in epoch {epoch}, step {step}: the relevant document, then the first stage's best other"
        media = {
            "explanations/page": wandb.Html(watched_page(watched, about), inject=False),
            "explanations/words": wandb.Table(columns=list(COLUMNS), data=word_rows(watched, step, epoch)),
        }
        run.log({**media, "trainer/global_step": step})  # as WandbLogger logs metrics


@contextmanager
def undisturbed(module: torch.nn.Module) -> Iterator[None]:
    """For scoring in the middle of a training: afterwards modes, random numbers and threads are as they were."""
    modes = [(one, one.training) for one in module.modules()]
    threads = torch.get_num_threads()  # numba's kernels may change OpenMP's; it would change the rounding
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module.eval()
            yield
    finally:
        torch.set_num_threads(threads)
        for one, training in modes:
            one.training = training
