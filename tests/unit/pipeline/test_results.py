"""Results of several seeds and rows: averaged, tested, and read from the folders of rows measured earlier."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluation.measurements import Measurement, read_measurements, write_measurements
from evaluation.results_table import Result, build_table, markdown
from lexical.errors import UserError
from lexical.small_files import write_text
from lightning_modules.registry import row_of
from pipeline.results import SeedResults, collect_rows, main_results, with_tests
from pipeline.run_folder import RunFolder
from tests import ROOT
from tests.fixtures.measured_rows import measurement, result

DATA: Any = SimpleNamespace(fingerprint=lambda: "these")
BASE = (0.5, 0.25, 1.0, 0.2, 0.5)  # bm25_lemm
SEEDS = ((1.0, 0.5, 1.0, 0.2, 0.5), (1.0, 0.5, 1.0, 0.5, 1.0), (0.5, 0.5, 1.0, 0.2, 0.75))  # nn_model1


def measured(
    folder: Path, model: str, seed: int, measurements: Sequence[Measurement], data: str = "these", **further: Any
) -> SeedResults:
    """Results of a seed, as evaluate.py leaves them in its folder."""
    run = RunFolder(folder / model / f"seed-{seed}")
    fusion = any(measurement.alone for measurement in measurements)
    results = [
        result(model, measurement, fused=fusion and not measurement.alone, **further) for measurement in measurements
    ]
    write_measurements(run.path, measurements)
    write_text(run.config, "model: {}\n")
    seed_results = SeedResults(run, data, results, [])
    seed_results.write(seconds=1.0)
    return seed_results


def nn_model1(folder: Path) -> list[SeedResults]:
    return [
        measured(folder, "nn_model1", seed, [measurement(values), measurement(BASE, alone=True)])
        for seed, values in enumerate(SEEDS, start=1)
    ]


def test_seeds_are_averaged_and_tested(tmp_path: Path) -> None:
    """Per query 5/6, 0.5, 1, 0.3, 0.75 against BASE: p = 0.0358, by hand in test_significance."""
    nn_model1(tmp_path)
    measured(tmp_path, "bm25_lemm", 1, [measurement(BASE)])
    base, row = collect_rows(tmp_path, DATA, {})  # in the order of the table
    fused, alone = row.results
    assert [base.model, row.model] == ["bm25_lemm", "nn_model1"] and (fused.alone, alone.alone) == (False, True)
    assert fused.seed_values == pytest.approx([0.64, 0.8, 0.59]) and fused.value == pytest.approx(
        sum(fused.seed_values) / 3
    )
    assert (fused.seeds, fused.queries, fused.fused, alone.fused) == (3, 5, True, False)
    (test,) = fused.significance
    assert test["p_value"] == pytest.approx(0.0358, abs=1e-4) == test["p_holm"]
    assert (test["against"], test["better"], test["significant"]) == ("bm25_lemm", 4, True)
    assert base.results[0].significance == alone.significance == []
    assert "**0.6767**★" in markdown(build_table([*base.results, *row.results], row_of))
    assert (
        list(fused.entry())
        == (
            "model fused query_set measure value seeds queries depth ms_per_1k device threads significance seed_values"
        ).split()
    )
    json.dumps([entry.entry() for entry in row.results], allow_nan=False)
    averages = read_measurements(tmp_path / "nn_model1", "test", alone=False)
    assert averages[0].per_query == pytest.approx(
        dict(zip(("q1", "q2", "q3", "q4", "q5"), (5 / 6, 0.5, 1.0, 0.3, 0.75), strict=True))
    )


def test_results_are_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    for seed in nn_model1(tmp_path):
        read = SeedResults.read(seed.run)
        assert json.loads(json.dumps([entry.entry() for entry in seed.results])) == [
            entry.entry() for entry in read.results
        ]
        assert [entry.measured.per_query for entry in seed.results] == [
            entry.measured.per_query for entry in read.results
        ]
        assert seed.rankings == read.rankings == [("test", False), ("test", True)]


def test_seeds_of_other_data_or_damaged_ones_are_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, data in ((1, "these"), (2, "others"), (3, "these"), (4, "these"), (5, "these")):
        measured(tmp_path, "nn_model1", seed, [measurement(BASE)], data=data)
    RunFolder(tmp_path / "nn_model1/seed-3").evaluation.write_text("{}")
    RunFolder(tmp_path / "nn_model1/seed-4").per_query("test", alone=False).unlink()
    short = RunFolder(tmp_path / "nn_model1/seed-5").per_query("test", alone=False)
    short.write_text("".join(short.read_text().splitlines(keepends=True)[:-1]))
    (row,) = collect_rows(tmp_path, DATA, {})
    assert row.results[0].seeds == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" is not in the table")[0] for line in lines] == [f"nn_model1 (seed {n})" for n in (2, 3, 4, 5)]
    assert "other data" in lines[0] and "is damaged" in lines[1] and "there is no" in lines[2]
    assert "is damaged" in lines[3]


@pytest.mark.parametrize("cpu_first", [True, False])
def test_only_what_all_seeds_have_is_averaged_and_times_are_of_one_device(
    cpu_first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu, gpu = (1, 2) if cpu_first else (2, 1)
    small = measurement([0.5], query_set="test_cpu")
    measured(tmp_path, "a", cpu, [small], device="cpu", ms_per_1k=20_000.0)
    sets = [measurement([0.3]), measurement([0.25], query_set="test_cpu")]
    measured(tmp_path, "a", gpu, sets, device="cuda", ms_per_1k=50.0)
    ((average,),) = (row.results for row in collect_rows(tmp_path, DATA, {}))
    assert (average.query_set, average.value, average.seeds) == ("test_cpu", 0.375, 2)
    assert (average.device, average.ms_per_1k) == (("cpu", 20_000.0) if cpu_first else ("cuda", 50.0))
    assert "a: not all seeds are measured on test MRR:" in capsys.readouterr().err


def test_seeds_with_other_queries_are_refused(tmp_path: Path) -> None:
    measured(tmp_path, "a", 1, [measurement([0.5, 0.5])])
    measured(tmp_path, "a", 2, [measurement([0.5])])
    with pytest.raises(UserError, match="a: not all seeds have measured the query q2 of test"):
        collect_rows(tmp_path, DATA, {})


def test_a_difference_that_is_not_significant_has_no_mark() -> None:
    close = result("nn_model1", measurement((0.5, 0.25, 1.0, 0.2, 0.4)), fused=True)
    rows = with_tests([result("bm25_lemm", measurement(BASE)), close])
    assert rows[1].significance[0]["significant"] is False
    assert "★" not in markdown(build_table(rows, row_of)).split("| row")[0]


def test_a_mistyped_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("hypotheses:\n- {row: nn_modell.alone, against: bm25_lemm, mark: a}\n")
    assert with_tests([result("bm25_lemm", measurement(BASE))], path)[0].significance == []
    assert f"{path}: there is no ranker nn_modell.alone" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pydocs_passage", "pydocs_doc"])
def test_the_results_of_the_project_follow_from_the_values_of_each_query(name: str, tmp_path: Path) -> None:
    """Averages, tests and marks of results/ are computed again, from what evaluate.py wrote for each seed."""
    folder = tmp_path / name
    shutil.copytree(ROOT / "results" / name, folder)
    fingerprint = json.loads((folder / "bm25_lemm/seed-1/evaluation.json").read_text())["data"]
    rows = collect_rows(folder, SimpleNamespace(fingerprint=lambda: fingerprint), {})  # type: ignore[arg-type]
    results = [entry for row in rows for entry in row.results]
    saved = [Result(**entry) for entry in json.loads((folder / "results.json").read_text())]
    assert [entry.entry() | {"significance": []} for entry in results] == [
        entry.entry() | {"significance": []} for entry in saved
    ]
    assert markdown(build_table(results, row_of)) == (folder / "results.md").read_text()


def test_the_first_measure_of_a_query_set_is_the_main_one() -> None:
    """A further measure is in the table and not tested."""
    first = [result("bm25_lemm", measurement(BASE)), result("nn_model1", measurement(SEEDS[0]), fused=True)]
    further = [entry._replace(measure="P@10") for entry in first]
    assert main_results([*first, *further]) == {"test": first}
    tested = with_tests([*first, *further])
    assert [len(entry.significance) for entry in tested] == [0, 1, 0, 0]
