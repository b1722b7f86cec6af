"""Explanations for reading: words, shares and differences of hand-made evidence; terminal, JSON and page."""

from __future__ import annotations

import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

from apps.explanation import Explanation, Feature, differences, feature_view, words_of
from apps.explanation_page import explanation_json, explanation_page, explanations_json
from apps.explanation_text import show, show_difference
from lexical.errors import UserError
from lexical.evidence import Evidence, TokenSpan, model1_evidence

# query: sort list      pieces: sor ##t list
# text:  Sorting a <b>list  pieces: sort ##ing a list
QUERY, TEXT = "sort list", "Sorting a <b>list"
Q_SPANS = [TokenSpan("sor", 0, 3), TokenSpan("##t", 3, 4), TokenSpan("list", 5, 9)]
D_SPANS = [TokenSpan("sort", 0, 4), TokenSpan("##ing", 4, 7), TokenSpan("a", 8, 9), TokenSpan("list", 13, 17)]
T = np.array([[0.4, 0.0, 0.0, 0.4], [0.2, 0.2, 0.0, 0.0], [0.0, 0.0, 0.1, 0.3]])


def explained(translation: np.ndarray = T, document: str = "d1", bm25: float = 0.5, rank: int = 1) -> Explanation:
    """Return 0.75 x BM25, which is that of the lemma "list" alone, + 0.25 x Model 1."""
    own = model1_evidence(translation, np.zeros(3), 1e-8, 3)
    values = np.array([0.0, bm25])
    first = Evidence(values, np.array([[0.0, 0.0], [0.0, 1.0]]), np.zeros(2), np.zeros(2), "bm25")
    lemmas = [TokenSpan("sort", 0, 4), TokenSpan("list", 5, 9)]
    features = (
        Feature("bm25_lemm", 0.75, bm25, first, lemmas, [TokenSpan("sorting", 0, 7), TokenSpan("list", 13, 17)]),
        Feature("model1_bwps (alone)", 0.25, own.score, own, Q_SPANS, D_SPANS),
    )
    score = 0.75 * bm25 + 0.25 * own.score
    return Explanation("model1_bwps", QUERY, document, TEXT, score, features, rank).checked()


def test_pieces_are_joined_into_the_words_of_the_text() -> None:
    assert [word.text for word in words_of(D_SPANS, TEXT)] == ["Sorting", "a", "list"]
    assert [word.text for word in words_of(D_SPANS, TEXT, pieces=True)] == ["sort", "##ing", "a", "list"]
    apart = [TokenSpan("un", 0, 2), TokenSpan("##do", 3, 5)]  # "un do": pieces that are not adjacent stay apart
    assert [word.text for word in words_of(apart, "un do")] == ["un", "do"]


def test_pieces_of_one_character_and_around_marks_are_one_word() -> None:
    """The packaged tokenizer takes Korean letters apart, and leaves soft hyphens out."""
    korean = [TokenSpan("ᄒ", 0, 1), TokenSpan("##ᅡ", 0, 1), TokenSpan("##ᆫ", 0, 1), TokenSpan("##ᄀ", 1, 2)]
    assert [word.text for word in words_of(korean, "한국")] == ["한국"]
    hyphen = [TokenSpan("soft", 0, 4), TokenSpan("##ly", 5, 7)]
    assert [word.text for word in words_of(hyphen, "soft\u00adly")] == ["soft\u00adly"]


def test_small_shares_of_a_long_document_are_not_lost() -> None:
    spans = [TokenSpan("list", 5 * number, 5 * number + 4) for number in range(600)]
    text = "list " * 600
    own = model1_evidence(np.full((1, 600), 0.5), np.zeros(1), 1e-8, 1)
    feature = Feature("m", 1.0, own.score, own, [TokenSpan("list", 0, 4)], spans)
    explanation = Explanation("m", "list", "d", text, own.score, (feature,)).checked()
    (word,) = explanation_json(explanation)["features"][0]["query_words"]
    assert len(word["rests_on"]) == 300 and word["others"] == pytest.approx(0.5)  # half of 600 equal shares
    view = feature_view(explanation.main, "list", text)
    (share,) = view.strongest(view.query[0])
    assert share.times == 600 and share.share == pytest.approx(1.0)


def test_a_word_has_the_sum_of_its_pieces_values_and_the_mean_of_their_evidence() -> None:
    explanation = explained()
    view = feature_view(explanation.main, QUERY, TEXT)
    sort, lists = view.query
    # P(sor) = (0.4 + 0.4) / 4, P(##t) = (0.2 + 0.2) / 4, P(list) = (0.1 + 0.3) / 4
    assert sort.log_score == pytest.approx(math.log(0.2) + math.log(0.1))
    assert sort.value == pytest.approx((math.log(0.2) + math.log(0.1)) / 3)
    assert sort.fractions == pytest.approx([(0.5 + 1.0) / 2, 0.0, (0.5 + 0.0) / 2])
    assert lists.fractions == pytest.approx([0.0, 0.25, 0.75])
    assert view.importance() == pytest.approx([0.75, 0.25, 1.0])
    assert sum(word.value for word in view.query) == pytest.approx(explanation.main.value, abs=1e-12)


def test_equal_document_words_are_counted_together() -> None:
    spans = [TokenSpan("list", 0, 4), TokenSpan("list", 5, 9), TokenSpan("a", 10, 11)]
    own = model1_evidence(np.array([[0.3, 0.3, 0.2]]), np.array([0.2 / 3]), 1e-8, 1)
    feature = Feature("model1", 1.0, own.score, own, [TokenSpan("list", 0, 4)], spans)
    view = feature_view(feature, "list", "List list a")
    shares = view.strongest(view.query[0])
    assert [(share.text, share.times) for share in shares] == [("list", 2), ("a", 1), ("(the collection)", 1)]
    assert [share.share for share in shares] == pytest.approx([0.6, 0.2, 0.2])
    assert view.query[0].smoothing == pytest.approx(0.2)
    best, *rest = view.strongest(view.query[0], most=1)
    assert best.text == "list" and (rest[0].text, rest[0].share) == ("(other words)", pytest.approx(0.2))


def test_unread_text_and_chunks_are_known() -> None:
    own = model1_evidence(np.full((1, 2), 0.5), np.zeros(1), 1e-8, 1, chunks=(0, 1))
    spans = [TokenSpan(word, start, start + 1) for start, word in ((0, "a"), (2, "b"), (4, "c"))]
    feature = Feature("bert_model1_full", 1.0, own.score, own, spans[:2], spans)
    view = feature_view(feature, "a b", "a b c")
    assert (view.unread_from, view.chunks, [word.text for word in view.unread_query]) == (4, [1], ["b"])
    joined = [TokenSpan("a", 0, 1), TokenSpan("##b", 1, 2)]  # a chunk may begin inside of the last word
    view = feature_view(feature._replace(document=joined), "a b", "ab")
    assert view.chunks == [0] and len(view.document) == 1


def test_parts_that_do_not_add_up_are_refused() -> None:
    explanation = explained()
    with pytest.raises(UserError, match=r"d1: the parts of the score .* sum to"):
        explanation._replace(score=explanation.score + 1e-4).checked()
    assert explanation._replace(score=float(np.float32(explanation.score))).checked()


def test_differences_are_by_query_word_and_sum_to_the_difference_of_the_scores() -> None:
    first, second = explained(), explained(T * np.array([[1.0], [0.5], [1.0]]), "d2", bm25=0.2, rank=2)
    words = differences(first, second)
    assert [word.word for word in words] == ["sort", "list"]
    assert words[0].by_feature == pytest.approx((0.0, 0.25 * math.log(2) / 3))  # ##t is half as likely
    assert words[1].by_feature == pytest.approx((0.75 * 0.3, 0.0))
    assert sum(sum(word.by_feature) for word in words) == pytest.approx(first.score - second.score, abs=1e-12)
    with pytest.raises(ValueError, match="one query and one ranker"):
        differences(first, second._replace(query="another"))


def test_json_has_all_parts() -> None:
    content = json.loads(json.dumps(explanation_json(explained()), allow_nan=False))
    bm25, own = content["features"]
    assert content["score"] == pytest.approx(sum(feature["weight"] * feature["value"] for feature in (bm25, own)))
    for feature in (bm25, own):
        assert sum(word["value"] for word in feature["query_words"]) == pytest.approx(feature["value"], rel=1e-7)
    sort = own["query_words"][0]
    assert sort["rests_on"] == [[0, 0.75], [2, 0.25]] and own["document_words"] == [[0, 7], [8, 9], [13, 17]]
    assert sort["strongest"] == [["sorting", 0.75], ["list", 0.25]] and (sort["start"], sort["end"]) == (0, 4)
    assert bm25["query_words"][0]["rests_on"] == [] and bm25["kind"] == "bm25"
    pieces = explanation_json(explained(), pieces=True)["features"][1]
    assert [word["word"] for word in pieces["query_words"]] == ["sor", "##t", "list"]


def printed(explanations: list[Explanation], whole: bool = True) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    show(explanations, console, whole=whole)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_terminal_shows_shares_and_obeys_no_text() -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", printed([explained()]))
    assert "sorting 75%" in shown and "list 25%" in shown and "1. d1" in shown and "0.75 x 0.5 bm25_lemm" in shown
    hostile = explained()._replace(text="[red]Sorti\x1b[2J \u202eist[/red]", document="[bold]\x1b]0;x\x07")
    shown = printed([hostile])
    assert "\x1b[2J" not in shown and "\x1b]0" not in shown and "\u202e" not in shown and "\\x1b" in shown
    assert "[red]" in re.sub(r"\x1b\[[0-9;]*m", "", shown)


def test_the_snippet_is_where_the_evidence_is() -> None:
    text = "x " * 300 + "list " + "y " * 300
    spans = [TokenSpan(match[0], match.start(), match.end()) for match in re.finditer(r"\w+", text)]
    translation = np.array([[0.9 * (span.token == "list") for span in spans]])
    own = model1_evidence(translation, np.zeros(1), 1e-8, 1)
    feature = Feature("m", 1.0, own.score, own, [TokenSpan("list", 0, 4)], spans)
    explanation = Explanation("m", "list", "d", text, own.score, (feature,), 1)
    shown = re.sub(r"\x1b\[[0-9;]*m|\s+", " ", printed([explanation], whole=False))
    assert " list " in shown and shown.count("…") == 2 and shown.count(" x ") + shown.count(" y ") < 250


def test_the_terminal_shows_why_one_document_is_above_the_other() -> None:
    console = Console(file=io.StringIO(), width=100)
    show_difference(explained(), explained(document="d2", bm25=0.1), console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "d1 is above d2 by 0.3" in shown and re.search(r"list +\+0\.3000 +\+0\.0000 +\+0\.3000", shown)
    assert re.search(r"sum +\+0\.3000 +\+0\.0000 +\+0\.3000", shown)


def test_the_page_holds_no_text_that_could_end_its_script() -> None:
    explanation = explained()._replace(query="</script><script>alert(1)</script> {{data}}")
    page = explanation_page([explanations_json([explanation, explained(document="d2")], "x")])
    assert page.count("</script>") == 2 and "alert(1)" in page
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)[0]["query"] == explanation.query
    compared = explanations_json([explained(), explained(document="d2", bm25=0.1)], "x", compared=True)["difference"]
    assert compared["title"] == "Why d1 is above d2"
    assert sum(word["total"] for word in compared["words"]) == pytest.approx(compared["score"])
