"""The embedded data: real queries and documents on every machine that has the requirements installed.

Docstrings of a fixed list of pinned packages; the query is the one-line summary, the relevant document the rest of that
docstring (`passage`) or the documentation page on which it stands (`page`). Both granularities have the same queries in
the same sets. The data is a pure function of the pinned packages; `content_hash` identifies it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from datamodules.cached_step import code_version
from datamodules.pydocs.docstring_text import without_phrase
from datamodules.pydocs.mining import Docstring, MinedPackage, installed_sources, mine_packages
from datamodules.pydocs.pairs import (
    BOILERPLATE,
    DUPLICATE,
    KEPT,
    NEAR_DUPLICATE,
    TEMPLATE,
    Pairs,
    select_pairs,
    split_queries,
)
from datamodules.text.collection import write_collection
from datamodules.text.lines import LineReport, TextLine
from datamodules.text.query_sets import SPLIT_SETS, JudgedQuery, without_shared_texts
from datamodules.text.sources import TEXT_CODE, write_query_sets
from datamodules.worker_pool import cores

Granularity = Literal["passage", "page"]

UNPARSABLE = "unparsable file"
NOT_ON_PAGES = (BOILERPLATE, DUPLICATE, NEAR_DUPLICATE, TEMPLATE)
SMALLEST_PAGE = 500  # words; a smaller page folds into its parent
CODE = ["embedded_data", "mining", "pairs", "docstring_text", "near_duplicates"]


class PyDocsTexts:
    """The embedded data as a source of texts; `workers` processes read the packages, 0 means one per core."""

    def __init__(self, granularity: Granularity, workers: int) -> None:
        self.granularity, self.workers = granularity, workers

    def identity(self) -> Any:
        code = code_version([*TEXT_CODE, *(f"datamodules.pydocs.{name}" for name in CODE)])
        return {"granularity": self.granularity, "packages": _installed_versions(), "code": code}

    def write(self, folder: Path) -> None:
        data = build_embedded_data(mine_packages(installed_sources(), self.workers or cores()), self.granularity)
        report = LineReport("the mined docstrings", len(data.documents))
        documents = (TextLine(i, *row) for i, row in enumerate(data.documents, start=1))
        write_collection(documents, report, folder / "collection")
        notes = [*filter(None, [report.summary()])]
        write_query_sets(without_shared_texts(data.query_sets, notes), notes, folder)
        origin = {"content_hash": content_hash(data), "sources": data.sources, "left_out": data.left_out}
        (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n")


@cache  # takes seconds: the files of many packages are listed; they do not change while we run
def _installed_versions() -> list[tuple[str, str]]:
    return [(source.distribution, source.version) for source in installed_sources()]


class EmbeddedData(NamedTuple):
    """A collection with its query sets and where it came from.

    Every text is one line without tabs; every id is free of blanks.
    """

    documents: list[tuple[str, str]]  # (doc_id, text); ids are short: a run file repeats them a thousand times a query
    query_sets: dict[str, list[JudgedQuery]]
    sources: list[dict[str, Any]]  # what each package contributed
    left_out: dict[str, int]  # reason -> docstrings that gave no pair (and files that are not Python)


def build_embedded_data(packages: Sequence[MinedPackage], granularity: Granularity) -> EmbeddedData:
    """Build queries, documents and relevance from mined docstrings."""
    docstrings = [docstring for package in packages for docstring in package.docstrings]
    pairs = select_pairs(docstrings)
    relevant_texts = [[docstrings[i].rest for i in query.relevant] for query in pairs.queries]
    query_set_of = split_queries([query.text for query in pairs.queries], relevant_texts)
    texts, name_of = (_passages if granularity == "passage" else _pages)(docstrings, pairs)
    relevant_documents = _numbered(texts)
    query_sets: dict[str, list[JudgedQuery]] = {name: [] for name in SPLIT_SETS}
    for number, (query, query_set) in enumerate(zip(pairs.queries, query_set_of, strict=True), start=1):
        names = dict.fromkeys(name_of[position] for position in query.relevant)  # two passages may be on one page
        relevant = [relevant_documents[name] for name in names]
        query_sets[query_set].append(JudgedQuery(f"q{number:05d}", query.text, relevant))
    left_out = Counter(fate for fate in pairs.fates if fate != KEPT)
    left_out[UNPARSABLE] = sum(package.unparsable_files for package in packages)
    documents = [(relevant_documents[name][0], text) for name, text in texts.items()]
    sources = _contributions(packages, pairs.fates)
    return EmbeddedData(documents, query_sets, sources, dict(sorted(left_out.items())))


def content_hash(data: EmbeddedData) -> str:
    """Return the SHA-256 of documents, queries and relevance in order: everything that rankers and measures read.

    Licence texts and file counts, which may differ between wheels of one version, are left out.
    """
    rows = [("document", doc_id, text) for doc_id, text in data.documents]
    for name in SPLIT_SETS:
        rows += [(f"query {name}", query.id, query.text) for query in data.query_sets[name]]
        rows += [
            (f"qrel {name}", query.id, doc_id) for query in data.query_sets[name] for doc_id, _, _ in query.documents
        ]
    return hashlib.sha256("".join("\t".join(row) + "\n" for row in rows).encode()).hexdigest()


def _passages(docstrings: Sequence[Docstring], pairs: Pairs) -> tuple[dict[str, str], dict[int, str]]:
    """Return name -> text of the passages, and the passage of each relevant docstring."""
    name_of: dict[int, str] = {}
    uses: Counter[str] = Counter()
    for position in (i for i, fate in enumerate(pairs.fates) if fate == KEPT):
        name = docstrings[position].qualified_name
        uses[name] += 1  # overloads, property setters and conditional definitions share a name
        name_of[position] = name if uses[name] == 1 else f"{name}~{uses[name]}"
    return {name: docstrings[position].rest for position, name in name_of.items()}, name_of


def _pages(docstrings: Sequence[Docstring], pairs: Pairs) -> tuple[dict[str, str], dict[int, str]]:
    """Return name -> text of the pages, and the page of each relevant docstring.

    Copies are left out, so that no other page holds a relevant passage. A summary that is a query is left out too, and
    the query's text is cut from its relevant pages wherever else it stands.
    """
    texts = [
        docstring.rest if fate == KEPT or not docstring.summary else f"{docstring.summary}. {docstring.rest}".strip()
        for docstring, fate in zip(docstrings, pairs.fates, strict=True)
    ]
    shown = [i for i, fate in enumerate(pairs.fates) if fate not in NOT_ON_PAGES and texts[i]]
    pages = fold_pages(docstrings, shown, texts)
    page_of = {position: name for name, members in pages.items() for position in members}
    page_texts = {name: " ".join(texts[position] for position in members) for name, members in pages.items()}
    # Cutting one query may bring two halves of another together: repeat until no query stands on its page.
    cuts = [(page_of[position], query.text) for query in pairs.queries for position in query.relevant]
    before: dict[str, str] = {}
    while page_texts != before:
        before = dict(page_texts)
        for name, query in cuts:
            page_texts[name] = without_phrase(page_texts[name], query)
    return page_texts, page_of


def fold_pages(docstrings: Sequence[Docstring], shown: Collection[int], texts: Sequence[str]) -> dict[str, list[int]]:
    """Return page -> positions of its docstrings, in source order; each of `shown` is on exactly one page.

    A page is named `package.module` or `package.module:Class`. As in a manual, a small class stands on the page of its
    outer class or module, a small module on that of its package: sizes are words of `texts`, what each docstring
    contributes to a page.
    """
    members: dict[str, list[int]] = {}
    for position in shown:
        name = f"{docstrings[position].module}:{docstrings[position].owner}".rstrip(":")
        members.setdefault(name, []).append(position)
        while name := _parent(name):
            members.setdefault(name, [])
    words = {name: sum(len(texts[position].split()) for position in page) for name, page in members.items()}
    for name in sorted(members, key=lambda name: -len(re.findall("[.:]", name))):  # children before their parents
        if (parent := _parent(name)) and words[name] < SMALLEST_PAGE:
            members[parent] += members.pop(name)
            words[parent] += words[name]
    pages = sorted((sorted(page), name) for name, page in members.items() if page)
    return {name: page for page, name in pages}


def _parent(page: str) -> str:
    """Return the outer class, module or package of a page; "" at the top."""
    return re.sub(r"[.:]?[^.:]*$", "", page, count=1)


def _numbered(names: Collection[str]) -> dict[str, tuple[str, int, int]]:
    """Return name -> (id, row, grade) of relevant documents; an id is package and number, such as ``numpy-00017``."""
    numbers: Counter[str] = Counter()
    documents = {}
    for row, name in enumerate(names):
        package = re.split("[.:~]", name, maxsplit=1)[0]
        numbers[package] += 1
        documents[name] = f"{package}-{numbers[package]:05d}", row, 1
    return documents


def _contributions(packages: Sequence[MinedPackage], fates: list[str]) -> list[dict[str, Any]]:
    """Return version, licence and counts of each package."""
    contributions, start = [], 0
    for package in packages:
        end = start + len(package.docstrings)
        contributions.append({
            "package": package.source.distribution, "version": package.source.version,
            "licence": package.source.licence, "files": package.files,
            "docstrings": end - start, "pairs": fates[start:end].count(KEPT),
        })  # fmt: skip
        start = end
    return contributions
