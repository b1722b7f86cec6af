"""Evaluation of trained rankers: the body of evaluate.py."""

from __future__ import annotations

import shlex
import time
import timeit
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import numba
import numpy as np
import torch
from jsonargparse import Namespace
from rich.console import Console
from rich.markdown import Markdown

from callbacks.run_files import RunFiles
from datamodules.retrieval_data import RetrievalData
from evaluation.evaluated_set import EvaluatedSet
from evaluation.results_table import Result, build_table, latex, markdown, narrowed, paper_figures
from lexical.errors import UserError, require
from lexical.ranking.fusion import fuse
from lexical.small_files import read_json, write_json, write_text
from lexical.terminal import be_silent, printable, say
from lightning_modules.ranker import DEVELOPMENT, Ranker
from lightning_modules.registry import row_of
from lightning_modules.trained import load_ranker
from pipeline.configs import CONFIGS, import_from, names
from pipeline.dependencies import changed_dependency
from pipeline.processes import is_rank_zero, leave_process_group, process_count
from pipeline.results import MeasuredRow, SeedResults, collect_rows, times
from pipeline.run_folder import RunFolder, trained_models
from pipeline.tracking import track_evaluation, track_summaries
from pipeline.training import check_precision, quiet_lightning

PAPER_FIGURES = CONFIGS / "paper_figures.yaml"
TIMED_BATCHES = 3  # of about a thousand queries: the median of three is not the one that loads kernels
TIMED_REPEATS = 3
LONG_PASS = 5.0  # seconds; a longer pass over the query set is not repeated for its time


def evaluate_rankers(parsed: Namespace, data: RetrievalData, options: Sequence[str] = ()) -> list[Result]:
    """Test the rankers that the arguments name, write the table of all that are measured; return its entries.

    `options` are those of the command line that other commands understand, too.
    """
    require(parsed.run_depth is None or parsed.run_depth >= 1, "--run_depth", parsed.run_depth, "1 or more")
    quiet_lightning()
    data_folder = Path(parsed.output_dir).expanduser() / data.name
    trained = trained_models(data_folder)
    selected = list(trained) if parsed.models is None else parsed.models.split(",")
    for name in selected:
        check_is_trained(name, trained, data, data_folder, flag="--models")
    if not selected:
        raise UserError(f"nothing is trained on {data.name} in {data_folder} yet: python train.py --model bm25_lemm")
    if not is_rank_zero():
        be_silent()
    measured: dict[RunFolder, SeedResults] = {}
    failed = []
    for run in (RunFolder(data_folder / name / f"seed-{seed}") for name in selected for seed in trained[name]):
        try:
            if parsed.skip_measured and _is_measured(run, data):
                continue
            if results := _evaluate_ranker(run, data, parsed):
                measured[run] = results
        except UserError as error:  # costs this ranker, not the table of the others
            failed.append(str(error))
    leave_process_group()
    rows: list[MeasuredRow] = []
    if is_rank_zero():
        if parsed.table and (rows := collect_rows(data_folder, data, measured)):
            write_results(rows, data, data_folder)
            track_summaries(rows, data, data_folder)
        for results in measured.values():
            track_evaluation(results, data)
        if rows:
            say_what_next(rows, data, data_folder, options)
    if failed:
        raise UserError("; ".join(dict.fromkeys(failed)))
    return [result for row in rows for result in row.results]


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


def load_trained(run: RunFolder, data: RetrievalData) -> Ranker:
    """Return a trained ranker with the settings of its config.yaml, checked against this data."""
    name = run.model
    if read_json(run.development).get("data") != data.fingerprint():
        raise UserError(
            f"{name} was trained on other data or candidates than these: give the same --data settings, "
            f"or train it again: python train.py --model {name}"
        )
    if (dependency := changed_dependency(run)) is not None:
        raise UserError(f"{dependency} was trained again since {name} was trained: python train.py --model {name}")
    try:
        config = run.load_config()
        import_from(config.get("model_file"))
        ranker = load_ranker(run.path, config["model"])
        ranker.check_vocabulary(data.vocabulary(ranker.field))
    except UserError as error:
        raise UserError(f"{error}: python train.py --model {name}") from error
    return ranker


def write_results(rows: Sequence[MeasuredRow], data: RetrievalData, data_folder: Path) -> None:
    """Write results.{json,md,tex,html} and print the table."""
    from pipeline.report.page import report_page  # Altair takes a second to import

    results = [result for row in rows for result in row.results]
    table = build_table(results, row_of, paper_figures(PAPER_FIGURES, data.name))
    write_json(data_folder / "results.json", [result.entry() for result in results])
    write_text(data_folder / "results.md", markdown(table))
    write_text(data_folder / "results.tex", latex(table))
    write_text(data_folder / "results.html", report_page(rows, table, data))
    sizes = {result.query_set: result.queries for result in results}
    print(f"{data.name}: {', '.join(f'{name} {size:,} queries' for name, size in sizes.items())}")
    console = Console() if Console().is_terminal else Console(width=180)
    console.print(Markdown(markdown(narrowed(table, console.width)._replace(outcomes=[]))))
    print(f"written: {data_folder}/results.{{json,md,tex,html}}", flush=True)


def say_what_next(rows: Sequence[MeasuredRow], data: RetrievalData, data_folder: Path, options: Sequence[str]) -> None:
    """Print how long everything took, and what can be done with it."""
    given = "".join(f" {shlex.quote(option)}" for option in options)
    for line in times(rows):
        say(line)
    say(f"next: open {data_folder}/results.html in a browser, or search with: python serve.py{given}")
    if quick := [row for row in rows if row_of(row.model).family not in ("bert", "leaderboard")]:
        best = max(quick, key=lambda row: row.results[0].value)
        query = shlex.quote(printable(data.query_set(DEVELOPMENT).texts[0]))
        say(f"next: python explain.py --model {best.model} --query {query}{given}")


# --- one ranker


def _is_measured(run: RunFolder, data: RetrievalData) -> bool:
    """Return whether the ranker was measured on this very data; a training removes what was measured before it."""
    return run.evaluation.is_file() and read_json(run.evaluation).get("data") == data.fingerprint()


def _evaluate_ranker(run: RunFolder, data: RetrievalData, parsed: Namespace) -> SeedResults | None:
    """Test one ranker and write its results; return None in a process that only helps a slow ranker to score."""
    started = time.perf_counter()
    ranker = load_trained(run, data)
    if not (is_rank_zero() or ranker.slow):
        return None
    files = RunFiles(run.path, run.model, parsed.leaderboard, parsed.run_depth)
    trainer = evaluation_trainer(ranker, dict(parsed.trainer), run, files)
    trainer.test(ranker, data, verbose=False)
    if not is_rank_zero():
        return None
    device, processes = trainer.strategy.root_device, trainer.world_size
    label = f"{processes} x {device.type}" if processes > 1 else device.type
    threads = torch.get_num_threads() if ranker.slow else numba.get_num_threads()  # that score on a CPU
    milliseconds = _milliseconds_per_1k(ranker, data, next(iter(ranker.evaluated.values())), device)
    results, histograms = [], []
    for evaluated in ranker.evaluated.values():
        query_set = evaluated.query_set
        for measurement in evaluated.measurements:
            fused = ranker.fused and not measurement.alone
            results.append(
                Result(
                    model=run.model, fused=fused, query_set=query_set.name, measure=measurement.measure,
                    value=measurement.mean, seeds=1, queries=len(measurement.queries), depth=query_set.depth,
                    ms_per_1k=milliseconds[fused], device=label, threads=threads, significance=[],
                    alone=measurement.alone, measurement=measurement,
                )
            )  # fmt: skip
        histograms += evaluated.histograms
    seed_results = SeedResults(run, data.fingerprint(), results, histograms)
    seconds, main = round(time.perf_counter() - started, 1), results[0]
    seed_results.write(seconds)
    of_seed = f", seed {run.seed}" if run.seed > 1 else ""
    say(f"{run.model}{of_seed}: {main.query_set} {main.measure} {main.value:.4f}, {seconds:.0f} s")
    return seed_results


def evaluation_trainer(ranker: Ranker, settings: dict[str, Any], run: RunFolder, files: RunFiles) -> L.Trainer:
    """Return a trainer that tests a slow ranker on all devices that are given, others in this process."""
    if settings["precision"] is None:  # that of the training, so that its figures are reproduced
        settings["precision"] = run.load_config()["trainer"]["precision"]
    else:
        check_precision(settings["precision"], ranker)
        ranker.use_precision(settings["precision"])
    chosen: dict[str, Any] = {"devices": 1}
    if ranker.slow:
        chosen = {key: settings[key] for key in ("devices", "num_nodes", "precision", "strategy")}
        processes = process_count(chosen)
        if chosen["strategy"] == "auto":
            chosen["strategy"] = ranker.default_strategy(processes)
    return L.Trainer(
        **chosen, accelerator=settings["accelerator"] if ranker.slow or ranker.has_seeds else "cpu", logger=False,
        enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
        use_distributed_sampler=False, default_root_dir=str(run.path),
        callbacks=[files],
    )  # fmt: skip


def _milliseconds_per_1k(
    ranker: Ranker, data: RetrievalData, evaluated: EvaluatedSet, device: torch.device
) -> dict[bool, float]:
    """Return the time to score 1,000 candidates: fused with the first stage or not -> milliseconds.

    Taken from the pass over the whole set, if that had three batches or took long; otherwise the median of some passes.
    """
    query_set = evaluated.query_set.name
    if not len(evaluated.alone):
        return {False: 0.0, True: 0.0}
    batches = data.evaluation_batches(query_set, ranker.needs())
    if ranker.slow or len(batches) >= TIMED_BATCHES or evaluated.seconds > LONG_PASS:
        alone = evaluated.seconds * 1e6 / len(evaluated.alone)
    else:
        ranker.to(device).eval()
        alone = _milliseconds(lambda: [ranker.score_together(batch.ranking) for batch in batches], evaluated.alone)
    return {False: alone, True: alone + _first_stage_milliseconds(data, query_set, ranker.rerank_depth)}


@cache
def _first_stage_milliseconds(data: RetrievalData, query_set: str, depth: int) -> float:
    """Return the time to score 1,000 candidates by the first stage and to fuse them; all rows have the same."""
    first_stage = data.first_stage_batches(query_set, depth)[:1]

    def score_and_fuse_first_stage() -> None:
        scores = np.concatenate([data.score_first_stage(batch) for batch in first_stage])
        fuse(np.stack([scores, scores]), np.array([0.5, 0.5]))

    return _milliseconds(score_and_fuse_first_stage, first_stage[0].candidates.values)


def _milliseconds(work: Callable[[], Any], pairs: np.ndarray) -> float:
    """Return the median time of some passes for 1,000 pairs; the first pass warms up: kernels loaded, files mapped."""
    return float(np.median(timeit.repeat(work, number=1, repeat=TIMED_REPEATS + 1)[1:])) * 1e6 / max(1, len(pairs))
