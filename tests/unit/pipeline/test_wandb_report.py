"""The W&B report: its panels show metrics that trainings and measurements really log; saving it needs a login."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.wandb_report import TRAINING, build_report
from tests import ROOT


def test_the_report_has_summaries_and_trainings_of_the_data() -> None:
    report = build_report("me", "project", "pydocs_doc")
    grids = [block for block in report.blocks if hasattr(block, "panels")]
    assert [len(grid.panels) for grid in grids] == [2, len(TRAINING), 2]
    assert [panel.table_name for panel in grids[2].panels] == ["per_query/test", "significance"]
    assert all("pydocs_doc" in str(grid.runsets[0].filters) for grid in grids)
    assert report.title.endswith("pydocs_doc")


def test_every_metric_shown_is_logged_somewhere() -> None:
    folders = ("callbacks", "lightning_modules")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert not [metric for metric in TRAINING if not any(f'"{metric}"' in source for source in sources)]


def test_without_a_login_there_is_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none"), "WANDB_MODE": "online"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/wandb_report.py"), "--entity", "me"], cwd=tmp_path, env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("wandb_report.py: W&B does not accept the report")
