"""Explanations at each validation: what W&B gets of them, and that a training does not notice."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import wandb

from apps.explanation_page import explanation_page
from apps.watched_evidence import COLUMNS
from callbacks.explanations import undisturbed
from datamodules.text.query_sets import DEVELOPMENT
from lexical.index.ragged import ragged
from lexical.ranking.order import RankedTask
from lightning_modules.ranker import Ranker
from pipeline.run_folder import RunFolder
from pipeline.watched_sample import QUERIES, WatchedSample, sampled_queries
from tests.fixtures.browser import OpenPage
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert
from tests.fixtures.training_place import Place, assert_same, weights
from tests.fixtures.wandb_files import read_offline_run
from train import train

NETWORK = [
    "--model", "nn_model1_cosine", "--model.vectors=null", "--model.embedding=12", "--model.projection=8",
    "--model.margin=8", "--trainer.max_epochs=2", "--trainer.accelerator=cpu",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    os.environ["WANDB_MODE"] = "offline"
    return Place(small_folder, tmp_path_factory.mktemp("evidence"))


@pytest.fixture(scope="module")
def watched(place: Place) -> RunFolder:
    train(place.command("watched", *NETWORK))
    return place.folder("watched", "nn_model1_cosine")


class Logged(NamedTuple):
    """What one validation has left."""

    step: int
    page: Path
    rows: list[dict[str, Any]]

    @property
    def contents(self) -> list[dict[str, Any]]:
        """What the page shows."""
        text = self.page.read_text(encoding="utf-8")
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        assert found is not None
        contents: list[dict[str, Any]] = json.loads(found[1])
        return contents

    def documents(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """(query, document) -> its rows."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault((row["query"], row["document"]), []).append(row)
        return found


def logged(folder: RunFolder) -> list[Logged]:
    (path,) = folder.path.glob("wandb/offline-run-*/*.wandb")
    found = []
    for row in read_offline_run(path).history:
        if "explanations/page/path" not in row:
            continue
        page, table = (path.parent / "files" / row[f"explanations/{name}/path"] for name in ("page", "words"))
        content = json.loads(table.read_text())
        assert content["columns"] == list(COLUMNS)
        rows = [dict(zip(COLUMNS, one, strict=True)) for one in content["data"]]
        found.append(Logged(row["trainer/global_step"], page, rows))
    return found


def tokens_of(place: Place, field: str) -> dict[str, int]:
    """How many tokens each development query has."""
    data = place.opened()
    lengths = data.prepared.query_tokens(DEVELOPMENT, field).lengths()
    return dict(zip(data.query_set(DEVELOPMENT).texts, lengths.tolist(), strict=True))


def assert_adds_up(one: Logged, divided_by: dict[str, int] | None) -> None:
    for (query, _), rows in one.documents().items():
        (score,) = {row["score"] for row in rows}
        normaliser = divided_by[query] if divided_by else 1
        assert sum(row["log_score"] for row in rows) / normaliser == pytest.approx(score, rel=1e-5)


# --- what W&B gets


def test_every_validation_logs_a_page_and_a_table_of_the_same_queries(watched: RunFolder, place: Place) -> None:
    first, second = logged(watched)
    assert (first.step, second.step) == (9, 18)  # 270 queries, 32 pairs a step
    assert [{(row["step"], row["epoch"]) for row in one.rows} for one in (first, second)] == [{(9, 1)}, {(18, 2)}]
    assert list(first.documents()) == list(second.documents()) and len(first.documents()) == 2 * QUERIES
    assert [row["score"] for row in first.rows] != [row["score"] for row in second.rows]  # it has learned
    queries = place.opened().query_set(DEVELOPMENT)
    judged = {(dict(zip(queries.ids, queries.texts, strict=True))[q], document) for q, document, _ in queries.qrels()}
    for (query, document), rows in first.documents().items():
        assert {row["relevant"] for row in rows} == {(query, document) in judged}


def test_the_log_scores_of_a_document_sum_to_its_score(watched: RunFolder, place: Place) -> None:
    for one in logged(watched):
        assert_adds_up(one, tokens_of(place, "bwps"))
        said = [row["rests on"] for row in one.rows]
        assert all(re.fullmatch(r"(\S.* \d+%(, |$))+|nothing", text) for text in said) and set(said) != {"nothing"}


def test_the_page_has_all_queries_and_the_figures_of_the_table(watched: RunFolder) -> None:
    for one in logged(watched):
        shown = {
            (query["query"], document["document"]): document
            for query in one.contents
            for document in query["documents"]
        }
        assert shown.keys() == one.documents().keys()
        for key, rows in one.documents().items():
            (feature,) = shown[key]["features"]
            assert feature["weight"] == 1 and shown[key]["score"] == pytest.approx(rows[0]["score"])
            assert [word["log_score"] for word in feature["query_words"]] == pytest.approx(
                [row["log_score"] for row in rows]
            )


def test_a_browser_shows_the_queries_one_below_the_other(watched: RunFolder, browser_page: OpenPage) -> None:
    one = logged(watched)[0]
    page = browser_page.open(one.page)
    assert browser_page.errors == [] and browser_page.requests == [one.page.as_uri()]
    assert page.locator("h1").all_inner_texts() == [content["query"] for content in one.contents]
    assert page.locator("article.hit").count() == 2 * QUERIES and page.title() == "5 queries – nn_model1_cosine"
    assert page.locator("h2").all_inner_texts() == [content["difference"]["title"] for content in one.contents]
    ids = page.locator("[id]").evaluate_all("all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))


def test_a_browser_still_shows_one_query_alone(watched: RunFolder, browser_page: OpenPage, tmp_path: Path) -> None:
    content = logged(watched)[0].contents[0]
    (tmp_path / "one.html").write_text(explanation_page(content), encoding="utf-8")
    page = browser_page.open(tmp_path / "one.html")
    assert browser_page.errors == [] and page.locator("h1").all_inner_texts() == [content["query"]]
    assert page.title() == f"{content['query']} – nn_model1_cosine" and page.locator("article.hit").count() == 2


# --- a training does not notice


def test_weights_are_bitwise_those_of_a_training_without(
    watched: RunFolder, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    train(place.command("without", *NETWORK))
    without = place.folder("without", "nn_model1_cosine")
    assert not list(without.path.glob("wandb/*"))
    assert_same(weights(watched.checkpoint), weights(without.checkpoint))
    assert_same(weights(watched.best_checkpoint), weights(without.best_checkpoint))


def test_a_failure_costs_one_line_and_nothing_else(
    watched: RunFolder, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(sample: WatchedSample, ranker: Ranker) -> None:
        torch.manual_seed(0)
        ranker.train()
        raise RuntimeError("nothing can be explained")

    monkeypatch.setattr(WatchedSample, "explained", fail)
    train(place.command("failed", *NETWORK))
    assert capsys.readouterr().err.count("W&B: nothing can be explained; local files are complete\n") == 1
    failed = place.folder("failed", "nn_model1_cosine")
    assert failed.config.is_file() and logged(failed) == []
    assert_same(weights(watched.checkpoint), weights(failed.checkpoint))


def test_modes_random_numbers_and_threads_are_kept_whatever_happens(torch_threads: None) -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))
    module[1].eval()
    torch.set_num_threads(2)
    expected = torch.random.get_rng_state()

    def explain() -> None:
        assert not any(one.training for one in module.modules()) and not torch.is_grad_enabled()
        torch.rand(3)
        module.train()
        torch.set_num_threads(1)
        raise KeyError

    with pytest.raises(KeyError), undisturbed(module):
        explain()
    assert [one.training for one in module.modules()] == [True, True, False]
    assert torch.equal(torch.random.get_rng_state(), expected) and torch.get_num_threads() == 2
    assert torch.is_grad_enabled()


# --- other rankers


def test_em_is_explained_once_when_its_table_is_chosen(place: Place) -> None:
    train(place.command("em", "--model", "model1_word", "--model.iterations", "2"))
    folder = place.folder("em", "model1_word")
    (one,) = logged(folder)
    field = json.loads((folder.table / "meta.json").read_text())["field"]
    assert {row["epoch"] for row in one.rows} == {2} and len(one.contents) == QUERIES
    assert_adds_up(one, tokens_of(place, field))


def test_bert_model1_is_explained(place: Place, tmp_path: Path) -> None:
    backbone = with_packaged_tokenizer(write_tiny_bert(tmp_path, positions=64))
    settings = ["--model.positions=64", "--model.query_pieces=8", "--model.train_queries=16"]
    train(
        place.command("bert", "--model", "bert_model1_full", "--model.backbone", str(backbone), *settings,
                      "--trainer.accelerator=cpu", "--trainer.max_epochs=1")
    )  # fmt: skip
    wandb.finish()  # whatever became of the artifacts: the file is whole
    (one,) = logged(place.folder("bert", "bert_model1_full"))
    assert len(one.contents) == QUERIES
    assert_adds_up(one, None)


# --- the sample


def test_the_sample_has_the_best_relevant_and_the_best_other_candidate() -> None:
    candidates = ragged([[4, 2, 7], [1, 3], [], [5, 6, 0], [8]], np.int32)
    relevant = np.array([0, 1, 1, 0, 0, 0, 1, 0, 1], bool)
    task = RankedTask(candidates, np.arange(9), relevant)
    found = {number: documents.tolist() for number, documents in sampled_queries(task)}
    assert found == {0: [2, 4], 3: [6, 5], 4: [8]}
    few = [one.number for one in sampled_queries(task, 2)]
    assert len(few) == 2 and few == sorted(few) and set(few) < set(found)
    assert sampled_queries(task._replace(relevant=np.zeros(9, bool))) == []
