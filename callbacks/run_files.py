"""Writes what `trainer.test` has measured: TREC runs, and each query's values, per seed and averaged over the seeds.

    <folder>/runs/<query_set>[.alone].run           scores of every candidate
    <folder>/per_query/<query_set>[.alone].tsv      query, measure, value
    <folder>/../per_query/<query_set>[.alone].tsv   means over the seeds that are there
"""

from __future__ import annotations

from pathlib import Path

import lightning as L

from evaluation.measures import per_query_tsv
from evaluation.seed_averages import seed_average
from lexical.errors import UserError
from lexical.ranking.trec_run import write_run
from lexical.small_files import write_text
from lexical.terminal import say
from lightning_modules.ranker import Ranker


def variant(query_set: str, alone: bool) -> str:
    """Return the name of a ranking: the row, or the ranker without BM25."""
    return f"{query_set}{'.alone' if alone else ''}"


class RunFiles(L.Callback):
    """When a test ends, on rank zero: writes runs and per-query values of every query set.

    Args:
        folder: of the run.
        tag: last column of the TREC runs.
        leaderboard: also write runs as query id, document id, rank, separated by tabs.
    """

    def __init__(self, folder: str | Path, tag: str, leaderboard: bool = False) -> None:
        self.folder, self.tag, self.leaderboard = Path(folder), tag, leaderboard

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Ranker)
        if not trainer.is_global_zero:
            return
        for name, evaluated in pl_module.evaluated.items():
            for alone in evaluated.variants:
                path = self.folder / "runs" / f"{variant(name, alone)}.run"
                write_run(evaluated.run(alone), path, self.tag)
                if self.leaderboard:
                    write_run(evaluated.run(alone), path.with_suffix(".leaderboard.tsv"), self.tag, leaderboard=True)
                text = per_query_tsv(evaluated.measures(alone))
                write_text(self.folder / "per_query" / f"{variant(name, alone)}.tsv", text)


class SeedAverages(L.Callback):
    """When a test ends, on rank zero: averages the values of each query over the seeds that are there, and logs them.

    Args:
        folder: of this seed's run; the other seeds are beside it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Ranker)
        if not trainer.is_global_zero:
            return
        for name, evaluated in pl_module.evaluated.items():
            for alone in evaluated.variants:
                file = f"{variant(name, alone)}.tsv"
                files = sorted(self.folder.parent.glob(f"seed-*/per_query/{file}"))
                try:
                    averages = seed_average(files)
                except UserError as error:
                    say(f"{name} is not averaged over the seeds: {error}")
                    continue
                write_text(self.folder.parent / "per_query" / file, per_query_tsv(averages))
                suffix = "_alone" if alone else ""
                means = {f"{name}/{mean.measure.lower()}{suffix}_over_seeds": mean.mean for mean in averages}
                for logger in trainer.loggers:
                    logger.log_metrics({**means, f"{name}/seeds": float(len(files))})

