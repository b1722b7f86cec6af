"""Query sets: their texts, judgements and splits.

Names inside the project: train_modeling, train_fusion, development, test, and further judged sets such as trec2019.
On disk a set is plain text (``NAME.queries.tsv``, ``NAME.qrels.tsv``) beside the judged documents as row numbers.

Fixed samples with short candidate lists are query sets too. A machine without a GPU can measure slow rankers on them,
and every row can be measured on them; a value of a sample never stands in a column with values of the whole set.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datamodules.text.collection import Collection
from datamodules.text.lines import Judgement, LineReport, TextLine
from lexical.errors import UserError
from lexical.index.array_file import map_array
from lexical.index.ragged import Ragged, offsets_of

TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT, TEST = "train_modeling", "train_fusion", "development", "test"
SPLIT_SETS = (TRAIN_MODELING, TRAIN_FUSION, DEVELOPMENT, TEST)  # every data set has them
SPLIT_SEED = 20201231  # fixed, and apart from --seed: every run has the same split
FUSION_SHARE, MAX_FUSION = 0.1, 20_000
TEST_CPU, DEVELOPMENT_CPU, TRAIN_FUSION_CPU = "test_cpu", "development_cpu", "train_fusion_cpu"

UNKNOWN_DOCUMENT = "that point to a document that is not in the collection"
UNKNOWN_QUERY = "that point to a query that is not in the query file"
REPEATED = "that judge a document a second time"


class RawSet(NamedTuple):
    """Queries and judgements of one pair of files, as read."""

    queries: list[TextLine]
    qrels: list[Judgement]
    query_report: LineReport
    qrel_report: LineReport


class JudgedQuery(NamedTuple):
    id: str
    text: str
    documents: list[tuple[str, int, int]]  # (document id, row in the collection, grade)


class SplitSizes(NamedTuple):
    """Numbers of queries; None: the data set's own (`planned_sizes`), or the default of `split`."""

    train_fusion: int | None = None  # default: 10% of the training queries, at most 20,000
    development: int | None = None  # default: half of the dev queries if there is no test set, else all
    test: int | None = None  # default: all that are left


class Sample(NamedTuple):
    """A fixed sample of a query set."""

    of: str  # the whole set
    queries: int
    depth: int  # candidates of a query


SAMPLES = {
    TEST_CPU: Sample(TEST, 200, 20),
    DEVELOPMENT_CPU: Sample(DEVELOPMENT, 100, 20),
    TRAIN_FUSION_CPU: Sample(TRAIN_FUSION, 200, 20),
}


class QuerySet:
    """One query set on disk, or a sample of it; texts are read when they are first used.

    Args:
        folder: of the files.
        name: of the whole set.
        queries: size of a random sample, in the order of the file; None: all queries.
        relevant_from: the lowest grade of a relevant document, where only relevance counts (recall, MRR).
    """

    def __init__(self, folder: Path, name: str, queries: int | None = None, relevant_from: int = 1) -> None:
        self.folder, self.name, self.relevant_from = folder, name, relevant_from
        parts = (map_array(folder / f"{name}.judged_{part}.npy") for part in ("offsets", "rows", "grades"))
        self._offsets, self._rows, self._grades = parts
        count, rng = len(self._offsets) - 1, np.random.default_rng(SPLIT_SEED)
        self._sample = None if queries is None else np.sort(rng.permutation(count)[:queries])

    def select(self, rows: Ragged) -> Ragged:
        """Select the rows of the sample's queries from those of all queries."""
        return rows if self._sample is None else rows.take(self._sample)

    def __len__(self) -> int:
        return len(self._offsets) - 1 if self._sample is None else len(self._sample)

    @cached_property
    def _lines(self) -> list[list[str]]:
        text = (self.folder / f"{self.name}.queries.tsv").read_text(encoding="utf-8")
        lines = [line.split("\t") for line in text.split("\n")[:-1]]
        return lines if self._sample is None else [lines[i] for i in self._sample]

    @cached_property
    def ids(self) -> list[str]:
        return [line[0] for line in self._lines]

    @cached_property
    def texts(self) -> list[str]:
        return [line[1] for line in self._lines]

    @property
    def judged(self) -> Ragged:
        """Judged document rows of each query."""
        return self.select(Ragged(self._offsets, self._rows))

    @property
    def grades(self) -> np.ndarray:
        """(judgements,) int32, beside ``judged.values``."""
        return self.select(Ragged(self._offsets, self._grades)).values

    @cached_property
    def relevant(self) -> Ragged:
        return self.judged.select(self.grades >= self.relevant_from)

    @property
    def graded(self) -> bool:
        """True for sets with grades above 1 (TREC), and their samples: measured by nDCG@10 instead of MRR."""
        return int(self._grades.max(initial=0)) > 1

    def qrels(self) -> list[tuple[str, str, int]]:
        """Return (query id, document id, grade) of all judgements."""
        lines = (self.folder / f"{self.name}.qrels.tsv").read_text(encoding="utf-8").split("\n")[:-1]
        parts, ids = (line.split() for line in lines), set(self.ids)
        return [(query, document, int(grade)) for query, _, document, grade in parts if query in ids]


def write_query_set(queries: list[JudgedQuery], name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    judged = [(query.id, *document) for query in queries for document in query.documents]
    with (folder / f"{name}.queries.tsv").open("w", encoding="utf-8") as file:
        file.writelines(f"{query.id}\t{query.text}\n" for query in queries)
    with (folder / f"{name}.qrels.tsv").open("w", encoding="utf-8") as file:
        file.writelines(f"{query_id} 0 {document_id} {grade}\n" for query_id, document_id, _, grade in judged)
    lengths = np.array([len(query.documents) for query in queries], np.int64)
    np.save(folder / f"{name}.judged_offsets.npy", offsets_of(lengths))
    np.save(folder / f"{name}.judged_rows.npy", np.array([row for _, _, row, _ in judged], np.int64))
    np.save(folder / f"{name}.judged_grades.npy", np.array([grade for *_, grade in judged], np.int32))


def join_judgements(raw: RawSet, collection: Collection, notes: list[str]) -> list[JudgedQuery]:
    """Return the queries with their judgements; note judgements that cannot be used and queries without a relevant
    document, which are left out."""
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
        report.refuse_if_mostly_broken()
    joined = [
        JudgedQuery(query.id, " ".join(query.text.split()), list(documents[query.id].values())) for query in raw.queries
    ]
    usable = [query for query in joined if any(grade > 0 for _, _, grade in query.documents)]
    if len(usable) < len(joined):
        notes.append(
            f"{raw.query_report.file}: {len(joined) - len(usable):,} of {len(joined):,} queries "
            "have no relevant document and are left out"
        )
    return usable


def judged_queries(raw: RawSet) -> list[JudgedQuery]:
    """Return the queries with a relevant document, known or not: what there is to split before a collection is read."""
    for report in (raw.query_report, raw.qrel_report):
        report.refuse_if_mostly_broken()
    judged = {judgement.query_id for judgement in raw.qrels if judgement.grade > 0}
    return [JudgedQuery(query.id, query.text, []) for query in raw.queries if query.id in judged]


def planned_sizes(
    sets: dict[str, list[JudgedQuery]], given: SplitSizes, defaults: SplitSizes, notes: list[str]
) -> SplitSizes:
    """Return the sizes of a split that `sets` has enough queries for.

    Args:
        sets: judged queries of train, dev and perhaps test.
        given: sizes that the user asks for, exactly: a `UserError` if there are too few queries.
        defaults: the data set's own sizes, where none is given. They shrink in proportion if there are too few queries.
        notes: what shrank is added.
    """
    sizes = given._asdict()
    sources = {"train": (TRAIN_FUSION,), "dev": (DEVELOPMENT, TEST)}
    if "test" in sets:
        sources |= {"dev": (DEVELOPMENT,), "test": (TEST,)}
    for source, names in sources.items():
        exact = {name: sizes[name] for name in names if sizes[name] is not None}
        others = source == "train" or (source == "dev" and len(exact) < len(names))  # sets that need a query, too
        queries = len(sets[source]) - sum(exact.values())
        if exact and queries < others:
            flags = " and ".join(f"--data.{name}_queries {size}" for name, size in exact.items())
            raise UserError(f"{flags}: too many, {source} has {len(sets[source]):,} judged queries for all its sets")
        if source == "train":
            queries = max(1, round(FUSION_SHARE * queries))
        own = {name: size for name in names if name not in exact and (size := getattr(defaults, name)) is not None}
        wanted = sum(own.values())
        sizes |= own
        if wanted > queries:
            sizes |= {name: max(1, queries * size // wanted) for name, size in own.items()}
            shrunk = ", ".join(f"{name} {size:,} -> {sizes[name]:,}" for name, size in own.items())
            notes.append(f"{source} has {len(sets[source]):,} judged queries; sizes shrink in proportion: {shrunk}")
    return SplitSizes(**sizes)


def split(sets: dict[str, list[JudgedQuery]], sizes: SplitSizes, notes: list[str]) -> dict[str, list[JudgedQuery]]:
    """Split train into train_modeling and train_fusion, and dev (with test) into development and test.

    Other sets are unchanged. Queries are drawn at random and keep the order of their file. Queries with the same text
    stay on one side. A training query whose text is in an evaluation set is left out.
    """
    train, dev = sets["train"], sets["dev"]
    fusion, modeling = _draw(train, sizes.train_fusion, min(MAX_FUSION, round(FUSION_SHARE * len(train))))
    development, others = _draw(dev, sizes.development, len(dev) if "test" in sets else len(dev) // 2)
    pool, unused_dev = (sets["test"], others) if "test" in sets else (others, [])
    test, unused = _draw(pool, sizes.test, len(pool))
    if count := len(unused) + len(unused_dev):
        notes.append(f"{count:,} dev or test queries exceed the configured sizes and are not used")
    further = {name: queries for name, queries in sets.items() if name not in ("train", "dev", "test")}
    return without_shared_texts(
        {TRAIN_MODELING: modeling, TRAIN_FUSION: fusion, DEVELOPMENT: development, TEST: test, **further}, notes
    )


def without_shared_texts(sets: dict[str, list[JudgedQuery]], notes: list[str]) -> dict[str, list[JudgedQuery]]:
    """Leave out queries so that no text is in two sets: further sets (TREC) keep all their queries, then come test,
    development, train_fusion, train_modeling."""
    further = [name for name in sets if name not in SPLIT_SETS]
    owner: dict[str, str] = {}
    kept: dict[str, list[JudgedQuery]] = {}
    for name in [*further, TEST, DEVELOPMENT, TRAIN_FUSION, TRAIN_MODELING]:
        kept[name] = [query for query in sets[name] if owner.setdefault(same_text(query.text), name) == name]
        if count := len(sets[name]) - len(kept[name]):
            notes.append(f"{name}: {count:,} queries have the text of a query of another set, left out")
    for name in SPLIT_SETS:
        if not kept[name]:
            size = TRAIN_FUSION if name == TRAIN_MODELING else name
            raise UserError(
                f"query set {name} is empty: give more judged queries, or other sizes (--data.{size}_queries N)"
            )
    notes += [f"{name}: no query is left, the set is not used" for name in sets if not kept[name]]
    return {name: kept[name] for name in sets if kept[name]}


def same_text(text: str) -> str:
    """Return a form of a query text that is equal for texts that are the same to a person."""
    return " ".join(text.casefold().split()).rstrip(" .?!")


def _draw(queries: list[JudgedQuery], size: int | None, default: int) -> tuple[list[JudgedQuery], list[JudgedQuery]]:
    """Draw at most `size` queries; return (drawn, others) in file order, with all queries of a text on one side."""
    size = default if size is None else size
    groups: dict[str, list[int]] = {}
    for position, query in enumerate(queries):
        groups.setdefault(same_text(query.text), []).append(position)
    members = list(groups.values())
    drawn: set[int] = set()
    for number in np.random.default_rng(SPLIT_SEED).permutation(len(members)):
        if len(drawn) + len(members[number]) <= size:
            drawn.update(members[number])
    sides: tuple[list[JudgedQuery], list[JudgedQuery]] = ([], [])
    for position, query in enumerate(queries):
        sides[position not in drawn].append(query)
    return sides
