"""Candidates of a query set, the documents that rankers re-rank: a TREC run to read and arrays to compute with."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from datamodules.text.collection import Collection
from datamodules.text.query_sets import QuerySet
from lexical.errors import UserError
from lexical.index.array_file import map_array
from lexical.index.ragged import Ragged, ragged
from lexical.index.retrieval import RetrievalIndex
from lexical.ranking.order import ranking_order
from lexical.ranking.trec_run import Run, read_run, run_file, write_run
from lexical.terminal import progress_bar


class CandidateSet(NamedTuple):
    candidates: Ragged  # rows = queries, values = document rows, best first
    scores: np.ndarray  # (pairs,) float32 first-stage scores


def write_candidates(
    candidate_set: CandidateSet, queries: QuerySet, collection: Collection, tag: str, folder: Path
) -> None:
    """Sort by the tie rule; write ``NAME.run[.gz]`` and the arrays."""
    candidates, scores = candidate_set
    order = ranking_order(candidates, scores, collection.id_order)
    rows, scores = candidates.values[order], scores[order]
    write_run(Run(queries.ids, candidates.offsets, collection.ids(rows), scores), folder / f"{queries.name}.run", tag)
    np.save(folder / f"{queries.name}.offsets.npy", candidates.offsets)
    np.save(folder / f"{queries.name}.rows.npy", rows.astype(np.int32))
    np.save(folder / f"{queries.name}.scores.npy", scores.astype(np.float32))


def open_candidates(folder: Path, name: str) -> CandidateSet:
    offsets, rows, scores = (map_array(folder / f"{name}.{part}.npy") for part in ("offsets", "rows", "scores"))
    return CandidateSet(Ragged(offsets, rows), scores)


def retrieve(
    index: RetrievalIndex, tokens: Ragged, name: str, depth: int, threads: int, id_order: np.ndarray | None = None
) -> CandidateSet:
    """Retrieve the `depth` best documents of every query by BM25."""
    with progress_bar() as bar:
        task = bar.add_task(f"candidates of {name}", total=tokens.rows)
        return CandidateSet(*index.top(tokens, depth, threads, lambda done: bar.advance(task, done), id_order))


def external_candidates(
    path: Path, queries: QuerySet, collection: Collection, depth: int
) -> tuple[CandidateSet, list[str]]:
    """Return (candidates, notes) of `queries` from a TREC run of another system: a file, or a folder with
    ``NAME.run`` or ``NAME.run.gz``."""
    file = run_file(path / f"{queries.name}.run") if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"--data.candidates: there is no file {file}")
    run = read_run(file, set(queries.ids))
    missing = [query for query in queries.ids if query not in run]
    if len(missing) == len(queries):
        raise UserError(f"{file} has no line for any query of {queries.name} (the first is {queries.ids[0]})")
    listed = [run.get(query, ([], np.zeros(0))) for query in queries.ids]
    candidates = ragged([collection.rows(documents) for documents, _ in listed], np.int32)
    scores = np.concatenate([values for _, values in listed]).astype(np.float32)
    known = candidates.values >= 0
    candidates, scores = candidates.select(known), scores[known]
    order = ranking_order(candidates, scores, collection.id_order)
    candidates, scores = Ragged(candidates.offsets, candidates.values[order]), scores[order]
    pairs = candidates.row_numbers() * len(collection) + candidates.values
    first = np.isin(np.arange(len(pairs)), np.unique(pairs, return_index=True)[1])
    candidates, scores = candidates.select(first), scores[first]
    best = candidates.positions() < depth
    candidates, scores = candidates.select(best), scores[best]
    unknown, repeated = (int(np.count_nonzero(~kept)) for kept in (known, first))
    if unknown > len(scores):
        raise UserError(f"{file}: most of its documents are not in the collection: is it a run on other data?")
    counts = {
        f"of {len(queries):,} queries are not in it and count as 0 (first: {(missing or [''])[0]})": len(missing),
        "lines name a document a second time for the same query and are left out": repeated,
        "lines name documents that are not in the collection and are left out": unknown,
    }
    notes = [f"{file}: {queries.name}: {count:,} {what}" for what, count in counts.items() if count]
    return CandidateSet(candidates, scores), notes


def sample_negatives(candidates: Ragged, relevant: Ragged, seed: int, count: int) -> np.ndarray:
    """Return (queries, count) int32 document rows drawn from each query's candidates without its relevant documents;
    -1 where there are too few.

    A pure function of `seed` and the query's number: workers, ranks and a resumed run get the same negatives.
    """
    negatives = np.full((candidates.rows, count), -1, np.int32)
    for query in range(candidates.rows):
        pool = np.setdiff1d(candidates.row(query), relevant.row(query))
        drawn = np.random.default_rng([seed, query]).permutation(pool)[:count]
        negatives[query, : len(drawn)] = drawn
    return negatives


def recall(candidates: Ragged, relevant: Ragged, depth: int) -> float:
    """Return the mean over judged queries of the share of relevant documents among the first `depth` candidates."""
    judged = [query for query in range(candidates.rows) if len(relevant.row(query))]
    shares = [np.isin(relevant.row(query), candidates.row(query)[:depth]).mean() for query in judged]
    return float(np.mean(shares)) if shares else 0.0
