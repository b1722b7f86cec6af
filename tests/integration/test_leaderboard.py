"""The leaderboard rows on a small folder: real BM25, real EM, a tiny network, a tiny BERT."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from evaluate import evaluate
from lexical.batches import JointBatch
from lexical.errors import UserError
from lexical.ranking.trec_run import read_run
from lexical.small_files import read_json
from lightning_modules.leaderboard import Leaderboard
from lightning_modules.trained import load_ranker
from pipeline.run_folder import RunFolder
from tests.fixtures.small_rankers import SMALL_BERT, SMALL_NETWORK
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert
from tests.fixtures.training_place import Place
from train import train

LEXICAL = ["bm25_lemm", "bm25_lemm_word", "bm25_lemm_bwps", "model1_word", "model1_bwps"]
PARTS = [*LEXICAL, "nn_model1_exp"]
RERANKED = 5  # of the 20 candidates of the sample
OUT = "out"

pytestmark = pytest.mark.usefixtures("one_thread")


class Trained(NamedTuple):
    place: Place
    backbone: Path

    def folder(self, row: str, output: str = OUT) -> RunFolder:
        return self.place.folder(output, row)

    def bert(self, *further: str) -> list[str]:
        return ["--model", "bert_model1_full", "--model.backbone", str(self.backbone), *SMALL_BERT, *further]

    def train(self, *arguments: str, output: str = OUT) -> dict[str, float]:
        return train(self.place.command(output, *arguments))

    def leaderboard(self, *further: str, output: str = OUT) -> dict[str, float]:
        return self.train("--model", "leaderboard", "--model.reranked", str(RERANKED), *further, output=output)

    def evaluate(self, models: str, *further: str, output: str = OUT) -> list[Any]:
        return evaluate(self.place.command(output, "--models", models, *further))

    def copy(self, output: str) -> str:
        """The outputs once more, to be changed."""
        shutil.copytree(self.place.work / OUT, self.place.work / output)
        for config in (self.place.work / output).rglob("config.yaml"):
            config.write_text(config.read_text().replace(f"{self.place.work}/{OUT}", f"{self.place.work}/{output}"))
        return output


@pytest.fixture(scope="module")
def trained(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    os.environ["WANDB_MODE"] = "disabled"  # its files are looked at elsewhere
    work = tmp_path_factory.mktemp("leaderboard")
    backbone = with_packaged_tokenizer(write_tiny_bert(work / "bert", positions=64))
    rows = Trained(Place(small_folder, work), backbone)
    for row in LEXICAL:
        rows.train("--model", row)
    rows.train("--model", "nn_model1", *SMALL_NETWORK)
    rows.train(*rows.bert())
    rows.train("--model", "leaderboard_traditional")
    rows.leaderboard()
    rows.evaluate(",".join([*PARTS, "bert_model1_full", "leaderboard_traditional"]))
    rows.evaluate("leaderboard", "--leaderboard", "true")
    yield rows
    os.environ["WANDB_MODE"] = "offline"


def learned(folder: RunFolder, stage: str) -> list[float]:
    weights: list[float] = read_json(folder.fusion)[stage]["weights"]
    return weights


def own_scores(trained: Trained, part: str, query_set: str) -> dict[str, dict[str, float]]:
    """query -> document -> the ranker's own score, from its run file."""
    alone = part.startswith(("bm25_lemm_", "model1", "nn_"))
    run = read_run(trained.folder(part).run(query_set, alone))
    return {
        query: dict(zip(documents, scores.astype(np.float32).tolist(), strict=True))
        for query, (documents, scores) in run.items()
    }


def weighted(weights: list[float], features: list[dict[str, float]]) -> dict[str, float]:
    """Document by document; what a run file holds is a float32."""
    return {
        document: float(np.float32(sum(w * scores[document] for w, scores in zip(weights, features, strict=True))))
        for document in features[0]
    }


def by_score(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda document: (-scores[document], document))


def plain_rankings(trained: Trained, first: list[float], second: list[float]) -> dict[str, list[str]]:
    """The leaderboard run of test_cpu, computed from the run files of the parts."""
    parts = [own_scores(trained, part, "test_cpu") for part in PARTS]
    bert = own_scores(trained, "bert_model1_full", "test_cpu")
    rankings = {}
    for query in bert:
        fused = weighted(first, [scores[query] for scores in parts])
        order = by_score(fused)
        best = {document: fused[document] for document in order[:RERANKED]}
        rankings[query] = by_score(weighted(second, [best, bert[query]])) + order[RERANKED:]
    return rankings


def test_the_run_is_a_plain_recomputation_from_the_runs_of_its_parts(trained: Trained) -> None:
    folder = trained.folder("leaderboard")
    expected = plain_rankings(trained, learned(folder, "first_weights"), learned(folder, "second_weights"))
    run = read_run(folder.run("test_cpu", alone=False))
    assert {query: documents for query, (documents, _) in run.items()} == expected
    assert len(expected) == 40 and max(map(len, expected.values())) == 20
    lines = (folder.path / "runs" / "test_cpu.leaderboard.tsv").read_text().splitlines()
    assert lines == [
        f"{query}\t{document}\t{rank}" for query in expected for rank, document in enumerate(expected[query], 1)
    ]
    assert not (folder.path / "runs" / "test_cpu.alone.run").exists()


def loaded(trained: Trained) -> Leaderboard:
    folder = trained.folder("leaderboard")
    ranker = load_ranker(folder.path)
    assert isinstance(ranker, Leaderboard)
    ranker.load_dependencies(folder.path)
    return ranker


def test_with_a_strong_second_ranker_the_run_is_the_plain_recomputation_too(trained: Trained) -> None:
    """The tiny BERT is too weak to get a weight of its own."""
    data, ranker = trained.place.opened(), loaded(trained)
    assert ranker.sampled
    ranker.stages["second_weights"]["weights"] = [0.25, 0.75]
    (batch,) = data.evaluation_batches("test_cpu", ranker.needs())
    assert isinstance(batch.ranking, JointBatch)
    scores, candidates = ranker.score(batch.ranking), batch.ranking.candidates
    expected = plain_rankings(trained, ranker.stages["first_weights"]["weights"], [0.25, 0.75])
    ids = np.array(batch.query_set.document_ids(candidates.values).to_pylist())
    for row, query in enumerate(batch.query_set.query_ids):
        pairs = slice(candidates.offsets[row], candidates.offsets[row + 1])
        assert by_score(dict(zip(ids[pairs].tolist(), scores[pairs].tolist(), strict=True))) == expected[query]


def test_the_second_ranker_scores_as_it_was_trained_unless_another_precision_is_given(trained: Trained) -> None:
    ranker = loaded(trained)
    assert ranker.reranker.precision == ranker.reranker.default_precision(gpu=False)
    ranker.use_precision("32-true")
    assert ranker.reranker.precision == "32-true"


def test_the_traditional_run_is_a_weighted_sum_and_no_worse_than_any_feature(trained: Trained) -> None:
    folder = trained.folder("leaderboard_traditional")
    stage = read_json(folder.fusion)["first_weights"]
    assert stage["features"] == [f"{part} (alone)" for part in LEXICAL] and stage["learned_on"] == "train_fusion"
    assert stage["mrr"] >= max(stage["mrr_of_each_feature"])
    assert list(read_json(folder.dependencies)) == LEXICAL
    parts = [own_scores(trained, part, "test") for part in LEXICAL]
    for query, (documents, scores) in read_run(folder.run("test", alone=False)).items():
        expected = weighted(stage["weights"], [part_scores[query] for part_scores in parts])
        assert documents == by_score(expected)
        assert scores.astype(np.float32).tolist() == [expected[document] for document in documents]


def test_a_sampled_second_ranker_is_learned_and_measured_on_samples(trained: Trained) -> None:
    stages = read_json(trained.folder("leaderboard").fusion)
    assert stages["first_weights"]["learned_on"] == "train_fusion"
    assert stages["second_weights"]["learned_on"] == "train_fusion_cpu"
    results = read_json(trained.folder("leaderboard").evaluation)["results"]
    assert {result["query_set"] for result in results} == {"test_cpu"}
    assert all(result["ms_per_1k"] > 0 and not result["fused"] for result in results)


def test_a_second_ranker_that_is_not_sampled_is_learned_and_measured_on_everything(trained: Trained) -> None:
    output = trained.copy("full")
    trained.train(*trained.bert("--model.sampled=false", "--model.train_queries=16"), output=output)
    trained.leaderboard(output=output)
    stages = read_json(trained.folder("leaderboard", output).fusion)
    assert {stage["learned_on"] for stage in stages.values()} == {"train_fusion"}
    results = trained.evaluate("leaderboard", output=output)
    assert {result.query_set for result in results if result.model == "leaderboard"} == {"test", "test_cpu"}


def test_two_processes_learn_and_measure_the_run_of_one(trained: Trained) -> None:
    """Both score their shares of what the second ranker scores again, in learning the second fusion and in testing."""
    output, devices = trained.copy("two"), ["--trainer.accelerator=cpu", "--trainer.devices=2"]
    one, two = (trained.folder("leaderboard", name) for name in (OUT, output))
    shutil.rmtree(two.path)
    for script, arguments in (
        ("train.py", ["--model", "leaderboard", "--model.reranked", str(RERANKED), *devices]),
        ("evaluate.py", ["--models", "leaderboard", *devices]),
    ):
        process = trained.place.process(output, *arguments, script=script)
        printed, _ = process.communicate(timeout=300)
        assert process.returncode == 0, printed
    two = trained.folder("leaderboard", output)
    of_one, of_two = (
        {stage: {**values, "seconds": None} for stage, values in read_json(run.fusion).items()} for run in (one, two)
    )
    assert of_two == of_one
    run = two.run("test_cpu", alone=False)
    assert run.read_bytes() == one.run("test_cpu", alone=False).read_bytes()
    assert read_json(two.evaluation)["results"][0]["device"] == "2 x cpu"


# --- parts


def test_missing_parts_are_named_with_their_command(trained: Trained) -> None:
    with pytest.raises(UserError, match=r"model1_bwps, and .* has none: python train\.py --models bm25_lemm,.* 1$"):
        trained.train("--model", "leaderboard_traditional", output="nothing")


def test_a_seed_takes_parts_of_that_seed_and_those_that_have_none(trained: Trained) -> None:
    with pytest.raises(UserError) as error:
        trained.leaderboard("--seed", "2")
    assert "made from a trained nn_model1_exp and bert_model1_full" in str(error.value)
    assert str(error.value).endswith("of seed 2: python train.py --models nn_model1,bert_model1_full --seed 2")


def test_a_part_that_has_parts_of_its_own_is_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match="leaderboard_traditional is itself a combination of rankers"):
        trained.train("--model", "leaderboard_traditional", "--model.parts", "[bm25_lemm,leaderboard_traditional]")


def test_parts_of_other_data_are_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match="made from bm25_lemm, which was trained on other data or candidates"):
        trained.train("--model", "leaderboard_traditional", "--data.depth", "10")


def test_a_part_that_was_trained_again_makes_the_row_stale(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    output = trained.copy("again")
    kept = trained.leaderboard("--skip_trained", "true", output=output)
    assert "already trained with these settings, kept" in capsys.readouterr().err
    trained.train("--model", "bm25_lemm_word", "--model.k1", "0.3", "--model.b", "0.1", output=output)
    with pytest.raises(UserError, match=r"^bm25_lemm_word was trained again since leaderboard .*--model leaderboard$"):
        trained.evaluate("leaderboard", output=output)
    results = trained.evaluate("bm25_lemm", output=output)
    assert "leaderboard" not in {result.model for result in results}
    assert "leaderboard (seed 1) is not in the table" in capsys.readouterr().err
    trained.leaderboard("--skip_trained", "true", output=output)
    output_lines = capsys.readouterr().err
    assert "already trained" not in output_lines and "fusion on train_fusion" in output_lines
    assert kept.keys() == {"development/mrr"}
    assert "leaderboard" in {result.model for result in trained.evaluate("leaderboard", output=output)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.parts", "[bm25_lemm,bm25_lemm]"], "--model.parts"),
        (["--model.reranker", "bm25_lemm"], "--model.reranker bm25_lemm: must be none of the parts"),
        (
            ["--model.parts", "[bm25_lemm,my_ranker]"],
            "made from a trained bm25_lemm and my_ranker and bert_model1_full",
        ),
    ],
)
def test_wrong_settings_get_one_line(trained: Trained, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        trained.leaderboard(*arguments, output="wrong")
