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
    word_ids: dict[str, int] = {}
    ids: list[int] = []
    lengths = np.zeros(len(texts), dtype=np.int64)
    for row, text in enumerate(texts):
        words = text.split()
        padding = max(shingle - len(words), 0)  # with 0, which is not a word
        ids.extend(word_ids.setdefault(word, len(word_ids) + 1) for word in words)
        ids.extend([0] * padding)
        lengths[row] = len(words) + padding
    words_of_all = np.array(ids, dtype=np.int64)
    codes = words_of_all
    for offset in range(1, shingle):  # pairs of ids, renumbered densely each time: exact, and no overflow
        following = words_of_all[offset:]
        codes = np.unique(codes[: len(following)] * (len(word_ids) + 1) + following, return_inverse=True)[1]
    shingles_per_text = lengths - shingle + 1
    rows = np.repeat(np.arange(len(texts)), shingles_per_text)
    # In the concatenation no shingle of a text starts at its last shingle - 1 positions.
    columns = codes[np.arange(len(rows)) + rows * (shingle - 1)]
    shape = (len(texts), int(columns.max(initial=-1)) + 1)
    sets = sparse.csr_array((np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=shape)
    sets.data[:] = 1  # the constructor adds up repeated shingles
    return sets


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
