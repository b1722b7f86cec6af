"""Pages of one file: placeholders, and JSON inside a script element."""

from __future__ import annotations

import json
import re

import pytest

from evaluation.page_template import filled, script_json
from tests.fixtures.small_report import HOSTILE


def test_json_in_a_script_has_no_character_that_could_end_it() -> None:
    content = {"a": HOSTILE, "b": ["\u2029", "ü", "<!--", 1.5, None]}
    text = script_json(content)
    assert not re.search("[<>&\u2028\u2029]", text) and json.loads(text) == content
    with pytest.raises(ValueError, match="JSON"):
        script_json(float("nan"))


def test_a_part_cannot_hold_a_placeholder() -> None:
    assert filled("{{a}} {{b}}", {"a": "{{b}}", "b": "c"}) == "{{b}} c"
