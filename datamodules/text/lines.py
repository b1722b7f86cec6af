"""Read lines of plain or gzipped text files in the layouts of MS MARCO: documents, queries, qrels.

Each reader yields sound lines and counts the broken ones in a `LineReport`.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lexical.errors import UserError

COLUMNS = "with the wrong number of columns"
ENCODING = "that are not UTF-8"
EMPTY = "with an empty text"
NO_ID = "with an empty or blank-containing id"
DUPLICATE = "with a duplicate id"
GRADE = "whose grade is not a whole number"
GRADES = re.compile(r"[+-]?\d{1,9}")  # stored as int32
MAX_BROKEN = 0.5  # a file with a larger share of broken lines is refused


@dataclass
class LineReport:
    """Broken lines of an input file: counted by kind, with the number of the first line of each kind."""

    file: str
    lines: int = 0
    broken: dict[str, int] = field(default_factory=dict)  # kind -> lines
    first: dict[str, int] = field(default_factory=dict)  # kind -> line number, from 1

    def add(self, kind: str, line: int) -> None:
        self.broken[kind] = self.broken.get(kind, 0) + 1
        self.first[kind] = min(line, self.first.get(kind, line))

    def accepts(self, line: TextLine) -> bool:
        """Return whether a document or query is sound; count it otherwise."""
        if not line.id or any(map(str.isspace, line.id)):  # TREC files separate columns by blanks
            self.add(NO_ID, line.line)
            return False
        if not line.text:
            self.add(EMPTY, line.line)
        return bool(line.text)

    def summary(self) -> str | None:
        """Describe the broken lines in one line; None if there are none."""
        if not self.broken:
            return None
        kinds = ", ".join(f"{count:,} {kind} (first: line {self.first[kind]:,})" for kind, count in self.broken.items())
        return f"{self.file}: left out {sum(self.broken.values()):,} of {self.lines:,} lines: {kinds}"

    def refuse_if_mostly_broken(self) -> None:
        if self.lines == 0:
            raise UserError(f"{self.file} is empty")
        if sum(self.broken.values()) > MAX_BROKEN * self.lines:
            raise UserError(f"{self.file} is refused: most of its lines are broken. {self.summary()}")


class TextLine(NamedTuple):
    """A document or a query."""

    line: int  # line number in the file, from 1
    id: str
    text: str


class Judgement(NamedTuple):
    line: int
    query_id: str
    document_id: str
    grade: int


def read_documents(path: Path, report: LineReport) -> Iterator[TextLine]:
    """Read ``id \\t text`` or ``id \\t url \\t title \\t body``, whose text is title and body.

    The first sound line decides which of the two layouts the file has.
    """
    columns = {2, 4}
    for number, line in _lines(path, report):
        parts = line.split("\t")
        if len(parts) not in columns:
            report.add(COLUMNS, number)
            continue
        texts = parts[1:] if len(parts) == 2 else parts[2:]
        document = TextLine(number, parts[0], " ".join(filter(None, texts)).strip())
        if report.accepts(document):
            columns = {len(parts)}
            yield document


def read_queries(path: Path, report: LineReport) -> Iterator[TextLine]:
    """Read ``id \\t text``; of several lines with the same id the first counts."""
    seen: set[str] = set()
    for number, line in _lines(path, report):
        query_id, *texts = line.split("\t")
        if len(texts) != 1:
            report.add(COLUMNS, number)
        elif report.accepts(query := TextLine(number, query_id, texts[0].strip())):
            if query_id in seen:
                report.add(DUPLICATE, number)
            else:
                seen.add(query_id)
                yield query


def read_qrels(path: Path, report: LineReport) -> Iterator[Judgement]:
    """Read ``qid 0 docid grade``, separated by blanks or tabs."""
    for number, line in _lines(path, report):
        parts = line.split()
        if len(parts) != 4:
            report.add(COLUMNS, number)
        elif not GRADES.fullmatch(parts[3]):
            report.add(GRADE, number)
        else:
            yield Judgement(number, parts[0], parts[2], int(parts[3]))


def find_file(folder: Path, name: str) -> Path | None:
    """Return the file `name` or ``name.gz`` of `folder`."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _lines(path: Path, report: LineReport) -> Iterator[tuple[int, str]]:
    """Yield (line number, text without the line end) of every line that is UTF-8."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                report.lines = number
                if number == 1:
                    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0\0" in raw[1:20:2]:
                        raise UserError(f"{path} is UTF-16: save it as UTF-8")
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                try:
                    yield number, raw.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    report.add(ENCODING, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path} is truncated or not a gzip file (after line {report.lines:,}): download it again"
        ) from error
