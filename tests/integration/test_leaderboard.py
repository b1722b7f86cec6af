"""The leaderboard rows on a small folder: real BM25, real EM, a tiny network, a tiny BERT."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from evaluate import evaluate
from lexical.errors import UserError
from lexical.ranking.trec_run import read_run
from lightning_modules.bert.chunk_encoder import encoder_precision
from lightning_modules.bert.ranker import BertRanker
from lightning_modules.leaderboard import Leaderboard
from pipeline.all_rows import asked_for, made_of, plan
from pipeline.loading import load_ranker
from pipeline.run_folder import RunFolder
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert
from tests.fixtures.training_place import Place
from tests.integration.test_bert_training import SMALL as SMALL_BERT
from tests.integration.test_nn_model1_training import SMALL as SMALL_NETWORK
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
    found = Trained(Place(small_folder, work), backbone)
    for row in LEXICAL:
        found.train("--model", row)
    found.train("--model", "nn_model1", *SMALL_NETWORK)
    found.train(*found.bert())
    found.train("--model", "leaderboard_traditional")
    found.leaderboard()
    found.evaluate(",".join([*PARTS, "bert_model1_full", "leaderboard_traditional"]))
    found.evaluate("leaderboard", "--leaderboard", "true")
    yield found
    os.environ["WANDB_MODE"] = "offline"


def learned(folder: RunFolder, stage: str) -> list[float]:
    weights: list[float] = json.loads(folder.fusion.read_text())[stage]["weights"]
    return weights


def own_scores(trained: Trained, part: str, query_set: str) -> dict[str, dict[str, float]]:
    """query -> document -> the ranker's own score, from its run file."""
    alone = part.startswith(("bm25_lemm_", "model1", "nn_"))
    run = read_run(trained.folder(part).run(query_set, alone))
    exact = {query: (found[0], found[1].astype(np.float32).tolist()) for query, found in run.items()}
    return {query: dict(zip(*found, strict=True)) for query, found in exact.items()}


def weighted(weights: list[float], features: list[dict[str, float]]) -> dict[str, float]:
    """Document by document; what a run file holds is a float32."""
    return {
        one: float(np.float32(sum(w * scores[one] for w, scores in zip(weights, features, strict=True))))
        for one in features[0]
    }


def by_score(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda one: (-scores[one], one))


def plain_rankings(trained: Trained, first: list[float], second: list[float]) -> dict[str, list[str]]:
    """The leaderboard run of test_cpu, computed from the run files of the parts."""
    parts = [own_scores(trained, part, "test_cpu") for part in PARTS]
    bert = own_scores(trained, "bert_model1_full", "test_cpu")
    rankings = {}
    for query in bert:
        fused = weighted(first, [one[query] for one in parts])
        order = by_score(fused)
        best = {one: fused[one] for one in order[:RERANKED]}
        rankings[query] = by_score(weighted(second, [best, bert[query]])) + order[RERANKED:]
    return rankings


def test_the_run_is_a_plain_recomputation_from_the_runs_of_its_parts(trained: Trained) -> None:
    folder = trained.folder("leaderboard")
    expected = plain_rankings(trained, learned(folder, "first_weights"), learned(folder, "second_weights"))
    found = read_run(folder.run("test_cpu", alone=False))
    assert {query: documents for query, (documents, _) in found.items()} == expected
    assert len(expected) == 40 and max(map(len, expected.values())) == 20
    lines = (folder.path / "runs" / "test_cpu.leaderboard.tsv").read_text().splitlines()
    written = [f"{query}\t{one}\t{rank}" for query in expected for rank, one in enumerate(expected[query], start=1)]
    assert lines == written
    assert not (folder.path / "runs" / "test_cpu.alone.run").exists()


def test_with_a_second_ranker_that_counts_the_ranking_is_the_plain_one_too(trained: Trained) -> None:
    """The tiny BERT is too weak to get a weight of its own."""
    data = trained.place.opened()
    ranker = load_ranker(trained.folder("leaderboard"), "leaderboard", data)
    assert isinstance(ranker, Leaderboard) and ranker.sampled
    ranker.weights["second_weights"] = [0.25, 0.75]
    (batch,) = data.joint_loader("test_cpu", ranker.joint_fields, 1000)
    scores = ranker.score(batch)
    expected = plain_rankings(trained, ranker.weights["first_weights"], [0.25, 0.75])
    ids = np.array(data.prepared.collection.ids(batch.candidates.values).to_pylist())
    for row, query in enumerate(data.query_set("test_cpu").ids):
        mine = slice(batch.candidates.offsets[row], batch.candidates.offsets[row + 1])
        assert by_score(dict(zip(ids[mine].tolist(), scores[mine].tolist(), strict=True))) == expected[query]


def test_the_second_ranker_scores_as_it_was_trained_unless_another_precision_is_asked_for(trained: Trained) -> None:
    data = trained.place.opened()
    ranker = load_ranker(trained.folder("leaderboard"), "leaderboard", data)
    assert isinstance(ranker, Leaderboard) and isinstance(ranker.reranker, BertRanker)
    assert ranker.reranker.trained_in == encoder_precision(gpu=False)
    ranker.use_precision("32-true")
    assert ranker.reranker.trained_in == "32-true"
    ranker.reranker.use_precision(None)
    ranker.use_sources(ranker.sources)  # in whatever order both come
    assert ranker.reranker.trained_in == "32-true"


def test_the_traditional_run_is_a_weighted_sum_and_no_worse_than_any_feature(trained: Trained) -> None:
    folder = trained.folder("leaderboard_traditional")
    saved = json.loads(folder.fusion.read_text())
    stage = saved["first_weights"]
    assert stage["features"] == [f"{part} (alone)" for part in LEXICAL] and stage["learned_on"] == "train_fusion"
    assert stage["mrr"] >= max(stage["mrr_of_each_feature"])
    assert list(saved["parts"]) == LEXICAL
    parts = [own_scores(trained, part, "test") for part in LEXICAL]
    for query, (documents, scores) in read_run(folder.run("test", alone=False)).items():
        expected = weighted(stage["weights"], [one[query] for one in parts])
        assert documents == by_score(expected)
        assert scores.astype(np.float32).tolist() == [expected[one] for one in documents]


def test_a_sampled_second_ranker_is_learned_and_measured_on_samples(trained: Trained) -> None:
    saved = json.loads(trained.folder("leaderboard").fusion.read_text())
    assert [saved[one]["learned_on"] for one in ("first_weights", "second_weights")] == [
        "train_fusion",
        "train_fusion_cpu",
    ]
    results = json.loads(trained.folder("leaderboard").evaluation.read_text())["results"]
    assert {one["query_set"] for one in results} == {"test_cpu"} and all(one["ms_per_1k"] > 0 for one in results)
    assert not any(one["fused"] for one in results)


def test_a_second_ranker_of_the_full_profile_is_learned_and_measured_on_everything(trained: Trained) -> None:
    output = trained.copy("full")
    trained.train(*trained.bert("--model.profile=full", "--model.train_queries=16"), output=output)
    trained.leaderboard(output=output)
    saved = json.loads(trained.folder("leaderboard", output).fusion.read_text())
    assert {saved[one]["learned_on"] for one in ("first_weights", "second_weights")} == {"train_fusion"}
    found = trained.evaluate("leaderboard", output=output)
    assert {one.query_set for one in found if one.model == "leaderboard"} == {"test", "test_cpu"}


# --- parts


def test_missing_parts_are_named_with_their_command(trained: Trained) -> None:
    with pytest.raises(UserError, match=r"model1_bwps, and .* has none: python train\.py --models bm25_lemm,.* 1$"):
        trained.train("--model", "leaderboard_traditional", output="nothing")


def test_a_seed_takes_parts_of_that_seed_and_those_that_have_none(trained: Trained) -> None:
    with pytest.raises(UserError) as error:
        trained.leaderboard("--seed", "2")
    assert "made from a trained nn_model1_exp and bert_model1_full" in str(error.value)
    assert str(error.value).endswith("of seed 2: python train.py --models nn_model1,bert_model1_full --seed 2")


def test_a_part_that_is_made_of_parts_itself_is_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match="leaderboard_traditional is itself made of several rankers"):
        trained.train("--model", "leaderboard_traditional", "--model.parts", "[bm25_lemm,leaderboard_traditional]")


def test_parts_of_other_data_are_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match="made from bm25_lemm, which was trained on other data or candidates"):
        trained.train("--model", "leaderboard_traditional", "--data.depth", "10")


def test_a_part_that_was_trained_again_makes_the_row_stale(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    output = trained.copy("again")
    kept = trained.leaderboard("--skip_trained", "true", output=output)
    assert "trained already with these settings, kept" in capsys.readouterr().err
    trained.train("--model", "bm25_lemm_word", "--model.k1", "0.3", "--model.b", "0.1", output=output)
    with pytest.raises(UserError, match=r"^bm25_lemm_word was trained again since leaderboard .*--model leaderboard$"):
        trained.evaluate("leaderboard", output=output)
    found = trained.evaluate("bm25_lemm", output=output)
    assert "leaderboard" not in {one.model for one in found}
    assert "leaderboard (seed 1) is not in the table" in capsys.readouterr().err
    trained.leaderboard("--skip_trained", "true", output=output)
    said = capsys.readouterr().err
    assert "trained already" not in said and "fusion on train_fusion" in said
    assert kept.keys() == {"development/mrr"}
    assert "leaderboard" in {one.model for one in trained.evaluate("leaderboard", output=output)}


def test_weights_of_another_training_are_not_loaded(trained: Trained, tmp_path: Path) -> None:
    source = trained.folder("leaderboard_traditional")
    shutil.copytree(source.path, tmp_path / "row" / "seed-1")
    folder = RunFolder(tmp_path / "row" / "seed-1")
    saved = json.loads(folder.fusion.read_text())
    saved["first_weights"]["weights"][0] += 0.5
    folder.fusion.write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"fusion\.json and the checkpoint are of different trainings"):
        load_ranker(folder, "leaderboard_traditional", trained.place.opened())


def test_in_the_plan_of_all_rows_they_follow_their_parts(trained: Trained) -> None:
    assert made_of("leaderboard", "pydocs_passage") == {*LEXICAL, "nn_model1", "bert_model1_short"}
    assert "bert_model1_full" in made_of("leaderboard", "pydocs_doc")
    rows = trained.folder("leaderboard").path.parent.parent
    states = {job.row: job.state for job in plan(asked_for(["--data", "folder"]), rows) if job.seed == 1}
    assert states["leaderboard_traditional"] == "done"  # with all of its parts
    assert states["nn_model1"] == "to do" and states["leaderboard"] == "to do"  # other settings than the YAML file's


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.parts", "[bm25_lemm,bm25_lemm]"], "--model.parts"),
        (["--model.reranker", "bm25_lemm"], "--model.reranker bm25_lemm: must be none of the parts"),
        (["--model.parts", "[bm25_lemm,my_ranker]"], "there is no 'my_ranker'"),
    ],
)
def test_wrong_settings_get_one_line(trained: Trained, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        trained.leaderboard(*arguments, output="wrong")
