"""The embedded data: real queries and documents on every machine that has the requirements installed.

Docstrings of a fixed list of pinned packages; the query is the one-line summary, the relevant document the
rest of that docstring (`passage`) or the documentation page on which it stands (`page`). Both granularities
have the same queries in the same sets. The data is a pure function of the pinned packages, and `content_hash`
names it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from datamodules.pydocs.docstring_text import without_phrase
from datamodules.pydocs.mining import Docstring, MinedPackage, mine_packages
from datamodules.pydocs.pages import fold_pages
from datamodules.pydocs.pairs import (
    BOILERPLATE,
    DUPLICATE,
    KEPT,
    NEAR_DUPLICATE,
    TEMPLATE,
    Pairs,
    select_pairs,
)
from datamodules.pydocs.sources import REQUIREMENTS_FILE, installed_sources
from datamodules.pydocs.splits import QUERY_SETS, Split, split_queries
from datamodules.worker_pool import cores

Granularity = Literal["passage", "page"]

UNPARSABLE = "unparsable file"
_NOT_ON_PAGES = (BOILERPLATE, DUPLICATE, NEAR_DUPLICATE, TEMPLATE)


class SourceCount(NamedTuple):
    """What a package contributed."""

    package: str
    version: str
    licence: str
    files: int
    docstrings: int
    pairs: int


class EmbeddedData(NamedTuple):
    """A collection with its query sets, and the account of where it came from.

    Every text is one line without tabs; every id is free of blanks.
    """

    documents: list[tuple[str, str]]  # (doc_id, text); the id is short: a run file repeats it a thousand times a query
    names: list[tuple[str, str]]  # (doc_id, where it stands: package.module:Class.method, or a page)
    queries: dict[str, list[tuple[str, str]]]  # query set -> (query_id, text)
    qrels: dict[str, list[tuple[str, str]]]  # query set -> (query_id, relevant doc_id)
    sources: list[SourceCount]
    drops: dict[str, int]  # reason -> docstrings that made no pair (and files that are not Python)
    largest_group: int  # queries in the largest family of look-alikes, which the split keeps together


def load_embedded_data(
    granularity: Granularity = "passage",
    workers: int | None = None,
    requirements: Path = REQUIREMENTS_FILE,
    progress: bool = True,
) -> EmbeddedData:
    """Mine the installed packages and build the data. `workers` defaults to one process per processor."""
    sources = installed_sources(requirements)
    return build_embedded_data(mine_packages(sources, workers or cores(), progress), granularity)


def build_embedded_data(packages: Sequence[MinedPackage], granularity: Granularity) -> EmbeddedData:
    """Queries, documents and relevance from mined docstrings."""
    docstrings = [docstring for package in packages for docstring in package.docstrings]
    pairs = select_pairs(docstrings)
    relevant_texts = [[docstrings[i].rest for i in query.relevant] for query in pairs.queries]
    split = split_queries([query.text for query in pairs.queries], relevant_texts)
    documents, document_of = (_passages if granularity == "passage" else _pages)(docstrings, pairs)
    return _assembled(packages, pairs, split, documents, document_of)


def content_hash(data: EmbeddedData) -> str:
    """SHA-256 over documents, queries and relevance in order: everything that a ranker or a measure can see.

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
    """(doc_id, text) of each passage, and the document in which each relevant docstring stands."""
    document_of: dict[int, str] = {}
    uses: Counter[str] = Counter()
    for position in (i for i, fate in enumerate(pairs.fates) if fate == KEPT):
        name = docstrings[position].qualified_name
        uses[name] += 1  # overloads, property setters and conditional definitions share a name
        document_of[position] = name if uses[name] == 1 else f"{name}~{uses[name]}"
    return [(doc_id, docstrings[position].rest) for position, doc_id in document_of.items()], document_of


def _pages(docstrings: Sequence[Docstring], pairs: Pairs) -> tuple[list[tuple[str, str]], dict[int, str]]:
    """(doc_id, text) of each page, and the page on which each relevant docstring stands.

    Copies are left out, so that no other page holds a relevant passage. A summary that is a query is left out
    too, and the query's text is cut from its relevant pages wherever else it stands.
    """
    texts = [
        docstring.rest if fate == KEPT or not docstring.summary else f"{docstring.summary}. {docstring.rest}".strip()
        for docstring, fate in zip(docstrings, pairs.fates, strict=True)
    ]
    shown = [i for i, fate in enumerate(pairs.fates) if fate not in _NOT_ON_PAGES and texts[i]]
    pages = fold_pages(docstrings, shown, texts)
    page_of = {position: doc_id for doc_id, members in pages.items() for position in members}
    page_texts = {doc_id: " ".join(texts[position] for position in members) for doc_id, members in pages.items()}
    # Cutting one query may bring two halves of another together: until none stands on its page.
    to_cut = [(page_of[position], query.text) for query in pairs.queries for position in query.relevant]
    before: dict[str, str] = {}
    while page_texts != before:
        before = dict(page_texts)
        for doc_id, query in to_cut:
            page_texts[doc_id] = without_phrase(page_texts[doc_id], query)
    return list(page_texts.items()), page_of


def _assembled(
    packages: Sequence[MinedPackage],
    pairs: Pairs,
    split: Split,
    documents: list[tuple[str, str]],
    document_of: dict[int, str],
) -> EmbeddedData:
    short = _short_ids([name for name, _ in documents])
    queries: dict[str, list[tuple[str, str]]] = {name: [] for name in QUERY_SETS}
    qrels: dict[str, list[tuple[str, str]]] = {name: [] for name in QUERY_SETS}
    for number, (query, query_set) in enumerate(zip(pairs.queries, split.query_sets, strict=True), start=1):
        query_id = f"q{number:05d}"
        queries[query_set].append((query_id, query.text))
        relevant = dict.fromkeys(short[document_of[position]] for position in query.relevant)  # two passages, one page
        qrels[query_set] += [(query_id, doc_id) for doc_id in relevant]
    drops = Counter(fate for fate in pairs.fates if fate != KEPT)
    drops[UNPARSABLE] = sum(package.unparsable_files for package in packages)
    largest_group = Counter(split.groups.tolist()).most_common(1)
    return EmbeddedData(
        [(short[name], text) for name, text in documents],
        [(doc_id, name) for name, doc_id in short.items()],
        queries,
        qrels,
        _source_counts(packages, pairs.fates),
        dict(sorted(drops.items())),
        largest_group[0][1] if largest_group else 0,
    )


def _short_ids(names: Sequence[str]) -> dict[str, str]:
    """name -> package and number, e.g. ``numpy-00017``."""
    used: Counter[str] = Counter()
    short = {}
    for name in names:
        package = re.split("[.:~]", name, maxsplit=1)[0]
        used[package] += 1
        short[name] = f"{package}-{used[package]:05d}"
    return short


def _source_counts(packages: Sequence[MinedPackage], fates: list[str]) -> list[SourceCount]:
    counts = []
    start = 0
    for package in packages:
        end = start + len(package.docstrings)
        source = package.source
        kept = fates[start:end].count(KEPT)
        counts.append(
            SourceCount(source.package.distribution, source.version, source.licence, package.files, end - start, kept)
        )
        start = end
    return counts
