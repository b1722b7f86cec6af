"""Explanations as JSON, and as one page that needs no network (explain.py --json, --html)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apps.explanation import Explanation, as_json, differences
from evaluation.page_template import filled, page_part, script_json


def explanations_json(
    explanations: Sequence[Explanation], data: str, pieces: bool = False, compared: bool = False
) -> dict[str, Any]:
    """What `explain.py --json` prints and the page shows; `compared`: also why the first is above the second."""
    first = explanations[0]
    found: dict[str, Any] = {
        "model": first.model,
        "data": data,
        "query": first.query,
        "documents": [as_json(one, pieces) for one in explanations],
    }
    if compared:
        other = explanations[1]
        where = "above" if first.score >= other.score else "below"
        found["difference"] = {
            "title": f"Why {first.document} is {where} {other.document}",
            "score": first.score - other.score,
            "features": [feature.name for feature in first.features],
            "words": [
                {"word": one.text, "by_feature": list(one.by_feature), "total": one.total}
                for one in differences(first, other)
            ],
        }
    return found


def explanation_page(content: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """The page of `explanations_json`; of several, one below the other."""
    scripts = [page_part(__file__, name) for name in ("evidence_view.js", "explanation_page.js")]
    parts = {
        "style": page_part(__file__, "evidence_view.css"),
        "data": script_json(content),
        "script": "\n".join(scripts),
    }
    return filled(page_part(__file__, "explanation_page.html"), parts)
