"""A search page on your own machine: BM25 beside a trained Model 1 ranker, with the evidence of both lit up.

    python serve.py                                          # http://127.0.0.1:8000/ on the embedded data
    python serve.py --models nn_model1_exp,model1_bwps --port 8080
    python serve.py --data folder --data.path DIR

Without --models: the Model 1 rankers that train.py has trained on the data. Nothing is asked of other servers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lexical.errors import UserError, run_script


def serve(argv: Sequence[str]) -> None:
    """Serves what `argv` asks for, until it is interrupted."""
    from pipeline.configs import resolve, take_option

    if {"-h", "--help"} & set(argv):
        print(__doc__)
    if take_option(argv, "model")[0] is not None:
        raise UserError("serve.py takes --models a,b,c (with an s)")
    resolved = resolve(argv)
    from apps.serving import serve_search
    from pipeline.command_line import parse_data

    options: list[tuple[str, dict[str, Any]]] = [
        ("--models", {"type": str | None, "default": None, "help": "names of trained rankers, separated by commas"}),
        (
            "--host",
            {"type": str, "default": "127.0.0.1", "help": "address to listen at; others than yours can reach it"},
        ),
        ("--port", {"type": int, "default": 8000, "help": "port to listen at; 0 takes a free one"}),
        ("--top", {"type": int, "default": 10, "help": "documents of each ranker"}),
    ]
    parsed, built = parse_data(resolved, "A search page on your own machine.", options)
    serve_search(parsed, built)


if __name__ == "__main__":
    sys.exit(run_script(serve))
