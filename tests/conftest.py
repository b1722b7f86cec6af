"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_folder import write_small_folder


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents, 300 training, 60 dev and 40 test queries in the MS MARCO layout; shared, so read it only."""
    return write_small_folder(tmp_path_factory.mktemp("data") / "small")
