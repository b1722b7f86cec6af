"""A search page on your own machine: BM25 beside a trained Model 1 ranker, with the evidence of both highlighted.

    python serve.py                                          # http://127.0.0.1:8000/ on the embedded data
    python serve.py --models nn_model1_exp,model1_bwps --port 8080
    python serve.py --data folder --data.path DIR

Without --models: the Model 1 rankers that train.py has trained on the data. No other server is contacted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lexical.errors import require, run_script

OPTIONS: dict[str, dict[str, Any]] = {
    "models": {"type": str | None, "default": None, "help": "names of trained rankers, separated by commas"},
    "host": {"type": str, "default": "127.0.0.1", "help": "address to listen at; 0.0.0.0: other machines too"},
    "port": {"type": int, "default": 8000, "help": "port to listen at; 0 takes a free one"},
    "top": {"type": int, "default": 10, "help": "documents of each ranker"},
}
MOST_RESULTS = 50  # documents of each side


def serve(argv: Sequence[str]) -> None:
    """Serve the page until the process is interrupted."""
    from pipeline.configs import resolve_command

    resolved = resolve_command(argv, __doc__)
    from apps.searching import Searcher
    from apps.serving import SearchService, run_server
    from apps.trained_rankers import load_explaining, load_quick
    from pipeline.command_line import parse_data

    parsed, data = parse_data(resolved, OPTIONS)
    require(bool(parsed.host), "--host", repr(parsed.host), "an address or a name, such as 127.0.0.1")
    require(0 <= parsed.port < 65536, "--port", parsed.port, "from 0 (a free one) to 65535")
    require(1 <= parsed.top <= MOST_RESULTS, "--top", parsed.top, f"from 1 to {MOST_RESULTS}")
    arguments = (data, parsed.output_dir, parsed.seed)
    if parsed.models is None:
        rankers = load_quick(*arguments)
    else:
        rankers = {name: load_explaining(name, *arguments) for name in parsed.models.split(",")}
    service = SearchService(Searcher(data), rankers, parsed.top)
    service.warm_up()
    run_server(service, data.name, parsed.host, parsed.port)


if __name__ == "__main__":
    sys.exit(run_script(serve))
