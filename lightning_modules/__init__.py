"""The rankers, each a `LightningModule`: `L.Trainer().fit(model, data)` trains them on any data of `datamodules`."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "BM25": "bm25",
    "BertRanker": "bert.ranker",
    "ExportedModel1": "neural_model1.exported",
    "Leaderboard": "leaderboard",
    "LeaderboardTraditional": "leaderboard",
    "Model1": "model1.em",
    "Model1Embed": "model1.embeddings",
    "Model1Table": "model1.given_table",
    "NeuralModel1": "neural_model1.ranker",
    "NeuralModel1Cosine": "neural_model1.ranker",
    "NeuralModel1EM": "neural_model1.em_prior",
    "NeuralRanker": "neural_ranker",
    "Ranker": "ranker",
    "load_ranker": "trained",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a ranker when it is first used: torch and Lightning take seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
