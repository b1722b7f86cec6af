"""Candidates of a query set: the documents that all rankers re-rank, as a TREC run for people and as arrays for us."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from datamodules.text.collection import Collection
from datamodules.text.query_sets import QuerySet
from lexical.errors import UserError
from lexical.index.array_file import map_array
from lexical.index.ragged import Ragged, offsets_of
from lexical.index.retrieval import RetrievalIndex
from lexical.ranking.order import ranking_order
from lexical.ranking.trec_run import Run, read_run, write_run
from lexical.terminal import progress_bar


class CandidateSet(NamedTuple):
    candidates: Ragged  # rows = queries, values = document rows, best first
    scores: np.ndarray  # (pairs,) float32 first-stage scores


def write_candidates(found: CandidateSet, queries: QuerySet, collection: Collection, tag: str, folder: Path) -> None:
    """Sorts by the tie rule and writes ``NAME.run`` and the arrays."""
    order = ranking_order(found.candidates, found.scores, collection.id_order)
    rows, scores = found.candidates.values[order], found.scores[order]
    run = Run(queries.ids, found.candidates.offsets, collection.ids(rows), scores)
    write_run(run, folder / f"{queries.name}.run", tag)
    np.save(folder / f"{queries.name}.offsets.npy", found.candidates.offsets)
    np.save(folder / f"{queries.name}.rows.npy", rows.astype(np.int32))
    np.save(folder / f"{queries.name}.scores.npy", scores.astype(np.float32))


def open_candidates(folder: Path, name: str) -> CandidateSet:
    offsets, rows, scores = (map_array(folder / f"{name}.{part}.npy") for part in ("offsets", "rows", "scores"))
    return CandidateSet(Ragged(offsets, rows), scores)


def retrieve(
    index: RetrievalIndex, tokens: Ragged, name: str, depth: int, threads: int, id_order: np.ndarray | None = None
) -> CandidateSet:
    with progress_bar() as bar:
        task = bar.add_task(f"candidates of {name}", total=tokens.rows)
        candidates, scores = index.top(tokens, depth, threads, lambda done: bar.advance(task, done), id_order)
    return CandidateSet(candidates, scores)


def external_candidates(
    path: Path, queries: QuerySet, collection: Collection, depth: int
) -> tuple[CandidateSet, list[str]]:
    """(candidates, notes) of `queries` from a TREC run made elsewhere: a file, or a folder with ``NAME.run``."""
    file = path / f"{queries.name}.run" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"--data.candidates: there is no file {file}")
    run = read_run(file, set(queries.ids))
    missing = [query for query in queries.ids if query not in run]
    if len(missing) == len(queries):
        raise UserError(f"{file} has no line for any query of {queries.name} (the first is {queries.ids[0]})")
    rows, scores, lengths = [], [], []
    unknown = repeated = 0
    for query in queries.ids:
        documents, values = run.get(query, ([], np.zeros(0)))
        found = collection.rows(documents)
        places = np.where(found >= 0, collection.id_order[found], -1)
        best = np.lexsort((places, -values.astype(np.float32)))
        found = found[best]
        known = found >= 0
        unknown += int(np.count_nonzero(~known))
        _, first = np.unique(found[known], return_index=True)
        repeated += int(known.sum()) - len(first)
        first = np.sort(first)[:depth]
        rows.append(found[known][first])
        scores.append(values[best][known][first])
        lengths.append(len(first))
    if unknown > sum(lengths):
        raise UserError(f"{file}: most of its documents are not in the collection: is it a run on other data?")
    counted = {
        f"of {len(queries):,} queries are not in it and count as 0 (first: {(missing or [''])[0]})": len(missing),
        "lines name a document a second time for the same query and are left out": repeated,
        "lines name documents that are not in the collection and are left out": unknown,
    }
    notes = [f"{file}: {queries.name}: {count:,} {what}" for what, count in counted.items() if count]
    candidates = Ragged(offsets_of(np.array(lengths)), np.concatenate(rows).astype(np.int32))
    return CandidateSet(candidates, np.concatenate(scores).astype(np.float32)), notes


def sample_negatives(found: CandidateSet, relevant: Ragged, seed: int, count: int) -> np.ndarray:
    """(queries, count) int32 document rows drawn from each query's candidates without its relevant documents, -1
    where there are too few.

    A pure function of `seed` and the query's number: workers, ranks and a resumed run see the same negatives.
    """
    negatives = np.full((found.candidates.rows, count), -1, np.int32)
    for query in range(found.candidates.rows):
        pool = np.setdiff1d(found.candidates.row(query), relevant.row(query))
        chosen = np.random.default_rng([seed, query]).permutation(pool)[:count]
        negatives[query, : len(chosen)] = chosen
    return negatives
