"""Pages that need no network: a template with styles, scripts and data put into it.

Text from data stays text: in JSON no character is left that could end the script element, and the scripts write it
with textContent only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def page_part(beside: str, name: str) -> str:
    """Read the template, style or script `name` in the folder of the module file `beside`."""
    return Path(beside).with_name(name).read_text(encoding="utf-8")


def filled(template: str, parts: Mapping[str, str]) -> str:
    """Fill in the {{placeholders}} of a template in one pass: a part cannot hold a placeholder itself."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def script_json(content: Any) -> str:
    """Return JSON for a script element: nothing in it can end the element or a line of JavaScript."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)
