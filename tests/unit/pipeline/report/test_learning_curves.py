"""Learning curves over interruptions, read from the files of Lightning's logger."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexical.errors import UserError
from pipeline.report.learning_curves import MAX_POINTS, learning_curves


def test_metrics_of_a_training_that_was_not_interrupted(tmp_path: Path) -> None:
    lines = "step,train/loss,val/mrr,development/mrr\n49,0.5,,\n99,0.4,,\n99,,0.31,\n0,,,0.4\n"
    (tmp_path / "metrics.csv").write_text(lines)
    assert learning_curves(tmp_path) == {"val/mrr": [(99, 0.31)], "train/loss": [(49, 0.5), (99, 0.4)]}


def test_a_ranker_that_was_not_trained_by_gradients_has_none(tmp_path: Path) -> None:
    assert learning_curves(tmp_path) == {"val/mrr": [], "train/loss": []}
    (tmp_path / "metrics.csv").write_text("step,development/mrr\n0,0.4\n")
    assert learning_curves(tmp_path) == {"val/mrr": [], "train/loss": []}


def test_a_resumed_training_replaces_what_it_repeats(tmp_path: Path) -> None:
    """Resumed after step 100: the first file's steps from there on were lost with the process."""
    (tmp_path / "metrics.before-1.csv").write_text(
        "step,train/loss,val/mrr\n49,0.9,\n99,0.8,0.1\n149,0.7,\n199,0.6,0.2\n"
    )
    (tmp_path / "metrics.before-2.csv").write_text("step,train/loss,val/mrr\n149,0.75,\n199,0.65,0.25\n249,0.6,\n")
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/mrr\n249,0.55,\n299,0.5,0.3\n")
    curves = learning_curves(tmp_path)
    assert curves["train/loss"] == [(49, 0.9), (99, 0.8), (149, 0.75), (199, 0.65), (249, 0.55), (299, 0.5)]
    assert curves["val/mrr"] == [(99, 0.1), (199, 0.25), (299, 0.3)]


def test_a_training_that_was_started_anew_has_nothing_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.before-1.csv").write_text("step,train/loss\n49,0.9\n99,0.8\n")
    (tmp_path / "metrics.csv").write_text("step,train/loss\n49,0.7\n")
    assert learning_curves(tmp_path)["train/loss"] == [(49, 0.7)]


@pytest.mark.parametrize("last", ["", "step,train/loss\n"])
def test_a_file_without_lines_replaces_nothing(last: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.before-1.csv").write_text("step,train/loss\n49,0.9\n")
    (tmp_path / "metrics.csv").write_text(last)
    assert learning_curves(tmp_path)["train/loss"] == [(49, 0.9)]


def test_the_tenth_interruption_comes_after_the_ninth(tmp_path: Path) -> None:
    for number in range(1, 12):
        (tmp_path / f"metrics.before-{number}.csv").write_text(f"step,train/loss\n{number},{number}\n")
    assert [step for step, _ in learning_curves(tmp_path)["train/loss"]] == list(range(1, 12))


def test_a_long_curve_is_the_means_of_stretches(tmp_path: Path) -> None:
    lines = "".join(f"{step},{step}.0\n" for step in range(400))
    (tmp_path / "metrics.csv").write_text(f"step,train/loss\n{lines}")
    curve = learning_curves(tmp_path)["train/loss"]
    assert len(curve) == MAX_POINTS
    assert curve == [(step, step - 0.5) for step in range(1, 400, 2)]


def test_values_that_are_not_numbers_are_gaps(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/mrr\n1,0.125,\n2,nan,\n3,inf,\n3,,0.5\n4,-inf,\n")
    assert learning_curves(tmp_path) == {
        "val/mrr": [(3, 0.5)], "train/loss": [(1, 0.125), (2, None), (3, None), (4, None)]
    }  # fmt: skip


@pytest.mark.parametrize("line", ["x,0.9", "49,much"])
def test_damaged_metrics_are_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"step,train/loss\n{line}\n")
    with pytest.raises(UserError, match=r"metrics\.csv is damaged"):
        learning_curves(tmp_path)
