"""`train.py --model all`: the plan, and its work on a small folder in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from lexical.errors import UserError
from pipeline.all_rows import RANDOM, ROWS, SLOW, Asked, Job, asked_for, command, not_here, plan, rows_of
from pipeline.configs import merged, names, resolve
from pipeline.run_folder import RunFolder, write_json, write_text
from tests import ROOT
from tests.fixtures.wandb_files import read_offline_runs

QUICK = ["bm25_lemm_word", "bm25_lemm_bwps", "model1_*", "nn_*", "bert_*"]


def test_every_row_of_the_paper_is_made_and_seeds_go_to_those_that_draw() -> None:
    made = {*ROWS, "nn_model1_exp"}  # the latter right behind nn_model1
    assert made == {name for name in names("model") if name != "model1_table"}
    for row in ROWS:
        resolved = resolve(["--model", row]).model
        assert resolved is not None
        assert resolved.target.random == any(fnmatchcase(row, one) for one in RANDOM), row  # type: ignore[attr-defined]
        assert resolved.target.slow == any(fnmatchcase(row, one) for one in SLOW), row  # type: ignore[attr-defined]


def test_passages_have_no_full_rows() -> None:
    assert [row for row in ROWS if row not in rows_of("pydocs_passage")] == ["bert_vanilla_full", "bert_model1_full"]
    assert rows_of("pydocs_doc") == list(ROWS)


def test_the_plan_has_seeds_states_and_times(tmp_path: Path) -> None:
    asked = asked_for(["--seeds", "3", "--slow_seeds", "1", "--output_dir", str(tmp_path)])
    done = RunFolder(tmp_path / "nn_model1" / "seed-1")
    settings = resolve(["--model", "nn_model1"]).model
    assert settings is not None
    write_text(done.config, yaml.safe_dump({"model": settings.settings}))
    write_json(done.development, {"seconds": 100})
    _make_export(tmp_path, 1)
    begun = RunFolder(tmp_path / "nn_model1" / "seed-2")
    write_text(begun.checkpoint, "")
    jobs = plan(asked, tmp_path)
    mine = [(job.seed, job.state, job.seconds) for job in jobs if job.row == "nn_model1"][:3]
    assert mine == [(1, "done", 100.0), (2, "goes on", 100.0), (3, "to do", 100.0)]
    assert [job.seed for job in jobs if job.row == "bert_vanilla_short"] == [1, None]
    assert [job.seed for job in jobs if job.row == "bm25_lemm"] == [1, None]
    rows = list(dict.fromkeys(job.row for job in jobs))
    assert rows == rows_of("pydocs_passage")


def _make_export(folder: Path, seed: int) -> RunFolder:
    made = RunFolder(folder / "nn_model1_exp" / f"seed-{seed}")
    write_text(made.config, yaml.safe_dump({"model": merged("nn_model1_exp", "pydocs_passage")[0]["init_args"]}))
    return made


def test_a_training_is_not_done_before_all_that_it_makes_is_there(tmp_path: Path) -> None:
    """Killed between nn_model1 and the table that is made of it, or between their measurements."""
    asked = asked_for(["--output_dir", str(tmp_path)])
    run = RunFolder(tmp_path / "nn_model1" / "seed-1")
    write_text(run.config, yaml.safe_dump({"model": merged("nn_model1", "pydocs_passage")[0]["init_args"]}))
    write_json(run.evaluation, {"seconds": 30})

    def states() -> list[str]:
        return [job.state for job in plan(asked, tmp_path) if job.row == "nn_model1"]

    assert states() == ["to do", "to do"]
    made = _make_export(tmp_path, 1)
    assert states() == ["done", "to do"]
    write_json(made.evaluation, {"seconds": 10})
    assert states() == ["done", "done"]


def test_a_row_made_of_rankers_that_are_not_here_is_left_out(tmp_path: Path) -> None:
    """As in results/: of a finished row its figures are kept, not its checkpoint."""
    asked = asked_for(["--output_dir", str(tmp_path)])
    run = RunFolder(tmp_path / "model1_word" / "seed-1")
    wanted = merged("model1_word", "pydocs_passage")[0]["init_args"]
    write_text(run.config, yaml.safe_dump({"model": wanted}))
    boards = {"leaderboard", "leaderboard_traditional"}
    assert boards <= {job.row for job in plan(asked, tmp_path)}  # a training that was killed before its measurement
    write_json(run.evaluation, {"seconds": 30})
    assert not boards & {job.row for job in plan(asked, tmp_path)}
    assert not_here("leaderboard", "pydocs_passage", tmp_path) == ["model1_word"]
    write_text(run.checkpoint, "")
    assert boards <= {job.row for job in plan(asked, tmp_path)}
    run.checkpoint.unlink()
    write_text(run.config, yaml.safe_dump({"model": {**wanted, "iterations": 99}}))
    assert boards <= {job.row for job in plan(asked, tmp_path)}  # it is trained again, and then it is here


def test_a_training_with_other_settings_is_to_do_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "nn_model1" / "seed-1")
    write_text(run.config, yaml.safe_dump({"model": {"p_self": 0.99}}))
    asked = asked_for(["--output_dir", str(tmp_path)])
    assert [job.state for job in plan(asked, tmp_path) if job.row == "nn_model1"] == ["to do", "to do"]


def test_how_it_was_computed_does_not_matter(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "bert_vanilla_short" / "seed-1")
    wanted = merged("bert_vanilla_short", "pydocs_passage")[0]["init_args"]
    write_text(run.config, yaml.safe_dump({"model": {**wanted, "pairs_at_once": 1}}))
    asked = asked_for(["--output_dir", str(tmp_path)])
    assert [job.state for job in plan(asked, tmp_path) if job.row == "bert_vanilla_short"] == ["done", "to do"]


def test_a_damaged_file_costs_the_estimate_alone(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "bm25_lemm" / "seed-1")
    write_text(run.development, "{")
    write_text(run.evaluation, "[]")
    assert plan(asked_for(["--output_dir", str(tmp_path)]), tmp_path)[0].state == "to do"


def test_commands_are_those_a_user_would_type() -> None:
    asked = Asked("pydocs_doc", Path("out"), 5, 1, 1, ["--data.workers", "1"])
    trained, measured = (
        command(Job("nn_model1", 2, "to do", None), asked),
        command(Job("nn_model1", None, "", None), asked),
    )
    where = ["--data", "pydocs_doc", "--output_dir", "out", "--data.workers", "1"]
    assert trained[1:] == ["train.py", "--model", "nn_model1", *where, "--seed", "2", "--skip_trained", "true"]
    assert measured[1:4] == ["evaluate.py", "--models", "nn_model1,nn_model1_exp"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "2"], "takes --seeds N"),
        (["--seeds", "many"], "--seeds many: must be a number"),
        (["--slow_seeds", "0"], "--slow_seeds 0: must be a number"),
        (["--at_once", "0"], "--at_once 0: must be a number"),
        (["--at_once", "2", "--trainer.devices", "2"], "--trainer.devices 2 does not go with it"),
        (["--model.k1", "1"], "--model.k1: a setting of one ranker"),
    ],
)
def test_wrong_arguments_get_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        asked_for(arguments)


class Place:
    def __init__(self, folder: Path, work: Path, left_out: list[str]) -> None:
        self.work = work
        content = {"data": {"class_path": "datamodules.Folder"}, "leave_out": left_out}
        (work / "mine.yaml").write_text(yaml.safe_dump(content))
        self.data = ["--data", str(work / "mine.yaml"), "--data.path", str(folder)]

    def run(self, *arguments: str, wandb: str = "disabled") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "train.py"), "--model", "all", *self.data, *arguments], cwd=self.work,
            env={**os.environ, "WANDB_MODE": wandb}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip


def test_all_rows_are_trained_measured_and_kept(small_folder: Path, tmp_path: Path) -> None:
    """The second run finds everything done; a row that is gone is made again, the other is not touched."""
    place = Place(small_folder, tmp_path, [one for one in QUICK if one != "bm25_lemm_word"])
    first = place.run(wandb="offline")
    assert first.returncode == 0, first.stderr
    summaries = tmp_path / "outputs/mine/bm25_lemm/wandb"
    assert [(run.job_type, run.config["seeds"]) for run in read_offline_runs(summaries)] == [("summary", 1)]
    assert "mine: 4 steps" in first.stdout and "[1 of 4] bm25_lemm, seed 1" in first.stderr
    assert "bm25_lemm_word" in (tmp_path / "outputs/mine/results.md").read_text()
    kept = tmp_path / "outputs/mine/bm25_lemm/seed-1/evaluation.json"
    before = kept.stat().st_mtime_ns
    (tmp_path / "outputs/mine/bm25_lemm_word/seed-1/config.yaml").unlink()
    second = place.run(wandb="offline")
    assert second.returncode == 0, second.stderr
    assert len(read_offline_runs(summaries)) == 1  # nothing new
    assert len(read_offline_runs(tmp_path / "outputs/mine/bm25_lemm_word/wandb")) == 2
    assert "[3 of 4] bm25_lemm_word, seed 1" in second.stderr and "] bm25_lemm, seed 1" not in second.stderr
    assert kept.stat().st_mtime_ns == before


def test_rows_are_made_side_by_side(small_folder: Path, tmp_path: Path) -> None:
    """Two trainings at once prepare the data once; each says what it has to say in a file of its own."""
    place = Place(small_folder, tmp_path, [one for one in QUICK if one != "bm25_lemm_word"])
    done = place.run("--at_once", "2")
    assert done.returncode == 0, done.stderr
    assert "[4 of 4] measure bm25_lemm_word: done" in done.stderr and "development MRR" not in done.stdout
    logs = {path.name: path.read_text() for path in (tmp_path / "outputs/mine/logs").iterdir()}
    assert sorted(logs) == [
        "001-bm25_lemm-seed-1.log", "002-measure-bm25_lemm.log", "003-bm25_lemm_word-seed-1.log",
        "004-measure-bm25_lemm_word.log",
    ]  # fmt: skip
    assert "bm25_lemm_word: development MRR" in logs["003-bm25_lemm_word-seed-1.log"]
    assert "bm25_lemm_word" in (tmp_path / "outputs/mine/results.md").read_text()


def test_a_row_that_fails_costs_no_other(small_folder: Path, tmp_path: Path) -> None:
    place = Place(small_folder, tmp_path, [one for one in QUICK if one != "bm25_lemm_word"])
    (tmp_path / "outputs/mine").mkdir(parents=True)
    (tmp_path / "outputs/mine/bm25_lemm").write_text("in the way")
    done = place.run()
    assert done.returncode == 2 and "failed: bm25_lemm, seed 1: python train.py --model bm25_lemm" in done.stderr
    assert done.stderr.strip().endswith("the same command tries the missing ones again")
    assert (tmp_path / "outputs/mine/bm25_lemm_word/seed-1/evaluation.json").is_file()
    assert "bm25_lemm_word" in (tmp_path / "outputs/mine/results.md").read_text()
