"""Results of a ranker whose seeds were trained and measured on several machines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluation.measurements import Measurement, read_measurements, write_measurements
from evaluation.results_table import Result
from lexical.small_files import write_json, write_text
from pipeline.results import SeedResults, collect_rows
from pipeline.run_folder import RunFolder, settings_that_matter

DATA: Any = SimpleNamespace(fingerprint=lambda: "data")


def measure(folder: Path, seed: int, values: dict[str, float], device: str, milliseconds: float) -> None:
    """Write what evaluate.py leaves for a seed: the MRR of two queries of each query set."""
    run = RunFolder(folder / f"seed-{seed}")
    write_text(run.config, "{}")
    write_json(run.dependencies, {})
    for query_set, value in values.items():
        measurement = Measurement(query_set, False, "MRR", ["q1", "q2"], np.array([[value, 0.0]]))
        write_measurements(run.path, [measurement])
    results = [
        Result(
            model=folder.name, fused=False, query_set=query_set, measure="MRR", value=value / 2, seeds=1, queries=2,
            depth=20, ms_per_1k=milliseconds, device=device, threads=2, significance=[],
        )
        for query_set, value in values.items()
    ]  # fmt: skip
    SeedResults(run, DATA.fingerprint(), results, []).write(seconds=1.0)


@pytest.mark.parametrize("gpu_first", [False, True])
def test_what_all_seeds_have_is_averaged_and_times_are_of_one_device(
    gpu_first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bert_vanilla_short"
    measure(folder, 2 if gpu_first else 1, {"test_cpu": 0.5}, "cpu", 20_000.0)
    measure(folder, 1 if gpu_first else 2, {"test": 0.3, "test_cpu": 0.25}, "cuda", 50.0)
    ((result,),) = (row.results for row in collect_rows(tmp_path, DATA, {}))
    assert (result.query_set, result.value, result.seeds) == ("test_cpu", 0.1875, 2)
    assert (result.device, result.ms_per_1k) == (("cuda", 50.0) if gpu_first else ("cpu", 20_000.0))
    assert read_measurements(folder, "test_cpu", alone=False)[0].per_query == {"q1": 0.375, "q2": 0.0}
    assert "not all seeds are measured on test MRR:" in capsys.readouterr().err


def test_another_machine_or_folder_trains_the_same_ranker() -> None:
    config: dict[str, Any] = {
        "seed": 1,
        "output_dir": "outputs",
        "model": {"p_self": 0.3, "pairs_at_once": 2},
        "trainer": {"max_epochs": 3, "devices": 1, "accumulate_grad_batches": 4},
        "data": {"tokenizer": "packaged", "workers": 0, "cache_dir": "cache"},
    }
    elsewhere: dict[str, Any] = {
        "seed": 1,
        "output_dir": "/shared/outputs",
        "model": {"p_self": 0.3, "pairs_at_once": 8},
        "trainer": {"max_epochs": 3, "devices": 4, "accumulate_grad_batches": 1},
        "data": {"tokenizer": "packaged", "workers": 2, "cache_dir": "/fast/cache"},
    }
    assert settings_that_matter(config) == settings_that_matter(elsewhere)
    changes = (("model", "p_self", 0.1), ("trainer", "max_epochs", 4), ("data", "tokenizer", "other"))
    for section, key, value in changes:
        changed = {**elsewhere, section: {**elsewhere[section], key: value}}
        assert settings_that_matter(changed) != settings_that_matter(config)
    assert settings_that_matter({**elsewhere, "seed": 2}) != settings_that_matter(config)
