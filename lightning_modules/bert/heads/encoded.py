"""What an encoder hands to a head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor


class Encoded(NamedTuple):
    """Contextual vectors of some (query, document) pairs, padded. What is masked may hold anything finite.

    layers: one (the last) for heads that ask for it, else embeddings and all hidden layers, the last one last.
    """

    cls: Tensor  # (pairs, width) last-layer [CLS], averaged over the chunks of the document
    query: Sequence[Tensor]  # a layer each: (pairs, q_len, width) of the document's first chunk
    document: Sequence[Tensor]  # a layer each: (pairs, d_len, width) of all its chunks, one behind the other
    query_mask: Tensor  # (pairs, q_len) bool: true where there is a query piece
    document_mask: Tensor  # (pairs, d_len) bool

    def pairs(self) -> Iterator[Encoded]:
        """Each pair by itself, without the padding that its neighbours ask for."""
        sizes = (mask.sum(dim=1).tolist() for mask in (self.query_mask, self.document_mask))
        for i, (q, d) in enumerate(zip(*sizes, strict=True)):
            one = slice(i, i + 1)
            yield Encoded(
                self.cls[one], [layer[one, :q] for layer in self.query], [layer[one, :d] for layer in self.document],
                self.query_mask[one, :q], self.document_mask[one, :d],
            )  # fmt: skip
