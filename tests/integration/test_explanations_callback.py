"""Explanations at each validation: what W&B gets of them, and that the training stays the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import pytest
import torch
import wandb
from lightning.pytorch.loggers import WandbLogger

from apps.explanation_page import explanation_page
from callbacks.explanations import COLUMNS, QUERIES, Explanations, sampled_queries, undisturbed
from datamodules import Folder
from datamodules.text.query_sets import DEVELOPMENT
from lexical.index.ragged import ragged
from lexical.ranking.order import RankedTask
from lightning_modules import BertRanker, Model1, NeuralModel1Cosine, Ranker
from tests.fixtures.browser import OpenPage
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert
from tests.fixtures.wandb_files import read_offline_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(str(small_folder), cache_dir=str(tmp_path_factory.mktemp("cache")), workers=1)


def network() -> Ranker:
    L.seed_everything(1, verbose=False)
    return NeuralModel1Cosine(embedding=12, projection=8, margin=8.0, export_threshold=None)


def fit(ranker: Ranker, data: Folder, folder: Path, epochs: int | None = None, watch: bool = True) -> L.Trainer:
    """Train with a plain trainer; `watch`: with the callback and W&B."""
    logger = WandbLogger(name="watched", save_dir=folder, offline=True) if watch else False
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, default_root_dir=folder, logger=logger,
        callbacks=[Explanations()] if watch else [], enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(ranker, data)
    if isinstance(logger, WandbLogger):
        logger.experiment.finish()
        wandb.teardown()  # its process may still be writing the file
    return trainer


class Trained(NamedTuple):
    ranker: Ranker
    folder: Path


@pytest.fixture(scope="module")
def watched(data: Folder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        trained = Trained(network(), tmp_path_factory.mktemp("watched"))
        fit(trained.ranker, data, trained.folder, epochs=2)
        yield trained


class Logged(NamedTuple):
    """What one validation has logged."""

    step: int
    page: Path
    rows: list[dict[str, Any]]  # of the table

    @property
    def contents(self) -> list[dict[str, Any]]:
        """What the page shows."""
        text = self.page.read_text(encoding="utf-8")
        match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        assert match is not None
        contents: list[dict[str, Any]] = json.loads(match[1])
        return contents

    def documents(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Return (query, document) -> its rows."""
        documents: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows:
            documents.setdefault((row["query"], row["document"]), []).append(row)
        return documents


def logged(folder: Path) -> list[Logged]:
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    validations = []
    for history in read_offline_run(path).history:
        if "explanations/page/path" not in history:
            continue
        page, table = (path.parent / "files" / history[f"explanations/{name}/path"] for name in ("page", "words"))
        content = json.loads(table.read_text())
        assert content["columns"] == list(COLUMNS)
        rows = [dict(zip(COLUMNS, values, strict=True)) for values in content["data"]]
        validations.append(Logged(history["trainer/global_step"], page, rows))
    return validations


def assert_adds_up(validation: Logged, data: Folder, field: str | None) -> None:
    """The log-scores of a document sum to its score, divided by the tokens of the query in `field`."""
    tokens = dict.fromkeys(data.query_set(DEVELOPMENT).texts, 1)
    if field is not None:
        lengths = data.prepared.query_tokens(DEVELOPMENT, field).lengths()
        tokens = dict(zip(data.query_set(DEVELOPMENT).texts, lengths.tolist(), strict=True))
    for (query, _), rows in validation.documents().items():
        (score,) = {row["score"] for row in rows}
        assert sum(row["log_score"] for row in rows) / tokens[query] == pytest.approx(score, rel=1e-5)


# --- what W&B gets


def test_every_validation_logs_a_page_and_a_table_of_the_same_queries(watched: Trained, data: Folder) -> None:
    first, second = logged(watched.folder)
    assert (first.step, second.step) == (9, 18)  # 270 queries, 32 pairs a step
    steps = [{(row["step"], row["epoch"]) for row in validation.rows} for validation in (first, second)]
    assert steps == [{(9, 1)}, {(18, 2)}]
    assert list(first.documents()) == list(second.documents()) and len(first.documents()) == 2 * QUERIES
    assert [row["score"] for row in first.rows] != [row["score"] for row in second.rows]  # it has learned
    queries = data.query_set(DEVELOPMENT)
    texts = dict(zip(queries.ids, queries.texts, strict=True))
    relevant = {(texts[query], document) for query, document, _ in queries.qrels()}
    for key, rows in first.documents().items():
        assert {row["relevant"] for row in rows} == {key in relevant}


def test_table_and_page_have_the_same_numbers_that_add_up(watched: Trained, data: Folder) -> None:
    for validation in logged(watched.folder):
        assert_adds_up(validation, data, "bwps")
        evidence = [row["rests on"] for row in validation.rows]
        assert all(re.fullmatch(r"(\S.* \d+%(, |$))+|nothing", text) for text in evidence)
        assert set(evidence) != {"nothing"}
        shown = {
            (content["query"], document["document"]): document
            for content in validation.contents
            for document in content["documents"]
        }
        assert shown.keys() == validation.documents().keys()
        for key, rows in validation.documents().items():
            (feature,) = shown[key]["features"]
            assert feature["weight"] == 1 and shown[key]["score"] == pytest.approx(rows[0]["score"])
            log_scores = [word["log_score"] for word in feature["query_words"]]
            assert log_scores == pytest.approx([row["log_score"] for row in rows])


def test_a_browser_shows_the_queries_one_below_the_other(
    watched: Trained, browser_page: OpenPage, tmp_path: Path
) -> None:
    validation = logged(watched.folder)[0]
    page = browser_page.open(validation.page)
    assert browser_page.errors == [] and browser_page.requests == [validation.page.as_uri()]
    assert page.locator("h1").all_inner_texts() == [content["query"] for content in validation.contents]
    assert page.locator("article.hit").count() == 2 * QUERIES and page.title() == "5 queries – watched"
    titles = [content["difference"]["title"] for content in validation.contents]
    assert page.locator("h2").all_inner_texts() == titles
    ids = page.locator("[id]").evaluate_all("elements => elements.map((element) => element.id)")
    assert len(ids) == len(set(ids))

    content = validation.contents[0]
    (tmp_path / "one.html").write_text(explanation_page([content]), encoding="utf-8")
    page = browser_page.open(tmp_path / "one.html")
    assert browser_page.errors == [] and page.locator("h1").all_inner_texts() == [content["query"]]
    assert page.title() == f"{content['query']} – watched" and page.locator("article.hit").count() == 2


# --- the training stays the same


def test_weights_are_bitwise_those_of_a_training_without(watched: Trained, data: Folder, tmp_path: Path) -> None:
    ranker = network()
    fit(ranker, data, tmp_path, epochs=2, watch=False)
    assert ranker.fingerprint() == watched.ranker.fingerprint()  # type: ignore[operator]


def test_a_failure_costs_one_line_and_nothing_else(
    watched: Trained, data: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(callback: Explanations, ranker: Ranker, name: str) -> None:
        torch.manual_seed(0)
        ranker.train()
        raise RuntimeError("no words")

    monkeypatch.setattr(Explanations, "explain", fail)
    ranker = network()
    fit(ranker, data, tmp_path, epochs=2)
    assert capsys.readouterr().err.count("nothing is explained in W&B: no words\n") == 1
    assert logged(tmp_path) == []
    assert ranker.fingerprint() == watched.ranker.fingerprint()  # type: ignore[operator]


def test_modes_random_numbers_and_threads_are_kept_whatever_happens(torch_threads: None) -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))
    module[1].eval()
    torch.set_num_threads(2)
    expected = torch.random.get_rng_state()

    def explain() -> None:
        assert not any(part.training for part in module.modules()) and not torch.is_grad_enabled()
        torch.rand(3)
        module.train()
        torch.set_num_threads(1)
        raise KeyError

    with pytest.raises(KeyError), undisturbed(module):
        explain()
    assert [part.training for part in module.modules()] == [True, True, False]
    assert torch.equal(torch.random.get_rng_state(), expected) and torch.get_num_threads() == 2
    assert torch.is_grad_enabled()


# --- other rankers


def test_em_is_explained_once_when_its_table_is_chosen(data: Folder, tmp_path: Path) -> None:
    ranker = Model1(["word"], iterations=2)
    fit(ranker, data, tmp_path)
    (validation,) = logged(tmp_path)
    assert {row["epoch"] for row in validation.rows} == {2} and len(validation.contents) == QUERIES
    assert_adds_up(validation, data, "word")


def test_bert_model1_is_explained(data: Folder, tmp_path: Path) -> None:
    backbone = with_packaged_tokenizer(write_tiny_bert(tmp_path / "bert", positions=64))
    ranker = BertRanker(
        head="model1", backbone=str(backbone), positions=64, query_pieces=8, train_queries=16, sampled=True
    )
    fit(ranker, data, tmp_path, epochs=1)
    (validation,) = logged(tmp_path)
    assert len(validation.contents) == QUERIES
    assert_adds_up(validation, data, None)


# --- the sample


def test_the_sample_has_the_best_relevant_and_the_best_other_candidate() -> None:
    candidates = ragged([[4, 2, 7], [1, 3], [], [5, 6, 0], [8]], np.int32)
    relevant = np.array([0, 1, 1, 0, 0, 0, 1, 0, 1], bool)
    task = RankedTask(candidates, np.arange(9), relevant)
    documents = {number: rows.tolist() for number, rows in sampled_queries(task)}
    assert documents == {0: [2, 4], 3: [6, 5], 4: [8]}
    numbers = [number for number, _ in sampled_queries(task, 2)]
    assert len(numbers) == 2 and numbers == sorted(numbers) and set(numbers) < set(documents)
    assert sampled_queries(task._replace(relevant=np.zeros(9, bool))) == []
