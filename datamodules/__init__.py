"""The data modules, each a `LightningDataModule`: `L.Trainer().fit(model, PyDocs())` with any ranker."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {"Folder": "data_sets", "MSMarco": "data_sets", "PyDocs": "data_sets", "RetrievalData": "retrieval_data"}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a data module when it is first used: worker processes import this package without Lightning."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
