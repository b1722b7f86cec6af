"""The correction of EM's table as train.py trains it: cross-fitting, the cache, processes, resuming, export."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from callbacks.cross_fitted_em import load_prior
from lexical.model1.cross_fitting import cross_fitted_scores, learn_translations, prepared_table
from lexical.model1.table_files import load_table
from lightning_modules import NeuralModel1EM, load_ranker
from pipeline.run_folder import RunFolder
from tests.fixtures.training_place import Place, assert_same, logged, weights
from train import train

ROW = "nn_model1_em"
SMALL = [
    "--model", ROW, "--model.vectors=null", "--model.dimensions=6", "--model.folds=2", "--model.iterations=2",
    "--model.negatives=5", "--model.negatives_from=10", "--model.candidates=40", "--trainer.max_epochs=2",
    "--trainer.accelerator=cpu",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    os.environ["WANDB_MODE"] = "offline"
    return Place(small_folder, tmp_path_factory.mktemp(ROW))


@pytest.fixture(scope="module")
def trained(place: Place) -> RunFolder:
    train(place.command("alone", *SMALL))
    return place.folder("alone", ROW)


def test_both_rows_come_from_one_command(trained: RunFolder, place: Place) -> None:
    exported = place.folder("alone", "nn_model1_em_exp")
    assert trained.config.is_file() and exported.config.is_file()
    ranker = load_ranker(trained.path)
    assert isinstance(ranker, NeuralModel1EM) and ranker.prior is not None
    assert load_table(trained.table).meta["scored_with"]["smoothing"] == ranker.smoothing > 0
    assert len(logged(trained, "val/mrr")) == 2 and logged(trained, "train/loss")


def test_the_table_of_a_fold_is_that_of_em_on_the_other_queries(trained: RunFolder, place: Place) -> None:
    """So no training query is scored with a table that has seen it."""
    ranker, data = load_ranker(trained.path), place.opened()
    assert isinstance(ranker, NeuralModel1EM)
    (folder,) = data.sequences_folder("bwps").parent.glob("em-*")
    fitted = load_prior(folder, data.vocabulary("bwps"))
    training = data.training_queries("bwps", ranker.prior_options.candidates)
    assert len(fitted.fold) == training.queries.rows
    for number, table in enumerate(fitted.without):
        others = np.flatnonzero(fitted.fold != number)
        blocks = data.bitext("bwps", ranker.prior_options.bitext, others)
        learned = learn_translations(
            lambda blocks=blocks: (blocks[i].bitext for i in range(len(blocks))),  # type: ignore[misc]
            len(data.vocabulary("bwps")), ranker.prior_options.iterations,
        )  # fmt: skip
        expected = prepared_table(learned, fitted.settings)
        assert np.array_equal(table.rows.values, expected.rows.values)
        np.testing.assert_allclose(table.probabilities, expected.probabilities, rtol=1e-6)


def test_negatives_are_the_best_candidates_of_the_cross_fitted_fusion_that_are_not_relevant(
    trained: RunFolder, place: Place
) -> None:
    data = place.opened()
    (folder,) = data.sequences_folder("bwps").parent.glob("em-*")
    fitted, training = load_prior(folder, data.vocabulary("bwps")), data.training_queries("bwps", 40)
    negatives = fitted.negatives
    alone = cross_fitted_scores(fitted.without, fitted.fold, training, fitted.settings.smoothing)
    fused = (1 - fitted.weight) * training.first_stage + fitted.weight * alone
    relevant = training.candidates.select(training.relevant)
    for row in range(negatives.rows):
        pairs = slice(training.candidates.offsets[row], training.candidates.offsets[row + 1])
        best = training.candidates.row(row)[np.argsort(-fused[pairs], kind="stable")[:10]]
        expected = (
            [document for document in best if document not in relevant.row(row)] if len(relevant.row(row)) else []
        )
        assert negatives.row(row).tolist() == expected
        assert bool(len(negatives.row(row))) == bool(len(relevant.row(row)))


def test_another_seed_takes_em_from_the_cache(
    trained: RunFolder, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    train(place.command("alone", *SMALL, "--seed", "2"))
    assert "EM (without fold" not in capsys.readouterr().err
    train(place.command("other", *SMALL, "--model.iterations=1"))
    assert "EM (without fold 2 of 2)" in capsys.readouterr().err
    first, second = (weights(place.folder("alone", ROW, seed).checkpoint) for seed in (1, 2))
    assert not np.array_equal(first["correction.x_q.weight"], second["correction.x_q.weight"])


def test_two_processes_train_as_one(trained: RunFolder, place: Place) -> None:
    """The same lists, gradients summed: the same weights, but for rounding."""
    process = place.process("two", *SMALL, "--trainer.devices", "2")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    two = place.folder("two", ROW)
    assert logged(two, "val/mrr") == pytest.approx(logged(trained, "val/mrr"), abs=0.02)
    assert_same(weights(trained.checkpoint), weights(two.checkpoint), within=2e-3)


def test_killed_in_the_middle_of_an_epoch_and_resumed_the_weights_are_bitwise_the_same(place: Place) -> None:
    arguments = [*SMALL, "--model.checkpoint_steps", "1"]
    place.kill("killed", arguments, step=9, model=ROW)
    assert not place.folder("killed", ROW).config.is_file()
    outputs = [place.process(name, *arguments).communicate(timeout=300)[0] for name in ("killed", "undisturbed")]
    assert "resuming the unfinished training from" in outputs[0]
    assert_same(weights(place.folder("killed", ROW).checkpoint), weights(place.folder("undisturbed", ROW).checkpoint))


@pytest.mark.parametrize("field", ["word", "lemm"])
def test_each_field_has_tables_of_its_own(place: Place, tmp_path: Path, field: str) -> None:
    """The fields of one analyser share a folder of the cache. Here without BM25, too."""
    data = place.opened()
    ranker = NeuralModel1EM(
        field, folds=2, iterations=1, dimensions=4, negatives=3, negatives_from=10, candidates=40, fused=False,
        export_threshold=None,
    )  # fmt: skip
    trainer = place.trainer(max_epochs=1, default_root_dir=tmp_path)
    trainer.fit(ranker, data)
    assert ranker.prior is not None and ranker.prior.vocabulary_size == len(data.vocabulary(field))
    assert trainer.test(ranker, data, verbose=False)[0]["test/mrr"] > 0 and ranker.fusion is None
