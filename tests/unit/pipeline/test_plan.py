"""Plans: which steps train and measure the rows of the table and the lines of the ablations, and which are done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluation.ablation_table import Ablation, read_ablations
from lexical.errors import UserError
from lexical.small_files import write_json, write_text
from lightning_modules.registry import ROWS
from pipeline.ablations import ABLATIONS, PlannedLine, borrow_dependencies, plan_lines, steps_of
from pipeline.configs import names, resolve
from pipeline.dependencies import digest
from pipeline.plan import Options, PlannedRanker, plan_rows, plan_steps, read_options, time_left
from pipeline.run_folder import RunFolder
from pipeline.scheduler import Step


def options_of(folder: Path, data: str = "pydocs_passage", seeds: int = 1, slow_seeds: int = 1) -> Options:
    return Options(folder / data, seeds, slow_seeds, 1, ["--data", data])


def finish(ranker: PlannedRanker, dependencies: tuple[PlannedRanker, ...] = (), measured: bool = True) -> None:
    """Write what train.py and evaluate.py leave, in short."""
    for run in ranker.runs:
        write_text(run.config, yaml.safe_dump({"model": ranker.settings}))
        write_text(run.checkpoint, ranker.title)
        sources = {other.model: other.runs[run.seed - 1 if other.seeds > 1 else 0] for other in dependencies}
        digests = {model: {"run": source.path.name, "digest": digest(source)} for model, source in sources.items()}
        write_json(run.dependencies, digests)
        if measured:
            write_text(run.evaluation, "{}")


def states(rankers: list[PlannedRanker], options: Options) -> dict[str, list[str]]:
    return {title: [step.state for step in steps] for title, steps in plan_steps(rankers, options).items()}


# --- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "2"], "--seed: an option for one ranker, not for many; --seeds N trains seeds 1 to N"),
        (["--model.k1", "1"], "--model.k1: an option for one ranker"),
        (["--models=bm25_lemm"], "--models=bm25_lemm: an option for one ranker"),
        (["--seeds", "many"], "argument --seeds: 'many' must be a number"),
        (["--slow_seeds", "0"], "argument --slow_seeds: '0' must be a number"),
        (["--at_once", "0"], "argument --at_once: '0' must be a number"),
        (["--at_once", "2", "--trainer.devices", "2"], "leave out --trainer.devices 2"),
        (["--data", "pydocs"], "there is no 'pydocs'"),
        (["--data.stemming", "1"], "stemming"),
    ],
)
def test_mistakes_are_reported_before_anything_is_trained(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_options(arguments)
    assert message in str(caught.value)


def test_options_of_all_steps_are_passed_on(tmp_path: Path) -> None:
    given = ["--data", "pydocs_doc", "--seeds", "5", "--output_dir", str(tmp_path), "--data.workers", "1"]
    options = read_options(given)
    shared = ["--data", "pydocs_doc", "--data.workers", "1"]
    assert options == Options(tmp_path / "pydocs_doc", 5, 5, 1, shared)
    training, *_, measurement = plan_steps(plan_rows(["nn_model1"], options), options)["nn_model1"]
    output = [*shared, "--output_dir", str(tmp_path)]
    assert training.command == [
        "train.py", "--model", "nn_model1", *output, "--skip_trained", "true", "--seed", "1",
    ]  # fmt: skip
    assert measurement.command == [
        "evaluate.py", "--models", "nn_model1", *output, "--skip_measured", "true", "--table", "false",
    ]  # fmt: skip


# --- rows


def test_every_row_is_planned_after_its_dependencies(tmp_path: Path) -> None:
    options = options_of(tmp_path, "pydocs_doc")
    rankers = plan_rows([row.name for row in ROWS], options)
    assert sorted(ranker.title for ranker in rankers) == sorted(row.name for row in ROWS)
    planned: set[str] = set()
    for ranker in rankers:
        assert set(ranker.dependencies) <= planned, ranker.title
        planned.add(ranker.title)


def test_the_profile_leaves_rows_out_and_what_depends_on_them(tmp_path: Path) -> None:
    assert resolve(["--data", "pydocs_passage"]).left_out == ["bert_*_full"]
    titles = [ranker.title for ranker in plan_rows([row.name for row in ROWS], options_of(tmp_path))]
    assert {row.name for row in ROWS} - set(titles) == {"bert_vanilla_full", "bert_model1_full"}
    only = options_of(tmp_path)._replace(shared=["--profile", str(tmp_path / "few.yaml")])
    write_text(tmp_path / "few.yaml", "models: {}\nleave_out: [nn_model1]\n")
    titles = [ranker.title for ranker in plan_rows(["nn_model1_exp", "leaderboard", "bm25_lemm"], only)]
    assert not {"nn_model1", "nn_model1_exp", "leaderboard"} & set(titles) and "bm25_lemm" in titles


def test_seeds_states_and_durations(tmp_path: Path) -> None:
    options = options_of(tmp_path, seeds=3)
    rows = plan_rows(["bm25_lemm", "nn_model1_exp", "bert_vanilla_short"], options)
    assert {ranker.title: ranker.seeds for ranker in rows} == {
        "bm25_lemm": 1, "nn_model1": 3, "nn_model1_exp": 3, "bert_vanilla_short": 1,
    }  # fmt: skip
    network = rows[1]
    write_text(network.runs[0].config, yaml.safe_dump({"model": network.settings}))
    write_json(network.runs[0].development, {"seconds": 100})
    write_text(network.runs[1].last_checkpoint, "")
    write_text(rows[0].runs[0].development, "{")  # a damaged file costs the estimate only
    steps = plan_steps(rows, options)
    assert [(step.state, step.seconds) for step in steps["nn_model1"]] == [
        ("done", 100.0), ("resumes", 100.0), ("to do", 100.0), ("to do", 3 * 32),
    ]  # fmt: skip
    assert [(step.state, step.seconds) for step in steps["bm25_lemm"]] == [("to do", 109), ("to do", 9)]
    titles = [f"nn_model1, seed {seed}" for seed in (1, 2, 3)]
    assert steps["nn_model1_exp"][0].dependencies == steps["nn_model1"][-1].dependencies == tuple(titles)


@pytest.mark.parametrize(("setting", "state"), [("p_self", "to do"), ("pairs_at_once", "done")])
def test_only_settings_that_matter_make_a_training_outdated(setting: str, state: str, tmp_path: Path) -> None:
    options = options_of(tmp_path)
    (ranker,) = plan_rows(["nn_model1"], options)
    finish(ranker._replace(settings={**ranker.settings, setting: 1}))
    assert states([ranker], options)["nn_model1"] == [state, state]


def test_a_row_is_outdated_when_its_dependency_is_trained_again(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    network, export = rows = plan_rows(["nn_model1_exp"], options)
    finish(network)
    finish(export, (network,))
    done = {"nn_model1": ["done", "done"], "nn_model1_exp": ["done", "done"]}
    assert states(rows, options) == done
    write_text(network.runs[0].checkpoint, "other weights")
    assert states(rows, options) == done | {"nn_model1_exp": ["to do", "to do"]}
    network.runs[0].config.unlink()
    assert states(rows, options)["nn_model1_exp"] == ["to do", "to do"]


def test_rows_whose_dependencies_have_only_results_here_are_left_out(tmp_path: Path) -> None:
    """As in results/: the values of a finished row are kept, its checkpoint is not."""
    options = options_of(tmp_path)
    rows = ["leaderboard", "leaderboard_traditional"]
    (part,) = plan_rows(["model1_word"], options)

    def planned() -> set[str]:
        return {ranker.title for ranker in plan_rows(rows, options)} & set(rows)

    finish(part)
    assert planned() == set(rows)
    part.runs[0].checkpoint.unlink()
    assert planned() == set()
    assert states([part], options)["model1_word"] == ["done", "done"]
    finish(part._replace(settings={**part.settings, "iterations": 99}))
    part.runs[0].checkpoint.unlink()
    assert planned() == set(rows)  # it is trained again, and then it is here


def test_the_time_left_mentions_steps_of_unknown_length() -> None:
    done, known, unknown = Step("", [], "done", 999.0), Step("", [], "to do", 600.0), Step("", [], "resumes", None)
    assert time_left([done]) == "0 s"
    assert time_left([done, known, known]) == "20 min"
    assert time_left([known, unknown]) == "10 min and 1 step of unknown length"
    assert time_left([done, unknown, unknown]) == "2 steps of unknown length"


# --- ablations


def lines_of(options: Options) -> dict[str, PlannedLine]:
    return {planned.line.name: planned for planned in plan_lines(read_ablations(ABLATIONS)[1], options)}


def test_every_line_names_a_ranker_and_settings_that_it_has(tmp_path: Path) -> None:
    _, lines = read_ablations(ABLATIONS)
    assert {line.model for line in lines} <= set(names("model"))
    planned = lines_of(options_of(tmp_path))
    assert set(planned) == {line.name for line in lines} - {"threshold_1e-3"}  # the base's own threshold on this data
    assert {line.name for line in lines} - set(lines_of(options_of(tmp_path, "msmarco_passage"))) == {"threshold_1e-4"}
    base, line = planned["nn_model1"].ranker, planned["no_hadamard"].ranker
    assert line.settings == {**base.settings, "hadamard": False}
    assert base.runs == [RunFolder(tmp_path / "pydocs_passage/nn_model1/seed-1")]
    assert line.runs == [RunFolder(tmp_path / "ablations/no_hadamard/pydocs_passage/nn_model1/seed-1")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"changes": {"iteration": 1}}, "the line 'a' of ablations.yaml: model1_word: "),
        ({"changes": {"iterations": 0}}, "--model.iterations 0: must be 1 or more"),
        ({"changes": {"iterations": "five"}}, "the line 'a' of ablations.yaml: model1_word: "),
        ({"ranker": "model2"}, "there is no 'model2'; choose one of"),
        ({"name": "bm25_lemm", "changes": {"iterations": 1}}, "needs another name than a ranker"),
    ],
)
def test_a_mistyped_setting_of_a_line_is_reported(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    lines = [
        Ablation("base", "model1_word", "c"),
        Ablation(**{"name": "a", "row": "model1_word", "claim": "c", **line}),
    ]
    with pytest.raises(UserError) as caught:
        plan_lines(lines, options_of(tmp_path))
    assert message in str(caught.value)


def test_lines_wait_for_their_dependencies_only(tmp_path: Path) -> None:
    options = options_of(tmp_path, seeds=2)
    planned = lines_of(options)
    chosen = ["threshold_1e-2", "word_iterations_1", "word_depth_100"]
    steps = [step for group in steps_of([planned[name] for name in chosen], options).values() for step in group]
    networks = ("nn_model1, seed 1", "nn_model1, seed 2")
    exports = ("nn_model1_exp, seed 1", "nn_model1_exp, seed 2")
    lines = ("threshold_1e-2, seed 1", "threshold_1e-2, seed 2")
    assert {step.title: step.dependencies for step in steps} == {
        **dict.fromkeys(networks, ()), "measure nn_model1": networks,
        **dict.fromkeys(exports, networks), "measure nn_model1_exp": exports,
        **dict.fromkeys(lines, networks), "measure threshold_1e-2": lines,
        "model1_word, seed 1": (), "measure model1_word": ("model1_word, seed 1",),
        "word_iterations_1, seed 1": (), "measure word_iterations_1": ("word_iterations_1, seed 1",),
        "measure word_depth_100": ("model1_word, seed 1",),
    }  # fmt: skip
    (command,) = (step.command for step in steps if step.title == "word_iterations_1, seed 1")
    assert "--model.iterations=1" in command and str(tmp_path / "ablations/word_iterations_1") in command


def test_an_export_is_made_again_when_the_network_of_its_base_is_trained_again(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    planned = lines_of(options)
    network, line = planned["nn_model1"].ranker, planned["threshold_1e-2"].ranker
    finish(network)
    assert line.prepare is not None
    line.prepare()
    borrow_dependencies(line, options.folder)  # of another seed: changes nothing
    assert (line.folder / "nn_model1").resolve() == options.folder / "nn_model1"
    finish(line, (network,))
    assert states([network, line], options)["threshold_1e-2"] == ["done", "done"]
    write_text(network.runs[0].checkpoint, "other weights")
    assert states([network, line], options)["threshold_1e-2"] == ["to do", "to do"]
