"""Learning curves of one seed, over all interruptions of its training.

metrics.csv              written by Lightning's logger
metrics.before-<n>.csv   written before the n-th interruption
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from lexical.errors import UserError

METRICS = {"val/mrr": "validation MRR", "train/loss": "training loss"}
MAX_POINTS = 200  # of one curve; longer ones are drawn as the means of equal stretches

Curve = list[tuple[int, float | None]]  # (step, value); None where the value is not a number


def learning_curves(folder: Path) -> dict[str, Curve]:
    """Return metric -> curve; it is empty for a metric that was not logged.

    A resumed training repeats the steps since its last checkpoint, and one that was started anew repeats all of them:
    what an older file has from the first step of a newer one on does not count.
    """
    before = sorted(folder.glob("metrics.before-*.csv"), key=lambda path: (len(path.name), path.name))
    files = [_read(path) for path in [*before, folder / "metrics.csv"] if path.is_file() and path.stat().st_size]
    logged = pd.DataFrame(columns=["step", *METRICS])
    for newer in filter(len, files):
        logged = pd.concat([logged[logged["step"] < newer["step"].min()], newer])
    return {metric: _thinned(logged[["step", metric]].dropna().to_numpy(float)) for metric in METRICS}


def _read(path: Path) -> pd.DataFrame:
    """Return the lines that have one of `METRICS`; infinite: logged, but not a number."""
    try:
        table = pd.read_csv(path, na_values=[""], keep_default_na=False).replace("nan", np.inf)
        table = table.reindex(columns=["step", *METRICS]).astype(float)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): remove it, or train this ranker again") from error
    return table.dropna(subset=list(METRICS), how="all")


def _thinned(curve: np.ndarray) -> Curve:
    """Shorten a (points, 2) curve."""
    stretches = np.array_split(curve, min(len(curve), MAX_POINTS)) if len(curve) else []
    means = [(int(stretch[-1, 0]), float(stretch[:, 1].mean())) for stretch in stretches]
    return [(step, mean if math.isfinite(mean) else None) for step, mean in means]
