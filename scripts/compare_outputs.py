"""Compare what two versions of this project made of the same data: run files, weights, development MRR, results.json.

    python scripts/compare_outputs.py BEFORE AFTER        # two OUTPUT_DIR/<data>

For each ranker that both have: whether the run files are the same bytes, whether the weights are the same
bits, and both development MRRs; then whether results.json has the same keys. Exits with 1 if a run file differs, or a
development MRR by more than 0.002.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import torch

TOLERANCE = 0.002  # of MRR, where a network is trained


def runs(folder: Path) -> dict[str, bytes]:
    """Return the content of the run files, gzipped or not, by the name without .gz."""
    content = {path.name: path.read_bytes() for path in sorted((folder / "runs").glob("*.run"))}
    for path in sorted((folder / "runs").glob("*.run.gz")):
        content[path.stem] = gzip.decompress(path.read_bytes())
    return content


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the trained ranker, under the names that both versions have."""
    for name in ("ranker.ckpt", "best.ckpt", "last.ckpt"):
        if (path := folder / "checkpoints" / name).is_file():
            state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
            return {key: value for key, value in state.items() if isinstance(value, torch.Tensor) and value.ndim}
    return {}


def compare_ranker(before: Path, after: Path) -> tuple[str, bool]:
    """Return a line about a ranker, and whether it is the same."""
    old, new = runs(before), runs(after)
    shared = [name for name in old if name in new]
    same_runs = sum(old[name] == new[name] for name in shared)
    mrr = [json.loads((folder / "development.json").read_text())["development/mrr"] for folder in (before, after)]
    first, second = weights(before), weights(after)
    names = [name for name in first if name in second]
    same_bits = bool(names) and all(torch.equal(first[name], second[name]) for name in names)
    networks = f"; weights {'the same bits' if same_bits else 'differ'} ({len(names)} tensors)" if names else ""
    same = f"{same_runs} of {len(shared)} run files are the same bytes"
    line = f"{same}; development MRR {mrr[0]:.6f}, {mrr[1]:.6f}{networks}"
    neural = before.parent.name.startswith(("nn_", "bert_"))
    good = abs(mrr[0] - mrr[1]) <= TOLERANCE and (neural or (bool(shared) and same_runs == len(shared)))
    return line, good


def keys(folder: Path) -> set[str]:
    content: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return {key for result in content for key in result}


def main(before: Path, after: Path) -> int:
    good = True
    for folder in sorted(before.glob("*/seed-*")):
        other = after / folder.relative_to(before)
        if (other / "development.json").is_file():
            line, same = compare_ranker(folder, other)
            print(f"{folder.relative_to(before)}: {line}")
            good = good and same
    different = keys(before) ^ keys(after)
    print(f"results.json: {f'keys that only one has: {sorted(different)}' if different else 'the same keys'}")
    return 0 if good and not different else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
