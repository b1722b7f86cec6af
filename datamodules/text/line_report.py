"""Broken lines of an input file: counted, named with the first line number of each kind, never dropped in silence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lexical.errors import UserError

MOSTLY = 0.5  # a file with a larger share of broken lines is refused


@dataclass
class LineReport:
    file: str
    lines: int = 0
    broken: dict[str, int] = field(default_factory=dict)  # kind -> lines
    first: dict[str, int] = field(default_factory=dict)  # kind -> line number, from 1

    def add(self, kind: str, line: int, count: int = 1) -> None:
        self.broken[kind] = self.broken.get(kind, 0) + count
        self.first[kind] = min(line, self.first.get(kind, line))

    def summary(self) -> str | None:
        """One line, or None where nothing was broken."""
        if not self.broken:
            return None
        kinds = ", ".join(f"{count:,} {kind} (first: line {self.first[kind]:,})" for kind, count in self.broken.items())
        return f"{self.file}: left out {sum(self.broken.values()):,} of {self.lines:,} lines: {kinds}"

    def refuse_if_mostly_broken(self) -> None:
        if self.lines == 0:
            raise UserError(f"{self.file} is empty")
        if sum(self.broken.values()) > MOSTLY * self.lines:
            raise UserError(f"{self.file} is refused, most of its lines are broken. {self.summary()}")

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, "lines": self.lines, "broken": self.broken, "first": self.first}
