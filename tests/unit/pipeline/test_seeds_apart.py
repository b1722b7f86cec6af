"""Seeds of one ranker that were trained and measured on several machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.results_table import Result
from pipeline.results import _averaged
from pipeline.run_folder import RunFolder
from pipeline.steps import what_is_learned


def measured(
    folder: Path, seed: int, sets: dict[str, float], device: str, time: float
) -> tuple[RunFolder, list[Result]]:
    run = RunFolder(folder / f"seed-{seed}")
    for query_set, value in sets.items():
        path = run.per_query(query_set, alone=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"query\tmeasure\tvalue\nq1\tMRR\t{value}\n")
    return run, [
        Result(
            model=folder.name, fused=False, query_set=query_set, measure="MRR", value=value, seeds=1, queries=1,
            depth=20, ms_per_1k=time, device=device, threads=2, significance=[],
        )
        for query_set, value in sets.items()
    ]  # fmt: skip


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_only_what_all_seeds_have_is_averaged_and_times_are_of_one_device(
    order: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bert_vanilla_short"
    seeds = [
        measured(folder, 1, {"test_cpu": 0.5}, "cpu", 20_000.0),
        measured(folder, 2, {"test": 0.3, "test_cpu": 0.25}, "cuda", 50.0),
    ]
    (found,) = _averaged(folder, [seeds[place] for place in order])
    assert (found.query_set, found.value, found.seeds) == ("test_cpu", 0.375, 2)
    assert (found.device, found.ms_per_1k) == [("cpu", 20_000.0), ("cuda", 50.0)][order[0]]
    assert "not all seeds are measured on test:" in capsys.readouterr().err


def test_another_machine_or_folder_makes_no_other_ranker() -> None:
    config = {
        "seed": 1,
        "output_dir": "outputs",
        "model": {"p_self": 0.3, "pairs_at_once": 2},
        "trainer": {"max_epochs": 3, "devices": 1, "accumulate_grad_batches": 4},
        "data": {"tokenizer": "packaged", "workers": 0, "cache_dir": "cache"},
    }
    elsewhere = {
        "seed": 1,
        "output_dir": "/shared/outputs",
        "model": {"p_self": 0.3, "pairs_at_once": 8},
        "trainer": {"max_epochs": 3, "devices": 4, "accumulate_grad_batches": 1},
        "data": {"tokenizer": "packaged", "workers": 2, "cache_dir": "/fast/cache"},
    }
    assert what_is_learned(config) == what_is_learned(elsewhere)
    for section, key, value in (("model", "p_self", 0.1), ("trainer", "max_epochs", 4), ("data", "tokenizer", "mine")):
        assert what_is_learned({**elsewhere, section: {**elsewhere[section], key: value}}) != what_is_learned(config)  # type: ignore[dict-item]
    assert what_is_learned({**elsewhere, "seed": 2}) != what_is_learned(config)
