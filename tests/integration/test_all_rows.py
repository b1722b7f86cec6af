"""`train.py --model all` in real processes on a small folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from pipeline.plan import plan_rows, plan_steps, read_options
from tests import ROOT
from tests.fixtures.small_folder import write_small_folder
from tests.fixtures.wandb_files import read_offline_runs


def test_all_rows_are_trained_and_measured_and_a_failure_costs_its_row_only(tmp_path: Path) -> None:
    """Two steps at a time; a file is in the way of `bm25_lemm_word`. Without it, that row is what is left to do."""
    folder = write_small_folder(tmp_path / "texts", documents=200, train=60, dev=30, test=20)
    few = {"models": {}, "leave_out": ["bm25_lemm_bwps", "model1_*", "nn_*", "bert_*"]}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(few))
    content = {"data": {"class_path": "datamodules.Folder"}, "profile": str(tmp_path / "few.yaml")}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    results = tmp_path / "outputs" / "small"
    results.mkdir(parents=True)
    (results / "bm25_lemm_word").write_text("in the way")
    arguments = [
        "--data", str(tmp_path / "small.yaml"), "--data.path", str(folder), "--data.workers", "1", "--output_dir",
        str(tmp_path / "outputs"),
    ]  # fmt: skip
    process = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "--model", "all", *arguments, "--at_once", "2"], cwd=tmp_path,
        env={**os.environ, "WANDB_MODE": "offline"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert "small: 4 steps" in process.stdout and "bm25_lemm" in (results / "results.md").read_text()
    lines = process.stderr.splitlines()
    log = results / "logs" / "003-bm25_lemm_word-seed-1.log"
    assert re.search(r"\n\[1 of 4\] bm25_lemm, seed 1: development MRR 0\.\d{4} \(\d+ s\)\n", process.stderr)
    assert re.search(r"\n\[2 of 4\] measure bm25_lemm: test MRR 0\.\d{4} \(\d+ s\)\n", process.stderr)
    assert f"\n[3 of 4] bm25_lemm_word, seed 1: failed, see {log} (" in process.stderr
    assert "bm25_lemm_word" in log.read_text()
    assert "[4 of 4] measure bm25_lemm_word: left out, as it depends on: bm25_lemm_word, seed 1" in lines
    assert lines[-1] == "train.py: some rows are missing; the same command tries them again"
    assert "bm25_lemm: development MRR" in (results / "logs" / "001-bm25_lemm-seed-1.log").read_text()
    (run,) = read_offline_runs(results / "bm25_lemm" / "wandb")
    assert (run.job_type, run.config["seeds"]) == ("summary", 1)

    (results / "bm25_lemm_word").unlink()
    options = read_options(arguments)
    steps = plan_steps(plan_rows(["bm25_lemm", "bm25_lemm_word"], options), options)
    states = {title: [step.state for step in group] for title, group in steps.items()}
    assert states == {"bm25_lemm": ["done", "done"], "bm25_lemm_word": ["to do", "to do"]}
