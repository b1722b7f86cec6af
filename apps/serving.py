"""The search page: a query, BM25 beside a trained ranker, and the evidence of both. The server of serve.py.

The page sends each query twice: for the rankings, which take a few milliseconds, and for their evidence, which takes
longer. One thread ranks and one explains, so that rankings never wait for evidence; the kernels use all cores and are
run by one of them at a time. Both have bounded queues.

The page loads nothing from other servers. The server refuses requests that reach it by another name than its own: a
foreign page could have let its own name point here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from threading import Lock
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from apps.explanation_page import FOLDER, PAGES, explanation_json
from apps.searching import LONGEST_QUERY, Hits, Query, Searcher
from lexical.errors import UserError
from lexical.terminal import say
from lightning_modules.ranker import FIRST_STAGE, Ranker

MOST_WAITING = 64  # queries
BEGINNING = 600  # characters of a document that are shown before its evidence arrives
LARGEST_BODY = 1 << 16  # bytes of a request
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; script-src 'self'; img-src data:; "
    "style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
}
SERVER: dict[str, Any] = {
    "access_log": None,
    "handler_cancellation": True,  # a query whose client has gone does not begin
    "shutdown_timeout": 1.0,  # seconds that the server waits, at its end, for answers that have begun
}


@dataclass
class SearchService:
    """Rankers that answer queries, in one thread for each kind of answer."""

    searcher: Searcher
    rankers: Mapping[str, Ranker]  # by name, the one that the page shows first on top
    top: int = 10  # documents of each side
    _ranking: Lock = field(default_factory=Lock)

    def warm_up(self) -> None:
        """Map files and compile kernels before the first query."""
        say("warming up")
        for name in self.rankers:
            self.search("return the value of a function", name)
            self.evidence("return the value of a function", name)

    def search(self, text: str, name: str) -> dict[str, Any]:
        """Return both rankings of a query in plain types, with the beginnings of the documents."""
        started = time.perf_counter()
        _, ranked = self._ranked(text, name)
        milliseconds = round(1000 * (time.perf_counter() - started), 2)
        collection, sides = self.searcher.prepared.collection, {}
        for side, (_, _, hits) in ranked.items():
            best = hits.part(0, self.top)
            ids, ranks, scores = collection.ids(best.documents).to_pylist(), best.ranks.tolist(), best.scores.tolist()
            sides[side] = [
                {"document": ids[i], "rank": ranks[i], "score": scores[i], "text": collection.text(row)[:BEGINNING]}
                for i, row in enumerate(best.documents)
            ]
        candidates = len(ranked["left"][2].documents)
        return {"query": text, "ranker": name, "candidates": candidates, "milliseconds": milliseconds, **sides}

    def evidence(self, text: str, name: str) -> dict[str, Any]:
        """Return the same documents, each with its whole text and its evidence."""
        query, ranked = self._ranked(text, name)
        sides = {}
        for side, (label, ranker, hits) in ranked.items():
            explanations = self.searcher.explain(label, ranker, query, hits.part(0, self.top))
            sides[side] = [explanation_json(explanation) for explanation in explanations]
        return {"query": text, "ranker": name, **sides}

    def _ranked(self, text: str, name: str) -> tuple[Query, dict[str, tuple[str, Ranker, Hits]]]:
        """Return the query and, for each side of the page, a ranker's name, the ranker, and its ranking."""
        searcher, ranker = self.searcher, self.rankers[name]
        sides = {"left": (FIRST_STAGE, searcher.first_stage), "right": (name, ranker)}
        with self._ranking:
            query = searcher.query(text, ranker.field)
            documents = searcher.candidates(ranker, query)
            return query, {side: (*pair, searcher.rank(pair[1], query, documents)) for side, pair in sides.items()}


def is_own_name(name: str, host: str) -> bool:
    """Return whether a server that listens at `host` may be reached by `name`.

    A server that listens at all addresses is also reached by numeric ones: no foreign name can be made to point there.
    """
    if name.lower() in ("localhost", "127.0.0.1", "::1", host.lower()):
        return True
    try:
        return host in ("0.0.0.0", "::") and bool(ip_address(name))
    except ValueError:
        return False


def application(service: SearchService, data: str, host: str) -> web.Application:
    """Return the web application: the page at /, its script, answers at /search and /evidence."""
    documents = len(service.searcher.prepared.collection)
    template = PAGES.get_template("search_page.html")
    page = template.render(data=data, rankers=service.rankers, documents=documents)
    script = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("evidence_view.js", "search_page.js"))

    async def home(_: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    async def home_script(_: web.Request) -> web.Response:
        return web.Response(text=script, content_type="text/javascript")

    def queued(answer: Callable[[str, str], dict[str, Any]]) -> Handler:
        """Return a handler that answers one query after the other in a thread of its own."""
        thread, waiting = ThreadPoolExecutor(1), 0

        async def handler(request: web.Request) -> web.Response:
            nonlocal waiting
            arguments = await _query_and_ranker(request, service)
            if waiting >= MOST_WAITING:
                raise web.HTTPServiceUnavailable(reason="Too many queries are waiting; try again in a moment")
            waiting += 1
            try:
                content = await asyncio.get_running_loop().run_in_executor(thread, partial(answer, *arguments))
            finally:
                waiting -= 1
            return web.json_response(content, dumps=partial(json.dumps, allow_nan=False))

        return handler

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not is_own_name(request.url.host or "", host):
                raise web.HTTPForbidden(reason="This server is not known by that name; start it with --host")
            response = await handler(request)
        except web.HTTPException as error:
            response = web.json_response({"error": f"{error.reason}."}, status=error.status)
        except Exception:
            logging.exception("a query failed")
            text = "This query could not be answered; the server's terminal says why."
            response = web.json_response({"error": text}, status=500)
        response.headers.update(HEADERS)
        return response

    app = web.Application(middlewares=[guarded], client_max_size=LARGEST_BODY)
    routes = [web.post("/search", queued(service.search)), web.post("/evidence", queued(service.evidence))]
    app.add_routes([web.get("/", home), web.get("/search_page.js", home_script), *routes])
    return app


async def _query_and_ranker(request: web.Request, service: SearchService) -> tuple[str, str]:
    """Return (query, ranker); raise an error whose reason says what is wrong with the request."""
    if request.content_type != "application/json":  # pages of other origins may send other types without permission
        raise web.HTTPBadRequest(reason="Send the query as JSON")
    try:
        content = json.loads(await request.text())
        query, ranker = content["query"], content["ranker"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise web.HTTPBadRequest(reason="A search needs a query and a ranker") from error
    if not isinstance(query, str) or not query.strip():
        raise web.HTTPBadRequest(reason="Type a query")
    if len(query) > LONGEST_QUERY:
        reason = f"A query has at most {LONGEST_QUERY:,} characters; this one has {len(query):,}"
        raise web.HTTPBadRequest(reason=reason)
    if not isinstance(ranker, str) or ranker not in service.rankers:
        raise web.HTTPBadRequest(reason="There is no such ranker on this page")
    return query, ranker


def run_server(service: SearchService, data: str, host: str, port: int) -> None:
    """Serve the page until SIGINT or SIGTERM."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: {error.strerror or error}; choose another") from error
    own, free_port = listening.getsockname()[:2]

    def announce(_: str) -> None:
        say(f"search: http://{f'[{own}]' if ':' in own else own}:{free_port}/ (Ctrl-C ends it)")
        if own not in ("127.0.0.1", "::1"):
            say("this address can be reached from other machines; there is no password")

    web.run_app(application(service, data, host), sock=listening, print=announce, **SERVER)
    say("the search page has ended")
