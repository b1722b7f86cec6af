"""Show why a ranker puts a document where it is: which words of the query rest on which words of the document.

    python explain.py --model nn_model1_exp --query "sort a list in place"
    python explain.py --model model1_bwps --query "..." --doc ID                  # one document, its whole text
    python explain.py --model model1_bwps --query "..." --doc ID --against ID2    # why is this one above that one?
    python explain.py --model nn_model1 --query "..." --html FILE                 # an interactive page of its own
    python explain.py --model bert_model1_short --query "..." --json              # for programs

The ranker must be trained (train.py --model NAME). What is shown is the computation itself: the parts add up to the
score. Word pieces are put together to words; --pieces leaves them as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lexical.errors import UserError, run_script

if TYPE_CHECKING:
    from apps.explanation import Explanation


def explain(argv: Sequence[str]) -> list[Explanation]:
    """Explains, shows or writes what `argv` asks for."""
    from pipeline.configs import names, resolve, take_option

    if {"-h", "--help"} & set(argv):
        print(__doc__)
    model, rest = take_option(argv, "model")
    if model is None and not {"-h", "--help"} & set(argv):
        raise UserError(f"say which ranker: --model NAME with one of: {', '.join(names('model'))}")
    resolved = resolve(rest)
    if model is not None and take_option(rest, "query")[0] is None and not {"-h", "--help"} & set(argv):
        raise UserError('say what is searched for: --query "..."')
    from apps.explaining import explain_query
    from pipeline.command_line import parse_data

    options: list[tuple[str, dict[str, Any]]] = [
        ("--query", {"type": str, "default": "", "help": "words to search for"}),
        ("--doc", {"type": str, "default": "", "help": "id of one document to explain"}),
        ("--against", {"type": str, "default": "", "help": "id of a document to compare with"}),
        ("--top", {"type": int, "default": 3, "help": "documents that are explained"}),
        ("--pieces", {"action": "store_true", "help": "word pieces, not put together to words"}),
        ("--html", {"type": str, "default": "", "help": "write an interactive page to this file"}),
        ("--json", {"action": "store_true", "help": "print everything as JSON"}),
    ]
    parsed, built = parse_data(resolved, "Show why a ranker puts a document where it is.", options)
    return explain_query(str(model), parsed, built)


if __name__ == "__main__":
    sys.exit(run_script(explain))
