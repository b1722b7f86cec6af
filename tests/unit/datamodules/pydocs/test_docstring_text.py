"""Summary and rest of a docstring as plain text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.pydocs.docstring_text import split_docstring, without_phrase


@pytest.mark.parametrize(
    ("docstring", "summary", "rest"),
    [
        (
            "Compute the norm.\n\nParameters\n----------\nx : array",
            "Compute the norm",
            "Parameters x : array",
        ),
        ("Compute a\nlong norm. It is\nfast.", "Compute a long norm", "It is fast."),
        ("Compute it, e.g. The norm. Then stop.", "Compute it, e.g. The norm", "Then stop."),
        ("Load :class:`~a.b.Model` now.\nArgs:\n    x: y", "Load a.b.Model now", "Args: x: y"),
        ("abs(input, *, out=None) -> Tensor\n\nComputes it.\n\nMore.", "Computes it", "More."),
        ("Args:\n    x (int): the x", "", "Args: x (int): the x"),
        ("x (`int`, *optional*):\n    The x.", "", "x (int, *optional*): The x."),
        ("=====\nTitle here\n=====\n\nText.", "Title here", "Text."),
        ("See `the guide <http://a.b>`_ **now**, x**2.", "See the guide now, x**2", ""),
        ("", "", ""),
    ],
)
def test_summary_and_rest(docstring: str, summary: str, rest: str) -> None:
    assert split_docstring(docstring) == (summary, rest)


def test_cutting_a_phrase_also_cuts_what_the_cut_brings_together() -> None:
    assert without_phrase("Sum of sum of all rows all rows. Ok", "Sum of all rows") == ". Ok"
    assert without_phrase("İstanbul: SUM OF ROWS", "sum of rows").endswith("stanbul:")


@given(st.text(max_size=60), st.text(min_size=1, max_size=4))
def test_a_cut_phrase_is_gone(text: str, phrase: str) -> None:
    assert phrase.lower() not in without_phrase(text, phrase).lower()
