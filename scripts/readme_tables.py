"""Writes the tables of the README's experiment from what was measured: results/<data>/results.json.

    python scripts/readme_tables.py          # after: make paper DATA=pydocs_passage OUTPUT_DIR=results

A table stands between `<!-- experiment DATA:begin -->` and `<!-- experiment DATA:end -->`: the rows with their main
measure and speed, then the tests of the context-free rows on all test queries and of the BERT rows on their sample.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evaluation.results_table import Result, build_table
from evaluation.table_formats import markdown
from lexical.errors import UserError, run_script

README = Path(__file__).resolve().parent.parent / "README.md"
RESULTS = README.parent / "results"
SECTION = re.compile(r"<!-- experiment (\w+):begin -->\n(.*?)<!-- experiment \1:end -->\n", re.DOTALL)


def experiment_table(results: Sequence[Result]) -> str:
    """Markdown of the rows as they stand in the paper's table: fused where they are fusions, without the recall."""
    fusions = {one.model for one in results if one.fused}
    rows = [one for one in results if (one.fused or one.model not in fusions) and not one.measure.startswith("recall@")]
    table = build_table(rows)
    slow = {one.model for one in rows} - {one.model for one in rows if one.query_set == "test"}
    tests = [one for one in table.outcomes if (one.query_set == "test") or one.row in slow]
    notes = [note for note in table.notes if note.startswith("±")]
    return markdown(table._replace(outcomes=tests, notes=notes))


def read_results(path: Path) -> list[Result]:
    if not path.is_file():
        raise UserError(f"there is no {path}: make paper DATA={path.parent.name} OUTPUT_DIR={path.parent.parent}")
    return [Result(**one) for one in json.loads(path.read_text(encoding="utf-8"))]


def with_tables(text: str, results: Path) -> str:
    """The README's text with its tables written anew."""

    def section(found: re.Match[str]) -> str:
        data = found[1]
        table = experiment_table(read_results(results / data / "results.json"))
        return f"<!-- experiment {data}:begin -->\n{table}<!-- experiment {data}:end -->\n"

    return SECTION.sub(section, text)


def main(argv: Sequence[str]) -> None:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return
    README.write_text(with_tables(README.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_script(main))
