"""Show why a ranker puts a document where it is: which words of the document each query word rests on.

    python explain.py --model nn_model1_exp --query "sort a list in place"
    python explain.py --model model1_bwps --query "..." --doc ID                  # one document, its whole text
    python explain.py --model model1_bwps --query "..." --doc ID --against ID2    # why is this one above that one?
    python explain.py --model nn_model1 --query "..." --html FILE                 # an interactive page
    python explain.py --model bert_model1_short --query "..." --json              # for programs

The ranker must be trained (train.py --model NAME). What is shown is the computation itself: the parts add up to the
score. Word pieces are joined into words; --pieces leaves them as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lexical.errors import UserError, run_script

if TYPE_CHECKING:
    from apps.explanation import Explanation

OPTIONS: dict[str, dict[str, Any]] = {
    "query": {"type": str, "default": "", "help": "words to search for"},
    "doc": {"type": str, "default": "", "help": "id of one document to explain"},
    "against": {"type": str, "default": "", "help": "id of a document to compare with"},
    "top": {"type": int, "default": 3, "help": "documents that are explained"},
    "pieces": {"action": "store_true", "help": "do not join word pieces into words"},
    "html": {"type": str, "default": "", "help": "write an interactive page to this file"},
    "json": {"action": "store_true", "help": "print everything as JSON"},
}


def explain(argv: Sequence[str]) -> list[Explanation]:
    """Explain the documents that the arguments ask for; return the explanations."""
    from pipeline.configs import names, resolve_command, take_options, wants_help

    given, rest = take_options(argv, model=str)
    resolved = resolve_command(rest, __doc__)
    if given.model is None and not wants_help(argv):
        raise UserError(f"say which ranker: --model NAME with one of: {', '.join(names('model'))}")
    from apps.explaining import explain_query
    from pipeline.command_line import parse_data

    return explain_query(given.model, *parse_data(resolved, OPTIONS))


if __name__ == "__main__":
    sys.exit(run_script(explain))
