"""The results table: rows in the paper's order, the best marked, every text escaped."""

from __future__ import annotations

import re

import pytest

from evaluation.results_table import ORDER, Result, Table, build_table, html_page, latex, markdown


def result(
    model: str = "bm25_lemm", value: float = 0.25, *, fused: bool = False, query_set: str = "test",
    measure: str = "MRR", ms_per_1k: float = 1.5, device: str = "cpu", threads: int = 2,
) -> Result:  # fmt: skip
    return Result(
        model=model, fused=fused, query_set=query_set, measure=measure, value=value, seeds=1, queries=10, depth=1000,
        ms_per_1k=ms_per_1k, device=device, threads=threads, significance=[],
    )  # fmt: skip


SMALL = [
    result("model1_word", 0.31256, fused=True, ms_per_1k=12.345),
    result("model1_word", 0.2, ms_per_1k=11.0, threads=1),
    result("bm25_lemm", 0.25),
    result("bm25_lemm", 0.9, measure="recall@1000"),
    result("model1_word", 0.9, fused=True, measure="recall@1000", ms_per_1k=12.345),
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


def test_the_whole_table_in_latex() -> None:
    assert latex(build_table(SMALL)) == "\n".join([
        r"\begin{tabular}{lrrrl}",
        r"\toprule",
        r"ranker & test MRR & test recall@1000 & ms per 1K & device \\",
        r"\midrule",
        r"bm25\_lemm & 0.2500 & 0.9000 & 1.5 & cpu, 2 threads \\",
        r"model1\_word & \textbf{0.3126} & 0.9000 & 12.3 & cpu, 2 threads \\",
        r"model1\_word (alone) & 0.2000 &  & 11 & cpu, 1 thread \\",
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ])  # fmt: skip


def test_the_whole_table_in_html() -> None:
    page = html_page(build_table(SMALL), "Results on pydocs")
    cells = [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert cells == [
        ["ranker", "test MRR", "test recall@1000", "ms per 1K", "device"],
        ["bm25_lemm", "0.2500", "0.9000", "1.5", "cpu, 2 threads"],
        ["model1_word", "<b>0.3126</b>", "0.9000", "12.3", "cpu, 2 threads"],
        ["model1_word (alone)", "0.2000", "", "11", "cpu, 1 thread"],
    ]
    assert "<title>Results on pydocs</title>" in page and "<h1>Results on pydocs</h1>" in page


def test_rows_come_in_the_order_of_the_paper_whatever_the_order_of_measuring() -> None:
    models = [*reversed(ORDER), "zebra", "aardvark"]
    table = build_table([result(model, fused=True) for model in models])
    assert [row[0] for row in table.rows] == [*ORDER, "aardvark", "zebra"]


def test_a_fused_row_stands_above_the_same_ranker_alone() -> None:
    table = build_table([result("model1_bwps"), result("model1_bwps", fused=True)])
    assert [row[0] for row in table.rows] == ["model1_bwps", "model1_bwps (alone)"]


def test_columns_come_in_the_order_of_measuring() -> None:
    sets = [("test", "MRR"), ("test", "recall@10"), ("trec2019", "nDCG@10")]
    table = build_table([result(query_set=query_set, measure=measure) for query_set, measure in sets])
    assert table.header == ["ranker", "test MRR", "test recall@10", "trec2019 nDCG@10", "ms per 1K", "device"]


def test_the_best_of_a_column_is_sought_among_the_rankers_that_have_it() -> None:
    results = [
        result("bm25_lemm", 0.3), result("bm25_lemm", 0.1, query_set="dl"),
        result("model1_word", 0.2, fused=True), result("bm25_lemm_word", 0.05, query_set="dl"),
    ]  # fmt: skip
    table = build_table(results)
    assert table.rows[2][1:3] == ["0.2000", ""]
    assert table.best == {(0, 1), (0, 2)}


def test_values_equal_only_after_rounding_are_not_both_best() -> None:
    assert build_table([result("bm25_lemm", 0.30001), result("bm25_lemm_word", 0.30002)]).best == {(1, 1)}


def test_a_gpu_is_named_without_threads() -> None:
    assert build_table([result(device="NVIDIA A100")]).rows[0][-1] == "NVIDIA A100"


@pytest.mark.parametrize(("time", "shown"), [(0.01234, "0.0123"), (1.5, "1.5"), (99.96, "100"), (431.0, "431")])
def test_times_have_three_digits(time: float, shown: str) -> None:
    assert build_table([result(ms_per_1k=time)]).rows[0][-2] == shown


@pytest.mark.parametrize("time", [1234.5, 53_000.0])
def test_times_of_seconds_are_plain_numbers(time: float) -> None:
    """A cross-encoder takes a minute for 1,000 documents on a processor: no one wants to read 5.3e+04."""
    shown = build_table([result(ms_per_1k=time)]).rows[0][-2]
    assert "e" not in shown and float(shown.replace(",", "")) == pytest.approx(time, rel=0.01)


HOSTILE = "<script>alert('x')</script>&\""


def test_html_escapes_every_text() -> None:
    page = html_page(build_table([result(HOSTILE, query_set=HOSTILE, measure=HOSTILE, device=HOSTILE)]), HOSTILE)
    assert "<script" not in page and "alert('x')" not in page
    assert page.count("&lt;script&gt;") == 6  # title, heading, ranker, query set, measure, device


def test_latex_escapes_what_latex_would_read() -> None:
    table = Table(["a_b", "50%"], [[r"\x{1}", "#&$~^"]], best=set())
    assert latex(table).splitlines()[2:5] == [
        r"a\_b & 50\% \\",
        r"\midrule",
        r"\textbackslash{}x\{1\} & \#\&\$\textasciitilde{}\textasciicircum{} \\",
    ]


def test_markdown_keeps_its_columns_when_a_name_has_a_bar() -> None:
    lines = markdown(build_table([result("a|b", query_set="c|d")])).splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [5, 5, 5]
