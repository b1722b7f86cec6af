"""The trade-off of the export: how small the table may be, and what that costs on the development queries.

    python benchmarks/export_thresholds.py [--outputs outputs] [--seed 1] [--depth 1000] [--data NAME ...]

For the nn_model1 that is trained there: its exported table pruned at growing thresholds, with the share of all pairs
that is left, its size, and MRR alone and fused (with the fusion weights of nn_model1) beside the network's own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lexical.errors import run_script
from lexical.model1.scorer import model1_scores, per_query_token
from lexical.model1.table import TranslationTable
from lexical.model1.table_files import load_table
from lexical.ranking.fusion import fuse
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
    weights = np.asarray(json.loads(folder.fusion.read_text())["weights"])
    task = data.ranked_task("development", arguments.depth)
    first_stage = data.first_stage_scores("development", arguments.depth)
    needs = network.needs()._replace(depth=arguments.depth)
    batches = [batch.ranking for batch in data.evaluation_batches("development", needs)]

    def measured(alone: np.ndarray) -> tuple[float, float]:
        fused = fuse(np.stack([first_stage, alone]), weights)
        return mean_reciprocal_rank(task, alone), mean_reciprocal_rank(task, fused)

    own = measured(np.concatenate([network.score(batch) for batch in batches]))
    print(f"{data.name}, seed {arguments.seed}: {task.candidates.rows:,} development queries, depth {arguments.depth}")
    print("| threshold | share of pairs | MB | MRR alone | MRR fused | loss alone | loss fused |")
    print("|---|---|---|---|---|---|---|")
    print(f"| network | 100% | | {own[0]:.4f} | {own[1]:.4f} | | |")
    for threshold in THRESHOLDS:
        keep = saved.table.probabilities >= np.float32(threshold)
        table = TranslationTable(saved.table.rows.select(keep), saved.table.probabilities[keep])
        scores = [
            per_query_token(
                model1_scores(table, *batch[:3], 0.0, floor=saved.meta["scored_with"]["floor"]),
                batch.queries, batch.candidates,
            )
            for batch in batches
        ]  # fmt: skip
        alone, fused = measured(np.concatenate(scores))
        share = 100 * table.entries / saved.meta["export"]["pairs"]
        print(
            f"| {threshold:g} | {share:.2f}% | {8e-6 * table.entries:.0f} | {alone:.4f} | {fused:.4f} "
            f"| {100 * (1 - alone / own[0]):.2f}% | {100 * (1 - fused / own[1]):.2f}% |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(run_script(main))
