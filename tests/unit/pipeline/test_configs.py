"""Names on a command line and the YAML files that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lightning_modules import NeuralRanker
from pipeline.configs import names, resolve


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


@pytest.mark.parametrize("profile", [None, *names("profile")])
@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_every_row_shares_its_batch_among_the_processes(profile: str | None, processes: int) -> None:
    """1, 2, 4 and 8 GPUs: what a process computes at once never exceeds its share, and the shares add up."""
    checked = set()
    for name in names("model"):
        arguments = ["--model", name, "--data", "msmarco_doc"]  # whose own profile is None
        resolved = resolve(arguments if profile is None else [*arguments, "--profile", profile])
        assert resolved.model is not None and resolved.profile == profile
        if not issubclass(resolved.model.target, NeuralRanker):
            continue
        checked.add(name)
        ranker = resolved.model.target(**resolved.model.settings)
        at_once, parts = ranker.divide_batch(processes)
        assert at_once * parts * processes == ranker.batch_size
        assert at_once <= (ranker.pairs_at_once or ranker.batch_size)
    assert {name for name in names("model") if name.startswith("bert_")} < checked


@pytest.mark.parametrize("name", ["bert_vanilla_short", "bert_cedr_knrm", "bert_cedr_drmm", "bert_cedr_pacrr"])
def test_all_pairs_of_a_step_of_passages_are_computed_at_once(name: str) -> None:
    resolved = resolve(["--model", name, "--data", "msmarco_passage"])
    assert resolved.model is not None
    assert resolved.model.target(**resolved.model.settings).divide_batch(1) == (16, 1)  # type: ignore[attr-defined]
