"""Ablations: the lines of configs/ablations.yaml, their plan, their table, and their work on a small folder."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from evaluate import evaluate
from evaluation.ablation_table import (
    Ablation,
    Export,
    Measured,
    cells,
    compare_with_bases,
    markdown,
    read_ablations,
)
from evaluation.significance import read_per_query
from lexical.errors import UserError
from lexical.model1.table_files import load_table
from lightning_modules.neural_model1.ranker import NNModel1
from pipeline.ablations import ABLATIONS, Work, asked_for, plan, run_ablations, settle
from pipeline.configs import names
from pipeline.loading import load_ranker
from pipeline.run_folder import RunFolder, write_text
from tests.fixtures.training_place import Place, logged
from train import train

pytestmark = pytest.mark.usefixtures("one_thread")
BASE = "{name: base, row: model1_word, claim: c}"


def works_of(data: str, output_dir: Path, *only: str) -> dict[str, Work]:
    asked = asked_for(["--data", data, "--output_dir", str(output_dir), *(["--only", ",".join(only)] if only else [])])
    chosen = read_ablations(ABLATIONS)
    return {work.line.name: work for work in settle(chosen.only(asked.only) if only else chosen, asked)}


# --- configs/ablations.yaml


def test_every_line_names_a_ranker_and_settings_that_the_command_line_knows(tmp_path: Path) -> None:
    lines = read_ablations(ABLATIONS).lines
    assert {one.trains for one in lines} <= set(names("model"))
    found = works_of("pydocs_passage", tmp_path)
    assert set(found) == {one.name for one in lines} - {"threshold_1e-3"}  # the base's own on this data
    assert found["no_hadamard"].settings == {**found["nn_model1"].settings, "hadamard": False}
    assert found["cosine"].runs == [RunFolder(tmp_path / "ablations/cosine/pydocs_passage/nn_model1_cosine/seed-1")]
    assert found["nn_model1"].runs == [RunFolder(tmp_path / "pydocs_passage/nn_model1/seed-1")]
    iterations = {work.settings["iterations"] for work in found.values() if work.line.row == "model1_word"}
    assert iterations == set(range(1, 9))
    exports = [one.name for one in lines if one.row == "nn_model1_exp"]
    assert set(exports) - set(works_of("msmarco_passage", tmp_path, *exports)) == {"threshold_1e-4"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("ablations: [", "cannot be used"),
        ("lines: []", "cannot be used ('ablations'): it must have a list `ablations` of {name, row, claim}"),
        ("threshold: 2\nablations: []", "the threshold 2 must be between 0 and 1"),
        ("ablations: [{name: a, row: model1_word}]", "missing 1 required positional argument: 'claim'"),
        (f"ablations: [{BASE}, {{name: a, row: model1_word, claim: c, change: {{}}}}]", "argument 'change'"),
        (f"ablations: [{BASE}, {{name: 7, row: model1_word, claim: c}}]", "must have name, row and claim"),
        (f"ablations: [{BASE}, {{name: ../a, row: model1_word, claim: c}}]", "must have a name of letters"),
        (f"ablations: [{BASE}, {BASE}]", "the line 'base' is there twice"),
        (f"ablations: [{BASE}, {{name: again, row: model1_word, claim: c}}]", "is the base model1_word again"),
        ("ablations: [{name: a, row: r, claim: c, changes: {x: 1}}]", "comes before its base: {row: r}, no changes"),
        (f"ablations: [{BASE}, {{name: a, row: model1_word, claim: c, changes: [x]}}]", "must have `changes` with"),
        (
            f"ablations: [{BASE}, {{name: a, row: model1_word, claim: c, changes: {{x: 1}}, measure_only: 1}}]",
            "true or",
        ),
        (
            f"ablations: [{BASE}, {{name: a, row: model1_word, ranker: nn_model1, claim: c, measure_only: true}}]",
            "cannot be `measure_only`",
        ),
        (f"ablations: [{BASE}, {{name: a, row: model1_word, claim: c, changes: {{iteration: 1}}}}]", "the line 'a' of"),
        (
            f"ablations: [{BASE}, {{name: a, row: model1_word, claim: c, changes: {{iterations: 0}}}}]",
            "--model.iterations 0: must be 1 or more",
        ),
        ("ablations: [{name: a, row: model2, claim: c}]", "there is no 'model2'; choose one of"),
    ],
)
def test_a_broken_file_gets_one_line(lines: str, message: str, tmp_path: Path) -> None:
    """Before anything is trained."""
    (tmp_path / "mine.yaml").write_text(lines)
    with pytest.raises(UserError) as caught:
        run_ablations(["--data", "pydocs_passage", "--output_dir", str(tmp_path)], tmp_path / "mine.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "word_iterations_9"], "--only: there is no line 'word_iterations_9'; known are: nn_model1, no_had"),
        (["--model.p_self", "0"], "--model.p_self: rankers and their settings are the lines of ablations.yaml"),
        (["--model", "nn_model1"], "--model: rankers and their settings are the lines of"),
        (["--seed", "2"], "--seed: rankers"),
        (["--seeds", "0"], "--seeds 0: must be a number, 1 or more"),
        (["--at_once", "two"], "--at_once two: must be a number, 1 or more"),
        (["--data", "pydocs"], "there is no 'pydocs'"),
        (["--data.stemming", "1"], "stemming"),
    ],
)
def test_wrong_arguments_get_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        run_ablations(arguments)
    assert message in str(caught.value)


# --- the table


def example() -> list[Measured]:
    base = Ablation("base", "model1_word", "as it is")
    better = Ablation("better", "model1_word", "more is better", changes={"iterations": 6, "symmetric": False})
    equal = Ablation("equal", "model1_word", "it is all one", "model1_bwps")
    values = ([0.2, 0.4], [0.4, 0.8], [0.3, 0.3])
    return [
        Measured(line, "test", "RR", {"q1": mine[0], "q2": mine[1]}, {"q1": 0.1, "q2": 0.2}, 1, size)
        for line, mine, size in zip(
            (base, better, equal), values, (None, Export(1234, 5_600_000, 0.0123), None), strict=True
        )
    ]


def test_the_table_by_hand() -> None:
    """Differences 0.2 and 0.4: mean 0.3, deviation 0.1 sqrt 2, t = 3 with one degree of freedom (a Cauchy variable)."""
    base, better, equal = compare_with_bases(example(), 0.05)
    assert base.against_base is None and base.value == pytest.approx(0.3) and base.setting == "base"
    assert better.against_base is not None and equal.against_base is not None
    p = 1 - 2 * math.atan(3) / math.pi
    expected = {
        "against": "base", "mark": "★", "queries": 2, "difference": 0.3, "relative": 1.0, "better": 2, "worse": 0,
        "effect_size": 3 / math.sqrt(2), "p_value": p, "p_holm": 2 * p, "significant": False,
    }  # fmt: skip
    assert better.against_base == pytest.approx(expected)
    assert (equal.against_base["p_value"], equal.against_base["p_holm"]) == (pytest.approx(1), 1)
    (found, *_) = compare_with_bases(example()[:2], 0.5)[1:]
    assert found.against_base is not None and found.against_base["p_holm"] == pytest.approx(p)  # a family of one
    assert cells(found)[1:] == [
        "more is better", "iterations 6, symmetric false", "0.6000★", "0.1500", "+0.3000", "+100.0%", "+2.12", "0.2",
        "0.2", "1,234", "5.6", "1.23%",
    ]  # fmt: skip
    assert cells(equal)[2] == "model1_bwps"


def test_markdown_has_a_table_for_each_base_and_escapes() -> None:
    other = Measured(Ablation("o|ther", "bm25_lemm", "T(q|d)"), "test", "RR", {"q1": 1.0, "q2": 0.0}, None, 1)
    text = markdown(compare_with_bases([*example(), other], 0.05), "title", ["a note"])
    assert text.startswith("# title\n\n| line | claim |") and text.endswith("\n\na note\n")
    assert "| o\\|ther | T(q\\|d) | base | 0.5000 |  |" in text
    headers = [line for line in text.splitlines() if line.startswith("| line")]
    assert [line.count("|") for line in headers] == [14, 11]  # the size of a table only where there is one


def test_only_brings_the_base_along() -> None:
    lines = read_ablations(ABLATIONS).only(["word_depth_100", "cosine"]).lines
    assert [one.name for one in lines] == ["nn_model1", "cosine", "model1_word", "word_depth_100"]


# --- the plan


def finish(work: Work, name: str = "") -> list[RunFolder]:
    """As train.py and evaluate.py leave it, in short."""
    runs = [RunFolder(work.folder / (name or work.line.trains) / run.path.name) for run in work.runs]
    for run in runs:
        settings = works_of("pydocs_passage", work.output_dir, name)[name].settings if name else work.settings
        write_text(run.config, yaml.safe_dump({"model": settings}))
        write_text(run.evaluation, "{}")
    return runs


def states(works: dict[str, Work], output_dir: Path) -> dict[str, list[str]]:
    steps = plan(list(works.values()), asked_for(["--output_dir", str(output_dir)]))
    return {name: [step.state for step in mine] for name, mine in steps.items()}


def test_an_export_is_made_again_when_its_network_is_newer(tmp_path: Path) -> None:
    works = works_of("pydocs_passage", tmp_path, "threshold_1e-2")
    base, line = works["nn_model1_exp"], works["threshold_1e-2"]
    todo = {"nn_model1_exp": ["to do"] * 3, "threshold_1e-2": ["to do"] * 2}
    assert states(works, tmp_path) == todo  # the network, its export, its measurement
    (network,) = finish(base, "nn_model1")
    finish(base), finish(line)
    done = {"nn_model1_exp": ["done"] * 3, "threshold_1e-2": ["done"] * 2}
    assert states(works, tmp_path) == done
    os.utime(network.config, ns=(2**62, 2**62))
    assert states(works, tmp_path) == {"nn_model1_exp": ["done", "to do", "to do"], "threshold_1e-2": ["to do"] * 2}
    step = plan(list(works.values()), asked_for(["--output_dir", str(tmp_path)]))["threshold_1e-2"][0]
    assert step.before is not None and step.made_of == ("nn_model1_exp",)
    step.before()
    assert not line.runs[0].config.exists()  # --skip_trained must not keep it
    assert (line.folder / "nn_model1").resolve() == (base.folder / "nn_model1").resolve()


def test_a_network_that_is_a_base_itself_is_trained_once_and_seeds_go_to_those_that_draw(tmp_path: Path) -> None:
    asked = asked_for(["--output_dir", str(tmp_path), "--seeds", "2"])
    names = ["cosine", "threshold_1e-2", "word_iterations_1"]
    steps = plan(settle(read_ablations(ABLATIONS).only(names), asked), asked)
    titles = [step.title for mine in steps.values() for step in mine]
    assert titles == [
        "nn_model1, seed 1", "nn_model1, seed 2", "measure nn_model1",
        "cosine, seed 1", "cosine, seed 2", "measure cosine",
        "nn_model1_exp, seed 1", "nn_model1_exp, seed 2", "measure nn_model1_exp",
        "threshold_1e-2, seed 1", "threshold_1e-2, seed 2", "measure threshold_1e-2",
        "model1_word, seed 1", "measure model1_word", "word_iterations_1, seed 1", "measure word_iterations_1",
    ]  # fmt: skip
    where = ["--data", "pydocs_passage", "--output_dir", str(tmp_path / "ablations/word_iterations_1")]
    kept = ["--seed", "1", "--skip_trained", "true", "--model.iterations=1"]
    assert steps["word_iterations_1"][0].command[1:] == ["train.py", "--model", "model1_word", *where, *kept]


def test_a_line_waits_for_what_it_is_made_of_and_for_nothing_else(tmp_path: Path) -> None:
    """Also where lines are worked off side by side: an export for its network, whether that is a base itself or not."""
    for only, network in ((["cosine", "threshold_1e-2"], "nn_model1"), (["threshold_1e-2"], "nn_model1_exp")):
        asked = asked_for(["--output_dir", str(tmp_path), "--seeds", "2"])
        steps = plan(settle(read_ablations(ABLATIONS).only(only), asked), asked)
        for step in steps[network][:2]:
            assert (step.title.split(",")[0], step.makes, step.made_of) == ("nn_model1", "nn_model1", ())
        exports = [step for step in steps["nn_model1_exp"] if step.title.startswith("nn_model1_exp")]
        assert [(step.makes, step.made_of) for step in exports] == [("nn_model1_exp", ("nn_model1",))] * 2
        assert {step.made_of for step in steps["threshold_1e-2"][:-1]} == {("nn_model1_exp",)}
    assert "cosine" not in steps


def test_a_line_with_other_settings_than_now_is_to_do_again(tmp_path: Path) -> None:
    works = works_of("pydocs_passage", tmp_path, "word_iterations_1")
    for work in works.values():
        finish(work)
    assert {state for mine in states(works, tmp_path).values() for state in mine} == {"done"}
    write_text(works["word_iterations_1"].runs[0].config, yaml.safe_dump({"model": {"iterations": 2}}))
    assert states(works, tmp_path) == {"model1_word": ["done", "done"], "word_iterations_1": ["to do", "to do"]}


# --- real runs


def test_lines_are_trained_measured_compared_and_kept(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    content = read_ablations(ABLATIONS)
    chosen = [one._asdict() for one in content.lines if one.name in ("word_iterations_1", "word_depth_100")]
    for one in chosen:  # ten candidates of this small collection; one field is enough
        one["changes"] = {"rerank_depth": 10} if one["measure_only"] else one["changes"]
    base = {"name": "model1_word", "row": "model1_word", "claim": "as it is"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"ablations": [base, *chosen]}))
    data = {
        "data": {"class_path": "datamodules.Folder"},
        "for_models": {"model1_word": {"model": {"fields": ["word"], "iterations": 3}}},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(data))
    arguments = [
        "--data", str(tmp_path / "small.yaml"), "--data.path", str(small_folder), "--data.cache_dir",
        str(tmp_path / "cache"), "--output_dir", str(tmp_path / "out"),
    ]  # fmt: skip
    train(["--model", "model1_word", *arguments])  # the base is there already, as after an interruption
    evaluate(["--models", "model1_word", *arguments])
    capfd.readouterr()
    lines = run_ablations(arguments, tmp_path / "mine.yaml")
    shown = capfd.readouterr()
    assert "[5 of 5] measure word_depth_100" in shown.err and "as it is" in shown.out
    assert shown.err.count(" of 5]") == 3
    assert [line.name for line in lines] == ["model1_word", "word_iterations_1", "word_depth_100"]
    folder = tmp_path / "out" / "small"
    assert json.loads((folder / "ablations.json").read_text()) == json.loads(
        json.dumps([one._asdict() for one in lines])
    )
    assert "| word_depth_100 |" in (folder / "ablations.md").read_text()

    runs = [folder / "model1_word/seed-1"]
    runs += [tmp_path / f"out/ablations/{one['name']}/small/model1_word/seed-1" for one in chosen]
    assert load_table(runs[1] / "table").meta["source"]["iterations"] == 1
    assert (runs[2] / "table/table.safetensors").samefile(runs[0] / "table/table.safetensors")
    assert (runs[2] / "fusion.json").read_text() == (runs[0] / "fusion.json").read_text()
    ranks = [[line.split() for line in (run / "runs/test.run").open()] for run in runs]
    assert max(int(one[3]) for one in ranks[2]) == 10 < max(int(one[3]) for one in ranks[0])
    for line, run in zip(lines, runs, strict=True):
        values = read_per_query(run / "per_query/test.tsv")[1]
        assert line.value == pytest.approx(np.mean(list(values.values()))) and line.queries == 40
    assert lines[1].against_base is not None
    assert lines[1].against_base["difference"] == pytest.approx(lines[1].value - lines[0].value)

    assert run_ablations(arguments, tmp_path / "mine.yaml") == lines
    assert "[" not in capfd.readouterr().err  # no step is left
    os.utime(runs[0] / "config.yaml")  # the base is trained again: what is made of it is to be measured again
    asked = asked_for(arguments)
    steps = plan(settle(read_ablations(tmp_path / "mine.yaml"), asked), asked)
    assert [step.title for mine in steps.values() for step in mine if step.state != "done"] == [
        "measure word_depth_100"
    ]


def test_the_changed_network_is_trained_exported_and_read_back(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is dropped, the table ranks as the network does."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    place = Place(small_folder, tmp_path)
    small = [
        "--model.field=word", "--model.embedding=12", "--model.projection=8", "--model.hidden=[8,6]",
        "--model.vectors=null", "--model.start=0.003", "--model.learning_rate=0.01", "--model.batch_size=8",
        "--trainer.max_epochs=6", "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1",
    ]  # fmt: skip
    train(place.command("out", "--model", "nn_model1", *small, "--model.hadamard=false", "--model.p_self=0"))
    train(place.command("out", "--model", "nn_model1_exp", "--model.threshold", "0"))
    data = place.opened()
    network = load_ranker(place.folder("out"), "nn_model1", data)
    assert isinstance(network, NNModel1) and (network.p_self, network.hadamard) == (0, False)
    losses = logged(place.folder("out"), "train/loss")
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    (batch,) = data.ranking_loader("test", "word", 1000)
    exported = load_ranker(place.folder("out", "nn_model1_exp"), "nn_model1_exp", data)
    assert np.abs(exported.score(batch) - network.score(batch)).max() < 1e-5
