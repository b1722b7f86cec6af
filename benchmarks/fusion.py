"""Time to learn fusion weights: 2,000 queries x 1,000 candidates x 3 features on one core, against 10 seconds.

    python benchmarks/fusion.py

The first call may compile the kernel (or load it from numba's cache), the second does not; both must be fast enough.
Exit code 1 if they are not.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

for variable in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy and numba are imported: they read it once
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

from lexical.index.ragged import ragged  # noqa: E402
from lexical.ranking.fusion import coordinate_ascent  # noqa: E402
from lexical.ranking.order import RankedTask, mean_reciprocal_rank  # noqa: E402

QUERIES, CANDIDATES, DOCUMENTS = 2_000, 1_000, 100_000
SIGNAL = (2.0, 1.5, 2.5)  # how far the relevant document stands above the noise, in standard deviations
SCALE = (1.0, 0.05, 20.0)  # features of different size, as BM25 and log-probabilities are
LIMIT = 10.0  # seconds


def made_up_task(seed: int = 0) -> tuple[RankedTask, np.ndarray]:
    """One relevant candidate a query, and (features, pairs) float32 that each tell a part of which one it is."""
    rng = np.random.default_rng(seed)
    rows = [rng.choice(DOCUMENTS, CANDIDATES, replace=False, shuffle=False) for _ in range(QUERIES)]
    relevant = np.zeros((QUERIES, CANDIDATES), bool)
    relevant[np.arange(QUERIES), rng.integers(0, CANDIDATES, QUERIES)] = True
    task = RankedTask(ragged(rows, np.int32), rng.permutation(DOCUMENTS).astype(np.int32), relevant.ravel())
    noise = rng.normal(size=(len(SIGNAL), QUERIES * CANDIDATES))
    features = (noise + np.outer(SIGNAL, task.relevant)) * np.array(SCALE)[:, None]
    return task, features.astype(np.float32)


def main() -> int:
    task, features = made_up_task()
    print(f"{QUERIES:,} queries x {CANDIDATES:,} candidates x {len(features)} features, one core")
    seconds = []
    for call in ("first", "second"):
        started = time.perf_counter()
        learned = coordinate_ascent(features, task)
        seconds.append(time.perf_counter() - started)
        print(f"{call} call: {seconds[-1]:.2f} s")
    alone = ", ".join(f"{mean_reciprocal_rank(task, feature):.4f}" for feature in features)
    weights = ", ".join(f"{weight:.4f}" for weight in learned.weights)
    print(f"MRR of each feature: {alone}; fused: {learned.mrr:.4f} with weights {weights}")
    met = max(seconds) < LIMIT
    print(f"under {LIMIT:g} s: {'yes' if met else 'no'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
