"""Latency of the search page's answers: a query over `pydocs_passage`, with 1 and with 8 clients at once.

    python benchmarks/serve.py [--queries 400] [--clients 1,8] [--ranker nn_model1_exp] [--data pydocs_passage]
                               [--output_dir outputs]

Starts `serve.py` as a process of its own on a free port of 127.0.0.1 and sends it test queries, each once, over
connections that stay open: first to `search` (BM25 retrieval of 1,000 candidates, and both rankings of them), then to
`evidence` (the same with the evidence of ten documents of each). Prints the median and the 99th percentile of what a
client waits for each, and the answers per second of both together, after some queries that are not counted.

The ranker must be trained: `python train.py --model nn_model1` makes nn_model1_exp too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
WARM_UP = 20  # queries that are not counted


class Latency(NamedTuple):
    """Milliseconds that a client has waited for the two answers to a query, and the candidates of the query."""

    search: float
    evidence: float
    candidates: int


def test_queries(arguments: argparse.Namespace) -> list[str]:
    from pipeline.command_line import parse_data
    from pipeline.configs import resolve

    _, data = parse_data(resolve(["--data", arguments.data, *arguments.rest]))
    return list(data.prepared.query_sets["test"].texts)


def start_server(arguments: argparse.Namespace) -> tuple[subprocess.Popen[str], int]:
    """Return the server and its port, when it answers."""
    command = [sys.executable, str(ROOT / "serve.py"), "--data", arguments.data, "--models", arguments.ranker]
    command += ["--output_dir", arguments.output_dir, "--port", "0", *arguments.rest]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    last = ""
    for line in server.stderr:
        if match := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
            threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would block the server
            return server, int(match[1])
        last = line
    sys.exit(f"benchmarks/serve.py: the server did not start: {last.strip()}")


def send_query(connection: http.client.HTTPConnection, query: str, ranker: str) -> Latency:
    body = json.dumps({"query": query, "ranker": ranker})
    milliseconds, candidates = [], 0
    for path in ("search", "evidence"):
        started = time.perf_counter()
        connection.request("POST", f"/{path}", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        milliseconds.append(1000 * (time.perf_counter() - started))
        content = json.loads(text)
        if response.status != 200:
            raise RuntimeError(content["error"])
        candidates = content.get("candidates", candidates)
    return Latency(*milliseconds, candidates)


def measure(port: int, queries: Sequence[str], clients: int, ranker: str) -> tuple[list[Latency], float]:
    """Return the latency of each query, and the seconds that all took together."""

    def run_client(number: int) -> list[Latency]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        latencies = [send_query(connection, query, ranker) for query in queries[number::clients]]
        connection.close()
        return latencies

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        latencies = [latency for part in pool.map(run_client, range(clients)) for latency in part]
    return latencies, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--ranker", default="nn_model1_exp")
    parser.add_argument("--data", default="pydocs_passage")
    parser.add_argument("--output_dir", default="outputs")
    arguments, arguments.rest = parser.parse_known_args()
    texts = test_queries(arguments)
    server, port = start_server(arguments)
    try:
        counts = [int(count) for count in arguments.clients.split(",")]
        if len(texts) < WARM_UP + len(counts) * arguments.queries:
            sys.exit(f"benchmarks/serve.py: there are {len(texts):,} test queries: give a smaller --queries")
        measure(port, texts[:WARM_UP], 1, arguments.ranker)
        print(f"{arguments.ranker} on {arguments.data}, {arguments.queries} queries, each sent once")
        print(f"{'clients':>7} {'search p50':>11} {'p99':>8} {'evidence p50':>13} {'p99':>8} {'answers/s':>10}")
        first = WARM_UP
        for clients in counts:
            queries = texts[first : first + arguments.queries]  # new ones, so that nothing comes from a cache
            first += arguments.queries
            latencies, seconds = measure(port, queries, clients, arguments.ranker)
            search, evidence, candidates = (np.array(column) for column in zip(*latencies, strict=True))
            (a, b), (c, d) = (np.percentile(column, [50, 99]) for column in (search, evidence))
            print(f"{clients:>7} {a:8.1f} ms {b:5.1f} ms {c:10.1f} ms {d:5.1f} ms {2 * len(latencies) / seconds:10.1f}"
                  f"   (median of {np.median(candidates):,.0f} candidates)")  # fmt: skip
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(10)


if __name__ == "__main__":
    main()
