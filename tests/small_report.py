"""A hand-made report: three rows, two query sets, five queries."""

from __future__ import annotations

import numpy as np

from evaluation.hypotheses import Verdict
from evaluation.report import Curve, Point, QuerySetValues, Report, ReportRow, RowScores, Training
from evaluation.results_table import Result, build_table
from evaluation.score_histogram import score_histogram

HOSTILE = "</script><script>window.hacked = 1</script>\"' & <img src=x onerror=window.hacked=1>\u2028{{script}}"
IDS = ["q1", "q2", "q3", "q4", "q5"]
TEXTS = ["how to bake bread", "repair of a car", HOSTILE, "stars in the sky", "who wrote this book"]
BM25, FUSED, ALONE = (0.5, 1.0, 0.0, 0.25, 0.5), (1.0, 0.5, 1.0, 0.25, 0.5), (0.2, 0.5, 1.0, 0.2, 0.1)


def result(model: str, fused: bool, values: tuple[float, ...], query_set: str, milliseconds: float) -> Result:
    tests = []
    if fused:
        tests = [Verdict("bm25_lemm", "★", 5, 0.2, 0.44, 0.3, 2, 1, 0.04, 0.04, True)._asdict()]
    return Result(
        model=model, fused=fused, query_set=query_set, measure="MRR", value=float(np.mean(values)), seeds=1, queries=5,
        depth=10, ms_per_1k=milliseconds, device="cpu", threads=1, significance=tests,
    )  # fmt: skip


def small_results(model: str = "nn_model1") -> list[Result]:
    return [
        one
        for name in ("test", "test_cpu")
        for one in (
            result("bm25_lemm", False, BM25, name, 0.3),
            result(model, True, FUSED, name, 12.0),
            result(model, False, ALONE, name, 11.0),
        )
    ]


def small_report(model: str = "nn_model1", data: str = "small") -> Report:
    sets = [
        QuerySetValues("test", "MRR", IDS, TEXTS, {0: np.array(BM25), 1: np.array(FUSED), 2: np.array(ALONE)}),
        QuerySetValues("test_cpu", "MRR", IDS[:2], TEXTS[:2], {0: np.array(BM25[:2]), 1: np.array(FUSED[:2])}),
    ]
    histogram = score_histogram(np.linspace(0, 1, 100), np.arange(100) > 80)
    assert histogram is not None
    results = small_results(model)
    return Report(
        data=data,
        summary="Queries: test 5, test_cpu 2 · 2 rankers · 1 seed each",
        table=build_table(results),
        rows=[
            ReportRow("bm25_lemm", "baselines", False),
            ReportRow(model, "our methods", False),
            ReportRow(f"{model} (alone)", "our methods", True),
        ],
        points=[Point(i % 3, one.query_set, one.value, one.ms_per_1k, "cpu") for i, one in enumerate(results)],
        trainings=[
            Training(
                model,
                [Curve(1, [9, 19, 29], [0.2, 0.3, 0.35]), Curve(2, [9, 19, 29], [0.25, 0.28, 0.36])],
                [Curve(1, [4, 9, 14], [1.0, float("nan"), 0.5]), Curve(2, [4, 9, 14], [0.9, 0.7, 0.4])],
            )
        ],
        query_sets=sets,
        scores=[RowScores(0, "test", 1, histogram), RowScores(1, "test", 1, histogram)],
    )
