"""The results table as Markdown, as LaTeX (booktabs) and as HTML; every text is escaped for its format."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import groupby

from evaluation.results_table import Cell, Outcome, Row, Table

OUTCOME_HEADER = [
    "row", "against", "query set", "difference", "relative", "effect size", "better", "worse", "p", "p (Holm)", ""
]  # fmt: skip
_TEX_MARKS = {"★": r"\star", "†": r"\dagger", "‡": r"\ddagger", "#": r"\#"}


def outcome_cells(one: Outcome) -> list[str]:
    """One line of the list of tests, under `OUTCOME_HEADER`."""
    found = one.verdict
    return [
        one.row, found.against, f"{one.query_set} {one.measure}", f"{found.difference:+.4f}",
        f"{100 * found.relative:+.1f}%", f"{found.effect_size:+.2f}", f"{found.better:,}", f"{found.worse:,}",
        f"{found.p_value:.2g}", f"{found.p_holm:.2g}", found.mark if found.significant else "",
    ]  # fmt: skip


def markdown(table: Table) -> str:
    """The table, what its marks mean, and the list of tests."""

    def shown(cell: Cell) -> str:
        text = f"**{cell.text}**" if cell.best else _bar(cell.text)
        return " ".join(filter(None, [text + _bar(cell.marks), cell.spread]))

    lines = [_pipe(["ranker", *map(_bar, table.header)]), _pipe(["---"] * (len(table.header) + 1))]
    lines += [_pipe([_bar(row.name), *map(shown, row.cells)]) for row in table.rows]
    for note in table.notes:
        lines += ["", _bar(note)]
    if table.outcomes:
        lines += ["", _pipe(OUTCOME_HEADER), _pipe(["---"] * len(OUTCOME_HEADER))]
        lines += [_pipe(list(map(_bar, outcome_cells(one)))) for one in table.outcomes]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    r"""A tabular for ``\usepackage{booktabs}``, rows in the paper's words and groups."""

    def shown(cell: Cell) -> str:
        text = rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text)
        marks = "".join(_TEX_MARKS.get(mark, rf"\mathrm{{{_tex(mark)}}}") for mark in cell.marks)
        return (
            text + (f"$^{{{marks}}}$" if marks else "") + (rf" {{\tiny $\pm${cell.spread[1:]}}}" if cell.spread else "")
        )

    width = len(table.header) + 1
    lines = [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    lines.append(" & ".join(["ranker", *map(_tex, table.header)]) + r" \\")
    for part, rows in groupby(table.rows, key=lambda row: row.part):
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{_tex(part)}}}}} \\"]
        for _, together in groupby(rows, key=lambda row: row.group):
            lines.append(r"\midrule")
            lines += [" & ".join([_tex(row.label), *map(shown, row.cells)]) + r" \\" for row in together]
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def html_table(table: Table) -> str:
    """The table and its notes, as a part of a page."""

    def shown(cell: Cell) -> str:
        text = f"<b>{html.escape(cell.text)}</b>" if cell.best else html.escape(cell.text)
        marks = f"<sup>{html.escape(cell.marks)}</sup>" if cell.marks else ""
        spread = f" <small>{html.escape(cell.spread)}</small>" if cell.spread else ""
        return f"<td>{text}{marks}{spread}</td>"

    head = "".join(f"<th>{html.escape(text)}</th>" for text in ["ranker", *table.header])
    bodies = []
    for part, rows in groupby(table.rows, key=lambda row: row.part):
        bodies.append(f'<tr class="part"><th colspan="{len(table.header) + 1}">{html.escape(part)}</th></tr>')
        for _, together in groupby(rows, key=lambda row: row.group):
            bodies += [_html_row(row, [*map(shown, row.cells)], first) for first, row in _with_first(list(together))]
    body = "\n".join(bodies)
    notes = "".join(f"<p>{html.escape(note)}</p>\n" for note in table.notes)
    grid = f'<table class="results"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n'
    return f'{grid}<div class="notes">{notes}</div>\n'


def html_outcomes(table: Table) -> str:
    """The list of tests, as a part of a page."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in OUTCOME_HEADER)
    rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in outcome_cells(one)) for one in table.outcomes]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="tests"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n'


def _html_row(row: Row, cells: Sequence[str], first: bool) -> str:
    name = f'<td title="{html.escape(row.label)}">{html.escape(row.name)}</td>'
    return f"<tr{' class=group' if first else ''}>{name}{''.join(cells)}</tr>"


def _with_first(rows: list[Row]) -> list[tuple[bool, Row]]:
    return [(number == 0, row) for number, row in enumerate(rows)]


def _bar(text: str) -> str:
    return text.replace("|", "\\|")


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tex(text: str) -> str:
    replaced = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "★": r"$^{\star}$"}
    return "".join(replaced.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
