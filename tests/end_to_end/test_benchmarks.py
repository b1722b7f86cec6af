"""The benchmarks run and keep their bounds, at a size that a test can bear."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["benchmarks/prepare.py", "--sizes", "30000,90000"],
        ["benchmarks/fusion.py"],
        ["benchmarks/em.py", "--pairs", "100000"],
        ["benchmarks/score.py", "--queries", "20", "--repeats", "7", "--vocabulary", "20000", "--entries", "400000"],
        ["benchmarks/retrieve.py", "--documents", "300000", "--queries", "100"],
        ["benchmarks/nn_model1.py", "--small"],
        ["benchmarks/bert.py", "--small"],
    ],
    ids=["prepare", "fusion", "em", "score", "retrieve", "nn_model1", "bert"],
)
def test_a_benchmark_keeps_its_bounds(command: list[str], tmp_path: Path) -> None:
    arguments = [sys.executable, str(ROOT / command[0]), *command[1:]]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
