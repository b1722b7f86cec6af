"""Groups of near-duplicate texts: exact Jaccard similarity of word shingles, no sketches and no seeds.

Every pair of texts that shares a shingle is compared, by a product of sparse matrices: "no near-duplicate on both sides
of a split" is a fact, not a probability.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from lexical.index.ragged import ragged

_WORD = re.compile(r"\w+")
_BLOCK_COMPARISONS = 5_000_000  # shared shingles counted together: bounds the memory to some 100 MB


def near_duplicate_groups(texts: Sequence[str], threshold: float, shingle: int = 3) -> np.ndarray:
    """Return (texts,) int64: the group of each text, as the index of the group's first text.

    Two texts are near-duplicates when the Jaccard similarity of their sets of `shingle` consecutive
    lower-cased words is at least `threshold`; groups are the connected components of that relation.
    """
    if not texts:
        return np.zeros(0, np.int64)
    # Identical word sequences first: a thousand copies of a text would be half a million candidate pairs.
    first_with: dict[str, int] = {}
    copy_of = [first_with.setdefault(" ".join(_WORD.findall(text.lower())), i) for i, text in enumerate(texts)]
    pairs = np.array(list(first_with.values()))[similar_pairs(shingle_sets(list(first_with), shingle), threshold)]
    first, second = np.append(np.arange(len(texts)), pairs[:, 0]), np.append(copy_of, pairs[:, 1])
    return connected_groups(first, second, len(texts))


def connected_groups(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Return (count,) the first item of each item's group, given links between the items `first` and `second`."""
    graph = sparse.coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    _, first_of_label, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first_of_label[inverse]


def shingle_sets(texts: Sequence[str], shingle: int) -> sparse.csr_array:
    """Return the 0/1 membership matrix (texts, distinct shingles) of texts whose words are separated by blanks.

    A text shorter than a shingle is one padded shingle.
    """
    numbers: dict[tuple[str, ...], int] = {}
    rows = []
    for text in texts:
        words = text.split()
        words += [""] * (shingle - len(words))
        shingles = zip(*(words[start:] for start in range(shingle)), strict=False)
        rows.append(list({numbers.setdefault(words_of_shingle, len(numbers)) for words_of_shingle in shingles}))
    offsets, columns = ragged(rows, np.int32)
    return sparse.csr_array((np.ones(len(columns), np.int32), columns, offsets), shape=(len(texts), len(numbers)))


def similar_pairs(sets: sparse.csr_array, threshold: float) -> np.ndarray:
    """Return (pairs, 2): all pairs i < j of rows whose Jaccard similarity is at least `threshold`."""
    sizes, transposed = np.diff(sets.indptr), sets.T.tocsr()
    block_of_row = np.cumsum(sets @ np.diff(transposed.indptr)) // _BLOCK_COMPARISONS
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for rows in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(block_of_row)) + 1):
        product = (sets[rows] @ transposed).tocoo()
        first, second, shared = rows[product.row], product.col, product.data
        similar = (first < second) & (shared >= threshold * (sizes[first] + sizes[second] - shared) - 1e-9)
        pairs.append(np.stack([first[similar], second[similar]], axis=1))
    return np.concatenate(pairs)
