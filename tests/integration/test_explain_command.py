"""explain.py on trained rankers: its scores are those of the run files, its parts add up, mistakes get one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.explanation import feature_view
from evaluate import evaluate
from explain import explain
from lexical.errors import UserError
from lexical.ranking.trec_run import read_run
from tests.fixtures.explained_rows import HOSTILE, NOT_EXPLAINED, OUT, ROWS, Explained
from train import train

pytestmark = pytest.mark.usefixtures("one_thread")


def first_queries(explained_rows: Explained, query_set: str, run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (id, text) of the first two queries of a run."""
    queries = explained_rows.place.opened().query_set(query_set)
    texts = dict(zip(queries.ids, queries.texts, strict=True))
    return [(query_id, texts[query_id]) for query_id in list(run)[:2]]


@pytest.mark.parametrize("row", ROWS)
def test_scores_are_those_of_the_run_file_and_the_sum_of_their_parts(explained_rows: Explained, row: str) -> None:
    query_set = "test_cpu" if row.startswith("bert") else "test"
    run = read_run(explained_rows.place.folder(OUT, row).run(query_set, alone=False))
    for query_id, text in first_queries(explained_rows, query_set, run):
        documents, scores = run[query_id]
        found = explain(explained_rows.command("--model", row, "--query", text, "--top", "5", "--json"))
        assert [explanation.document for explanation in found] == documents[:5]
        assert [explanation.rank for explanation in found] == [1, 2, 3, 4, 5]
        assert [np.float32(explanation.score) for explanation in found] == [np.float32(score) for score in scores[:5]]
        for explanation in found:
            parts = sum(feature.weight * feature.evidence.values.sum() for feature in explanation.features)
            assert parts == pytest.approx(explanation.score, rel=1e-6, abs=1e-6)


def test_one_document_and_why_it_is_above_another(
    explained_rows: Explained, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = explained_rows.query(0)
    best, second = explain(explained_rows.command("--model", "model1_bwps", "--query", text, "--top", "2", "--json"))
    capsys.readouterr()
    arguments = ["--model", "model1_bwps", "--query", text, "--doc", second.document, "--against", best.document]
    first, other = explain(explained_rows.command(*arguments))
    assert (first.document, first.rank, other.document, other.rank) == (second.document, 2, best.document, 1)
    assert first.score == second.score
    assert f"{second.document} is below {best.document} by" in capsys.readouterr().out
    explain(explained_rows.command(*arguments, "--json"))
    difference = json.loads(capsys.readouterr().out)["difference"]
    assert sum(word["total"] for word in difference["words"]) == pytest.approx(second.score - best.score, abs=1e-5)
    first, _ = explain(explained_rows.command("--model", "model1_bwps", "--query", text, "--against", second.document))
    assert first.document == best.document


def test_a_document_that_is_not_a_candidate_has_a_score_and_no_rank(explained_rows: Explained) -> None:
    (found,) = explain(explained_rows.command("--model", "nn_model1_exp", "--query", "zzz qqq", "--doc", HOSTILE))
    assert found.rank is None and found.document == HOSTILE and np.isfinite(found.score)


def test_pieces_and_page(explained_rows: Explained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "why.html"
    arguments = ["--model", "nn_model1_exp", "--query", "beekeeping of Abbott", "--json", "--pieces", "--html"]
    explain(explained_rows.command(*arguments, str(page)))
    content = json.loads(capsys.readouterr().out)
    words = [word["word"] for word in content["documents"][0]["features"][-1]["query_words"]]
    assert words[0] == "bee" and words[1].startswith("##")
    assert page.read_text().startswith("<!doctype html>") and "beekeeping of Abbott" in page.read_text()
    with pytest.raises(OSError, match=r"why\.html"):  # run_script makes one line of it
        explain(explained_rows.command(*arguments, str(page / "why.html")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", "x"], "say which ranker: --model NAME"),
        (["--model", "model1_bwps"], "give the words of a query: --query"),
        (["--model", "model1_bwps", "--query", " "], "give the words of a query: --query"),
        (["--model", "model1_bwps", "--query", "x" * 10_000], "10,000 characters; at most 2,000"),
        (["--model", "model1_bwps", "--query", "brakes", "--doc", "\udce9"], "--doc: there is no document"),
        (["--model", "model1_bwps", "--query", "zzz qqq"], "no document has a word of this query"),
        (["--model", "model1_bwps", "--query", "brakes", "--doc", "nowhere"], "--doc: there is no document 'nowhere'"),
        (["--model", "model1_bwps", "--query", "brakes", "--doc", "a", "--against", "a"], "give another document"),
        (["--model", "model1_bwps", "--query", "brakes", "--top", "0"], "--top 0: must be from 1 to 100"),
        (["--model", NOT_EXPLAINED, "--query", "brakes"], "its score is not a sum over words"),
        (["--model", "model1_embed", "--query", "brakes"], "'model1_embed' is not trained on .*: python train.py"),
        (["--model", "modell", "--query", "brakes"], "there is no ranker 'modell'; known are"),
        (["--model", "nn_model1", "--query", "brakes", "--seed", "7"], "--seed 7: nn_model1 is trained with"),
    ],
)
def test_a_mistake_gets_one_clear_line(explained_rows: Explained, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        explain(explained_rows.command(*arguments))
    assert "\n" not in str(caught.value)


def test_lone_surrogates_are_searched_for_and_rows_without_seeds_take_any(explained_rows: Explained) -> None:
    command = explained_rows.command("--model", "model1_bwps", "--query", "caf\udce9 brakes", "--seed", "7", "--json")
    assert len(explain(command)) == 3


@pytest.mark.parametrize("setting", ["max_doc_tokens", "expansion"])
def test_parts_of_cut_and_expanded_documents_add_up(
    explained_rows: Explained, tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best documents are those of the run file even with fewer candidates than the ranker would take."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    place, lines = explained_rows.place, tmp_path / "expansion.tsv"
    documents = place.opened().prepared.collection.ids(np.arange(30)).to_pylist()
    lines.write_text("".join(f"{document}\tgearbox repair motor number {i}\n" for i, document in enumerate(documents)))
    value = {"max_doc_tokens": "9", "expansion": str(lines)}[setting]
    arguments = place.command(setting, f"--data.{setting}", value, "--data.depth", "7")
    train(["--model", "model1_bwps", "--model.iterations=1", *arguments])
    evaluate(["--models", "model1_bwps", *arguments])
    run = read_run(place.folder(setting, "model1_bwps").run("test", alone=False))
    query_id, text = explained_rows.query(0)
    found = explain(["--model", "model1_bwps", "--query", text, "--top", "7", "--json", *arguments])
    expected, scores = run[query_id]
    assert [explanation.document for explanation in found] == expected
    assert [np.float32(explanation.score) for explanation in found] == [np.float32(score) for score in scores]
    if setting == "max_doc_tokens":
        view = feature_view(found[0].main, text, found[0].text)
        assert found[0].main.evidence.shares.shape[1] == 9 and view.unread_from is not None
