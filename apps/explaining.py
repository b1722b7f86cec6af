"""Explanations of a query's best documents: the body of explain.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from jsonargparse import Namespace
from rich.console import Console

from apps.explanation import Explanation
from apps.explanation_page import explanation_page, explanations_json
from apps.explanation_text import show, show_difference
from apps.searching import LONGEST_QUERY, Hits, Query, Row, Searcher, explaining_row
from datamodules.retrieval_data import RetrievalData
from lexical.errors import UserError, require
from lexical.terminal import say
from pipeline.run_folder import write_text
from pipeline.training import quiet_lightning

MOST = 100  # documents that are explained at once


def explain_query(model: str, parsed: Namespace, built: Namespace) -> list[Explanation]:
    """Explains what `parsed` asks for, and shows or writes it."""
    require(1 <= parsed.top <= MOST, "--top", parsed.top, f"from 1 to {MOST}")
    if not parsed.query.strip():
        raise UserError("--query: give the words of a query")
    if len(parsed.query) > LONGEST_QUERY:
        raise UserError(f"--query: {len(parsed.query):,} characters; {LONGEST_QUERY:,} at the most")
    if parsed.against and parsed.against == parsed.doc:
        raise UserError("--against: give another document than --doc")
    quiet_lightning()
    data: RetrievalData = built.data
    row = explaining_row(model, data, parsed.output_dir, parsed.seed)
    searcher = Searcher(data)
    query = searcher.query(parsed.query, row.ranker.field)
    found = explained(searcher, row, query, parsed.top, parsed.doc, parsed.against)
    compared = bool(parsed.against)
    if parsed.html:
        content = explanations_json(found, data.name, parsed.pieces, compared)
        write_text(Path(parsed.html).expanduser(), explanation_page(content))
        say(f"written: {parsed.html}")
    if parsed.json:
        content = explanations_json(found, data.name, parsed.pieces, compared)
        json.dump(content, sys.stdout, indent=1, allow_nan=False)
        print()
    elif not parsed.html:
        console = Console(highlight=False)
        show(found, console, parsed.pieces, whole=bool(parsed.doc))
        if compared:
            show_difference(found[0], found[1], console)
    return found


def explained(
    searcher: Searcher, row: Row, query: Query, top: int, document: str = "", against: str = ""
) -> list[Explanation]:
    """The best documents, or the named ones with their ranks where they are among the candidates."""
    named = [(flag, one) for flag, one in (("--doc", document), ("--against", against)) if one]
    wanted = [searcher.document_row(*one) for one in named]
    candidates = searcher.candidates(row, query)
    if not document and not len(candidates):
        both = ": name both documents, --doc and --against" if against else ""
        raise UserError(f"no document has a word of this query{both}")
    ranked = searcher.rank(row, query, candidates)
    if not wanted:
        return list(searcher.explain(row, query, ranked, top))
    if not document:
        wanted = [int(ranked.documents[0]), *wanted]
        if wanted[0] == wanted[1]:
            raise UserError(f"--against: {against} is itself the best document: name another")
    found: list[Explanation] = []
    for one in wanted:
        hits, rank = _one(searcher, row, query, ranked, one)
        found += searcher.explain(row, query, hits, 1, rank)
    return found


def _one(searcher: Searcher, row: Row, query: Query, ranked: Hits, document: int) -> tuple[Hits, int]:
    """A document and its rank, 0 where it is no candidate."""
    places = np.flatnonzero(ranked.documents == document)
    if not len(places):
        say("a document that BM25 does not find among the candidates has no rank; its score is what it would have")
        return searcher.rank(row, query, np.array([document])), 0
    place = int(places[0])
    return Hits._make(one[place : place + 1] for one in ranked), place + 1
