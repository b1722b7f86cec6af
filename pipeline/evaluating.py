"""Evaluation of trained rankers: the body of evaluate.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numba
import numpy as np
import torch
from jsonargparse import Namespace

from callbacks.run_files import RunFiles, SeedAverages
from datamodules.retrieval_data import RetrievalData
from evaluation.evaluated_set import EvaluatedSet
from evaluation.report.score_histogram import score_histogram
from evaluation.results_table import Result
from lexical.errors import UserError
from lexical.ranking.fusion import fuse
from lexical.small_files import write_json
from lexical.terminal import be_silent, say
from lightning_modules.ranker import Ranker
from lightning_modules.trained import load_ranker
from pipeline.configs import names
from pipeline.dependencies import changed_dependency
from pipeline.processes import is_rank_zero, leave_process_group, process_count
from pipeline.results import collect_results, write_results
from pipeline.run_folder import RunFolder, entry, trained_models
from pipeline.tracked_results import Evaluated, track_evaluation, track_summaries
from pipeline.tracking import never_fatal
from pipeline.training import check_precision, quiet_lightning

TIMED_BATCHES = 1  # about a thousand queries
TIMED_REPEATS = 3
LONG_PASS = 5.0  # seconds; a longer pass over the query set is not repeated for its time


def evaluate_rankers(parsed: Namespace, built: Namespace) -> list[Result]:
    quiet_lightning()
    data: RetrievalData = built.data
    data_folder = Path(parsed.output_dir).expanduser() / data.name
    trained = trained_models(data_folder)
    wanted = list(trained) if parsed.models is None else parsed.models.split(",")
    for name in wanted:
        check_is_trained(name, trained, data, data_folder, flag="--models")
    if not wanted:
        raise UserError(f"nothing is trained on {data.name} in {data_folder} yet: python train.py --model bm25_lemm")
    if not is_rank_zero():
        be_silent()
    measured, failed = [], []
    for name in wanted:
        for seed in trained[name]:
            folder = RunFolder.of(parsed.output_dir, data.name, name, seed)
            try:
                if parsed.skip_measured and _is_measured(folder, data):
                    continue
                if evaluated := _evaluate_ranker(folder, name, data, parsed):
                    measured.append(evaluated)
            except UserError as error:  # costs this ranker, not the table of the others
                failed.append(str(error))
    leave_process_group()
    results = []
    if is_rank_zero():
        if parsed.table and (results := collect_results(data_folder, trained, data)):
            write_results(results, data, data_folder)
            track_summaries(results, data, data_folder)
        for evaluated in measured:
            with never_fatal():
                track_evaluation(evaluated, data)
    if failed:
        raise UserError("; ".join(dict.fromkeys(failed)))
    return results


def check_is_trained(
    name: str, trained: dict[str, list[int]], data: RetrievalData, folder: Path, flag: str = "--model"
) -> None:
    """Raise a `UserError` that says what to do if there is no such ranker, or it is not trained on this data."""
    if name not in names("model") and name not in trained:
        raise UserError(f"{flag}: there is no ranker {name!r}; known are: {', '.join(names('model'))}")
    if name not in trained:
        others = f"trained are: {', '.join(trained)}" if trained else "nothing is trained yet"
        raise UserError(
            f"{name!r} is not trained on {data.name} in {folder} ({others}): python train.py --model {name}"
        )


def load_trained(folder: RunFolder, name: str, data: RetrievalData) -> Ranker:
    """Return a trained ranker with the settings of its config.yaml, checked against this data."""
    if entry(folder.development, "data") != data.fingerprint():
        raise UserError(
            f"{name} was trained on other data or candidates than these: give the same --data settings, "
            f"or train it again: python train.py --model {name}"
        )
    if (dependency := changed_dependency(folder)) is not None:
        raise UserError(
            f"{dependency} was trained again since {name} was made from it: python train.py --model {name}"
        )
    try:
        ranker = load_ranker(folder.path, folder.load_config()["model"])
        ranker.check_vocabulary(data.vocabulary(ranker.field))
    except UserError as error:
        raise UserError(f"{error}: python train.py --model {name}") from error
    return ranker


def _is_measured(folder: RunFolder, data: RetrievalData) -> bool:
    """Return whether the ranker was measured on this very data; a training removes what was measured before it."""
    return folder.evaluation.is_file() and entry(folder.evaluation, "data") == data.fingerprint()


def _evaluate_ranker(folder: RunFolder, name: str, data: RetrievalData, parsed: Namespace) -> Evaluated | None:
    """Test one ranker; return None in a process that only helps to score."""
    started = time.perf_counter()
    ranker = load_trained(folder, name, data)
    if not (is_rank_zero() or ranker.slow):
        return None
    say(f"{name}, seed {folder.seed}: test")
    trainer = testing_trainer(ranker, dict(parsed.trainer), folder, name, parsed.leaderboard)
    trainer.test(ranker, data, verbose=False)
    if not is_rank_zero():
        return None
    device = trainer.strategy.root_device
    processes = trainer.world_size
    label = f"{processes} x {device.type}" if processes > 1 else device.type
    milliseconds = _milliseconds_per_1k(ranker, data, next(iter(ranker.evaluated.values())), device)
    results, histograms = [], []
    for evaluated in ranker.evaluated.values():
        for alone in evaluated.variants:
            is_fused = ranker.fused and not alone
            results += _results(name, evaluated, alone, is_fused, milliseconds[is_fused], label, _threads(ranker))
            if counts := score_histogram(evaluated.scores(alone), evaluated.query_set.task.relevant):
                histograms.append({"query_set": evaluated.query_set.name, "alone": alone, **counts._asdict()})
    seconds = round(time.perf_counter() - started, 1)
    content = {"results": [result._asdict() for result in results], "histograms": histograms, "seconds": seconds}
    write_json(folder.evaluation, {"data": data.fingerprint(), **content})
    files = [
        path
        for evaluated in ranker.evaluated.values()
        for alone in evaluated.variants
        for path in (folder.run(evaluated.query_set.name, alone), folder.per_query(evaluated.query_set.name, alone))
    ]
    return Evaluated(folder, name, ranker.fused, results, files)


def testing_trainer(
    ranker: Ranker, settings: dict[str, Any], folder: RunFolder, name: str, leaderboard: bool = False
) -> L.Trainer:
    """Return a trainer that tests the ranker: a slow one on all devices that are asked for, others in this process."""
    if settings["precision"] is None:  # as it was trained: the figures of its training are found again
        settings["precision"] = folder.load_config()["trainer"]["precision"]
    else:
        check_precision(settings["precision"], ranker)
        ranker.use_precision(settings["precision"])
    chosen = {"accelerator": settings["accelerator"] if ranker.slow or ranker.has_seeds else "cpu", "devices": 1}
    if ranker.slow:
        chosen |= {key: settings[key] for key in ("devices", "num_nodes", "precision", "strategy")}
        if chosen["strategy"] == "auto":
            chosen["strategy"] = ranker.default_strategy(process_count(chosen))
    return L.Trainer(
        **chosen, logger=False, enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
        use_distributed_sampler=False, default_root_dir=str(folder.path),
        callbacks=[RunFiles(folder.path, name, leaderboard), SeedAverages(folder.path)],
    )  # fmt: skip


def _results(
    name: str, evaluated: EvaluatedSet, alone: bool, fused: bool, milliseconds: float, device: str, threads: int
) -> list[Result]:
    return [
        Result(
            model=name, fused=fused, query_set=evaluated.query_set.name, measure=measured.measure,
            value=measured.mean, seeds=1, queries=len(measured.per_query), depth=evaluated.query_set.depth,
            ms_per_1k=milliseconds, device=device, threads=threads, significance=[],
        )
        for measured in evaluated.measures(alone)
    ]  # fmt: skip


def _threads(ranker: Ranker) -> int:
    """Return the threads that score on a CPU: an encoder's are torch's, all other rows run on numba's."""
    return torch.get_num_threads() if ranker.slow else numba.get_num_threads()


def _milliseconds_per_1k(
    ranker: Ranker, data: RetrievalData, evaluated: EvaluatedSet, device: torch.device
) -> dict[bool, float]:
    """Return the time to score 1,000 candidates: {fused with the first stage or not: milliseconds}.

    The median of some passes over the first queries of the set; the one pass over the whole set, if that took long.
    """
    query_set, depth = evaluated.query_set.name, ranker.rerank_depth
    batches = data.evaluation_batches(query_set, ranker.needs())[:TIMED_BATCHES]
    first_stage = data.first_stage_batches(query_set, depth)[:TIMED_BATCHES]
    pairs = sum(len(batch.ranking.candidates.values) for batch in batches)
    if not pairs:
        return {False: 0.0, True: 0.0}
    ranker.to(device).eval()

    def score_and_fuse_first_stage() -> None:
        scores = np.concatenate([data.score_first_stage(batch) for batch in first_stage])
        fuse(np.stack([scores, scores]), np.array([0.5, 0.5]))

    first = _median_seconds(score_and_fuse_first_stage) * 1e6 / pairs
    if ranker.slow or evaluated.seconds > LONG_PASS:
        alone = evaluated.seconds * 1e6 / max(1, len(evaluated.alone))
    else:
        alone = _median_seconds(lambda: [ranker.score(batch.ranking) for batch in batches]) * 1e6 / pairs
    return {False: alone, True: alone + first}


def _median_seconds(work: Callable[[], Any]) -> float:
    """Time each repetition after a first one that warms up: kernels loaded, files mapped."""
    seconds = []
    for _ in range(TIMED_REPEATS + 1):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds[1:]))
