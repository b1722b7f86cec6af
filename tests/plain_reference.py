"""BM25 and the reciprocal rank in plain Python, from lists and text: what the kernels are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

Tokens = Sequence[int]


def plain_idf(documents: Sequence[Tokens], token: int) -> float:
    containing = sum(token in document for document in documents)
    return math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5)) if containing else 0.0


def plain_bm25(documents: Sequence[Tokens], query: Tokens, number: int, k1: float, b: float) -> float:
    """BM25 of document `number`; each token of `query` counts, repeats too, and unknown ones are in no document."""
    document = documents[number]
    mean_length = sum(map(len, documents)) / len(documents)
    score = 0.0
    for token in query:
        tf = document.count(token)
        if tf:
            score += plain_idf(documents, token) * tf / (tf + k1 * (1 - b + b * len(document) / mean_length))
    return score


def plain_reciprocal_rank(ids: Sequence[str], scores: Sequence[float], relevant: Sequence[bool]) -> float:
    """By the project's rule: score down, then document id up, as text."""
    ranked = sorted(zip(ids, scores, relevant, strict=True), key=lambda row: (-row[1], row[0]))
    return next((1 / rank for rank, (_, _, good) in enumerate(ranked, start=1) if good), 0.0)
