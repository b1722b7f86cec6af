"""Writes the tables of the README's experiment from what was measured: results/<data>/results.json.

    python scripts/readme_tables.py          # after: make paper DATA=pydocs_passage OUTPUT_DIR=results

A table stands between `<!-- experiment DATA:begin -->` and `<!-- experiment DATA:end -->`: the rows with their main
measure and speed, then the tests of the context-free rows on all test queries and of the BERT rows on their sample.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evaluation.measures import is_recall
from evaluation.results_table import Result, build_table, markdown
from lexical.errors import run_script
from lexical.small_files import read_json
from lightning_modules.registry import row_of

README = Path(__file__).resolve().parent.parent / "README.md"
RESULTS = README.parent / "results"
SECTION = re.compile(r"<!-- experiment (\w+):begin -->\n(.*?)<!-- experiment \1:end -->\n", re.DOTALL)


def experiment_table(results: Sequence[Result]) -> str:
    """Return Markdown of the rows as they stand in the paper's table: fused where they are fusions, without recall."""
    fusions = {result.model for result in results if result.fused}
    rows = [result for result in results if result.fused or result.model not in fusions]
    table = build_table([result for result in rows if not is_recall(result.measure)], row_of)
    complete = {result.model for result in rows if result.query_set == "test"}
    tests = [
        outcome
        for outcome in table.outcomes
        if outcome.result.query_set == "test" or outcome.result.model not in complete
    ]
    notes = [note for note in table.notes if note.startswith("±")]
    return markdown(table._replace(outcomes=tests, notes=notes))


def read_results(path: Path) -> list[Result]:
    advice = f"make paper DATA={path.parent.name} OUTPUT_DIR={path.parent.parent}"
    return [Result(**entry) for entry in read_json(path, advice)]


def with_tables(text: str, results: Path) -> str:
    """Return the README's text with new tables."""

    def section(match: re.Match[str]) -> str:
        table = experiment_table(read_results(results / match[1] / "results.json"))
        return f"<!-- experiment {match[1]}:begin -->\n{table}<!-- experiment {match[1]}:end -->\n"

    return SECTION.sub(section, text)


def main(argv: Sequence[str]) -> None:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return
    README.write_text(with_tables(README.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_script(main))
