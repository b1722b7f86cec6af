"""Every ranker is driven by a plain Lightning trainer, without anything of `pipeline/`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from callbacks.checkpoints import BestCheckpoint
from callbacks.run_files import RunFiles
from datamodules import Folder
from lexical.batches import EvaluationBatch
from lexical.errors import UserError
from lexical.evidence import Evidence
from lexical.ranking.fusion import TRIAL_WEIGHTS
from lexical.ranking.order import mean_reciprocal_rank
from lightning_modules import (
    BM25,
    BertRanker,
    ExportedModel1,
    LeaderboardTraditional,
    Model1,
    Model1Embed,
    NeuralModel1,
    NeuralModel1Cosine,
    NeuralModel1EM,
    Ranker,
    load_ranker,
)
from lightning_modules.neural_model1.network import TranslationNetwork
from lightning_modules.neural_ranker import NeuralRanker
from tests import ROOT
from tests.fixtures.small_folder import write_small_folder
from tests.fixtures.tiny_bert import tiny_backbone

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"embedding": 12, "projection": 8, "hidden": [8, 6], "margin": 8.0, "start": 0.003}
SMALL_BERT: dict[str, Any] = {
    "positions": 40, "query_pieces": 8, "train_queries": 16, "projection": 8, "hidden": [8, 6],
}  # fmt: skip
RANKERS: dict[str, Callable[[], Ranker]] = {
    "bm25_lemm": BM25,
    "bm25_lemm_word": lambda: BM25("word", fused=True),
    "bm25_lemm_bwps": lambda: BM25("bwps", fused=True),
    "model1_embed": Model1Embed,
    "model1_word": lambda: Model1(["word", "word_all"]),
    "model1_bwps": lambda: Model1(["bwps"], iterations=3),
    "nn_model1": lambda: NeuralModel1(**SMALL),
    "nn_model1_cosine": lambda: NeuralModel1Cosine(**SMALL, export_threshold=None),
    "nn_model1_exp": ExportedModel1,
    "nn_model1_em": lambda: NeuralModel1EM(negatives=7, negatives_from=20),
    "nn_model1_em_exp": lambda: ExportedModel1("nn_model1_em"),
    "bert_vanilla_short": lambda: BertRanker("vanilla", 1, tiny_backbone(), **SMALL_BERT),
    "bert_model1_full": lambda: BertRanker("model1", 3, tiny_backbone(), fused=True, **SMALL_BERT),
    "leaderboard_traditional": lambda: LeaderboardTraditional(["bm25_lemm", "model1_word"]),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def data(work: Path) -> Iterator[Folder]:
    folder = write_small_folder(work / "texts", documents=300, train=200, dev=60, test=40)
    return Folder(str(folder), cache_dir=str(work / "cache"), workers=1)  # type: ignore[return-value]


def trainer_in(folder: Path, **settings: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu", devices=1, default_root_dir=str(folder), logger=False, enable_progress_bar=False,
        enable_model_summary=False, **settings,
    )  # fmt: skip


def same_metrics(first: Any, second: Any) -> bool:
    return [dict(sorted(metrics.items())) for metrics in first] == [dict(sorted(metrics.items())) for metrics in second]


def best_mrr(ranker: Ranker, batches: list[EvaluationBatch]) -> float:
    """MRR on development: of the ranker, or of its fusion at the best of a few weights."""
    task = batches[0].query_set.task
    first_stage = np.concatenate([batch.first_stage for batch in batches])
    alone = np.concatenate([ranker.score_together(batch.ranking) for batch in batches])
    if not ranker.fused:
        return mean_reciprocal_rank(task, alone)
    weights = np.float32(TRIAL_WEIGHTS)
    return max(mean_reciprocal_rank(task, (1 - weight) * first_stage + weight * alone) for weight in weights)


@pytest.mark.parametrize("name", RANKERS)
def test_fit_validate_test_predict_and_load(name: str, data: Folder, work: Path) -> None:
    """The rankers are trained in this order: later ones are made from earlier ones beside them."""
    run = work / "runs" / name / "seed-1"
    ranker = RANKERS[name]()
    trainer = trainer_in(run, max_epochs=2 if isinstance(ranker, NeuralRanker) else None)
    trainer.fit(ranker, data)
    trainer.save_checkpoint(run / "checkpoints" / "ranker.ckpt")
    fitted = dict(ranker.development)
    checkpoints = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, BestCheckpoint)]
    best = [float(each.best_model_score) for each in checkpoints if each.best_model_score is not None]
    assert 0 < fitted["development/mrr"] <= 1

    validated = trainer.validate(ranker, data, verbose=False)
    assert 0 < validated[0]["val/mrr"] <= 1
    if isinstance(ranker, NeuralRanker):  # the ranker is that of its best epoch
        assert best and validated[0]["val/mrr"] == best[0]
    else:
        batches = data.evaluation_batches("development", ranker.needs())
        assert validated[0]["val/mrr"] == pytest.approx(best_mrr(ranker, batches), abs=1e-6)
    tested = trainer.test(ranker, data, verbose=False)
    assert {"test/mrr", "test/recall@100"} <= set(tested[0])
    predicted = trainer.predict(ranker, data)
    assert predicted is not None
    kinds = [type(callback) for callback in trainer.checkpoint_callbacks]
    assert len(set(kinds)) == len(kinds), "each use of the trainer replaces the ranker's callbacks"

    loaded = type(ranker).load_from_checkpoint(run / "checkpoints" / "ranker.ckpt")
    again = trainer_in(run)
    assert same_metrics(again.validate(loaded, data, verbose=False), validated)
    assert same_metrics(again.test(loaded, data, verbose=False), tested)
    assert loaded.fusion == ranker.fusion
    for first, second in zip(np.hstack(predicted), np.hstack(again.predict(loaded, data) or []), strict=True):
        assert np.array_equal(first, second)
    row = loaded.evaluated["test"]
    assert np.array_equal(np.concatenate(predicted[0]), row.scores(alone=False))
    if ranker.fused:
        assert tested[0]["test/mrr_alone"] != tested[0]["test/mrr"]
    assert type(load_ranker(run)) is type(ranker)


def test_the_best_epoch_is_the_one_that_is_tested(data: Folder, work: Path) -> None:
    """`val/mrr` of the loaded best checkpoint is the best of the fit, and its test row is that of the fitted ranker."""
    run = work / "best"
    ranker = NeuralModel1(**SMALL, export_threshold=None)
    trainer = trainer_in(run, max_epochs=3)
    trainer.fit(ranker, data)
    best = run / "checkpoints" / "best.ckpt"
    (checkpoint,) = (callback for callback in trainer.callbacks if isinstance(callback, BestCheckpoint))  # type: ignore[attr-defined]
    assert checkpoint.best_model_score is not None
    loaded = NeuralModel1.load_from_checkpoint(best)
    assert trainer_in(run).validate(loaded, data, verbose=False)[0]["val/mrr"] == float(checkpoint.best_model_score)
    tested = trainer_in(run).test(loaded, data, verbose=False)
    assert same_metrics(tested, trainer_in(run).test(ranker, data, verbose=False))


def test_run_files_are_a_callback(data: Folder, work: Path, tmp_path: Path) -> None:
    ranker = load_ranker(work / "runs" / "model1_word" / "seed-1")
    trainer = trainer_in(tmp_path, callbacks=[RunFiles(tmp_path, "model1_word")])
    trainer.test(ranker, data, verbose=False)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/test*")}
    assert {"runs/test.run", "runs/test.alone.run", "per_query/test.tsv", "per_query/test.alone.tsv"} <= names


# --- another T(q|d): one class, one method


class Bilinear(TranslationNetwork):
    """T(q|d) = sigmoid(x_q . x_d)."""

    def forward(
        self, x_q: torch.Tensor, x_d: torch.Tensor, pair_query: torch.Tensor, pair_document: torch.Tensor
    ) -> torch.Tensor:
        return torch.sigmoid((x_q[pair_query] * x_d[pair_document]).sum(dim=1) - 4)


class BilinearModel1(NeuralModel1):
    def new_network(self) -> nn.Module:
        return Bilinear(self.embedding, self.projection, self.hidden, self.dropout)


def test_another_network_trains_exports_and_explains(data: Folder, work: Path) -> None:
    run = work / "bilinear" / "nn_model1" / "seed-1"
    ranker = BilinearModel1(**SMALL, export_threshold=1e-3)
    trainer = trainer_in(run, max_epochs=2)
    trainer.fit(ranker, data)
    trainer.save_checkpoint(run / "checkpoints" / "ranker.ckpt")
    assert trainer.test(ranker, data, verbose=False)[0]["test/mrr"] > 0

    (batch,) = data.evaluation_batches("test", ranker.needs())
    first = batch.ranking._replace(candidates=batch.ranking.candidates.head(1))
    evidence: list[Evidence] = ranker.evidence(first)
    assert [item.score for item in evidence] == pytest.approx(ranker.score(first).tolist(), abs=1e-5)

    query, document = 2000, 2050
    with torch.inference_mode():
        x_q = ranker.network.query(ranker.embed_q.weight[[query]])  # type: ignore[operator]
        x_d = ranker.network.document(ranker.embed_d.weight[[document]])  # type: ignore[operator]
        expected = (1 - ranker.p_self) * torch.sigmoid((x_q * x_d).sum() - 4)
    (row,) = ranker.translation_rows(np.array([query]), np.array([document]))
    assert float(row[0]) == pytest.approx(float(expected), rel=1e-5)

    exported = ExportedModel1(network=str(run))
    tester = trainer_in(work / "bilinear" / "nn_model1_exp" / "seed-1")
    tester.fit(exported, data)
    alone = [tester.test(model, data, verbose=False)[0]["test/mrr_alone"] for model in (exported, ranker)]
    assert alone[0] == pytest.approx(alone[1], abs=0.1)


# --- mistakes


def test_an_untrained_ranker_says_so(data: Folder, tmp_path: Path) -> None:
    for ranker in (BM25(), Model1(), NeuralModel1(**SMALL)):
        with pytest.raises(UserError, match=r"not trained yet: call trainer\.fit first"):
            trainer_in(tmp_path).test(ranker, data)


def test_a_ranker_wants_a_data_module(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer\.fit\(model, datamodule"):
        trainer_in(tmp_path).fit(BM25(), train_dataloaders=[1])


def test_batches_are_made_for_a_ranker(data: Folder, work: Path) -> None:
    fresh = Folder(str(work / "texts"), cache_dir=str(work / "cache"))
    with pytest.raises(UserError, match="batches are made for a ranker"):
        fresh.train_dataloader()


def test_a_dependency_that_is_missing_is_named(data: Folder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="train nn_model1 first"):
        trainer_in(tmp_path / "nn_model1_exp" / "seed-1").fit(ExportedModel1(), data)


def test_nothing_of_the_pipeline_is_imported() -> None:
    code = (
        "import sys; from datamodules import Folder; from lightning_modules import BM25, BertRanker, NeuralModel1, "
        "ExportedModel1, Leaderboard; import callbacks.run_files, callbacks.sparse_export; "
        "print([name for name in sys.modules if name.split('.')[0] in ('pipeline', 'wandb')])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
