"""Which row is tested against which (section "Results" of the paper): configs/hypotheses.yaml, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from evaluation.significance import THRESHOLD, compare
from lexical.errors import UserError


class Hypothesis(NamedTuple):
    """ "`row` is the same as `against`"; where that is rejected, the mark stands behind the row's figure."""

    row: str
    against: str
    mark: str


class Hypotheses(NamedTuple):
    threshold: float
    hypotheses: list[Hypothesis]


class Verdict(NamedTuple):
    """A hypothesis on one query set: an entry of "significance" in results.json."""

    against: str
    mark: str
    queries: int
    difference: float  # mean of the row minus mean of the other
    relative: float  # the same as a share of the other's mean; 0 where that is 0
    effect_size: float  # mean of the per-query differences in units of their standard deviation
    better: int  # queries
    worse: int
    p_value: float
    p_holm: float  # after Holm's correction for all hypotheses of the query set
    significant: bool  # p_value below the threshold


def read_hypotheses(path: Path) -> Hypotheses:
    """One clear line for a file that is not as expected."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        threshold = float(content.get("threshold", THRESHOLD))
        found = [Hypothesis(**one) for one in content["hypotheses"]]
    except (OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        wanted = "a list `hypotheses` of {row, against, mark}, and perhaps a `threshold`"
        raise UserError(f"{path} cannot be used ({' '.join(str(error).split())}): it must have {wanted}") from error
    if not 0 < threshold < 1:
        raise UserError(f"{path}: the threshold {threshold:g} must be between 0 and 1")
    for one in found:
        if not all(isinstance(text, str) and text.strip() for text in one):
            raise UserError(f"{path}: row, against and mark of {tuple(one)} must be texts")
    return Hypotheses(threshold, found)


def verdicts(
    rows: Mapping[str, Mapping[str, float]], hypotheses: Sequence[Hypothesis], threshold: float
) -> dict[str, list[Verdict]]:
    """What came out for each row, on one query set. `rows`: the per-query values of each row that was measured on it.

    Hypotheses about rows that are not there are left out, and do not count for the correction.
    """
    known = [one for one in hypotheses if one.row in rows and one.against in rows]
    compared = []
    for one in known:
        try:
            compared.append(compare(rows[one.row], rows[one.against]))
        except ValueError as error:
            raise UserError(f"{one.row} and {one.against} cannot be compared: {error}; evaluate both again") from error
    corrected = holm([one.p_value for one in compared])
    found: dict[str, list[Verdict]] = {}
    for one, result, p_holm in zip(known, compared, corrected, strict=True):
        difference = result.mean - result.other_mean
        found.setdefault(one.row, []).append(
            Verdict(
                against=one.against,
                mark=one.mark,
                queries=result.queries,
                difference=difference,
                relative=difference / result.other_mean if result.other_mean else 0.0,
                effect_size=result.effect_size,
                better=result.better,
                worse=result.worse,
                p_value=result.p_value,
                p_holm=p_holm,
                significant=result.p_value < threshold,
            )
        )
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the smallest times n, the next times n - 1, ..., never falling, 1 at the most."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = largest
    return corrected
