"""Names on a command line and the YAML files that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lightning_modules import NeuralRanker
from lightning_modules.registry import ROWS
from pipeline.configs import resolve


def test_a_data_file_that_extends_another_keeps_its_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "pydocs_passage", "data": {"init_args": {"depth": 50}}}))
    resolved = resolve(["--data", str(path), "--model", "nn_model1"])
    assert resolved.profile == resolve(["--data", "pydocs_passage"]).profile == "small_passages"
    assert resolved.data.settings["depth"] == 50 and resolved.model is not None
    assert resolved.model.settings["margin"] == 8.0  # of the profile


@pytest.mark.parametrize(
    ("data", "documents"),
    [("msmarco_passage", 1), ("msmarco_doc", 1), ("folder", 2), ("pydocs_passage", 2), ("pydocs_doc", 2)],
)
def test_em_leaves_out_tokens_of_one_document_on_small_collections_only(data: str, documents: int) -> None:
    """The paper leaves none out."""
    for name in ("model1_word", "model1_bwps"):
        model = resolve(["--model", name, "--data", data]).model
        assert model is not None
        assert model.target(**model.settings).bitext.min_documents == documents


@pytest.mark.parametrize("data", ["msmarco_passage", "msmarco_doc", "folder", "pydocs_passage", "pydocs_doc"])
def test_an_exact_match_in_200_tokens_outweighs_all_others_where_the_cosine_starts(data: str) -> None:
    """Any other T(q|d) starts at about (1 - p_self) / 2, which a document of any length adds to P(q|D)."""
    model = resolve(["--model", "nn_model1_cosine", "--data", data]).model
    assert model is not None
    p_self = model.target(**model.settings).p_self
    assert p_self / 200 > (1 - p_self) / 2


@pytest.mark.parametrize("data", ["msmarco_passage", "msmarco_doc", "pydocs_passage", "pydocs_doc"])
@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_every_row_shares_its_batch_among_the_processes(data: str, processes: int) -> None:
    """1, 2, 4 and 8 GPUs: what a process computes at once never exceeds its share, and the shares add up."""
    for row in ROWS:
        if row.family != "bert" and not row.name.startswith("nn_"):
            continue
        resolved = resolve(["--model", row.name, "--data", data])
        assert resolved.model is not None
        ranker = resolved.model.target(**resolved.model.settings)
        if isinstance(ranker, NeuralRanker):
            at_once, parts = ranker.divide_batch(processes)
            assert at_once * parts * processes == ranker.batch_size
            assert at_once <= (ranker.pairs_at_once or ranker.batch_size)
