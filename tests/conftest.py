"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numba
import pytest
import torch

from lexical import terminal
from tests.fixtures.browser import browser, browser_page  # noqa: F401 - fixtures
from tests.fixtures.small_folder import write_small_folder

if TYPE_CHECKING:
    from tests.fixtures.explained_rows import Explained


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents, 300 training, 60 dev and 40 test queries in the MS MARCO layout; shared, so read it only."""
    return write_small_folder(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="session")
def explained_rows(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    from tests.fixtures.explained_rows import train_explained  # imports the whole project: only where it is needed

    return train_explained(tmp_path_factory.mktemp("explained"))


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a program of its own: it prints its notices."""
    monkeypatch.setattr(terminal, "_said", set())


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads of kernels would wait for each other on a busy machine; tests of threads have a process of their own."""
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(threads)


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """A test may change the number of torch's threads."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
