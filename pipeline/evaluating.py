"""Evaluation of trained rankers: the body of evaluate.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numba
import torch
from jsonargparse import Namespace

from datamodules.retrieval_data import RetrievalData
from evaluation.measures import main_measure, measure, per_query_tsv, recall_at
from evaluation.report.score_histogram import score_histogram
from evaluation.results_table import Result
from lexical.errors import UserError
from lexical.ranking.trec_run import write_run
from lexical.terminal import be_silent, say
from lightning_modules.ranker import Ranker
from pipeline.configs import names
from pipeline.loading import check_trained_on, fusion_weights, load_ranker
from pipeline.processes import leads, part
from pipeline.reranking import Reranked, Speed, as_run, milliseconds_per_1k, ranking_trainer, rerank
from pipeline.results import collect_results, write_results
from pipeline.run_folder import RunFolder, entry, trained_models, write_json, write_text
from pipeline.tracked_results import Evaluated, track_evaluation, track_summaries
from pipeline.tracking import never_fatal
from pipeline.training import check_precision, quiet_lightning

FIRST_STAGE = 100  # documents that a slower ranker would get: their recall is measured


def evaluate_rankers(parsed: Namespace, built: Namespace) -> list[Result]:
    quiet_lightning()
    data: RetrievalData = built.data
    data_folder = Path(parsed.output_dir).expanduser() / data.name
    trained = trained_models(data_folder)
    wanted = list(trained) if parsed.models is None else parsed.models.split(",")
    for name in wanted:
        if name not in names("model") and name not in trained:
            raise UserError(f"--models: there is no ranker {name!r}; known are: {', '.join(names('model'))}")
        if name not in trained:
            there = f"trained are: {', '.join(trained)}" if trained else "nothing is trained yet"
            raise UserError(
                f"{name!r} is not trained on {data.name} in {data_folder} ({there}): python train.py --model {name}"
            )
    if not wanted:
        raise UserError(f"nothing is trained on {data.name} in {data_folder} yet: python train.py --model bm25_lemm")
    if not leads():
        be_silent()
    measured, failed = [], []
    for name in wanted:
        for seed in trained[name]:
            folder = RunFolder.of(parsed.output_dir, data.name, name, seed)
            try:
                if parsed.skip_measured and _is_measured(folder, data):
                    continue
                if found := _evaluate_ranker(folder, name, data, parsed):
                    measured.append(found)
            except UserError as error:  # costs this ranker, not the table of the others
                failed.append(str(error))
    part()
    results = []
    if leads():
        if parsed.table and (results := collect_results(data_folder, trained, data)):
            write_results(results, data, data_folder)
            track_summaries(results, data, data_folder)
        for one in measured:
            with never_fatal():
                track_evaluation(one, data)
    if failed:
        raise UserError("; ".join(dict.fromkeys(failed)))
    return results


def _is_measured(folder: RunFolder, data: RetrievalData) -> bool:
    """On this very data; a training removes what was measured before it."""
    data.prepare_data()
    return folder.evaluation.is_file() and entry(folder.evaluation, "data") == data.fingerprint()


def _evaluate_ranker(folder: RunFolder, name: str, data: RetrievalData, parsed: Namespace) -> Evaluated | None:
    """None on a process that only helps to score."""
    started = time.perf_counter()
    data.prepare_data()
    model = load_ranker(folder, name, data)
    if not (leads() or model.slow):
        return None
    check_trained_on(folder, name, data)
    settings = dict(parsed.trainer)
    if settings["precision"] is None:  # as it was trained: the figures of its training are found again
        settings["precision"] = folder.load_config()["trainer"]["precision"]
    else:
        check_precision(settings["precision"], model)
        model.use_precision(settings["precision"])
    trainer = ranking_trainer(model, settings)
    device = trainer.strategy.root_device
    where = f"{trainer.world_size} x {device.type}" if trainer.world_size > 1 else device.type
    weights = fusion_weights(folder) if model.fused else None
    results: list[Result] = []
    histograms: list[dict[str, Any]] = []
    speed: Speed | None = None
    files: list[Path] = []
    for query_set in data.evaluation_sets(model.sampled):
        say(f"{name}: {query_set}")
        ranked = rerank(trainer, model, data, query_set, weights)
        if not leads():
            continue
        speed = speed or milliseconds_per_1k(model, data, ranked, device)  # of the first set, the largest
        timed = [(speed.of(fused), where) for fused in (False, True)]
        variants = [(model.fused, False)] + ([(False, True)] if model.fused else [])
        for fused, alone in variants:
            results += _measure(folder, name, data, model, ranked, fused, alone, timed[fused], parsed.leaderboard)
            files += [folder.run(query_set, alone), folder.per_query(query_set, alone)]
            if counted := score_histogram(ranked.alone if alone else ranked.row, ranked.task.relevant):
                histograms.append({"query_set": query_set, "alone": alone, **counted._asdict()})
    if not leads():
        return None
    seconds = round(time.perf_counter() - started, 1)
    found = {"results": [one._asdict() for one in results], "histograms": histograms, "seconds": seconds}
    write_json(folder.evaluation, {"data": data.fingerprint(), **found})
    return Evaluated(folder, name, model.fused, results, files)


def _measure(
    folder: RunFolder, name: str, data: RetrievalData, model: Ranker, ranked: Reranked,
    fused: bool, alone: bool, timed: tuple[float, str], leaderboard: bool,
) -> list[Result]:  # fmt: skip
    query_set = data.query_set(ranked.query_set)
    run = as_run(data, ranked.query_set, ranked.task, ranked.alone if alone else ranked.row)
    path = folder.run(ranked.query_set, alone)
    write_run(run, path, name)
    if leaderboard:
        write_run(run, path.with_suffix(".leaderboard.tsv"), name, leaderboard=True)
    depth = min(model.rerank_depth, data.depth(ranked.query_set))
    measures = [main_measure(query_set.graded), *(recall_at(k) for k in sorted({FIRST_STAGE, depth}) if k <= depth)]
    measured = measure(run, query_set.qrels(), measures)
    write_text(folder.per_query(ranked.query_set, alone), per_query_tsv(measured))
    return [
        Result(
            model=name, fused=fused, query_set=ranked.query_set, measure=one.measure, value=one.mean, seeds=1,
            queries=len(one.per_query), depth=depth, ms_per_1k=timed[0], device=timed[1],
            threads=_threads(model), significance=[],
        )
        for one in measured
    ]  # fmt: skip


def _threads(model: Ranker) -> int:
    """That score on a CPU: an encoder's are torch's, the kernels of all other rows run on numba's."""
    return torch.get_num_threads() if model.slow else numba.get_num_threads()
