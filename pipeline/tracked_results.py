"""What W&B gets of trained and measured rankers.

A group is a ranker on a data set. In it: one run a seed for the training, one for its measurement, and one summary run
over all seeds, with each query's mean, the spread and what the tests of significance found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.retrieval_data import RetrievalData
from evaluation.results_table import Result
from evaluation.seed_averages import read_measured
from pipeline.artifacts import data_items, log_item, model_item, runs_item, table_item
from lexical.small_files import write_text
from pipeline.run_folder import RunFolder
from pipeline.tracking import RunLabels, finish_run, never_fatal, start_run

SHOWN = [field for field in Result._fields if field not in ("significance", "seed_values")]


class Evaluated(NamedTuple):
    """One ranker as measured in this run."""

    folder: RunFolder
    name: str
    fused: bool  # the row is a fusion; what is not fused then is the ranker alone
    results: list[Result]
    files: list[Path]


def log_training(run: Any, folder: RunFolder, name: str, data: RetrievalData) -> None:
    """Data, candidates, the trained model and its table, each made from the one before."""
    model = model_item(folder, name, data)
    table = table_item(folder, name, data, model)
    for item in (*data_items(data), model, *([table] if table else [])):
        log_item(run, item)


def track_evaluation(measured: Evaluated, data: RetrievalData) -> None:
    """The measurement of one seed: results, each query's values, run files."""
    folder, name = measured.folder, measured.name
    labels = RunLabels(name, data.name, folder.seed, "evaluate")
    run = start_run(labels.init_arguments(folder.load_config(), folder.path))
    if run is None:
        return
    try:
        run.log({"results": _results_table(measured.results)})
        for query_set in dict.fromkeys(one.query_set for one in measured.results):
            run.log({f"per_query/{query_set}": per_query_table(folder, query_set, measured.fused, data)})
        log_item(run, runs_item(folder, name, data, measured.files))
    finally:  # whatever became of them: the next ranker must not log into this run
        finish_run(run, _summary(measured.results))


def track_summaries(results: Sequence[Result], data: RetrievalData, data_folder: Path) -> None:
    """A run for each ranker that has no summary of just these results: the averages over its seeds.

    A row that is measured later may change the tests of the earlier ones: they are summarised again.
    """
    for name in sorted({one.model for one in results}):
        mine, folder = [one for one in results if one.model == name], RunFolder(data_folder / name)
        fingerprint = sha256(json.dumps([one._asdict() for one in mine]).encode()).hexdigest()
        if folder.summarised.is_file() and folder.summarised.read_text(errors="replace") == fingerprint:
            continue
        with never_fatal():
            if _track_summary(name, mine, data, data_folder):
                write_text(folder.summarised, fingerprint)


def _track_summary(name: str, mine: Sequence[Result], data: RetrievalData, data_folder: Path) -> bool:
    """Whether there is tracking."""
    folder = RunFolder(data_folder / name)
    first = min(folder.path.glob("seed-*/config.yaml"))
    config = {key: value for key, value in RunFolder(first.parent).load_config().items() if key != "seed"}
    labels = RunLabels(name, data.name, None, "summary")
    run = start_run(labels.init_arguments({**config, "seeds": mine[0].seeds}, folder.path))
    if run is None:
        return False
    import wandb

    spread = {f"{key}_spread": one.spread for key, one in _by_name(mine).items() if one.seeds > 1}
    try:
        run.log({"results": _results_table(mine)})
        if tests := [(one, found) for one in mine for found in one.significance]:
            columns: list[str | int] = ["query_set", "measure", *tests[0][1]]
            rows = [[one.query_set, one.measure, *found.values()] for one, found in tests]
            run.log({"significance": wandb.Table(columns=columns, data=rows)})
        fused = any(one.fused for one in mine)
        for query_set in dict.fromkeys(one.query_set for one in mine):
            run.log({f"per_query/{query_set}": per_query_table(folder, query_set, fused, data)})
        run.log({"report": wandb.Html((data_folder / "results.html").read_text(encoding="utf-8"), inject=False)})
    finally:
        finish_run(run, {**_summary(mine), **spread})
    return True


def per_query_table(folder: RunFolder, query_set: str, fused: bool, data: RetrievalData) -> Any:
    """Every query with its text and its values, of the row and of the ranker alone."""
    import wandb

    measured = {one.measure: one.per_query for one in read_measured(folder.per_query(query_set, alone=False))}
    if fused:
        alone = read_measured(folder.per_query(query_set, alone=True))
        measured |= {f"{one.measure} alone": one.per_query for one in alone}
    queries = data.query_set(query_set)
    texts = dict(zip(queries.ids, queries.texts, strict=True))
    rows = [
        [query, texts[query], *(values[query] for values in measured.values())]
        for query in next(iter(measured.values()))
    ]
    return wandb.Table(columns=["query", "text", *measured], data=rows)


def _results_table(results: Sequence[Result]) -> Any:
    import wandb

    return wandb.Table(columns=list(SHOWN), data=[[getattr(one, key) for key in SHOWN] for one in results])


def _by_name(results: Sequence[Result]) -> dict[str, Result]:
    fusion = any(one.fused for one in results)
    return {f"{one.query_set}/{one.measure}{'_alone' if fusion and not one.fused else ''}": one for one in results}


def _summary(results: Sequence[Result]) -> dict[str, float]:
    speed = {} if not results else {"ms_per_1k": results[0].ms_per_1k}
    return {**{key: one.value for key, one in _by_name(results).items()}, **speed}
