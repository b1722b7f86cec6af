"""The data modules, each a `LightningDataModule`: `L.Trainer().fit(model, PyDocs())` with any ranker."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Folder", "MSMarco", "PyDocs", "RetrievalData"]


def __getattr__(name: str) -> Any:
    """Import a data module when it is first used: worker processes import this package without Lightning."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.data_sets"), name)
