"""The settings in a run folder that decide whether two trainings are the same."""

from __future__ import annotations

from typing import Any

from pipeline.run_folder import settings_that_matter


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
