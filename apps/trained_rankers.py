"""Trained rankers of run folders, ready to answer any query: what explain.py and serve.py load."""

from __future__ import annotations

from pathlib import Path

from datamodules.retrieval_data import RetrievalData
from lexical.errors import UserError
from lexical.terminal import say
from lightning_modules.ranker import Ranker
from lightning_modules.registry import row_of, table_order
from pipeline.evaluating import check_is_trained, load_trained
from pipeline.run_folder import RunFolder, trained_models


def load_ranker_of_seed(name: str, data: RetrievalData, output_dir: str, seed: int) -> Ranker:
    """Return a trained ranker; a `UserError` that says what to do if there is none for this data and seed."""
    folder = Path(output_dir).expanduser() / data.name
    trained = trained_models(folder)
    check_is_trained(name, trained, data, folder)
    data.prepare_data()
    nearest = seed if seed in trained[name] else trained[name][0]  # rankers without seeds live in seed-1
    ranker = load_trained(RunFolder.of(output_dir, data.name, name, nearest), data)
    if nearest != seed and ranker.has_seeds:
        raise UserError(f"--seed {seed}: {name} is trained with the seeds {', '.join(map(str, trained[name]))}")
    return ranker


def load_explaining(name: str, data: RetrievalData, output_dir: str, seed: int) -> Ranker:
    """Return a trained ranker whose score is a sum over words."""
    ranker = load_ranker_of_seed(name, data, output_dir, seed)
    if not ranker.explains:
        raise UserError(
            f"--model {name}: its score is not a sum over words that could be shown; choose a Model 1 or BM25 row, "
            "such as nn_model1_exp, model1_bwps, bert_model1_short"
        )
    return ranker


def load_quick(data: RetrievalData, output_dir: str, seed: int) -> dict[str, Ranker]:
    """Return all trained Model 1 rankers that are quick enough for a search page, exported tables first."""
    rankers = {}
    trained = trained_models(Path(output_dir).expanduser() / data.name)
    for name in sorted(trained, key=lambda name: (row_of(name).export_of is None, table_order(name))):
        if row_of(name).slow or row_of(name).family == "bm25":
            continue
        try:
            ranker = load_ranker_of_seed(name, data, output_dir, seed)
        except UserError as error:  # a damaged ranker, or one of other data, does not keep the others away
            say(f"left out: {error}")
            continue
        if ranker.explains and not ranker.slow:
            rankers[name] = ranker
    if not rankers:
        raise UserError(
            f"no Model 1 ranker is trained on {data.name} in {output_dir}: python train.py --model model1_bwps"
        )
    return rankers
