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
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from datamodules.cached_step import code_version
from datamodules.pydocs.docstring_text import without_phrase
from datamodules.pydocs.mining import Docstring, MinedPackage, mine_packages
from datamodules.pydocs.pages import fold_pages
from datamodules.pydocs.pairs import BOILERPLATE, DUPLICATE, KEPT, NEAR_DUPLICATE, TEMPLATE, Pairs, select_pairs
from datamodules.pydocs.sources import installed_sources
from datamodules.pydocs.splits import QUERY_SETS, split_queries
from datamodules.text.lines import Document, LineReport
from datamodules.text.query_sets import JudgedQuery, without_shared_texts
from datamodules.text.sources import TEXT_CODE, write_documents, write_query_sets
from datamodules.worker_pool import cores

Granularity = Literal["passage", "page"]

UNPARSABLE = "unparsable file"
NOT_ON_PAGES = (BOILERPLATE, DUPLICATE, NEAR_DUPLICATE, TEMPLATE)
CODE = ["embedded_data", "sources", "mining", "pairs", "pages", "splits", "docstring_text", "near_duplicates"]


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
        write_documents((Document(i, *row) for i, row in enumerate(data.documents, start=1)), report, folder)
        notes = [*filter(None, [report.summary()])]
        write_query_sets(without_shared_texts(judged_queries(data), notes), notes, folder)
        with (folder / "names.tsv").open("w", encoding="utf-8") as file:
            file.writelines(f"{document_id}\t{name}\n" for document_id, name in data.names)
        origin = {"content_hash": content_hash(data), "sources": data.sources, "left_out": data.drops}
        (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n")


@cache  # takes seconds: the files of many packages are listed; they do not change while we run
def _installed_versions() -> list[tuple[str, str]]:
    return [(source.distribution, source.version) for source in installed_sources()]


class EmbeddedData(NamedTuple):
    """A collection with its query sets and where it came from.

    Every text is one line without tabs; every id is free of blanks.
    """

    documents: list[tuple[str, str]]  # (doc_id, text); ids are short: a run file repeats them a thousand times a query
    names: list[tuple[str, str]]  # (doc_id, where it stands: package.module:Class.method, or a page)
    queries: dict[str, list[tuple[str, str]]]  # query set -> (query_id, text)
    qrels: dict[str, list[tuple[str, str]]]  # query set -> (query_id, relevant doc_id)
    sources: list[dict[str, Any]]  # what each package contributed
    drops: dict[str, int]  # reason -> docstrings that gave no pair (and files that are not Python)


def build_embedded_data(packages: Sequence[MinedPackage], granularity: Granularity) -> EmbeddedData:
    """Build queries, documents and relevance from mined docstrings."""
    docstrings = [docstring for package in packages for docstring in package.docstrings]
    pairs = select_pairs(docstrings)
    relevant_texts = [[docstrings[i].rest for i in query.relevant] for query in pairs.queries]
    query_sets = split_queries([query.text for query in pairs.queries], relevant_texts)
    documents, document_of = (_passages if granularity == "passage" else _pages)(docstrings, pairs)
    short = _short_ids([name for name, _ in documents])
    queries: dict[str, list[tuple[str, str]]] = {name: [] for name in QUERY_SETS}
    qrels: dict[str, list[tuple[str, str]]] = {name: [] for name in QUERY_SETS}
    for number, (query, query_set) in enumerate(zip(pairs.queries, query_sets, strict=True), start=1):
        query_id = f"q{number:05d}"
        queries[query_set].append((query_id, query.text))
        relevant = dict.fromkeys(short[document_of[position]] for position in query.relevant)  # two passages, one page
        qrels[query_set] += [(query_id, doc_id) for doc_id in relevant]
    drops = Counter(fate for fate in pairs.fates if fate != KEPT)
    drops[UNPARSABLE] = sum(package.unparsable_files for package in packages)
    return EmbeddedData(
        [(short[name], text) for name, text in documents],
        [(doc_id, name) for name, doc_id in short.items()],
        queries,
        qrels,
        _contributions(packages, pairs.fates),
        dict(sorted(drops.items())),
    )


def judged_queries(data: EmbeddedData) -> dict[str, list[JudgedQuery]]:
    """Return the query sets with document rows."""
    rows = {doc_id: row for row, (doc_id, _) in enumerate(data.documents)}
    sets = {}
    for name, queries in data.queries.items():
        relevant: dict[str, list[tuple[str, int, int]]] = {}
        for query_id, doc_id in data.qrels[name]:
            relevant.setdefault(query_id, []).append((doc_id, rows[doc_id], 1))
        sets[name] = [JudgedQuery(query_id, text, relevant[query_id]) for query_id, text in queries]
    return sets


def content_hash(data: EmbeddedData) -> str:
    """Return the SHA-256 of documents, queries and relevance in order: everything that rankers and measures read.

    Licence texts and file counts, which may differ between wheels of one version, are left out.
    """
    digest = hashlib.sha256()

    def add(name: str, rows: Iterable[tuple[str, str]]) -> None:
        for first, second in rows:
            digest.update(f"{name}\t{first}\t{second}\n".encode())

    add("document", data.documents)
    for query_set in QUERY_SETS:
        add(f"query {query_set}", data.queries[query_set])
        add(f"qrel {query_set}", data.qrels[query_set])
    return digest.hexdigest()


def _passages(docstrings: Sequence[Docstring], pairs: Pairs) -> tuple[list[tuple[str, str]], dict[int, str]]:
    """Return (name, text) of each passage, and the passage of each relevant docstring."""
    document_of: dict[int, str] = {}
    uses: Counter[str] = Counter()
    for position in (i for i, fate in enumerate(pairs.fates) if fate == KEPT):
        name = docstrings[position].qualified_name
        uses[name] += 1  # overloads, property setters and conditional definitions share a name
        document_of[position] = name if uses[name] == 1 else f"{name}~{uses[name]}"
    return [(name, docstrings[position].rest) for position, name in document_of.items()], document_of


def _pages(docstrings: Sequence[Docstring], pairs: Pairs) -> tuple[list[tuple[str, str]], dict[int, str]]:
    """Return (name, text) of each page, and the page of each relevant docstring.

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
    return list(page_texts.items()), page_of


def _short_ids(names: Sequence[str]) -> dict[str, str]:
    """Return name -> package and number, such as ``numpy-00017``."""
    used: Counter[str] = Counter()
    short = {}
    for name in names:
        package = re.split("[.:~]", name, maxsplit=1)[0]
        used[package] += 1
        short[name] = f"{package}-{used[package]:05d}"
    return short


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
