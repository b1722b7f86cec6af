"""Pages that need no network: a template with styles, scripts and data put into it.

Texts from data stay texts: in the JSON no character is left that could end the script element, and the scripts write
them with textContent only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def page_part(beside: str, name: str) -> str:
    """The template, style or script `name` in the folder of the module file `beside`."""
    return Path(beside).with_name(name).read_text(encoding="utf-8")


def filled(template: str, parts: Mapping[str, str]) -> str:
    """The template with its {{placeholders}} filled in, in one pass: what is put in cannot hold a placeholder."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def script_json(content: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or a line of JavaScript."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text)
