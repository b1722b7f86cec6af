"""Groups of near-duplicates, against brute force."""

from __future__ import annotations

import random
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.pydocs.near_duplicates import near_duplicate_groups


def jaccard(first: str, second: str, shingle: int) -> float:
    """Straight from the definition; independent of the code under test."""
    sets = []
    for text in (first, second):
        words = re.findall(r"\w+", text.lower())
        words += [""] * (shingle - len(words))
        sets.append({tuple(words[i : i + shingle]) for i in range(len(words) - shingle + 1)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def brute_force_groups(texts: list[str], threshold: float, shingle: int) -> list[int]:
    groups = list(range(len(texts)))
    for i in range(len(texts)):
        for j in range(i):
            if jaccard(texts[i], texts[j], shingle) >= threshold - 1e-9 and groups[i] != groups[j]:
                low, high = sorted((groups[i], groups[j]))
                groups = [low if group == high else group for group in groups]
    return groups


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=9).map(" ".join), max_size=12),
    st.sampled_from([0.2, 0.5, 0.6, 2 / 3, 0.75, 0.8, 1.0]),
    st.integers(1, 3),
)
def test_groups_equal_brute_force(texts: list[str], threshold: float, shingle: int) -> None:
    assert near_duplicate_groups(texts, threshold, shingle).tolist() == brute_force_groups(texts, threshold, shingle)


def test_groups_equal_brute_force_on_long_edited_texts() -> None:
    rng = random.Random(7)
    vocabulary = [f"w{i}" for i in range(400)]
    texts = [" ".join(rng.choices(vocabulary, k=rng.randint(5, 80))) for _ in range(60)]
    for text in list(texts):
        for changes in (1, 3, 8):
            words = text.split()
            for _ in range(changes):
                words[rng.randrange(len(words))] = rng.choice(vocabulary)
            texts.append(" ".join(words))
    groups = near_duplicate_groups(texts, 0.6, 3)
    assert groups.tolist() == brute_force_groups(texts, 0.6, 3)
    assert 60 < len(np.unique(groups)) < len(texts)  # some edits are close enough, some are not
