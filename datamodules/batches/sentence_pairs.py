"""Sentence pairs of a collection for masked language modelling with next-sentence prediction.

A document's sentences are packed, in order, into spans that fit a sequence. A span is cut at a sentence border into A
and B, and gives two sequences that are neighbours in a batch: A with its own B, and A with a B of another document,
equally long, both ending within a sentence. So neither A nor B nor their form alone tells which is which, and an
encoder that was never trained to compare two texts learns it from the difference. 15% of the pieces are hidden: 80% of
these are replaced by [MASK], 10% by a random piece, 10% are kept. All draws are a function of seed, epoch and sequence:
processes and a resumed training see the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lexical.batches import NOT_HIDDEN, SentenceBatch
from lexical.errors import UserError
from lexical.index.ragged import Ragged

HIDDEN, MASKED, REPLACED = 0.15, 0.8, 0.1
SHORTEST = 8  # pieces of a span; a shorter one cannot be cut in two


class PretrainingTokens(NamedTuple):
    """Ids of the word pieces that have a function in the pretraining."""

    cls: int
    sep: int
    pad: int
    mask: int
    ends: tuple[int, ...]  # . ? !
    pieces: int  # size of the vocabulary

    @classmethod
    def of(cls, vocabulary: list[str]) -> PretrainingTokens:
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        if missing := [piece for piece in ("[CLS]", "[SEP]", "[PAD]", "[MASK]") if piece not in ids]:
            raise UserError(f"--model.pretrain: the word pieces of this data have no {', '.join(missing)}")
        ends = tuple(ids[end] for end in ".?!" if end in ids)
        return cls(ids["[CLS]"], ids["[SEP]"], ids["[PAD]"], ids["[MASK]"], ends, len(vocabulary))


class SentencePairs:
    """Sequences of a collection; every `held_out`-th document is kept for measuring.

    Sequence 2 i is span i with its own B, sequence 2 i + 1 has a B of another document.

    Args:
        documents: token ids in the order of the text, a row for each document.
        tokens: the special pieces.
        length: pieces of a sequence, special ones included.
        seed: of everything that is drawn.
        held_out: one document in this many is held out.
    """

    def __init__(
        self, documents: Ragged, tokens: PretrainingTokens, length: int = 128, seed: int = 1, held_out: int = 50
    ) -> None:
        self.documents, self.tokens, self.length, self.seed = documents, tokens, length, seed
        self.starts, self.ends, self._documents_of = _spans(
            documents.offsets, documents.values, np.array(tokens.ends, np.int64), length - 3, SHORTEST
        )
        self._is_held_out = self._documents_of % held_out == held_out - 1
        self._pools = [np.flatnonzero(~self._is_held_out), np.flatnonzero(self._is_held_out)]  # of spans

    @property
    def held_out(self) -> np.ndarray:
        """The held-out sequences."""
        return _sequences(self._pools[1])

    def order(self, epoch: int) -> np.ndarray:
        """Return the training sequences of an epoch in their order; those of one span are neighbours.

        An epoch has both sequences of half of the spans: it is as long as if each text were read once.
        """
        spans = np.random.default_rng([self.seed, epoch]).permutation(self._pools[0])
        return _sequences(spans[: -(-len(spans) // 2)])

    def batch(self, epoch: int, sequences: np.ndarray) -> SentenceBatch:
        examples = [self._example(epoch, *divmod(int(sequence), 2)) for sequence in sequences]
        longest = max((len(pieces) for pieces, *_ in examples), default=0)
        tokens = np.full((len(examples), longest), self.tokens.pad, np.int64)
        types, mask = np.zeros_like(tokens), np.zeros_like(tokens)
        labels = np.full_like(tokens, NOT_HIDDEN)
        follows = np.zeros(len(examples), np.int64)
        for row, (pieces, first, hidden, is_foreign) in enumerate(examples):
            n = len(pieces)
            tokens[row, :n], types[row, first:n], mask[row, :n], labels[row, :n] = pieces, 1, 1, hidden
            follows[row] = is_foreign
        return SentenceBatch(tokens, types, mask, labels, np.flatnonzero(labels != NOT_HIDDEN), follows)

    def _example(self, epoch: int, span: int, foreign: int) -> tuple[np.ndarray, int, np.ndarray, bool]:
        """Return (pieces, position where B begins, labels, B is of another document)."""
        pieces = self._span(span)
        cut = self._border(pieces, np.random.default_rng([self.seed, epoch, span]))  # the same in both sequences
        a, b = pieces[:cut], pieces[cut:]
        rng = np.random.default_rng([self.seed, epoch, span, 1])
        other = self._foreign_text(span, rng)
        if other is not None:
            size = min(len(b), len(other))
            while size > 1 and (b[size - 1] in self.tokens.ends or other[size - 1] in self.tokens.ends):
                size -= 1  # a B that ends where a sentence ends could be recognised by that
            b = (other if foreign else b)[:size]
        if foreign:
            rng = np.random.default_rng([self.seed, epoch, span, 2])
        cls, sep, mask = self.tokens.cls, self.tokens.sep, self.tokens.mask
        sequence = np.concatenate([[cls], a, [sep], b, [sep]]).astype(np.int64)
        labels = np.full(len(sequence), NOT_HIDDEN, np.int64)
        positions = np.delete(np.arange(1, len(sequence) - 1), len(a))  # all but the special pieces
        hidden = rng.permutation(positions)[: max(1, round(HIDDEN * len(positions)))]
        labels[hidden] = sequence[hidden]
        draw = rng.random(len(hidden))
        sequence[hidden[draw < MASKED]] = mask
        replaced = hidden[(draw >= MASKED) & (draw < MASKED + REPLACED)]
        sequence[replaced] = rng.integers(self.tokens.pieces, size=len(replaced))
        return sequence, len(a) + 2, labels, bool(foreign) and other is not None

    def _span(self, span: int) -> np.ndarray:
        return self.documents.values[self.starts[span] : self.ends[span]]

    def _foreign_text(self, span: int, rng: np.random.Generator) -> np.ndarray | None:
        """Return text of another document from a sentence border on; None if there is no other document.

        Held-out spans get held-out text, others training text.
        """
        pool, document = self._pools[int(self._is_held_out[span])], self._documents_of[span]
        first, end = np.searchsorted(pool, np.searchsorted(self._documents_of, [document, document + 1]))  # its own
        if end - first == len(pool):
            return None
        drawn = int(rng.integers(len(pool) - (end - first)))
        other = int(pool[drawn if drawn < first else drawn + end - first])
        start = self.starts[other] + self._border(self._span(other), rng)
        return self.documents.values[start : self.documents.offsets[self._documents_of[other] + 1]]

    def _border(self, pieces: np.ndarray, rng: np.random.Generator) -> int:
        """Draw where B begins: after the end of a sentence, or in the middle of a single sentence."""
        borders = np.flatnonzero(np.isin(pieces[:-1], self.tokens.ends)) + 1
        return int(borders[rng.integers(len(borders))]) if len(borders) else len(pieces) // 2


def _sequences(spans: np.ndarray) -> np.ndarray:
    """Return both sequences of each span."""
    return (2 * spans[:, None] + np.arange(2)).ravel()


@njit(cache=True, nogil=True)
def _spans(offsets, tokens, ends, most, least):  # type: ignore[no-untyped-def]
    """Return (first piece, last piece + 1, document) of all spans: whole sentences while they fit, at most `most` and
    at least `least` pieces."""
    starts, stops, documents = [], [], []
    for document in range(len(offsets) - 1):
        start, border = offsets[document], -1  # border: behind the last whole sentence of the span
        for position in range(offsets[document], offsets[document + 1]):
            if position - start == most:  # no sentence ends between border and here
                stop = border if border - start >= least else position
                starts.append(start)
                stops.append(stop)
                documents.append(document)
                start, border = stop, -1
            for end in ends:
                if tokens[position] == end:
                    border = position + 1
        if offsets[document + 1] - start >= least:
            starts.append(start)
            stops.append(offsets[document + 1])
            documents.append(document)
    return np.array(starts, np.int64), np.array(stops, np.int64), np.array(documents, np.int64)
