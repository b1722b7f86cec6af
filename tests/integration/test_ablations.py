"""Ablations on a small folder: lines are trained, exported, measured with borrowed files, compared and kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluate import evaluate
from evaluation.measurements import read_measurements
from lexical.errors import UserError
from lexical.model1.table_files import load_table, read_meta
from pipeline.ablations import ABLATIONS, run_ablations
from pipeline.scheduler import DONE, Step
from tests.fixtures.small_folder import write_small_folder
from train import train

pytestmark = pytest.mark.usefixtures("one_thread")
LINES = [
    {"name": "nn_model1_exp", "row": "nn_model1_exp", "claim": "as the network was exported"},
    {"name": "same", "row": "nn_model1_exp", "claim": "equals its base", "changes": {"threshold": 0.003}},
    {"name": "everything", "row": "nn_model1_exp", "claim": "all pairs", "changes": {"threshold": 0.0}},
    {"name": "base", "row": "model1_word", "claim": "as it is"},
    {"name": "iterations", "row": "model1_word", "claim": "one is enough", "changes": {"iterations": 1}},
    {"name": "depth", "row": "model1_word", "claim": "ten", "changes": {"rerank_depth": 10}, "measure_only": True},
]
PROFILE = {
    "models": {
        "model1_word": {"model": {"fields": ["word"], "iterations": 3}},
        "nn_model1": {
            "model": {
                "field": "word", "embedding": 12, "projection": 8, "hidden": [8, 6], "start": 0.003, "margin": 8.0,
                "export_threshold": 0.003,
            },
            "trainer": {"max_epochs": 1},
        },
        "nn_model1_exp": {"model": {"field": "word"}},
    }
}  # fmt: skip


@pytest.fixture
def steps_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the scheduler's steps in this process, which saves their start; return the titles of those that ran."""
    titles: list[str] = []

    def run_steps(steps: Sequence[Step], at_once: int, logs: Path) -> list[Step]:
        for step in steps:
            if step.state != DONE:
                titles.append(step.title)
                step.prepare() if step.prepare else None
                {"train.py": train, "evaluate.py": evaluate}[step.command[0]](step.command[1:])  # type: ignore[operator]
        return []

    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr("pipeline.plan.run_steps", run_steps)
    return titles


def test_lines_are_trained_measured_compared_and_kept(
    tmp_path: Path, steps_here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_small_folder(tmp_path / "texts", documents=200, train=100, dev=30, test=20)
    (tmp_path / "lines.yaml").write_text(yaml.safe_dump({"ablations": LINES}))
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(PROFILE))
    content = {"data": {"class_path": "datamodules.Folder"}, "profile": str(tmp_path / "tiny.yaml")}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    arguments = [
        "--data", str(tmp_path / "small.yaml"), "--data.path", str(folder), "--data.cache_dir", str(tmp_path / "cache"),
        "--data.workers", "1", "--output_dir", str(tmp_path / "out"),
    ]  # fmt: skip
    lines = run_ablations(arguments, tmp_path / "lines.yaml")
    names = [line.ablation.name for line in lines]
    assert names == ["nn_model1_exp", "everything", "base", "iterations", "depth"]
    trained = ["nn_model1", "nn_model1_exp", "model1_word", "everything", "iterations"]
    steps = [title for name in trained for title in (f"{name}, seed 1", f"measure {name}")]
    assert steps_here == [*steps, "measure depth"]
    shown = capsys.readouterr()
    assert "same: threshold 0.003 is what nn_model1_exp has on this data anyway; left out" in shown.err
    assert "all pairs" in shown.out

    outputs = tmp_path / "out" / "small"
    assert json.loads((outputs / "ablations.json").read_text()) == [line.entry() for line in lines]
    assert "| depth | ten | rerank_depth 10 |" in (outputs / "ablations.md").read_text()
    rankers = {"nn_model1_exp": "nn_model1_exp", "everything": "nn_model1_exp"}
    runs: dict[str, Any] = {
        name: (outputs if name in ("nn_model1_exp", "base") else tmp_path / "out" / "ablations" / name / "small")
        / rankers.get(name, "model1_word") / "seed-1"
        for name in names
    }  # fmt: skip
    for line in lines:
        values = read_measurements(runs[line.ablation.name], "test", alone=False)[0]
        assert line.row.per_query == values.per_query and len(values.queries) == 20
    exports = [line.export for line in lines[:2]]
    assert exports[0] is not None and exports[1] is not None and exports[0].entries < exports[1].entries
    assert read_meta(runs["everything"] / "table")["export"]["threshold"] == 0
    assert load_table(runs["iterations"] / "table").meta["source"]["iterations"] == 1
    assert lines[3].against_base is not None
    assert lines[3].against_base.difference == pytest.approx(lines[3].row.mean - lines[2].row.mean)
    assert (runs["depth"] / "table/table.safetensors").samefile(runs["base"] / "table/table.safetensors")
    ranks = {
        name: [int(line.split()[3]) for line in (runs[name] / "runs/test.run").open()] for name in ("depth", "base")
    }
    assert max(ranks["depth"]) == 10 < max(ranks["base"])

    steps_here.clear()
    again = run_ablations(arguments, tmp_path / "lines.yaml")
    assert [line.entry() for line in again] == [line.entry() for line in lines] and not steps_here
    (runs["base"] / "checkpoints/ranker.ckpt").write_bytes(b"trained again")  # what borrows it is measured again
    with pytest.raises(UserError):
        run_ablations(arguments, tmp_path / "lines.yaml")
    assert steps_here == ["measure depth"]


def test_an_unknown_line_is_reported_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="--only: there is no line 'word_iterations_9'; known are: nn_model1, no_hada"):
        run_ablations(["--only", "word_iterations_9"], ABLATIONS)
