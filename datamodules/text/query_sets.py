"""Query sets: their texts, judgements and splits.

Names inside the project: train_modeling, train_fusion, development, test, and further judged sets such as trec2019.
On disk a set is plain text (``NAME.queries.tsv``, ``NAME.qrels.tsv``) beside the judged documents as row numbers.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datamodules.text.collection import Collection
from datamodules.text.line_report import LineReport
from datamodules.text.lines import Judgement, Query
from lexical.errors import UserError
from lexical.index.array_file import map_array
from lexical.index.ragged import Ragged, offsets_of

TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT, TEST = "train_modeling", "train_fusion", "development", "test"
SPLIT_SEED = 20201231  # fixed, and apart from --seed: every run sees the same split
FUSION_SHARE, FUSION_MOST = 0.1, 20_000

UNKNOWN_DOCUMENT = "that point to a document that is not in the collection"
UNKNOWN_QUERY = "that point to a query that is not in the query file"
REPEATED = "that judge a document a second time"


class RawSet(NamedTuple):
    """Queries and judgements of one pair of files, as read."""

    queries: list[Query]
    qrels: list[Judgement]
    query_report: LineReport
    qrel_report: LineReport


class JudgedQuery(NamedTuple):
    id: str
    text: str
    documents: list[tuple[str, int, int]]  # (document id, row in the collection, grade)


class SplitSizes(NamedTuple):
    """How many queries to take; None: the default rule of `split`."""

    train_fusion: int | None = None  # default: 10% of the training queries, at most 20,000
    development: int | None = None  # default: half of the dev queries where there is no test set, else all
    test: int | None = None  # default: all that is left


class QuerySet:
    """One query set on disk; texts and judgements are read when asked for."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._offsets = map_array(folder / f"{name}.judged_offsets.npy")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @cached_property
    def _lines(self) -> list[list[str]]:
        text = (self.folder / f"{self.name}.queries.tsv").read_text(encoding="utf-8")
        return [line.split("\t") for line in text.split("\n")[:-1]]

    @cached_property
    def ids(self) -> list[str]:
        return [line[0] for line in self._lines]

    @cached_property
    def texts(self) -> list[str]:
        return [line[1] for line in self._lines]

    @property
    def judged(self) -> Ragged:
        """Judged document rows of each query."""
        return Ragged(self._offsets, map_array(self.folder / f"{self.name}.judged_rows.npy"))

    @property
    def grades(self) -> np.ndarray:
        """(judgements,) int32, beside ``judged.values``; above 0 is relevant."""
        return map_array(self.folder / f"{self.name}.judged_grades.npy")

    @cached_property
    def relevant(self) -> Ragged:
        return self.judged.select(self.grades > 0)

    @property
    def graded(self) -> bool:
        """True for sets with grades above 1 (TREC): measured by nDCG@10 instead of MRR."""
        return bool(len(self.grades)) and int(self.grades.max()) > 1

    def qrels(self) -> list[tuple[str, str, int]]:
        lines = (self.folder / f"{self.name}.qrels.tsv").read_text(encoding="utf-8").split("\n")[:-1]
        parts = (line.split() for line in lines)
        return [(query, document, int(grade)) for query, _, document, grade in parts]


def write_query_set(queries: list[JudgedQuery], name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.queries.tsv").open("w", encoding="utf-8") as file:
        file.writelines(f"{query.id}\t{query.text}\n" for query in queries)
    with (folder / f"{name}.qrels.tsv").open("w", encoding="utf-8") as file:
        file.writelines(
            f"{query.id} 0 {document} {grade}\n" for query in queries for document, _, grade in query.documents
        )
    judged = [(row, grade) for query in queries for _, row, grade in query.documents]
    lengths = np.array([len(query.documents) for query in queries], np.int64)
    np.save(folder / f"{name}.judged_offsets.npy", offsets_of(lengths))
    np.save(folder / f"{name}.judged_rows.npy", np.array([row for row, _ in judged], np.int64))
    np.save(folder / f"{name}.judged_grades.npy", np.array([grade for _, grade in judged], np.int32))


def join_judgements(raw: RawSet, collection: Collection, notes: list[str]) -> list[JudgedQuery]:
    """Queries with their judgements.

    What points nowhere is counted, a query without a relevant document is left out and said.
    """
    rows = collection.rows([judgement.document_id for judgement in raw.qrels])
    documents: dict[str, dict[str, tuple[str, int, int]]] = {query.id: {} for query in raw.queries}
    for judgement, row in zip(raw.qrels, rows, strict=True):
        if judgement.query_id not in documents:
            raw.qrel_report.add(UNKNOWN_QUERY, judgement.line)
        elif row < 0:
            raw.qrel_report.add(UNKNOWN_DOCUMENT, judgement.line)
        else:
            entry = (judgement.document_id, int(row), judgement.grade)
            if documents[judgement.query_id].setdefault(judgement.document_id, entry) is not entry:
                raw.qrel_report.add(REPEATED, judgement.line)
    for report in (raw.query_report, raw.qrel_report):
        notes.extend(filter(None, [report.summary()]))
    raw.query_report.refuse_if_mostly_broken()
    raw.qrel_report.refuse_if_mostly_broken()
    joined = [JudgedQuery(query.id, _tsv_safe(query.text), list(documents[query.id].values())) for query in raw.queries]
    usable = [query for query in joined if any(grade > 0 for _, _, grade in query.documents)]
    if len(usable) < len(joined):
        notes.append(
            f"{raw.query_report.file}: {len(joined) - len(usable):,} of {len(joined):,} queries "
            "have no relevant document and are left out"
        )
    return usable


def split(sets: dict[str, list[JudgedQuery]], sizes: SplitSizes, notes: list[str]) -> dict[str, list[JudgedQuery]]:
    """train -> train_modeling + train_fusion; dev (+ test) -> development + test; other sets unchanged.

    Queries are drawn at random and keep the order of their file. Whole groups of queries with the same text go to one
    side. A training query whose text is in an evaluation set is left out.
    """
    train, dev = sets["train"], sets["dev"]
    fusion_size = min(FUSION_MOST, round(FUSION_SHARE * len(train)))
    fusion, modeling = _draw(train, fusion_size if sizes.train_fusion is None else sizes.train_fusion)
    if "test" in sets:
        development, unused_dev = _draw(dev, len(dev) if sizes.development is None else sizes.development)
        remaining = sets["test"]
    else:
        development, remaining = _draw(dev, len(dev) // 2 if sizes.development is None else sizes.development)
        unused_dev = []
    test, unused = _draw(remaining, len(remaining) if sizes.test is None else sizes.test)
    unused += unused_dev
    if unused:
        notes.append(f"{len(unused):,} dev or test queries are beyond the sizes asked for and are not used")
    further = {name: queries for name, queries in sets.items() if name not in ("train", "dev", "test")}
    return without_shared_texts(
        {TRAIN_MODELING: modeling, TRAIN_FUSION: fusion, DEVELOPMENT: development, TEST: test, **further}, notes
    )


def without_shared_texts(sets: dict[str, list[JudgedQuery]], notes: list[str]) -> dict[str, list[JudgedQuery]]:
    """The sets with no query text in two of them: test keeps all of its own, then further sets, development, fusion."""
    later = [TEST, *(name for name in sets if name not in (TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT, TEST))]
    owner: dict[str, str] = {}
    kept: dict[str, list[JudgedQuery]] = {}
    for name in [*later, DEVELOPMENT, TRAIN_FUSION, TRAIN_MODELING]:
        mine = [query for query in sets[name] if owner.setdefault(same_text(query.text), name) == name]
        if len(mine) < len(sets[name]):
            notes.append(
                f"{name}: {len(sets[name]) - len(mine):,} queries have the text of a query of another set, left out"
            )
        kept[name] = mine
    for name in (TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT, TEST):
        if not kept[name]:
            size = TRAIN_FUSION if name == TRAIN_MODELING else name
            raise UserError(
                f"query set {name} is empty: give more judged queries, or other sizes (--data.{size}_queries N)"
            )
    for name in sets:
        if not kept[name]:
            notes.append(f"{name}: no query is left, the set is not used")
    return {name: kept[name] for name in sets if kept[name]}


def same_text(text: str) -> str:
    """What two query texts have in common when they are the same to a person."""
    return " ".join(text.casefold().split()).rstrip(" .?!")


def _draw(queries: list[JudgedQuery], size: int) -> tuple[list[JudgedQuery], list[JudgedQuery]]:
    """(about `size` queries, the others): whole groups of one text, drawn at random, in file order."""
    groups: dict[str, list[int]] = {}
    for position, query in enumerate(queries):
        groups.setdefault(same_text(query.text), []).append(position)
    ordered = list(groups.values())
    drawn: set[int] = set()
    for number in np.random.default_rng(SPLIT_SEED).permutation(len(ordered)):
        if len(drawn) + len(ordered[number]) <= size:
            drawn.update(ordered[number])
    rest = [query for position, query in enumerate(queries) if position not in drawn]
    return [query for position, query in enumerate(queries) if position in drawn], rest


def _tsv_safe(text: str) -> str:
    return " ".join(text.split())
