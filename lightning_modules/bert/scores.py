"""Scores of a BERT ranker: pairs of about one length together, the longest first.

On a CPU a score does not depend on the other pairs or the number of threads, not in its last bit: sequences are padded
each to a length of its own, a slice is one thread's, and the head gets one pair after the other. So an explanation has
the score of the run file, and two processes write the run file of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from lexical.batches import RankingBatch
from lexical.terminal import track
from lightning_modules.bert.chunk_encoder import encoder_type
from lightning_modules.bert.chunks import slices_of
from lightning_modules.bert.thread_shares import one_thread_each

if TYPE_CHECKING:
    from lightning_modules.bert.ranker import BertRanker

S = TypeVar("S")
T = TypeVar("T")

PIECES = {"cpu": 1 << 11}  # document pieces of a slice: their vectors of all layers are in memory, once a thread
PIECES_ELSEWHERE = 1 << 15


def bert_scores(ranker: BertRanker, batch: RankingBatch, share: int, shares: int) -> np.ndarray:
    """(pairs,) float32; 0 for the slices of other shares."""
    assert batch.sequences is not None
    most = ranker.limits.chunk * ranker.limits.chunks
    lengths = batch.sequences.lengths()[batch.candidates.values].clip(max=most)
    slices = slices_of(lengths, PIECES.get(ranker.device.type, PIECES_ELSEWHERE))[share::shares]

    def scores_of(pairs: np.ndarray) -> np.ndarray:
        encoded = ranker.encode_pairs(batch, pairs)
        by_pair = [ranker.head(one) for one in (encoded.pairs() if ranker.to_the_bit else [encoded])]
        return np.asarray(torch.cat(by_pair).float().cpu().numpy())

    scored = each_by_itself(ranker, scores_of, slices)
    if len(slices) > 1:
        scored = track(scored, "score", total=len(slices))
    scores = np.zeros(len(lengths), np.float32)
    for pairs, some in zip(slices, scored, strict=True):
        scores[pairs] = some
    return scores


def each_by_itself(ranker: BertRanker, work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """work(item) of all items, without gradients; on a CPU several at once, each by one thread."""
    encoder_type(ranker.trained_in, ranker.device.type)  # what it has to say it says before there are threads
    return one_thread_each(work, items) if ranker.to_the_bit else map(torch.no_grad()(work), items)
