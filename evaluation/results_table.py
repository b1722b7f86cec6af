"""The results table: one list of measured values, as JSON, Markdown, LaTeX and HTML.

A row of the table is a ranker (alone, or fused with BM25), in the order of the paper's table; a column is a query set
with its main measure, then the recall of the candidates, then the time to rank 1,000 documents with the device that
took it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ORDER = (  # rows of the paper's table, top to bottom
    "bm25_lemm", "bm25_lemm_word", "bm25_lemm_bwps",
    "bert_vanilla_short", "bert_vanilla_full", "bert_cedr_knrm", "bert_cedr_drmm", "bert_cedr_pacrr",
    "model1_embed", "model1_word", "model1_bwps",
    "nn_model1_cosine", "nn_model1_exp", "nn_model1",
    "bert_model1_short", "bert_model1_full",
)  # fmt: skip


class Result(NamedTuple):
    """One measured value: an entry of results.json."""

    model: str
    fused: bool
    query_set: str
    measure: str
    value: float
    seeds: int
    queries: int
    depth: int
    ms_per_1k: float
    device: str
    threads: int
    significance: list[dict[str, Any]]


class Table(NamedTuple):
    header: list[str]
    rows: list[list[str]]
    best: set[tuple[int, int]]  # (row, column) of the best value of a measured column


def build_table(results: Sequence[Result]) -> Table:
    rows = sorted({(one.model, one.fused) for one in results}, key=_row_place)
    columns = list(dict.fromkeys((one.query_set, one.measure) for one in results))
    values = {(one.model, one.fused, one.query_set, one.measure): one for one in results}
    header = ["ranker", *(f"{query_set} {measure}" for query_set, measure in columns), "ms per 1K", "device"]
    cells: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for model, fused in rows:
        mine = [values.get((model, fused, *column)) for column in columns]
        known = [one for one in mine if one is not None]
        shown = ["" if one is None else f"{one.value:.4f}" for one in mine]
        label = model if fused or (model, True) not in rows else f"{model} (alone)"
        if known[0].seeds > 1:
            label += f", {known[0].seeds} seeds"
        cells.append([label, *shown, _time(known[0].ms_per_1k), _device(known[0])])
    for number, column in enumerate(columns, start=1):
        numbers = [values[(*row, *column)].value for row in rows if (*row, *column) in values]
        marked = [
            i
            for i, row in enumerate(rows)
            if (*row, *column) in values and values[(*row, *column)].value == max(numbers)
        ]
        if len(marked) < len(numbers):  # where all are equal none is best
            best |= {(i, number) for i in marked}
    return Table(header, cells, best)


def markdown(table: Table) -> str:
    def mark(i: int, j: int, cell: str) -> str:
        return f"**{cell}**" if (i, j) in table.best else cell.replace("|", "\\|")

    lines = [_pipe([cell.replace("|", "\\|") for cell in table.header]), _pipe(["---"] * len(table.header))]
    return "\n".join([*lines, *(_pipe(row) for row in _cells(table, mark))]) + "\n"


def latex(table: Table) -> str:
    def mark(i: int, j: int, cell: str) -> str:
        text = _tex(cell)
        return rf"\textbf{{{text}}}" if (i, j) in table.best else text

    header = " & ".join(map(_tex, table.header))
    body = "\n".join(" & ".join(row) + r" \\" for row in _cells(table, mark))
    columns = "l" + "r" * (len(table.header) - 2) + "l"
    opening = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rf"{header} \\", r"\midrule"]
    lines = [*opening, body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def html_page(table: Table, title: str) -> str:
    """A self-contained page; all texts are escaped."""

    def mark(i: int, j: int, cell: str) -> str:
        return f"<td><b>{html.escape(cell)}</b></td>" if (i, j) in table.best else f"<td>{html.escape(cell)}</td>"

    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in _cells(table, mark))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:2rem;}"
        "table{border-collapse:collapse}th,td{padding:.35rem .9rem;text-align:right;border-bottom:1px solid #8884}"
        "th:first-child,td:first-child{text-align:left}th{border-bottom:2px solid}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></body></html>\n"
    )


def _cells(table: Table, mark: Callable[[int, int, str], str]) -> list[list[str]]:
    return [[mark(i, j, cell) for j, cell in enumerate(row)] for i, row in enumerate(table.rows)]


def _row_place(row: tuple[str, bool]) -> tuple[int, str, bool]:
    model, fused = row
    return (ORDER.index(model) if model in ORDER else len(ORDER), model, not fused)


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 999.5 else f"{milliseconds:,.0f}"


def _device(result: Result) -> str:
    threads = "" if result.device != "cpu" else f", {result.threads} thread{'s' if result.threads != 1 else ''}"
    return f"{result.device}{threads}"


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tex(text: str) -> str:
    replaced = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(replaced.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
