"""explain.py on trained rankers: its scores are those of the run files, its parts add up, mistakes get one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from apps.explanation import Explanation, feature_view
from evaluate import evaluate
from explain import explain
from lexical.errors import UserError
from lexical.ranking.trec_run import read_run
from tests.fixtures.explained_rows import HOSTILE, ROWS, Explained
from tests.fixtures.training_place import Place
from train import train

pytestmark = pytest.mark.usefixtures("one_thread")


def parts_sum(explanation: Explanation) -> float:
    return sum(one.weight * float(one.evidence.values.sum()) for one in explanation.features)


@pytest.mark.parametrize("row", ROWS)
def test_scores_are_those_of_the_run_file_and_the_sum_of_their_parts(explained_rows: Explained, row: str) -> None:
    query_set = "test_cpu" if row.startswith("bert") else "test"
    folder = explained_rows.place.folder("out", row)
    run = read_run(folder.run(query_set, alone=False))
    opened = explained_rows.place.opened()
    whole = dict(zip(opened.query_set(query_set).ids, opened.query_set(query_set).texts, strict=True))
    for query in list(run)[:3]:
        documents, scores = run[query]
        found = explain(explained_rows.command("--model", row, "--query", whole[query], "--top", "5", "--json"))
        assert [one.document for one in found] == documents[:5]
        assert [one.rank for one in found] == [1, 2, 3, 4, 5]
        assert [str(np.float32(one.score)) for one in found] == [str(np.float32(one)) for one in scores[:5]]
        for one in found:
            assert parts_sum(one) == pytest.approx(one.score, rel=1e-6, abs=1e-6)


def test_one_document_and_why_it_is_above_another(
    explained_rows: Explained, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = explained_rows.query(0)
    best, second = explain(explained_rows.command("--model", "model1_bwps", "--query", text, "--top", "2", "--json"))
    capsys.readouterr()
    arguments = ["--model", "model1_bwps", "--query", text, "--doc", second.document, "--against", best.document]
    one, other = explain(explained_rows.command(*arguments))
    assert (one.document, one.rank, other.document, other.rank) == (second.document, 2, best.document, 1)
    assert one.score == second.score and f"{second.document} is below {best.document} by" in capsys.readouterr().out
    explain(explained_rows.command(*arguments, "--json"))
    found = json.loads(capsys.readouterr().out)["difference"]
    assert sum(word["total"] for word in found["words"]) == pytest.approx(second.score - best.score, abs=1e-5)
    first, _ = explain(explained_rows.command("--model", "model1_bwps", "--query", text, "--against", second.document))
    assert first.document == best.document


def test_a_document_that_is_no_candidate_has_a_score_and_no_rank(explained_rows: Explained) -> None:
    (found,) = explain(explained_rows.command("--model", "nn_model1_exp", "--query", "zzz qqq", "--doc", HOSTILE))
    assert found.rank is None and found.document == HOSTILE and np.isfinite(found.score)


def test_pieces_and_page(explained_rows: Explained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "why.html"
    arguments = ["--model", "nn_model1_exp", "--query", "beekeeping of Abbott", "--html", str(page), "--json"]
    explain(explained_rows.command(*arguments, "--pieces"))
    found = json.loads(capsys.readouterr().out)
    words = [word["word"] for word in found["documents"][0]["features"][-1]["query_words"]]
    assert words[0] == "bee" and words[1].startswith("##")
    assert page.read_text().startswith("<!doctype html>") and "beekeeping of Abbott" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", "x"], "say which ranker: --model NAME"),
        (["--model", "model1_bwps"], "say what is searched for: --query"),
        (["--model", "model1_bwps", "--query", " "], "--query: give the words"),
        (["--model", "model1_bwps", "--query", "x" * 10_000], "10,000 characters; 2,000 at the most"),
        (["--model", "model1_bwps", "--query", "brakes", "--doc", "null"], "--doc: there is no document 'null'"),
        (["--model", "model1_bwps", "--query", "brakes", "--doc", "\udce9"], "--doc: there is no document"),
        (["--model", "model1_bwps", "--query", "zzz qqq"], "no document has a word of this query"),
        (["--model", "model1_bwps", "--query", "brakes", "--doc", "nowhere"], "--doc: there is no document 'nowhere'"),
        (["--model", "model1_bwps", "--query", "brakes", "--doc", "a", "--against", "a"], "give another document"),
        (["--model", "model1_bwps", "--query", "brakes", "--top", "0"], "--top 0: must be from 1 to 100"),
        (["--model", "bert_vanilla_short", "--query", "brakes"], "its score is no sum over words"),
        (["--model", "model1_embed", "--query", "brakes"], "'model1_embed' is not trained on .*: python train.py"),
        (["--model", "modell", "--query", "brakes"], "there is no ranker 'modell'; known are"),
        (["--model", "nn_model1", "--query", "brakes", "--seed", "7"], "--seed 7: nn_model1 is trained with"),
    ],
)
def test_a_mistake_gets_one_clear_line(explained_rows: Explained, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        explain(explained_rows.command(*arguments))
    assert "\n" not in str(caught.value)


def test_half_a_character_is_searched_for_and_rows_without_seeds_take_any(explained_rows: Explained) -> None:
    command = explained_rows.command("--model", "model1_bwps", "--query", "caf\udce9 brakes", "--seed", "7", "--json")
    assert len(explain(command)) == 3


def test_a_page_goes_into_a_new_folder_and_not_into_a_file(explained_rows: Explained, tmp_path: Path) -> None:
    arguments = ["--model", "model1_bwps", "--query", "brakes", "--html"]
    explain(explained_rows.command(*arguments, str(tmp_path / "new" / "why.html")))
    assert (tmp_path / "new" / "why.html").is_file()
    with pytest.raises(OSError, match=r"why\.html"):  # run_script makes one line of it
        explain(explained_rows.command(*arguments, str(tmp_path / "new" / "why.html" / "why.html")))


@pytest.mark.parametrize("setting", ["max_doc_tokens", "expansion"])
def test_cut_and_expanded_documents_add_up_too(
    explained_rows: Explained, tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with fewer candidates than the ranker would take, the best documents are those of the run file."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    lines = tmp_path / "expansion.tsv"
    documents = explained_rows.place.opened().prepared.collection.ids(np.arange(30)).to_pylist()
    lines.write_text("".join(f"{one}\tgearbox repair motor number {i}\n" for i, one in enumerate(documents)))
    value = {"max_doc_tokens": "9", "expansion": str(lines)}[setting]
    place = Place(explained_rows.place.path, explained_rows.place.work)
    same = place.command(setting, f"--data.{setting}", value, "--data.depth", "7")
    train(["--model", "model1_bwps", *same])
    evaluate(["--models", "model1_bwps", *same])
    run = read_run(place.folder(setting, "model1_bwps").run("test", alone=False))
    query, text = explained_rows.query(0)
    found = explain(["--model", "model1_bwps", "--query", text, "--top", "7", "--json", *same])
    documents, scores = run[query]
    assert [one.document for one in found] == documents
    assert [str(np.float32(one.score)) for one in found] == [str(np.float32(one)) for one in scores]
    if setting == "max_doc_tokens":
        view = feature_view(found[0].main, text, found[0].text)
        assert found[0].main.evidence.shares.shape[1] == 9 and view.unread_from is not None
