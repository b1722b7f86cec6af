"""The results of all rankers on one data set: averaged over seeds, tested, written as a table.

OUTPUT_DIR/<data>/<model>/per_query/   each query's mean over the seeds
OUTPUT_DIR/<data>/results.{json,md,tex,html}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from datamodules.retrieval_data import RetrievalData
from evaluation.hypotheses import read_hypotheses, verdicts
from evaluation.measures import per_query_tsv
from evaluation.paper_rows import place
from evaluation.report.report import report_page
from evaluation.results_table import Cell, Result, Table, build_table, paper_figures
from evaluation.seed_averages import seed_average
from evaluation.significance import read_per_query
from evaluation.table_formats import latex, markdown
from lexical.errors import UserError
from lexical.terminal import say
from pipeline.configs import CONFIGS, names
from pipeline.dependencies import changed_dependency
from pipeline.report_data import gather_report
from lexical.small_files import read_json, write_json, write_text
from pipeline.run_folder import RunFolder

HYPOTHESES, PAPER_FIGURES = CONFIGS / "hypotheses.yaml", CONFIGS / "paper_figures.yaml"


def collect_results(data_folder: Path, trained: Mapping[str, Sequence[int]], data: RetrievalData) -> list[Result]:
    """Of every ranker that was measured on this very data, with what the tests found, in the order of the paper: BM25,
    which is measured on every query set, decides the order of these."""
    rows = sorted(trained, key=place)
    results = [one for name in rows for one in _collect(data_folder / name, trained[name], data)]
    return with_tests(results, data_folder)


def with_tests(results: Sequence[Result], data_folder: Path, hypotheses: Path = HYPOTHESES) -> list[Result]:
    """The results with `significance` filled in, for the main measure of each query set."""
    asked = read_hypotheses(hypotheses)
    fusions = {one.model for one in results if one.fused}
    known = {*names("model"), *(one.model for one in results)}
    asked_for = dict.fromkeys(name for one in asked.hypotheses for name in (one.row, one.against))
    if unknown := [name for name in asked_for if name.removesuffix(".alone") not in known]:
        say(f"{hypotheses}: there is no ranker {', '.join(unknown)}; what is asked of it is not tested")
    found = list(results)
    for query_set in dict.fromkeys(one.query_set for one in results):
        rows: dict[str, dict[str, float]] = {}
        places: dict[str, int] = {}
        for number, one in enumerate(results):
            alone = one.model in fusions and not one.fused
            name = one.model + (".alone" if alone else "")
            if one.query_set == query_set and name not in rows:  # the main measure comes first
                rows[name] = read_per_query(RunFolder(data_folder / one.model).per_query(query_set, alone))[1]
                places[name] = number
        for name, tests in verdicts(rows, asked.hypotheses, asked.threshold).items():
            found[places[name]] = found[places[name]]._replace(significance=[one._asdict() for one in tests])
    return found


def _collect(folder: Path, seeds: Sequence[int], data: RetrievalData) -> list[Result]:
    """Results of a ranker on this very data, averaged over its seeds; others are named, not mixed in."""
    measured: list[tuple[RunFolder, list[Result]]] = []
    settings: list[dict[str, Any]] = []
    for seed in seeds:
        run = RunFolder(folder / f"seed-{seed}")
        if not run.evaluation.is_file():
            continue
        if (part := changed_dependency(run)) is not None:
            say(
                f"{folder.name} (seed {seed}) is not in the table, as {part} was trained again since it was made of "
                f"it: python train.py --model {folder.name}"
            )
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
    everywhere = [one for one in first if all(any(r[:4] == one[:4] for r in results) for _, results in measured)]
    some = {one.query_set for _, results in measured for one in results} - {one.query_set for one in everywhere}
    if some:
        say(f"{folder.name}: not all seeds are measured on {', '.join(sorted(some))}: it is not in the table")
    first = everywhere
    is_fusion = any(one.fused for one in first)
    for query_set, fused in dict.fromkeys((one.query_set, one.fused) for one in first):
        alone = is_fusion and not fused
        mean = seed_average([run.per_query(query_set, alone) for run in runs])
        write_text(RunFolder(folder).per_query(query_set, alone), per_query_tsv(mean))
    averaged = []
    for one in first:
        same = [r for _, results in measured for r in results if r[:4] == one[:4]]  # model, fused, query set, measure
        timed = [r.ms_per_1k for r in same if (r.device, r.threads) == (one.device, one.threads)]
        value, speed = np.mean([r.value for r in same]), np.median(timed)
        every = [r.value for r in same]
        averaged.append(one._replace(value=float(value), seeds=len(same), ms_per_1k=float(speed), seed_values=every))
    return averaged


def write_results(results: list[Result], data: RetrievalData, data_folder: Path) -> None:
    """The table in all its formats, the report, and the table on the terminal."""
    table = build_table(results, paper_figures(PAPER_FIGURES, data.name))
    write_json(data_folder / "results.json", [one._asdict() for one in results])
    write_text(data_folder / "results.md", markdown(table))
    write_text(data_folder / "results.tex", latex(table))
    write_text(data_folder / "results.html", report_page(gather_report(results, table, data, data_folder)))
    sizes = {one.query_set: one.queries for one in results}
    print_table(table, f"{data.name}: {', '.join(f'{name} {size:,} queries' for name, size in sizes.items())}")
    print(f"written: {data_folder}/results.{{json,md,tex,html}}")


def print_table(table: Table, title: str) -> None:
    def shown(cell: Cell) -> str:
        text = f"[bold]{escape(cell.text)}[/bold]" if cell.best else escape(cell.text)
        return " ".join(filter(None, [text + escape(cell.marks), cell.spread]))

    grid = RichTable(title=title)
    for number, heading in enumerate(["ranker", *table.header]):
        grid.add_column(heading, justify="left" if number == 0 else "right")
    for number, row in enumerate(table.rows):
        last = number + 1 == len(table.rows) or table.rows[number + 1].group != row.group
        grid.add_row(escape(row.name), *map(shown, row.cells), end_section=last)
    Console(width=None if Console().is_terminal else 180).print(grid)
    for note in table.notes:
        print(note)
