"""The rows of the results table, declared once and top to bottom: what trains, measures, prints and serves reads this.

A new ranker is its class and `configs/model/NAME.yaml`; a line here puts it into the table and into `--model all`.
"""

from __future__ import annotations

from typing import NamedTuple

BASELINES, OURS, OTHERS = "baselines", "our methods", "others"


class Row(NamedTuple):
    """One line of the table.

    name: of the ranker, `configs/model/NAME.yaml`.
    label: as the paper calls it.
    part: heading that it stands under.
    family: folder of `lightning_modules`.
    group: rows of one group stand together, between two rules.
    slow: takes a CPU hours; `make demo` leaves it out and `--slow_seeds` limits its seeds.
    export_of: the row whose trained network it reads; it is made right after that one.
    """

    name: str
    label: str
    part: str
    family: str
    group: int
    slow: bool = False
    export_of: str | None = None


ROWS = (
    Row("bm25_lemm", "BM25 (lemm)", BASELINES, "bm25", 0),
    Row("bm25_lemm_word", "BM25 (lemm) + BM25 (word)", BASELINES, "bm25", 1),
    Row("bm25_lemm_bwps", "BM25 (lemm) + BM25 (bwps)", BASELINES, "bm25", 1),
    Row("bert_vanilla_short", "BERT-vanilla (short)", BASELINES, "bert", 2, slow=True),
    Row("bert_vanilla_full", "BERT-vanilla (full)", BASELINES, "bert", 2, slow=True),
    Row("bert_cedr_knrm", "BERT-CEDR-KNRM", BASELINES, "bert", 3, slow=True),
    Row("bert_cedr_drmm", "BERT-CEDR-DRMM", BASELINES, "bert", 3, slow=True),
    Row("bert_cedr_pacrr", "BERT-CEDR-PACRR", BASELINES, "bert", 3, slow=True),
    Row("model1_embed", "BM25 (lemm) + Model1 (embeddings)", OURS, "model1", 4),  # Zuccon et al., not the paper's
    Row("model1_word", "BM25 (lemm) + Model1 (word)", OURS, "model1", 4),
    Row("model1_bwps", "BM25 (lemm) + Model1 (bwps)", OURS, "model1", 4),
    Row("nn_model1_cosine", "BM25 (lemm) + NN-Model1 (cosine)", OURS, "neural_model1", 5),  # the paper has no figure
    Row("nn_model1_exp", "BM25 (lemm) + NN-Model1-exp", OURS, "neural_model1", 5, export_of="nn_model1"),
    Row("nn_model1", "BM25 (lemm) + NN-Model1", OURS, "neural_model1", 5),
    Row("nn_model1_em_exp", "BM25 (lemm) + NN-Model1-EM-exp", OURS, "neural_model1", 5, export_of="nn_model1_em"),
    Row("nn_model1_em", "BM25 (lemm) + NN-Model1-EM", OURS, "neural_model1", 5),  # beyond the paper
    Row("bert_model1_short", "BERT-Model1 (short)", OURS, "bert", 6, slow=True),
    Row("bert_model1_full", "BERT-Model1 (full)", OURS, "bert", 6, slow=True),
    Row("leaderboard_traditional", "best traditional run", OURS, "leaderboard", 7),
    Row("leaderboard", "leaderboard run", OURS, "leaderboard", 7, slow=True),
)
_BY_NAME = {row.name: row for row in ROWS}


def row_of(name: str) -> Row:
    """Return the row of a ranker; rankers that the table does not have get one behind the others."""
    return _BY_NAME.get(name) or Row(name, name, OTHERS, "", len(ROWS))


def table_order(name: str) -> tuple[int, str]:
    """Sort key: the order of the table, then rankers that it does not have, by name."""
    return (ROWS.index(_BY_NAME[name]) if name in _BY_NAME else len(ROWS), name)


def exports_of(name: str) -> list[str]:
    """Return the rows that read the trained network of this one."""
    return [row.name for row in ROWS if row.export_of == name]


if __name__ == "__main__":  # for the Makefile: the rows of `make demo`
    print(",".join(row.name for row in ROWS if not (row.slow or row.export_of or row.family == "leaderboard")))
