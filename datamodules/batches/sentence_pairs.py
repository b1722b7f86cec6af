"""Sentence pairs of a collection for masked language modelling with next-sentence prediction.

A document's sentences are packed, one behind the other, into spans that fit a sequence. A span is cut at a sentence
border into A and B, and gives two sequences that stand side by side in a batch: A with its own B, and A with a B of
another document, equally long, both within a sentence. So neither A nor B nor their form tells by itself which is
which; and an encoder that was never asked to compare two texts learns it from the difference. 15% of the pieces are
hidden: of these 80% behind [MASK], 10% behind a random piece, 10% behind themselves. What is drawn is a function of
seed, epoch and sequence: processes and a resumed training see the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lexical.batches import NOT_HIDDEN, SentenceBatch
from lexical.errors import UserError
from lexical.index.ragged import Ragged

HIDDEN, MASKED, REPLACED = 0.15, 0.8, 0.1
SHORTEST = 8  # pieces of a span; less has no two parts


class PretrainingTokens(NamedTuple):
    """Ids of the word pieces that mean something to the pretraining."""

    cls: int
    sep: int
    pad: int
    mask: int
    ends: tuple[int, ...]  # . ? !
    pieces: int  # size of the vocabulary

    @classmethod
    def of(cls, vocabulary: list[str]) -> PretrainingTokens:
        place = {piece: number for number, piece in enumerate(vocabulary)}
        if missing := [piece for piece in ("[CLS]", "[SEP]", "[PAD]", "[MASK]") if piece not in place]:
            raise UserError(f"--model.pretrain: the word pieces of this data have no {', '.join(missing)}")
        ends = tuple(place[piece] for piece in ".?!" if piece in place)
        return cls(place["[CLS]"], place["[SEP]"], place["[PAD]"], place["[MASK]"], ends, len(vocabulary))


class SentencePairs:
    """Examples of a collection; every `held_out`-th document is kept for measuring.

    Args:
        documents: token ids in the order of the text, a row for each document.
        tokens: the special pieces.
        length: of a sequence, special pieces included.
        seed: of all that is drawn.
        held_out: one document in so many is held out.
    """

    def __init__(
        self, documents: Ragged, tokens: PretrainingTokens, length: int = 128, seed: int = 1, held_out: int = 50
    ) -> None:
        self.documents, self.tokens, self.length, self.seed = documents, tokens, length, seed
        self.starts, self.ends, owners = _spans(
            documents.offsets, documents.values, np.array(tokens.ends, np.int64), length - 3, SHORTEST
        )
        apart = owners % held_out == held_out - 1
        self._owners, self._apart = owners, apart
        self._among = [np.flatnonzero(~apart), np.flatnonzero(apart)]  # spans to train on, and held-out ones

    @property
    def held_out(self) -> np.ndarray:
        """The held-out sequences."""
        return _both(self._among[1])

    def order(self, epoch: int) -> np.ndarray:
        """The training sequences of an epoch, as they come, the two of a span one behind the other.

        An epoch is as long as if each text were read once: it has both sequences of half of the spans.
        """
        spans = np.random.default_rng([self.seed, epoch]).permutation(self._among[0])
        return _both(spans[: -(-len(spans) // 2)])

    def batch(self, epoch: int, sequences: np.ndarray) -> SentenceBatch:
        """Sequence 2 i is span i as it stands, sequence 2 i + 1 has a B of another document."""
        examples = [self._example(epoch, *divmod(int(one), 2)) for one in sequences]
        longest = max((len(tokens) for tokens, *_ in examples), default=0)
        tokens = np.full((len(examples), longest), self.tokens.pad, np.int64)
        types, mask = np.zeros_like(tokens), np.zeros_like(tokens)
        labels = np.full_like(tokens, NOT_HIDDEN)
        follows = np.zeros(len(examples), np.int64)
        for row, (pieces, first, hidden, other) in enumerate(examples):
            n = len(pieces)
            tokens[row, :n], types[row, first:n], mask[row, :n], labels[row, :n] = pieces, 1, 1, hidden
            follows[row] = other
        return SentenceBatch(tokens, types, mask, labels, follows)

    def _example(self, epoch: int, span: int, strange: int) -> tuple[np.ndarray, int, np.ndarray, bool]:
        """(pieces, place where B begins, labels, B is of another document)"""
        pieces = self._span(span)
        cut = self._border(pieces, np.random.default_rng([self.seed, epoch, span]))  # the same in both sequences
        a, b = pieces[:cut], pieces[cut:]
        rng = np.random.default_rng([self.seed, epoch, span, 1])
        other = self._stranger(span, rng)
        if other is not None:
            size = min(len(b), len(other))
            while size > 1 and (b[size - 1] in self.tokens.ends or other[size - 1] in self.tokens.ends):
                size -= 1  # a B that ends as a sentence does would be known by that
            b = (other if strange else b)[:size]
        if strange:
            rng = np.random.default_rng([self.seed, epoch, span, 2])
        t = self.tokens
        sequence = np.concatenate([[t.cls], a, [t.sep], b, [t.sep]]).astype(np.int64)
        labels = np.full(len(sequence), NOT_HIDDEN, np.int64)
        places = np.delete(np.arange(1, len(sequence) - 1), len(a))  # all but the special pieces
        hidden = rng.permutation(places)[: max(1, round(HIDDEN * len(places)))]
        labels[hidden] = sequence[hidden]
        draw = rng.random(len(hidden))
        sequence[hidden[draw < MASKED]] = t.mask
        replaced = hidden[(draw >= MASKED) & (draw < MASKED + REPLACED)]
        sequence[replaced] = rng.integers(t.pieces, size=len(replaced))
        return sequence, len(a) + 2, labels, bool(strange) and other is not None

    def _span(self, span: int) -> np.ndarray:
        return self.documents.values[self.starts[span] : self.ends[span]]

    def _stranger(self, span: int, rng: np.random.Generator) -> np.ndarray | None:
        """Text of another document from a sentence border on; None where there is none. Held-out text is never trained
        on."""
        among, owner = self._among[int(self._apart[span])], self._owners[span]
        first, end = np.searchsorted(among, np.searchsorted(self._owners, [owner, owner + 1]))  # its own spans
        if end - first == len(among):
            return None
        drawn = int(rng.integers(len(among) - (end - first)))
        stranger = int(among[drawn if drawn < first else drawn + end - first])
        start = self.starts[stranger] + self._border(self._span(stranger), rng)
        return self.documents.values[start : self.documents.offsets[self._owners[stranger] + 1]]

    def _border(self, pieces: np.ndarray, rng: np.random.Generator) -> int:
        """Where B begins: behind the end of a sentence, in the middle where there is but one."""
        borders = np.flatnonzero(np.isin(pieces[:-1], self.tokens.ends)) + 1
        return int(borders[rng.integers(len(borders))]) if len(borders) else len(pieces) // 2


def _both(spans: np.ndarray) -> np.ndarray:
    """The sequences of the spans."""
    return (2 * spans[:, None] + np.arange(2)).ravel()


@njit(cache=True, nogil=True)
def _spans(offsets, tokens, ends, most, least):  # type: ignore[no-untyped-def]
    """(first piece, last piece + 1, document) of the spans: whole sentences while they fit, `most` pieces at most."""
    starts, stops, owners = [], [], []
    for document in range(len(offsets) - 1):
        start, border = offsets[document], -1  # border: behind the last whole sentence of the span
        place = start
        while place < offsets[document + 1]:
            if place - start == most:
                stop = border if border - start >= least else place
                starts.append(start)
                stops.append(stop)
                owners.append(document)
                start, border = stop, -1
                place = start
                continue
            for end in ends:
                if tokens[place] == end:
                    border = place + 1
            place += 1
        if place - start >= least:
            starts.append(start)
            stops.append(place)
            owners.append(document)
    return np.array(starts, np.int64), np.array(stops, np.int64), np.array(owners, np.int64)
