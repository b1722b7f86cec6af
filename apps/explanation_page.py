"""Explanations as JSON, and as one page that needs no network (explain.py --json, --html)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader

from apps.explanation import Explanation, Feature, differences, feature_view

MOST_LISTED = 300  # document words of one query word in `rests_on`: the strongest
LEAST_OF_BEST = 0.002  # of the strongest share; smaller ones are summed in `others`
SMALLEST = 1e-5  # smaller shares would be written as 0

FOLDER = Path(__file__).parent
PAGES = Environment(loader=FileSystemLoader(FOLDER), autoescape=True)  # texts of data stay texts, in JSON too
PAGES.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}


def explanations_json(
    explanations: Sequence[Explanation], data: str, pieces: bool = False, compared: bool = False
) -> dict[str, Any]:
    """Return what `explain.py --json` prints and the page shows; `compared` adds why the first is above the second."""
    first = explanations[0]
    content: dict[str, Any] = {
        "model": first.model,
        "data": data,
        "query": first.query,
        "documents": [explanation_json(explanation, pieces) for explanation in explanations],
    }
    if compared:
        second = explanations[1]
        where = "above" if first.score >= second.score else "below"
        content["difference"] = {
            "title": f"Why {first.document} is {where} {second.document}",
            "score": first.score - second.score,
            "features": [feature.name for feature in first.features],
            "words": [{**word._asdict(), "total": sum(word.by_feature)} for word in differences(first, second)],
        }
    return content


def explanation_json(explanation: Explanation, pieces: bool = False) -> dict[str, Any]:
    """Return one document and all parts of its score in plain types."""
    features = [_feature_json(explanation, feature, pieces) for feature in explanation.features]
    return {**explanation._asdict(), "features": features}


def _feature_json(explanation: Explanation, feature: Feature, pieces: bool) -> dict[str, Any]:
    view = feature_view(feature, explanation.query, explanation.text, pieces)
    words = []
    for word in view.query:
        numbers = word._asdict()
        text, fractions = numbers.pop("text"), numbers.pop("fractions")
        listed = _largest(fractions)
        shares = fractions[listed]
        rests_on = {
            "rests_on": list(zip(listed.tolist(), np.round(shares, 5).tolist(), strict=True)),
            "others": max(0.0, float(fractions.sum() - shares.sum())),
            "strongest": [(share.text, round(share.share, 4)) for share in view.strongest(word)],
        }
        words.append({"word": text, **numbers, **rests_on})
    return {
        "name": feature.name,
        "kind": feature.evidence.kind,
        "weight": feature.weight,
        "value": feature.value,
        "query_words": words,
        "unread_query_words": [word.text for word in view.unread_query],
        "document_words": [(word.start, word.end) for word in view.document],
        "unread_from": view.unread_from,
        "chunks": view.chunks,
    }


def _largest(fractions: np.ndarray) -> np.ndarray:
    """Return the numbers of the document words that are listed, in the order of the text."""
    least = max(LEAST_OF_BEST * float(fractions.max(initial=0.0)), SMALLEST)
    largest = np.argsort(-fractions, kind="stable")[:MOST_LISTED]
    return np.sort(largest[fractions[largest] >= least])


def explanation_page(contents: Sequence[Mapping[str, Any]]) -> str:
    """Return one page of `explanations_json` contents, one query below the other."""
    return PAGES.get_template("explanation_page.html").render(contents=contents)
