"""The results table: rows in the paper's order, the best marked, every text escaped."""

from __future__ import annotations

import re

import pytest

from evaluation import results_table
from evaluation.results_table import (
    Cell,
    PaperFigures,
    Result,
    Table,
    TableRow,
    latex,
    markdown,
    narrowed,
    paper_figures,
)
from evaluation.significance import Verdict
from lightning_modules.registry import ROWS, row_of
from pipeline.configs import CONFIGS

PAPER_FIGURES = CONFIGS / "paper_figures.yaml"


def build_table(results: list[Result], paper: PaperFigures | None = None) -> Table:
    return results_table.build_table(results, row_of, paper)


def result(
    model: str = "bm25_lemm", value: float = 0.25, *, fused: bool = False, query_set: str = "test",
    measure: str = "MRR", ms_per_1k: float = 1.5, device: str = "cpu", threads: int = 2, alone: bool = False,
) -> Result:  # fmt: skip
    return Result(
        model=model, fused=fused, query_set=query_set, measure=measure, value=value, seeds=1, queries=10, depth=1000,
        ms_per_1k=ms_per_1k, device=device, threads=threads, significance=[], alone=alone,
    )  # fmt: skip


SMALL = [
    result("bm25_lemm", 0.25),
    result("bm25_lemm", 0.9, measure="recall@1000"),
    result("model1_word", 0.31256, fused=True, ms_per_1k=12.345),
    result("model1_word", 0.9, fused=True, measure="recall@1000", ms_per_1k=12.345),
    result("model1_word", 0.2, ms_per_1k=11.0, threads=1, alone=True),
]


def test_the_whole_table_in_markdown() -> None:
    """A ranker without a value in a column has an empty cell; where all values are equal none is marked."""
    assert markdown(build_table(SMALL)) == (
        "| ranker | test MRR | test recall@1000 | ms per 1K | device |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| bm25_lemm | 0.2500 | 0.9000 | 1.5 | cpu, 2 threads |\n"
        "| model1_word | **0.3126** | 0.9000 | 12.3 | cpu, 2 threads |\n"
        "| model1_word (alone) | 0.2000 |  | 11 | cpu, 1 thread |\n"
    )


def test_a_narrow_terminal_gets_whole_columns() -> None:
    """The device is left out first, then the recall."""
    table = build_table(SMALL)
    assert narrowed(table, 120) == table
    for width, shown in ((70, "test MRR|test recall@1000|ms per 1K"), (45, "test MRR|ms per 1K"), (10, "test MRR")):
        narrow = narrowed(table, width)
        assert "|".join(narrow.header) == shown
        left_out = [name for name in table.header if name not in narrow.header]
        assert narrow.notes == [f"not shown: {', '.join(left_out)}"]
        for row, whole in zip(narrow.rows, table.rows, strict=True):
            assert row.cells == [whole.cells[table.header.index(name)] for name in narrow.header]


def test_the_whole_table_in_latex() -> None:
    """Rows in the paper's words, in its groups."""
    assert latex(build_table(SMALL)) == "\n".join([
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"ranker & test MRR & test recall@1000 & ms per 1K & device \\",
        r"\midrule",
        r"\multicolumn{5}{c}{\textbf{baselines}} \\",
        r"\midrule",
        r"BM25 (lemm) & 0.2500 & 0.9000 & 1.5 & cpu, 2 threads \\",
        r"\midrule",
        r"\multicolumn{5}{c}{\textbf{our methods}} \\",
        r"\midrule",
        r"BM25 (lemm) + Model1 (word) & \textbf{0.3126} & 0.9000 & 12.3 & cpu, 2 threads \\",
        r"BM25 (lemm) + Model1 (word) (alone) & 0.2000 &  & 11 & cpu, 1 thread \\",
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ])  # fmt: skip


VERDICT = Verdict(
    against="bm25_lemm", mark="★", queries=10, difference=0.05, relative=0.2, effect_size=0.4, better=6, worse=1,
    p_value=0.0123, p_holm=0.0246, significant=True,
)  # fmt: skip
MARKED = [
    result("bm25_lemm", 0.25),
    result("nn_model1", 0.3, fused=True)._replace(
        seeds=3, seed_values=[0.29, 0.30, 0.31],
        significance=[VERDICT._asdict(), VERDICT._replace(against="x", mark="†", significant=False)._asdict()],
    ),
]  # fmt: skip
NOTES = [
    "★ significant difference (paired two-sided t-test, Holm's correction), tested: nn_model1 against bm25_lemm",
    "± standard deviation over the seeds; figures and tests use each query's mean over the seeds",
]


def test_marks_spread_and_tests_in_markdown() -> None:
    assert markdown(build_table(MARKED)).splitlines()[3:] == [
        "| nn_model1, 3 seeds | **0.3000**★ ±0.0100 | 1.5 | cpu, 2 threads |",
        "", NOTES[0], "", NOTES[1], "",
        "| row | against | query set | difference | relative | effect size | better | worse | p | p (Holm) |  |",
        "| " + " | ".join(["---"] * 11) + " |",
        "| nn_model1 | bm25_lemm | test MRR | +0.0500 | +20.0% | +0.40 | 6 | 1 | 0.012 | 0.025 | ★ |",
        "| nn_model1 | x | test MRR | +0.0500 | +20.0% | +0.40 | 6 | 1 | 0.012 | 0.025 |  |",
    ]  # fmt: skip


def test_marks_and_spread_in_latex() -> None:
    assert r"& \textbf{0.3000}$^{\star}$ {\tiny $\pm$0.0100} &" in latex(build_table(MARKED))


def test_the_papers_figures_stand_beside_ours_under_their_own_heading() -> None:
    paper = PaperFigures({"bm25_lemm": {"test": "0.270", "time": "0.8 ms"}}, ["a note"])
    results = [result("bm25_lemm"), result("bm25_lemm", 0.9, measure="recall@100"), result("nn_model1", fused=True)]
    table = build_table([*results, result("nn_model1", alone=True)], paper)
    assert table.header == [
        "test MRR", "test MRR in the paper", "test recall@100", "ms per 1K", "device", "per 1K in the paper"
    ]  # fmt: skip
    shown = [[cell.text for cell in row.cells] for row in table.rows]
    assert shown[0] == ["0.2500", "0.270", "0.9000", "1.5", "cpu, 2 threads", "0.8 ms"]
    assert [row[1] for row in shown] == ["0.270", "", ""]
    assert table.notes == ["a note"]


def test_the_papers_table_is_quoted_as_printed() -> None:
    documents, passages = (paper_figures(PAPER_FIGURES, f"msmarco_{kind}") for kind in ("doc", "passage"))
    assert documents is not None and passages is not None
    assert documents.rows["bert_model1_full"] == {
        "test": "0.391#", "trec2019": "0.666", "trec2020": "0.637★", "time": "80 sec"
    }  # fmt: skip
    assert len(documents.rows) == 14 and len(passages.rows) == 12  # no *_full rows on passages
    assert passages.rows["bert_cedr_knrm"]["time"] == "16 ms" and "presumably seconds" in passages.notes[1]
    note = '"in the paper": as printed by Boytsov and Kolter (2021), on their machines'
    assert documents.notes == [note] and passages.notes[0] == note
    assert set(documents.rows) <= {row.name for row in ROWS}
    assert paper_figures(PAPER_FIGURES, "pydocs_passage") is None and paper_figures(PAPER_FIGURES, "notes") is None


def test_rows_come_in_the_order_of_the_results() -> None:
    table = build_table([result("zebra"), result("model1_bwps", fused=True), result("model1_bwps", alone=True)])
    assert [row.name for row in table.rows] == ["zebra", "model1_bwps", "model1_bwps (alone)"]
    assert [(row.label, row.part) for row in table.rows[:2]] == [
        ("zebra", "others"), ("BM25 (lemm) + Model1 (bwps)", "our methods")
    ]  # fmt: skip


def test_columns_come_in_the_order_of_measuring() -> None:
    sets = [("test", "MRR"), ("test", "recall@10"), ("trec2019", "nDCG@10")]
    table = build_table([result(query_set=query_set, measure=measure) for query_set, measure in sets])
    assert table.header == ["test MRR", "test recall@10", "trec2019 nDCG@10", "ms per 1K", "device"]


def test_the_best_of_a_column_is_that_of_the_rankers_that_have_it() -> None:
    results = [
        result("bm25_lemm", 0.3), result("bm25_lemm", 0.1, query_set="dl"),
        result("bm25_lemm_word", 0.05, query_set="dl"), result("model1_word", 0.2, fused=True),
    ]  # fmt: skip
    table = build_table(results)
    assert [cell.text for cell in table.rows[2].cells[:2]] == ["0.2000", ""]
    assert [[cell.best for cell in row.cells[:2]] for row in table.rows] == [[True, True], [False] * 2, [False] * 2]


def test_values_equal_only_after_rounding_are_not_both_best() -> None:
    table = build_table([result("bm25_lemm", 0.30001), result("bm25_lemm_word", 0.30002)])
    assert [row.cells[0].best for row in table.rows] == [False, True]


def test_a_mean_over_seeds_is_not_best_by_its_last_bits() -> None:
    table = build_table([result("bm25_lemm", 0.8267119838872105), result("nn_model1", 0.8267119838872106)])
    assert [row.cells[0].best for row in table.rows] == [False, False]


def test_a_gpu_is_named_without_threads() -> None:
    assert build_table([result(device="NVIDIA A100")]).rows[0].cells[-1].text == "NVIDIA A100"


@pytest.mark.parametrize(("time", "shown"), [(0.01234, "0.0123"), (1.5, "1.5"), (99.96, "100"), (431.0, "431")])
def test_times_have_three_digits(time: float, shown: str) -> None:
    assert build_table([result(ms_per_1k=time)]).rows[0].cells[-2].text == shown


@pytest.mark.parametrize("time", [1234.5, 53_000.0])
def test_times_of_seconds_are_plain_numbers(time: float) -> None:
    """A cross-encoder takes a minute for 1,000 documents on a CPU: 53,000, not 5.3e+04."""
    shown = build_table([result(ms_per_1k=time)]).rows[0].cells[-2].text
    assert "e" not in shown and float(shown.replace(",", "")) == pytest.approx(time, rel=0.01)


def test_latex_escapes_what_latex_would_read() -> None:
    table = Table(["50%"], [TableRow("", r"\x{1}", "a_b", 0, [Cell("#&$~^")])], [], [])
    lines = latex(table).splitlines()
    assert lines[2] == r"ranker & 50\% \\" and r"\textbf{a\_b}" in lines[4]
    assert lines[6] == r"\textbackslash{}x\{1\} & \#\&\$\textasciitilde{}\textasciicircum{} \\"


def test_markdown_keeps_its_columns_when_a_name_has_a_bar() -> None:
    lines = markdown(build_table([result("a|b", query_set="c|d")])).splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [5, 5, 5]
