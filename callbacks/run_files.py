"""Write what `trainer.test` has measured: TREC runs and the values of each query, per seed and averaged over seeds.

<folder>/runs/<query_set>[.alone].run[.gz]      scores of the candidates; large runs are gzipped
<folder>/per_query/<query_set>[.alone].tsv      query, measure, value
<folder>/../per_query/<query_set>[.alone].tsv   means over the seeds that are there
"""

from __future__ import annotations

from pathlib import Path

import lightning as L

from evaluation.evaluated_set import metric_name
from evaluation.measurements import over_seeds, ranking_name, read_measurements, write_measurements
from lexical.ranking.trec_run import write_leaderboard, write_run
from lightning_modules.ranker import Ranker


class RunFiles(L.Callback):
    """When a test ends, on rank zero: writes runs and per-query values of every query set.

    Args:
        folder: of the run.
        tag: last column of the TREC runs.
        leaderboard: also write runs as query id, document id, rank, separated by tabs.
        depth: documents of a query in the runs; all when not given. What is measured does not depend on it.
    """

    def __init__(self, folder: str | Path, tag: str, leaderboard: bool = False, depth: int | None = None) -> None:
        self.folder, self.tag, self.leaderboard, self.depth = Path(folder), tag, leaderboard, depth

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Ranker)
        for name, evaluated in pl_module.evaluated.items() if trainer.is_global_zero else ():
            for alone in evaluated.variants:
                path = self.folder / "runs" / f"{ranking_name(name, alone)}.run"
                run = evaluated.run(alone) if self.depth is None else evaluated.run(alone).head(self.depth)
                write_run(run, path, self.tag)
                if self.leaderboard:
                    write_leaderboard(run, path.with_suffix(".leaderboard.tsv"))
            write_measurements(self.folder, evaluated.measurements)


class SeedAverages(L.Callback):
    """When a test ends, on rank zero: averages each query's values over the seeds that are there, and logs the means.

    Args:
        folder: of this seed's run; the other seeds are beside it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Ranker)
        ranker = self.folder.parent
        for name, evaluated in pl_module.evaluated.items() if trainer.is_global_zero else ():
            seeds = [path.parent.parent for path in sorted(ranker.glob(f"seed-*/per_query/{name}.tsv"))]
            others = [seed for seed in seeds if seed != self.folder]
            files = [read_measurements(other, name, alone) for other in others for alone in evaluated.variants]
            averages = []
            for measurement in evaluated.measurements:
                same = [other for file in files for other in file if other.key == measurement.key]
                averages.append(over_seeds(ranker.name, [measurement, *same]))
            write_measurements(ranker, averages)
            means = {f"{metric_name(average)}_over_seeds": average.mean for average in averages}
            for logger in trainer.loggers:
                logger.log_metrics({**means, f"{name}/seeds": len(others) + 1.0})
