"""The rows of the paper's results table, top to bottom: their groups, and how the paper calls them."""

from __future__ import annotations

from typing import NamedTuple


class PaperRow(NamedTuple):
    label: str
    part: str  # "baselines" or "our methods"
    group: int  # rows of one group stand together, between two lines


BASELINES, OURS = "baselines", "our methods"
ROWS = {
    "bm25_lemm": PaperRow("BM25 (lemm)", BASELINES, 0),
    "bm25_lemm_word": PaperRow("BM25 (lemm) + BM25 (word)", BASELINES, 1),
    "bm25_lemm_bwps": PaperRow("BM25 (lemm) + BM25 (bwps)", BASELINES, 1),
    "bert_vanilla_short": PaperRow("BERT-vanilla (short)", BASELINES, 2),
    "bert_vanilla_full": PaperRow("BERT-vanilla (full)", BASELINES, 2),
    "bert_cedr_knrm": PaperRow("BERT-CEDR-KNRM", BASELINES, 3),
    "bert_cedr_drmm": PaperRow("BERT-CEDR-DRMM", BASELINES, 3),
    "bert_cedr_pacrr": PaperRow("BERT-CEDR-PACRR", BASELINES, 3),
    "model1_embed": PaperRow("BM25 (lemm) + Model1 (embeddings)", OURS, 4),  # Zuccon et al.; not in the paper's table
    "model1_word": PaperRow("BM25 (lemm) + Model1 (word)", OURS, 4),
    "model1_bwps": PaperRow("BM25 (lemm) + Model1 (bwps)", OURS, 4),
    "nn_model1_cosine": PaperRow("BM25 (lemm) + NN-Model1 (cosine)", OURS, 5),  # not in the paper's table
    "nn_model1_exp": PaperRow("BM25 (lemm) + NN-Model1-exp", OURS, 5),
    "nn_model1": PaperRow("BM25 (lemm) + NN-Model1", OURS, 5),
    "bert_model1_short": PaperRow("BERT-Model1 (short)", OURS, 6),
    "bert_model1_full": PaperRow("BERT-Model1 (full)", OURS, 6),
    "leaderboard_traditional": PaperRow("best traditional run", OURS, 7),
    "leaderboard": PaperRow("leaderboard run", OURS, 7),
}
ORDER = tuple(ROWS)


def place(model: str) -> tuple[int, str]:
    """Sorts rows as the paper does; rankers that it does not have come behind, by name."""
    return (ORDER.index(model) if model in ROWS else len(ORDER), model)


def group(model: str) -> int:
    return ROWS[model].group if model in ROWS else len(ORDER)


def part(model: str) -> str:
    return ROWS[model].part if model in ROWS else "others"


def label(model: str) -> str:
    return ROWS[model].label if model in ROWS else model
