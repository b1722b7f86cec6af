"""The table of the ablations: its file of lines, its tests by hand, its format."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from evaluation.ablation_table import (
    Ablation,
    Export,
    MeasuredLine,
    compare_with_bases,
    markdown,
    read_ablations,
)
from evaluation.measurements import Measurement
from lexical.errors import UserError

BASE = "{name: base, row: model1_word, claim: c}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ablations: [", "cannot be used"),
        ("lines: []", "cannot be used ('ablations'): it must have a list `ablations` of {name, row, claim}"),
        ("threshold: 2\nablations: []", "the threshold 2 must be between 0 and 1"),
        ("ablations: [{name: a, row: model1_word}]", "missing 1 required positional argument: 'claim'"),
        (f"ablations: [{BASE}, {{name: a, row: model1_word, claim: c, change: {{}}}}]", "argument 'change'"),
        (f"ablations: [{BASE}, {{name: 7, row: model1_word, claim: c}}]", "must have name, row and claim"),
        (f"ablations: [{BASE}, {{name: ../a, row: model1_word, claim: c}}]", "must have a name of letters"),
        (f"ablations: [{BASE}, {BASE}]", "the line 'base' is there twice"),
        (f"ablations: [{BASE}, {{name: again, row: model1_word, claim: c}}]", "repeats the base model1_word"),
        ("ablations: [{name: a, row: r, claim: c, changes: {x: 1}}]", "precedes its base, {row: r} unchanged"),
        (f"ablations: [{BASE}, {{name: a, row: model1_word, claim: c, changes: [x]}}]", "must have `changes` with"),
        (
            f"ablations: [{BASE}, {{name: a, row: model1_word, ranker: nn_model1, claim: c, measure_only: true}}]",
            "cannot be `measure_only`",
        ),
    ],
)
def test_a_broken_file_gets_one_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "lines.yaml").write_text(content)
    with pytest.raises(UserError) as caught:
        read_ablations(tmp_path / "lines.yaml")
    assert message in str(caught.value)


def measurement(values: list[float], alone: bool = False) -> Measurement:
    return Measurement("test", alone, "MRR", ["q1", "q2"], np.array([values]))


def example() -> list[MeasuredLine]:
    base = Ablation("base", "model1_word", "as it is")
    better = Ablation("better", "model1_word", "more is better", changes={"iterations": 6, "symmetric": False})
    equal = Ablation("equal", "model1_word", "makes no difference", "model1_bwps")
    alone = measurement([0.1, 0.2], alone=True)
    return [
        MeasuredLine(base, measurement([0.2, 0.4]), alone),
        MeasuredLine(better, measurement([0.4, 0.8]), alone, Export(1234, 5_600_000, 0.0123)),
        MeasuredLine(equal, measurement([0.3, 0.3]), alone),
    ]


def test_a_setting_that_is_not_given_is_shown_as_the_yaml_file_has_it() -> None:
    line = Ablation("learned", "nn_model1", "it is learned", changes={"p_self": None, "hadamard": False, "margin": 8.0})
    assert line.setting == "p_self null, hadamard false, margin 8"


def test_the_table_by_hand() -> None:
    """Differences 0.2 and 0.4: mean 0.3, deviation 0.1 sqrt 2, t = 3 with one degree of freedom (a Cauchy variable)."""
    base, better, equal = compare_with_bases(example(), 0.05)
    assert base.entry()["against_base"] is None and base.entry()["value"] == pytest.approx(0.3)
    p = 1 - 2 * math.atan(3) / math.pi
    assert better.entry() == {
        "name": "better", "row": "model1_word", "claim": "more is better", "setting": "iterations 6, symmetric false",
        "query_set": "test", "measure": "MRR", "value": pytest.approx(0.6), "value_alone": pytest.approx(0.15),
        "seeds": 1, "queries": 2,
        "against_base": pytest.approx({
            "against": "base", "mark": "★", "queries": 2, "difference": 0.3, "relative": 1.0, "better": 2, "worse": 0,
            "effect_size": 3 / math.sqrt(2), "p_value": p, "p_holm": 2 * p, "significant": False,
        }),
        "export": {"entries": 1234, "bytes": 5_600_000, "share_of_pairs": 0.0123},
    }  # fmt: skip
    assert equal.against_base is not None and equal.cells()[2] == "model1_bwps"
    assert (equal.against_base.p_value, equal.against_base.p_holm) == (pytest.approx(1), 1)
    alone_in_its_family = compare_with_bases(example()[:2], 0.5)[1]
    assert alone_in_its_family.cells()[1:] == [
        "more is better", "iterations 6, symmetric false", "0.6000★", "0.1500", "+0.3000", "+100.0%", "+2.12", "0.2",
        "0.2", "1,234", "5.6", "1.23%",
    ]  # fmt: skip


def test_markdown_has_a_table_for_each_base_and_escapes() -> None:
    other = MeasuredLine(Ablation("o|ther", "bm25_lemm", "T(q|d)"), measurement([1.0, 0.0]))
    text = markdown(compare_with_bases([*example(), other], 0.05), "small: ablations", 0.05)
    assert text.startswith("# small: ablations, MRR on 2 queries (test)\n\n| line | claim |")
    assert "| o\\|ther | T(q\\|d) | base | 0.5000 |  |" in text and "p below 0.05" in text
    headers = [line for line in text.splitlines() if line.startswith("| line")]
    assert [line.count("|") for line in headers] == [14, 11]  # the size of a table only where there is one
