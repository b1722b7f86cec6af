"""Names on a command line and the YAML files that they stand for."""

from __future__ import annotations

from pathlib import Path

import yaml

from pipeline.configs import resolve


def test_a_data_file_that_extends_another_keeps_its_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "pydocs_passage", "data": {"init_args": {"depth": 50}}}))
    resolved = resolve(["--data", str(path), "--model", "nn_model1"])
    assert resolved.profile == resolve(["--data", "pydocs_passage"]).profile == "small_passages"
    assert resolved.data.settings["depth"] == 50 and resolved.model is not None
    assert resolved.model.settings["margin"] == 8.0  # of the profile
