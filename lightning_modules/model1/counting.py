"""Several processes that count together: what each has counted on its share of the bitext is summed over the ranks."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

from lexical.index.ragged import Ragged
from lexical.model1.em import Model1EM, PairCounts, merged


class CountingStrategy(DDPStrategy):
    """Lightning's DDP for a module without gradients: processes are started and joined, nothing is wrapped."""

    def configure_ddp(self) -> None:
        """torch's DistributedDataParallel refuses a module without parameters, and there is nothing for it to do."""


def sum_over_ranks(em: Model1EM) -> None:
    """Before each maximisation: every rank gets the counts and the log-likelihood of the whole bitext."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if em.iteration == 0:  # each rank has found pairs of its own
        em.expected = _merged_over_ranks(em.expected)
    else:
        dist.all_reduce(torch.from_numpy(em.expected.values))
        dist.all_reduce(torch.from_numpy(em.expected.null))
    totals = torch.tensor([em.log_likelihood, em.target_tokens, em.dropped_pairs], dtype=torch.float64)
    dist.all_reduce(totals)
    em.log_likelihood, em.target_tokens, em.dropped_pairs = float(totals[0]), int(totals[1]), int(totals[2])


def _merged_over_ranks(counts: PairCounts) -> PairCounts:
    """The sum over the union of all ranks' pairs; the ranks are added in their order, on every rank."""
    total = _broadcast(counts, 0)
    for rank in range(1, dist.get_world_size()):
        total = merged(total, _broadcast(counts, rank))
    return total


def _broadcast(counts: PairCounts, rank: int) -> PairCounts:
    sizes = torch.tensor([len(counts.values)])
    dist.broadcast(sizes, rank)
    mine = dist.get_rank() == rank
    arrays = []
    for array, length in (
        (counts.pairs.offsets, len(counts.pairs.offsets)),
        (counts.pairs.values, int(sizes[0])),
        (counts.values, int(sizes[0])),
        (counts.null, len(counts.null)),
    ):
        received = torch.from_numpy(array.copy() if mine else np.empty(length, array.dtype))
        dist.broadcast(received, rank)
        arrays.append(received.numpy())
    return PairCounts(Ragged(arrays[0], arrays[1]), arrays[2], arrays[3])
