"""The search page, served by a real server and driven by a real browser; and what attackers and unlucky users send."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from apps.searching import LONGEST_QUERY, Searcher
from apps.serving import MOST_WAITING, SERVER, SearchService, application, is_own_name
from apps.trained_rankers import load_explaining, load_quick
from explain import explain
from lexical.errors import UserError
from serve import serve
from tests.fixtures.browser import OpenPage
from tests.fixtures.explained_rows import HOSTILE, HOSTILE_TEXT, NOT_EXPLAINED, OUT, Explained

pytestmark = pytest.mark.usefixtures("one_thread")
SCRIPT = "<script>alert('query')</script> brakes"


class Server(NamedTuple):
    address: str
    service: SearchService

    @property
    def searcher(self) -> Searcher:
        return self.service.searcher

    def post(
        self, body: Any, content_type: str = "application/json", host: str | None = None, path: str = "evidence"
    ) -> tuple[int, Any]:
        """Return (status, answer)."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": content_type, **({"Host": host} if host else {})}
        request = urllib.request.Request(f"{self.address}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def search(self, query: str, ranker: str = "nn_model1_exp", path: str = "evidence") -> tuple[int, Any]:
        return self.post({"query": query, "ranker": ranker}, path=path)


@pytest.fixture(scope="module")
def server(explained_rows: Explained) -> Iterator[Server]:
    data, folder = explained_rows.place.opened(), str(explained_rows.place.work / OUT)
    rankers = {name: load_explaining(name, data, folder, 1) for name in ("nn_model1_exp", "model1_word")}
    service = SearchService(Searcher(data), rankers, top=5)
    service.warm_up()
    loop, listening = asyncio.new_event_loop(), socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        app = application(service, "small & <b>", "127.0.0.1")
        web.run_app(app, sock=listening, print=None, handle_signals=False, loop=loop, **SERVER)

    def stop() -> None:
        raise web.GracefulExit

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield Server(f"http://127.0.0.1:{listening.getsockname()[1]}/", service)
    loop.call_soon_threadsafe(stop)
    thread.join(10)


# --- the server


def test_an_answer_agrees_with_explain(server: Server, explained_rows: Explained) -> None:
    _, text = explained_rows.query(1)
    status, evidence = server.search(text)
    assert status == 200
    rankings = server.search(text, path="search")[1]
    assert rankings["candidates"] > 0 and rankings["milliseconds"] > 0
    for side in ("left", "right"):
        for hit, explained in zip(rankings[side], evidence[side], strict=True):
            assert (hit["document"], hit["rank"]) == (explained["document"], explained["rank"])
            assert hit["score"] == explained["score"] and explained["text"].startswith(hit["text"])
    for side, row in (("left", "bm25_lemm"), ("right", "nn_model1_exp")):
        expected = explain(explained_rows.command("--model", row, "--query", text, "--top", "5", "--json"))
        assert [hit["document"] for hit in evidence[side]] == [explanation.document for explanation in expected]
        assert [hit["score"] for hit in evidence[side]] == [explanation.score for explanation in expected]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "message"),
    [
        ({"query": "x" * 10_000, "ranker": "model1_word"}, "application/json", 400, "characters; this one has 10,000"),
        ({"query": " \n", "ranker": "model1_word"}, "application/json", 400, "Type a query."),
        ({"query": "brakes", "ranker": "bert"}, "application/json", 400, "no such ranker"),
        ({"query": ["brakes"], "ranker": "model1_word"}, "application/json", 400, "Type a query."),
        ({"query": "brakes", "ranker": ["model1_word"]}, "application/json", 400, "no such ranker"),
        ([1, 2], "application/json", 400, "needs a query and a ranker"),
        (b"{", "application/json", 400, "needs a query and a ranker"),
        (b"[" * 50_000, "application/json", 400, "needs a query and a ranker"),
        (b"\xff\xfe", "application/json", 400, "needs a query and a ranker"),
        (b"{}", "application/json; charset=foo", 400, "needs a query and a ranker"),
        ({"query": "brakes", "ranker": "model1_word"}, "text/plain", 400, "as JSON"),
        (b" " * 100_000, "application/json", 413, "Too Large"),
    ],
)
def test_a_bad_request_is_answered_by_a_sentence(
    server: Server, body: Any, content_type: str, status: int, message: str
) -> None:
    code, answer = server.post(body, content_type)
    assert code == status and message in answer["error"] and answer["error"].endswith(".")


def test_lone_surrogates_and_control_characters_can_be_searched_for(server: Server) -> None:
    assert server.post(b'{"query": "brakes \\ud800 \\u0000 \\u001b[2J", "ranker": "model1_word"}')[0] == 200


def test_requests_to_another_name_are_refused(server: Server) -> None:
    for host in ("evil.example", "192.168.1.5"):
        status, answer = server.post({"query": "brakes", "ranker": "model1_word"}, host=host)
        assert status == 403 and "not known by that name" in answer["error"]
    assert server.post({"query": "brakes", "ranker": "model1_word"}, host="a:99999")[0] in (400, 403, 500)


def test_a_server_that_listens_everywhere_is_reached_by_address_but_not_by_a_foreign_name() -> None:
    assert all(is_own_name(name, "0.0.0.0") for name in ("192.168.1.5", "fe80::1", "localhost"))
    assert not is_own_name("evil.example", "0.0.0.0") and not is_own_name("", "0.0.0.0")
    assert is_own_name("Search.Example", "search.example") and is_own_name("127.0.0.1", "search.example")
    assert not is_own_name("192.168.1.5", "search.example")


def test_a_full_queue_is_a_sentence_and_clients_that_leave_make_room(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, began = threading.Event(), threading.Event()
    begun: list[str] = []
    query = server.searcher.query

    def slow(text: str, *fields: str) -> Any:
        begun.append(text)
        began.set()
        go.wait(60)
        return query(text, *fields)

    monkeypatch.setattr(server.searcher, "query", slow)
    port = int(server.address.rstrip("/").rsplit(":", 1)[1])
    clients = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(MOST_WAITING)]
    for number, client in enumerate(clients):
        body = json.dumps({"query": f"number {number}", "ranker": "model1_word"})
        client.request("POST", "/evidence", body, {"Content-Type": "application/json"})
    assert began.wait(30)
    deadline = time.monotonic() + 30
    while (answer := server.search("one too many"))[0] != 503 and time.monotonic() < deadline:
        pass  # the other queries are still on their way
    assert answer[0] == 503 and "try again" in answer[1]["error"]
    for client in clients[1:]:
        client.close()
    time.sleep(0.5)
    go.set()
    assert server.search("the last")[0] == 200
    assert len(begun) <= 3 and begun[-1] == "the last"  # queries of clients that have left never begin


def test_the_page_may_load_nothing_from_elsewhere(server: Server) -> None:
    with urllib.request.urlopen(server.address) as response:
        policy, page = response.headers["Content-Security-Policy"], response.read().decode()
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "script-src 'self'" in policy
    assert "Search small &amp; &lt;b&gt;" in page
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{server.address}etc/passwd")


def test_many_clients_at_once_get_their_own_answers(server: Server, explained_rows: Explained) -> None:
    queries = explained_rows.place.opened().prepared.query_sets["test"].texts[:10]
    expected = [server.search(query)[1]["right"][0]["document"] for query in queries]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(server.search, queries * 3))
    assert [answer["right"][0]["document"] for _, answer in answers] == expected * 3
    for query, (_, answer) in zip(queries * 3, answers, strict=True):
        assert {hit["query"] for hit in answer["right"]} == {query}


def test_after_a_failure_the_next_query_is_answered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("inside <of the server>")

    monkeypatch.setattr(server.searcher, "query", broken)
    status, answer = server.search("brakes")
    assert status == 500 and "could not be answered" in answer["error"] and "inside" not in answer["error"]
    monkeypatch.undo()
    assert server.search("brakes")[0] == 200


def test_a_mistake_on_the_command_line_gets_one_clear_line(explained_rows: Explained, server: Server) -> None:
    port = server.address.rstrip("/").rsplit(":", 1)[1]
    for arguments, message in (
        (["--model", "model1_word"], "takes --models a,b,c"),
        (["--port", "70000"], "--port 70000: must be"),
        (["--host="], "--host '': must be"),
        (["--top", "0"], "--top 0: must be"),
        (["--models", NOT_EXPLAINED], "its score is not a sum over words"),
        (["--models", "model1_word", "--port", port], f"--port {port}: .*choose another"),
    ):
        with pytest.raises(UserError, match=message):
            serve(explained_rows.command(*arguments))
    with pytest.raises(UserError, match="no Model 1 ranker is trained"):
        serve(explained_rows.place.command("nothing"))


def test_without_names_the_quick_model1_rankers_are_served(explained_rows: Explained) -> None:
    folder = str(explained_rows.place.work / OUT)
    rankers = load_quick(explained_rows.place.opened(), folder, 1)
    assert list(rankers) == ["nn_model1_exp", "model1_word", "model1_bwps", "nn_model1"]


def test_ctrl_c_ends_the_server(explained_rows: Explained) -> None:
    process = explained_rows.place.process(OUT, "--models", "model1_word", "--port", "0", script="serve.py")
    assert process.stdout is not None
    for line in process.stdout:
        if "search: http://127.0.0.1:" in line:
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "the search page has ended" in rest and "Traceback" not in rest


# --- the page


@pytest.fixture
def opened(server: Server, browser_page: OpenPage) -> OpenPage:
    browser_page.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    browser_page.page.goto(server.address)
    return browser_page


def search(page: Any, query: str) -> None:
    page.fill("#query", query)
    wait_for(page, query)


def wait_for(page: Any, query: str) -> None:
    """Wait until the answer to this query is shown."""
    page.wait_for_function("query => document.querySelector('#columns').dataset.query === query", arg=query)


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours (#rrggbb), as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def shares(card: Any) -> list[float]:
    return [float(mark.get_attribute("data-share")) for mark in card.locator("mark").all()]


def test_pointing_at_a_query_word_highlights_its_evidence(opened: OpenPage, server: Server) -> None:
    page = opened.page
    search(page, "repair of the car motor in Ashford")
    assert page.locator("#left .hit").count() == page.locator("#right .hit").count() == 5
    assert page.locator("#right-title").text_content() == "nn_model1_exp"
    card = page.locator("#right .hit").first
    feature = server.search("repair of the car motor in Ashford")[1]["right"][0]["features"][-1]
    for index, word in enumerate(feature["query_words"]):
        card.locator(".words button").nth(index).hover()
        expected = sorted((share for _, share in word["rests_on"]), reverse=True)
        highlighted = sorted((share for share in shares(card) if share > 0), reverse=True)
        assert highlighted == pytest.approx(expected, abs=1e-4)
    page.mouse.move(0, 0)
    assert max(shares(card)) > 0  # of all query words together
    mark = card.locator("mark").first
    mark.hover()
    assert card.locator(".words button.related").count() >= 1 and "%" in mark.get_attribute("title")
    card.locator("select").select_option("1")  # BM25's part of the same score
    assert card.locator("mark").count() >= 1
    card.locator("summary").click()
    assert card.locator("table.shares tbody tr").count() == card.locator(".words button").count()
    assert not opened.errors and all(url.startswith((server.address, "data:")) for url in opened.requests)


def test_the_keyboard_suffices(opened: OpenPage) -> None:
    page = opened.page
    page.keyboard.type("brakes of Abbott")  # the query has the focus
    page.wait_for_selector("#right .hit")
    page.locator("h1").click()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    card = page.locator("#left .hit").first
    card.locator(".words button").first.focus()
    page.keyboard.press("Enter")
    assert card.locator(".words button").first.get_attribute("aria-pressed") == "true"
    assert not opened.errors


def test_script_like_text_stays_text(opened: OpenPage) -> None:
    page = opened.page
    search(page, SCRIPT)
    assert page.locator("script").count() == 1 and page.locator("#left img").count() == 0
    search(page, "<img src=x onerror=alert(1)> Abbott brakes gearbox document script alert")
    card = page.locator(".hit", has=page.locator(".id", has_text=HOSTILE)).first
    assert card.locator(".text").text_content() == HOSTILE_TEXT
    assert "script" in card.locator("mark").all_text_contents()
    assert page.locator("#columns img, #columns script").count() == 0 and not opened.errors


def test_200_rapid_queries_end_with_the_answer_to_the_last(opened: OpenPage, server: Server) -> None:
    page = opened.page
    page.evaluate(
        """async () => {
            const query = document.querySelector('#query'), form = document.querySelector('#form');
            for (let i = 0; i < 200; i++) {
                query.value = `brakes number ${i}`;
                form.requestSubmit();
                if (i % 10 === 0) await new Promise((done) => setTimeout(done, 5));
            }
        }"""
    )
    wait_for(page, "brakes number 199")
    chips = page.locator("#right .hit").first.locator(".words button").all_text_contents()
    assert chips[2].startswith("199") and not opened.errors
    assert server.search("brakes")[0] == 200


@pytest.mark.parametrize("refused", [2, 9])
def test_a_busy_server_is_asked_again_for_a_while(opened: OpenPage, refused: int) -> None:
    page, requests = opened.page, []

    def answer(route: Any) -> None:
        requests.append(route)
        if len(requests) > refused:
            route.continue_()
        else:
            route.fulfill(status=503, json={"error": "Too many queries are waiting; try again in a moment."})

    page.route("**/search", answer)
    page.fill("#query", "brakes")
    if refused == 2:
        wait_for(page, "brakes")
    else:
        page.wait_for_selector("#status.wrong")
        assert "Too many queries" in page.locator("#status").text_content()
    assert len(requests) == min(refused + 1, 5)


def test_a_query_of_10_000_characters_is_answered_by_a_sentence(opened: OpenPage) -> None:
    page = opened.page
    page.fill("#query", "brakes " * 1429)
    page.wait_for_selector("#status.wrong")
    assert f"at most {LONGEST_QUERY:,} characters; this one has 10,003" in page.locator("#status").text_content()
    search(page, "brakes")
    assert page.locator("#status.wrong").count() == 0
    opened.errors[:] = [error for error in opened.errors if "400" not in error]  # the browser's own line about it
    assert not opened.errors


def test_a_server_that_does_not_answer_is_reported(opened: OpenPage) -> None:
    page = opened.page
    page.route("**/evidence", lambda route: route.abort())
    page.fill("#query", "brakes")
    page.wait_for_selector("#status.wrong")
    assert "does not answer" in page.locator("#status").text_content()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_the_page_can_be_read_on_a_phone_and_in_the_dark(browser: Any, server: Server, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 740}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{server.address}?q=brakes&ranker=model1_word")
    page.wait_for_selector("#right .hit")
    assert page.locator("#right-title").text_content() == "model1_word"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(ground.split("(")[1].split(",")[0])
    assert (red < 60) == (scheme == "dark")
    mark, ink = (page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')").strip()
                 for name in ("mark", "ink"))  # fmt: skip
    assert contrast(mark, ink) >= 4.5  # fully highlighted text can be read
    context.close()


def test_the_page_of_explain_needs_no_server(explained_rows: Explained, browser_page: OpenPage, tmp_path: Path) -> None:
    file = tmp_path / "why.html"
    arguments = ["--model", "bert_model1_full", "--query", SCRIPT, "--doc", HOSTILE, "--html", str(file)]
    explain(explained_rows.command(*arguments))
    browser_page.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page = browser_page.open(file)
    assert page.locator("h1").text_content() == SCRIPT
    card = page.locator(".hit")
    assert card.locator(".text").text_content() == HOSTILE_TEXT
    card.locator(".words button").first.hover()
    assert max(shares(card)) > 0 and not browser_page.errors
    assert all(url.startswith(("file:", "data:")) for url in browser_page.requests)
