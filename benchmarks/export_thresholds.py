"""The trade-off of the export: how small the table may be, and what that costs on the development queries.

    python benchmarks/export_thresholds.py [--outputs outputs] [--seed 1] [--depth 1000] [--data NAME ...]

For the nn_model1 that is trained there: its exported table pruned at growing thresholds, with the share of all pairs
that is left, its size, the lambda that is best for it, and MRR alone and fused (at
the best of a few fusion weights) beside the network's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lexical.errors import run_script
from lexical.model1.scorer import model1_scores, per_query_token
from lexical.model1.table import TranslationTable
from lexical.model1.table_files import load_table
from lexical.model1.tuning import SMOOTHING_OF_EXPORT, JudgedQueries, tune_smoothing
from lexical.ranking.fusion import trial_reciprocal_ranks
from lexical.ranking.order import mean_reciprocal_rank
from pipeline.command_line import parse_data
from pipeline.configs import resolve
from pipeline.evaluating import load_trained
from pipeline.run_folder import RunFolder

THRESHOLDS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("export_thresholds", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--outputs", default="outputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--depth", type=int, default=1000)
    arguments, rest = parser.parse_known_args(argv)
    _, data = parse_data(resolve(rest))
    folder = RunFolder.of(arguments.outputs, data.name, "nn_model1", arguments.seed)
    network = load_trained(folder, data)
    saved = load_table(folder.table)
    (batch,) = data.development_batches((network.field,), arguments.depth)
    judged = JudgedQueries(batch.forward, batch.queries, batch.task, batch.first_stage)
    texts = batch.forward, batch.queries, batch.task.candidates

    def measured(alone: np.ndarray) -> tuple[float, float]:
        fusions = trial_reciprocal_ranks(batch.task, batch.first_stage, alone).mean(axis=0)
        return mean_reciprocal_rank(batch.task, alone), float(fusions.max())

    needs = network.needs()._replace(depth=arguments.depth)
    own = measured(
        np.concatenate([network.score(part.ranking) for part in data.evaluation_batches("development", needs)])
    )
    queries = batch.task.candidates.rows
    print(f"{data.name}, seed {arguments.seed}: {queries:,} development queries, depth {arguments.depth}")
    print("| threshold | share of pairs | MB | lambda | MRR alone | MRR fused | loss alone | loss fused |")
    print("|---|---|---|---|---|---|---|---|")
    print(f"| network | 100% | | | {own[0]:.4f} | {own[1]:.4f} | | |")
    for threshold in THRESHOLDS:
        keep = saved.table.probabilities >= np.float32(threshold)
        table = TranslationTable(saved.table.rows.select(keep), saved.table.probabilities[keep])
        smoothing = tune_smoothing(table, judged, SMOOTHING_OF_EXPORT).settings.smoothing
        scores = model1_scores(table, *texts, smoothing)
        alone, fused = measured(per_query_token(scores, *texts[1:]))
        share = 100 * table.entries / saved.meta["export"]["pairs"]
        print(
            f"| {threshold:g} | {share:.2f}% | {8e-6 * table.entries:.0f} | {smoothing:g} | {alone:.4f} | {fused:.4f} "
            f"| {100 * (1 - alone / own[0]):.2f}% | {100 * (1 - fused / own[1]):.2f}% |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(run_script(main))
