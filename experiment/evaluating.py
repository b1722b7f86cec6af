"""Evaluation of trained rankers: the body of evaluate.py."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jsonargparse import Namespace
from numba import get_num_threads
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from datamodules.retrieval_data import RetrievalData
from evaluation.measures import main_measure, measure, per_query_tsv, recall_at
from evaluation.results_table import Result, build_table, html_page, latex, markdown
from evaluation.seed_averages import seed_average
from experiment.folders import RunFolder, read_json, trained_models, write_json, write_text
from experiment.loading import load_ranker
from experiment.named_configs import names
from experiment.processes import leads, part
from experiment.reranking import Reranked, as_run, milliseconds_per_1k, ranking_trainer, rerank
from experiment.tracking import RunLabels, finish_run, log_files, never_fatal, start_run
from experiment.training import quiet_lightning
from lexical.trec_run import write_run
from lightning_modules.ranker import Ranker
from terminal import be_silent, say
from user_error import UserError

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
    measured = [
        found
        for name in wanted
        for seed in trained[name]
        if (found := _evaluate_ranker(RunFolder.of(parsed.output_dir, data.name, name, seed), name, data, parsed))
    ]
    part()
    if not leads():
        return []
    results = [one for name, seeds in trained.items() for one in _collect(data_folder / name, seeds, data)]
    _write_table(results, data.name, data_folder)
    for one in measured:
        with never_fatal():
            _track(one, data)
    return results


class Evaluated(NamedTuple):
    """One ranker as measured in this run."""

    folder: RunFolder
    name: str
    fused: bool  # the row is a fusion; what is not fused then is the ranker alone
    results: list[Result]
    files: list[Path]


def _evaluate_ranker(folder: RunFolder, name: str, data: RetrievalData, parsed: Namespace) -> Evaluated | None:
    """None on a process that only helps to score."""
    data.prepare_data()
    model = load_ranker(folder, name, data)
    if not (leads() or model.slow):
        return None
    if _entry(folder.development, "data") != data.fingerprint():
        raise UserError(
            f"{name} was trained on other data or candidates than these: give the same --data settings, "
            f"or train it again: python train.py --model {name}"
        )
    settings = dict(parsed.trainer)
    if settings["precision"] is None:  # as it was trained: the figures of its training are found again
        settings["precision"] = folder.load_config()["trainer"]["precision"]
    trainer = ranking_trainer(model, settings)
    device = trainer.strategy.root_device
    where = f"{trainer.world_size} x {device.type}" if trainer.world_size > 1 else device.type
    weights = _fusion_weights(folder) if model.fused else None
    results: list[Result] = []
    files: list[Path] = []
    for query_set in data.evaluation_sets(model.sampled):
        say(f"{name}: {query_set}")
        ranked = rerank(trainer, model, data, query_set, weights)
        if not leads():
            continue
        speed = milliseconds_per_1k(model, data, ranked, device)
        timed = [(speed.of(fused), where) for fused in (False, True)]
        variants = [(model.fused, False)] + ([(False, True)] if model.fused else [])
        for fused, alone in variants:
            results += _measure(folder, name, data, model, ranked, fused, alone, timed[fused], parsed.leaderboard)
            files += [folder.run(query_set, alone), folder.per_query(query_set, alone)]
    if not leads():
        return None
    write_json(folder.evaluation, {"data": data.fingerprint(), "results": [one._asdict() for one in results]})
    return Evaluated(folder, name, model.fused, results, files)


def _entry(path: Path, key: str) -> Any:
    content = read_json(path)
    if not isinstance(content, dict) or key not in content:
        raise UserError(f"{path} is damaged (it has no {key!r}): train this ranker again")
    return content[key]


def _fusion_weights(folder: RunFolder) -> list[float]:
    weights = _entry(folder.fusion, "weights")
    numbers = isinstance(weights, list) and all(isinstance(one, (int, float)) and isfinite(one) for one in weights)
    if not numbers or len(weights) != 2:
        raise UserError(f"{folder.fusion} is damaged (two finite weights are expected): train this ranker again")
    return weights


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
            threads=get_num_threads(), significance=[],
        )
        for one in measured
    ]  # fmt: skip


def _collect(folder: Path, seeds: list[int], data: RetrievalData) -> list[Result]:
    """Results of a ranker on this very data, averaged over its seeds; others are named, not mixed in."""
    measured: list[tuple[RunFolder, list[Result]]] = []
    settings: list[dict[str, Any]] = []
    for seed in seeds:
        run = RunFolder(folder / f"seed-{seed}")
        if not run.evaluation.is_file():
            continue
        try:
            saved = read_json(run.evaluation)
            mine = [Result(**one) for one in saved["results"]] if saved["data"] == data.fingerprint() else []
        except (UserError, TypeError, KeyError):
            mine = []
        if mine:
            measured.append((run, mine))
            settings.append({key: value for key, value in run.load_config().items() if key in ("model", "data")})
            continue
        say(
            f"{folder.name} (seed {seed}) was measured on other data or candidates, or its evaluation.json is damaged: "
            f"it is not in the table until: python evaluate.py --models {folder.name}"
        )
    if any(one != settings[0] for one in settings):
        say(f"{folder.name}: its seeds were trained with different settings; the table shows the average of all")
    return _averaged(folder, measured) if measured else []


def _averaged(folder: Path, measured: list[tuple[RunFolder, list[Result]]]) -> list[Result]:
    """The average of the seeds: per query in files beside the seeds' folders, and as results."""
    runs, first = [run for run, _ in measured], measured[0][1]
    is_fusion = any(one.fused for one in first)
    for query_set, fused in dict.fromkeys((one.query_set, one.fused) for one in first):
        alone = is_fusion and not fused
        mean = seed_average([run.per_query(query_set, alone) for run in runs])
        write_text(RunFolder(folder).per_query(query_set, alone), per_query_tsv(mean))
    averaged = []
    for one in first:
        same = [r for _, results in measured for r in results if r[:4] == one[:4]]  # model, fused, query set, measure
        value, speed = np.mean([r.value for r in same]), np.median([r.ms_per_1k for r in same])
        averaged.append(one._replace(value=float(value), seeds=len(same), ms_per_1k=float(speed)))
    return averaged


def _write_table(results: list[Result], data_name: str, data_folder: Path) -> None:
    table = build_table(results)
    write_json(data_folder / "results.json", [one._asdict() for one in results])
    write_text(data_folder / "results.md", markdown(table))
    write_text(data_folder / "results.tex", latex(table))
    write_text(data_folder / "results.html", html_page(table, f"Results on {data_name}"))
    sizes = {one.query_set: one.queries for one in results}
    shown = RichTable(title=f"{data_name}: {', '.join(f'{name} {size:,} queries' for name, size in sizes.items())}")
    for number, title in enumerate(table.header):
        shown.add_column(title, justify="left" if number == 0 else "right")
    for i, row in enumerate(table.rows):
        cells = [f"[bold]{escape(cell)}[/bold]" if (i, j) in table.best else escape(cell) for j, cell in enumerate(row)]
        shown.add_row(*cells)
    Console(width=None if Console().is_terminal else 160).print(shown)
    print(f"written: {data_folder}/results.{{json,md,tex,html}}")


def _track(measured: Evaluated, data: RetrievalData) -> None:
    folder, name = measured.folder, measured.name
    seed = int(folder.path.name.removeprefix("seed-"))
    run = start_run(RunLabels(name, data.name, seed, "evaluate").init_arguments(folder.load_config(), folder.path))
    if run is None:
        return
    import wandb

    columns: list[str | int] = [field for field in Result._fields if field != "significance"]
    rows: list[Iterable[Any]] = [[getattr(one, str(key)) for key in columns] for one in measured.results]
    run.log({"results": wandb.Table(columns=columns, data=list(rows))})
    log_files(run, f"runs-{data.name}-{name}", "runs", measured.files)
    summary = {
        f"{one.query_set}/{one.measure}{'_alone' if measured.fused and not one.fused else ''}": one.value
        for one in measured.results
    }
    finish_run(run, summary)
