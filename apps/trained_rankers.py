"""Trained rankers of run folders, ready to answer any query: what explain.py and serve.py load."""

from __future__ import annotations

from pathlib import Path

from apps.searching import Searcher
from datamodules.retrieval_data import RetrievalData
from lexical.errors import UserError
from lexical.terminal import say
from lightning_modules.bm25 import BM25
from lightning_modules.ranker import Ranker
from pipeline.evaluating import check_is_trained, load_trained
from pipeline.run_folder import RunFolder, trained_models

# served when no ranker is named, the first one that is trained on top; others follow
PREFERRED = ("nn_model1_exp", "model1_bwps", "model1_word", "nn_model1")


def open_searcher(data: RetrievalData) -> Searcher:
    settings = data.prepared.settings
    if settings.candidates is not None or settings.first_stage != "bm25":
        say("documents are retrieved by BM25 here, not by the first stage that this data was prepared with")
    return Searcher(data)


def load_for_queries(name: str, data: RetrievalData, output_dir: str, seed: int) -> Ranker:
    """Return a trained ranker; a `UserError` that says what to do if there is none for this data and seed."""
    folder = Path(output_dir).expanduser() / data.name
    trained = trained_models(folder)
    check_is_trained(name, trained, data, folder)
    data.prepare_data()
    nearest = seed if seed in trained[name] else trained[name][0]  # rankers without seeds live in seed-1
    ranker = load_trained(RunFolder.of(output_dir, data.name, name, nearest), name, data)
    if nearest != seed and ranker.has_seeds:
        seeds = ", ".join(map(str, trained[name]))
        raise UserError(f"--seed {seed}: {name} is trained with the seeds {seeds}")
    return ranker


def load_explaining(name: str, data: RetrievalData, output_dir: str, seed: int) -> Ranker:
    """Return a trained ranker whose score is a sum over words."""
    ranker = load_for_queries(name, data, output_dir, seed)
    if not ranker.explains:
        raise UserError(
            f"--model {name}: its score is not a sum over words that could be shown; choose a Model 1 or BM25 row, "
            "such as nn_model1_exp, model1_bwps, bert_model1_short"
        )
    return ranker


def load_served(names: str | None, data: RetrievalData, output_dir: str, seed: int) -> dict[str, Ranker]:
    """Return the rankers of the search page by name: those of `names`, separated by commas, or all that are trained,
    can be explained and are quick."""
    if names is not None:
        return {name: load_explaining(name, data, output_dir, seed) for name in names.split(",")}
    trained = trained_models(Path(output_dir).expanduser() / data.name)
    rankers = {}
    for name in sorted(trained, key=lambda name: PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)):
        try:
            ranker = load_for_queries(name, data, output_dir, seed)
        except UserError as error:  # a damaged ranker, or one of other data, does not keep the others away
            say(f"left out: {error}")
            continue
        if ranker.explains and not ranker.slow and not isinstance(ranker, BM25):
            rankers[name] = ranker
    if not rankers:
        raise UserError(
            f"no Model 1 ranker is trained on {data.name} in {output_dir}: python train.py --model model1_bwps"
        )
    return rankers
