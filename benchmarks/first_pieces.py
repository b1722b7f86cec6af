"""The cost of reading only the beginning of a document, as BERT rankers do: BM25 over its first word pieces.

    python benchmarks/first_pieces.py [--pieces 477,1431] [--query_set test_cpu] [--data pydocs_doc ...]

The candidates are those of the first stage, which reads whole documents. BM25 over word pieces ranks them again by
their first pieces only, with k1 and b tuned on `development` for each number of pieces. 477 pieces are one chunk of the
paper, 1,431 are three.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from datamodules.text.query_sets import DEVELOPMENT, SAMPLES, TEST_CPU
from lexical.bm25 import bm25_scores, tune
from lexical.errors import require, run_script
from lexical.index.forward_index import ForwardIndex, build_forward_index, open_forward_index
from lexical.index.ragged import Ragged, ragged
from lexical.ranking.order import mean_reciprocal_rank
from pipeline.command_line import parse_data
from pipeline.configs import resolve

DEPTH = SAMPLES[TEST_CPU].depth


def first_pieces(sequences: Ragged, pieces: int) -> Ragged:
    """Return (documents,) rows of at most `pieces` pieces."""
    return ragged([sequences.row(i)[:pieces] for i in range(sequences.rows)], np.int32)


def index_of(documents: Ragged, vocabulary_size: int, folder: Path) -> ForwardIndex:
    build_forward_index([documents], vocabulary_size, folder)
    return open_forward_index(folder)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("first_pieces", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pieces", default="477,1431", help="numbers of pieces, separated by commas")
    parser.add_argument("--query_set", default=TEST_CPU)
    parser.add_argument("--data", default="pydocs_doc")
    arguments, rest = parser.parse_known_args(argv)
    limits = arguments.pieces.split(",")
    valid = all(limit.isdecimal() and int(limit) > 0 for limit in limits)
    require(valid, "--pieces", arguments.pieces, "numbers above 0, separated by commas")
    _, data = parse_data(resolve(["--data", arguments.data, *rest]))
    data.prepare_data()
    field = data.prepared.field("bwps")
    lengths = field.sequences.lengths()
    tuned_on, task = (data.ranked_task(name, DEPTH) for name in (DEVELOPMENT, arguments.query_set))
    queries = {name: data.prepared.query_tokens(name, "bwps") for name in (DEVELOPMENT, arguments.query_set)}
    first_stage = mean_reciprocal_rank(task, data.first_stage_scores(arguments.query_set, DEPTH))
    print(f"{data.name}, {arguments.query_set}: {task.candidates.rows} queries with {DEPTH} candidates each")
    print(f"first stage, whole documents: MRR {first_stage:.4f}")
    print("| BM25 (word pieces) reads | candidates cut | relevant ones cut | k1 | b | MRR |")
    print("|---|---|---|---|---|---|")
    relevant = np.asarray(task.relevant, bool)
    for pieces in [*(int(limit) for limit in limits if int(limit) < lengths.max()), int(lengths.max())]:
        with tempfile.TemporaryDirectory() as folder:
            index = index_of(first_pieces(field.sequences, pieces), len(field.vocabulary()), Path(folder))
            best = tune(index, queries[DEVELOPMENT], tuned_on)
            mrr = mean_reciprocal_rank(task, bm25_scores(index, queries[arguments.query_set], task.candidates, best))
        cut = lengths[task.candidates.values] > pieces
        read = f"{pieces:,} pieces" if pieces < lengths.max() else "everything"
        print(
            f"| {read} | {cut.mean():.0%} | {cut[relevant].mean():.0%} | {best.k1:g} | {best.b:g} | {mrr:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(run_script(main))
