"""Explanations of a query's best documents, or of named ones: the body of explain.py."""

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
from apps.searching import LONGEST_QUERY, Hits, Query, Searcher
from apps.trained_rankers import load_explaining
from datamodules.retrieval_data import RetrievalData
from lexical.errors import UserError, require
from lexical.small_files import write_text
from lexical.terminal import say
from lightning_modules.ranker import Ranker

MOST_EXPLAINED = 100  # documents


def explain_query(model: str, parsed: Namespace, data: RetrievalData) -> list[Explanation]:
    """Explain what the arguments ask for, and print it or write it to a file."""
    require(1 <= parsed.top <= MOST_EXPLAINED, "--top", parsed.top, f"from 1 to {MOST_EXPLAINED}")
    if not parsed.query.strip():
        raise UserError('give the words of a query: --query "..."')
    if len(parsed.query) > LONGEST_QUERY:
        raise UserError(f"--query: {len(parsed.query):,} characters; at most {LONGEST_QUERY:,} are allowed")
    if parsed.against and parsed.against == parsed.doc:
        raise UserError("--against: give another document than --doc")
    ranker = load_explaining(model, data, parsed.output_dir, parsed.seed)
    searcher = Searcher(data)
    query = searcher.query(parsed.query, ranker.field)
    hits = _hits(searcher, ranker, query, parsed)
    explanations = [explained for part in hits for explained in searcher.explain(model, ranker, query, part)]
    content = explanations_json(explanations, data.name, parsed.pieces, compared=bool(parsed.against))
    if parsed.html:
        write_text(Path(parsed.html).expanduser(), explanation_page([content]))
        say(f"written: {parsed.html}")
    if parsed.json:
        json.dump(content, sys.stdout, indent=1, allow_nan=False)
        print()
    elif not parsed.html:
        console = Console(highlight=False)
        show(explanations, console, parsed.pieces, whole=bool(parsed.doc))
        if parsed.against:
            show_difference(explanations[0], explanations[1], console)
    return explanations


def _hits(searcher: Searcher, ranker: Ranker, query: Query, parsed: Namespace) -> list[Hits]:
    """Return the best documents together, or each named one: --doc (by default the best document), then --against."""
    named = [(flag, value) for flag, value in (("--doc", parsed.doc), ("--against", parsed.against)) if value]
    documents = [searcher.document_row(*item) for item in named]
    candidates = searcher.candidates(ranker, query)
    if not parsed.doc and not len(candidates):
        advice = ": name both documents, --doc and --against" if parsed.against else ""
        raise UserError(f"no document has a word of this query{advice}")
    ranked = searcher.rank(ranker, query, candidates)
    if not documents:
        return [ranked.part(0, parsed.top)]
    if not parsed.doc:
        documents = [int(ranked.documents[0]), *documents]
        if documents[0] == documents[1]:
            raise UserError(f"--against: {parsed.against} is itself the best document: name another")
    return [_hit(searcher, ranker, query, ranked, document) for document in documents]


def _hit(searcher: Searcher, ranker: Ranker, query: Query, ranked: Hits, document: int) -> Hits:
    """Return one document with its rank, which is 0 for a document that is not a candidate."""
    positions = np.flatnonzero(ranked.documents == document)
    if len(positions):
        return ranked.part(positions[0], positions[0] + 1)
    say("a document that BM25 does not retrieve has no rank; its score is what the ranker would give it")
    return searcher.rank(ranker, query, np.array([document]))._replace(ranks=np.array([0]))
