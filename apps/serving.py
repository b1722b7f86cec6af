"""The search page: a query, BM25 beside a trained ranker, and the evidence of both. The body of serve.py.

The page asks twice: for the rankings, which take a few milliseconds, and for their evidence, which is many words.

One thread searches and one explains: nobody's rankings wait for somebody's evidence. The kernels are used by one of
them at a time; they want the cores for themselves. Queries wait in queues that have an end. The page asks nobody but
this server, and the server answers nobody who reached it by another name (a page elsewhere that has its own name point
here).
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import logging
import signal
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from aiohttp import web
from jsonargparse import Namespace

from apps.explanation import as_json
from apps.searching import LONGEST_QUERY, Hits, Query, Row, Searcher, explaining_row, load_row
from datamodules.retrieval_data import RetrievalData
from evaluation.page_template import filled, page_part
from lexical.errors import UserError, require
from lexical.terminal import say
from lightning_modules.bm25 import BM25
from pipeline.run_folder import trained_models
from pipeline.training import quiet_lightning

MOST_RESULTS = 50  # documents of each side
MOST_WAITING = 64  # queries
BEGINNING = 600  # characters of a document that are shown before its evidence is there
LARGEST_BODY = 1 << 16  # bytes of a request
SLOWEST = 10  # seconds that a request may take to arrive
PREFERRED = ("nn_model1_exp", "model1_bwps", "model1_word", "nn_model1")  # the first that is trained is shown first
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SearchService:
    """Rankers that answer queries; two threads may ask, each for its own kind of answer."""

    def __init__(self, searcher: Searcher, rows: Sequence[Row], top: int = 10) -> None:
        self.searcher, self.rows, self.top = searcher, {row.name: row for row in rows}, top
        self.first_stage = searcher.first_stage()
        self._ranking = Lock()

    def warm_up(self) -> None:
        """Files mapped, kernels compiled: the first user does not wait for it."""
        for name in self.rows:
            for ask in (self.search, self.evidence):
                ask("return the value of a function", name)

    def search(self, text: str, name: str) -> dict[str, Any]:
        """Both rankings of a query, in plain types: what a user sees at once."""
        started = time.perf_counter()
        _, ranked = self._ranked(text, name)
        took = 1000 * (time.perf_counter() - started)
        found: dict[str, Any] = {}
        for side, (_, hits) in ranked.items():
            documents = hits.documents[: self.top]
            ids = self.searcher.prepared.collection.ids(documents).to_pylist()
            texts = [self.searcher.prepared.collection.text(one)[:BEGINNING] for one in documents]
            scores = hits.scores[: self.top].tolist()
            found[side] = [
                {"document": document, "rank": rank, "score": score, "text": text}
                for rank, (document, score, text) in enumerate(zip(ids, scores, texts, strict=True), start=1)
            ]
        candidates = len(ranked["left"][1].documents)
        return {"query": text, "ranker": name, "candidates": candidates, "milliseconds": round(took, 2), **found}

    def evidence(self, text: str, name: str) -> dict[str, Any]:
        """The same documents, each with its whole text and what its score rests on."""
        query, ranked = self._ranked(text, name)
        found = {
            side: [as_json(one) for one in self.searcher.explain(row, query, hits, self.top)]
            for side, (row, hits) in ranked.items()
        }
        return {"query": text, "ranker": name, **found}

    def _ranked(self, text: str, name: str) -> tuple[Query, dict[str, tuple[Row, Hits]]]:
        row, searcher = self.rows[name], self.searcher
        sides = {"left": self.first_stage, "right": row}
        with self._ranking:
            query = searcher.query(text, row.ranker.field)
            candidates = searcher.candidates(row, query)
            return query, {side: (one, searcher.rank(one, query, candidates)) for side, one in sides.items()}


def search_page(service: SearchService, data: str) -> tuple[str, str]:
    """The page, and the content security policy that lets its own style and script run and nothing else."""
    options = "".join(f"<option>{html.escape(name)}</option>" for name in service.rows)
    style = page_part(__file__, "evidence_view.css") + page_part(__file__, "search_page.css")
    script = page_part(__file__, "evidence_view.js") + page_part(__file__, "search_page.js")
    parts = {
        "data": html.escape(data),
        "rankers": options,
        "documents": f"{len(service.searcher.prepared.collection):,}",
        "style": style,
        "script": script,
    }
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    return filled(page_part(__file__, "search_page.html"), parts), policy


class KnownHosts(NamedTuple):
    """The names that a server may be reached by."""

    names: frozenset[str]
    addresses: bool  # also by any address in numbers, to which no foreign name can be made to point

    @classmethod
    def of(cls, host: str) -> KnownHosts:
        return cls(frozenset({"localhost", "127.0.0.1", "::1", host.lower()}), host in ("0.0.0.0", "::"))

    def know(self, host: str) -> bool:
        if host.lower() in self.names:
            return True
        try:
            return self.addresses and bool(ip_address(host))
        except ValueError:
            return False


def application(service: SearchService, data: str, hosts: KnownHosts) -> web.Application:
    """The web application."""
    page, policy = search_page(service, data)
    threads: list[ThreadPoolExecutor] = []

    async def home(_: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": policy})

    def answered_by(ask: Callable[[str, str], dict[str, Any]]) -> Handler:
        thread, waiting = ThreadPoolExecutor(1, ask.__name__), 0
        threads.append(thread)

        async def handler(request: web.Request) -> web.Response:
            nonlocal waiting
            asked = await _asked(request, service)
            if isinstance(asked, str):
                return _sentence(asked, 400)
            if waiting >= MOST_WAITING:
                return _sentence("Too many queries are waiting; try again in a moment.", 503)
            waiting += 1
            try:
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(thread, partial(ask, *asked))
            finally:
                waiting -= 1
            return web.json_response(found, dumps=partial(json.dumps, allow_nan=False))

        return handler

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not hosts.know(request.url.host or ""):
                return _sentence("This server is not known by that name; start it with --host.", 403)
            answer = await handler(request)
        except TimeoutError:
            answer = _sentence("The request took too long to arrive.", 408)
        except web.HTTPRequestEntityTooLarge:
            answer = _sentence(f"A query has at most {LONGEST_QUERY:,} characters.", 413)
        except web.HTTPException as error:
            answer = _sentence(f"{error.reason}.", error.status)
        except Exception:
            logging.exception("a query failed")
            answer = _sentence("This query could not be answered; the server's terminal says why.", 500)
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["Cache-Control"] = "no-store"
        return answer

    app = web.Application(middlewares=[guarded], client_max_size=LARGEST_BODY)
    app.add_routes([web.get("/", home)])
    app.add_routes([web.post(f"/{one.__name__}", answered_by(one)) for one in (service.search, service.evidence)])

    async def end(_: web.Application) -> None:
        for thread in threads:
            thread.shutdown(wait=False, cancel_futures=True)

    app.on_shutdown.append(end)  # before the server waits for what is under way: what has not begun will not begin
    return app


async def _asked(request: web.Request, service: SearchService) -> tuple[str, str] | str:
    """(query, ranker), or a sentence that says what is wrong with the request."""
    if request.content_type != "application/json":  # what a page of another origin may send without asking is not
        return "A search is asked for as JSON."
    try:
        async with asyncio.timeout(SLOWEST):
            text = await request.text()
        content = json.loads(text)
        query, ranker = content["query"], content["ranker"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return "A search needs a query and a ranker."
    if not isinstance(query, str) or not query.strip():
        return "Type a query."
    if len(query) > LONGEST_QUERY:
        return f"A query has at most {LONGEST_QUERY:,} characters; this one has {len(query):,}."
    if ranker not in service.rows if isinstance(ranker, str) else True:
        return "There is no such ranker on this page."
    return query, ranker


def _sentence(text: str, status: int) -> web.Response:
    return web.json_response({"error": text}, status=status)


def serve_search(parsed: Namespace, built: Namespace) -> None:
    """Loads the rankers and serves until it is interrupted."""
    require(bool(parsed.host), "--host", repr(parsed.host), "an address or a name, such as 127.0.0.1")
    require(0 <= parsed.port < 65536, "--port", parsed.port, "from 0 (a free one) to 65535")
    require(1 <= parsed.top <= MOST_RESULTS, "--top", parsed.top, f"from 1 to {MOST_RESULTS}")
    quiet_lightning()
    data: RetrievalData = built.data
    rows = _rows(parsed, data)
    service = SearchService(Searcher(data), rows, parsed.top)
    say("warming up")
    service.warm_up()
    app = application(service, data.name, KnownHosts.of(parsed.host))
    try:
        asyncio.run(_serve(app, parsed.host, parsed.port))
    except OSError as error:
        raise UserError(
            f"--host {parsed.host} --port {parsed.port}: {error.strerror or error}; choose another"
        ) from error


def _rows(parsed: Namespace, data: RetrievalData) -> list[Row]:
    """Named rankers; or all that are trained, can be explained and are quick, the preferred ones first."""
    if parsed.models is not None:
        return [explaining_row(name, data, parsed.output_dir, parsed.seed) for name in parsed.models.split(",")]
    trained = trained_models(Path(parsed.output_dir).expanduser() / data.name)
    rows = []
    for name in sorted(trained, key=lambda one: PREFERRED.index(one) if one in PREFERRED else len(PREFERRED)):
        try:
            row = load_row(name, data, parsed.output_dir, parsed.seed)
        except UserError as error:  # one that is damaged or of other data does not keep the others away
            say(f"left out: {error}")
            continue
        if row.ranker.explains and not row.ranker.slow and not isinstance(row.ranker, BM25):
            rows.append(row)
    if not rows:
        raise UserError(
            f"no Model 1 ranker is trained on {data.name} in {parsed.output_dir}: python train.py --model model1_bwps"
        )
    return rows


def search_runner(app: web.Application) -> web.AppRunner:
    """A query whose client has gone is not begun; what is under way at the end is waited for a second."""
    return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)


async def _serve(app: web.Application, host: str, port: int) -> None:
    ended = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, ended.set)
    runner = search_runner(app)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    address = runner.addresses[0]
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    say(f"search: http://{shown}:{address[1]}/ (Ctrl-C ends it)")
    if address[0] not in ("127.0.0.1", "::1"):
        say("this address can be reached from other machines; there is no password")
    await ended.wait()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(one)  # a second Ctrl-C ends it at once
    await runner.cleanup()
    say("the search page has ended")
