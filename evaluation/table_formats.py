"""The results table as Markdown, LaTeX (booktabs) and HTML; text is escaped for each format."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import groupby

from evaluation.results_table import Cell, Outcome, Table

OUTCOME_HEADER = [
    "row", "against", "query set", "difference", "relative", "effect size", "better", "worse", "p", "p (Holm)", ""
]  # fmt: skip
_TEX_MARKS = {"★": r"\star", "†": r"\dagger", "‡": r"\ddagger", "#": r"\#"}


def outcome_cells(outcome: Outcome) -> list[str]:
    """Return one line of the list of tests, under `OUTCOME_HEADER`."""
    verdict = outcome.verdict
    return [
        outcome.row, verdict.against, f"{outcome.query_set} {outcome.measure}", f"{verdict.difference:+.4f}",
        f"{100 * verdict.relative:+.1f}%", f"{verdict.effect_size:+.2f}", f"{verdict.better:,}", f"{verdict.worse:,}",
        f"{verdict.p_value:.2g}", f"{verdict.p_holm:.2g}", verdict.mark if verdict.significant else "",
    ]  # fmt: skip


def markdown(table: Table) -> str:
    """Return the table, what its marks mean, and the list of tests."""

    def shown(cell: Cell) -> str:
        text = f"**{cell.text}**" if cell.best else cell.text
        return " ".join(filter(None, [text + cell.marks, cell.spread]))

    rows = [[row.name, *map(shown, row.cells)] for row in table.rows]
    parts = [_pipe_table(["ranker", *table.header], rows), *(_bar(note) for note in table.notes)]
    if table.outcomes:
        parts.append(_pipe_table(OUTCOME_HEADER, list(map(outcome_cells, table.outcomes))))
    return "\n\n".join(parts) + "\n"


def _pipe_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(map(_bar, header)), ["---"] * len(header), *(list(map(_bar, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bar(text: str) -> str:
    return text.replace("|", "\\|")


def latex(table: Table) -> str:
    r"""Return a tabular for ``\usepackage{booktabs}``, rows in the paper's words and groups."""

    def shown(cell: Cell) -> str:
        text = rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text)
        marks = "".join(_TEX_MARKS.get(mark, rf"\mathrm{{{_tex(mark)}}}") for mark in cell.marks)
        text += f"$^{{{marks}}}$" if marks else ""
        return text + (rf" {{\tiny $\pm${cell.spread[1:]}}}" if cell.spread else "")

    width = len(table.header) + 1
    lines = [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    lines.append(" & ".join(["ranker", *map(_tex, table.header)]) + r" \\")
    for part, rows in groupby(table.rows, key=lambda row: row.part):
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{_tex(part)}}}}} \\"]
        for _, group in groupby(rows, key=lambda row: row.group):
            lines.append(r"\midrule")
            lines += [" & ".join([_tex(row.label), *map(shown, row.cells)]) + r" \\" for row in group]
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    replaced = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "★": r"$^{\star}$"}
    return "".join(replaced.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def html_table(table: Table) -> str:
    """Return the table and its notes, as a part of a page."""

    def shown(cell: Cell) -> str:
        text = f"<b>{html.escape(cell.text)}</b>" if cell.best else html.escape(cell.text)
        marks = f"<sup>{html.escape(cell.marks)}</sup>" if cell.marks else ""
        spread = f" <small>{html.escape(cell.spread)}</small>" if cell.spread else ""
        return f"<td>{text}{marks}{spread}</td>"

    lines = []
    for part, rows in groupby(table.rows, key=lambda row: row.part):
        lines.append(f'<tr class="part"><th colspan="{len(table.header) + 1}">{html.escape(part)}</th></tr>')
        for _, group in groupby(rows, key=lambda row: row.group):
            for number, row in enumerate(group):
                name = f'<td title="{html.escape(row.label)}">{html.escape(row.name)}</td>'
                lines.append(f"<tr{'' if number else ' class=group'}>{name}{''.join(map(shown, row.cells))}</tr>")
    notes = "".join(f"<p>{html.escape(note)}</p>\n" for note in table.notes)
    return _html_grid("results", ["ranker", *table.header], lines) + f'<div class="notes">{notes}</div>\n'


def html_outcomes(table: Table) -> str:
    """Return the list of tests, as a part of a page."""
    rows = [[f"<td>{html.escape(cell)}</td>" for cell in outcome_cells(outcome)] for outcome in table.outcomes]
    return _html_grid("tests", OUTCOME_HEADER, [f"<tr>{''.join(row)}</tr>" for row in rows])


def _html_grid(name: str, header: Sequence[str], lines: Sequence[str]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in header)
    body = "\n".join(lines)
    return f'<table class="{name}"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n'
