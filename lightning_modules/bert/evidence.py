"""The scores of a BERT ranker with the Model 1 head taken apart: T of contextual vectors, place by place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lexical.batches import RankingBatch
from lexical.evidence import Evidence, model1_evidence
from lightning_modules.bert.chunks import chunk_lengths
from lightning_modules.bert.heads.model1 import Model1Head
from lightning_modules.bert.scores import each_by_itself

if TYPE_CHECKING:
    from lightning_modules.bert.ranker import BertRanker


def bert_evidence(ranker: BertRanker, batch: RankingBatch) -> list[Evidence]:
    """Document by document: explanations are for few. The score is not divided by the query's length."""
    head = ranker.head
    assert isinstance(head, Model1Head) and batch.sequences is not None
    sequences = batch.sequences

    def evidence_of(number: int) -> Evidence:
        encoded = ranker.encode_pairs(batch, np.array([number]))
        with torch.autocast(ranker.device.type, enabled=False):
            translation, _, q, d = (one.cpu().numpy() for one in head.translations(encoded))
        read = encoded.query_mask.shape[1], encoded.document_mask.shape[1]
        whole = np.zeros(read)
        whole[q, d] = translation
        lengths = chunk_lengths(len(sequences.row(batch.candidates.values[number])), ranker.limits)
        chunks = tuple(int(one) for one in np.cumsum([0, *lengths[:-1]]))
        return model1_evidence(whole, np.zeros(read[0]), head.floor, 1, chunks)

    return list(each_by_itself(ranker, evidence_of, range(len(batch.candidates.values))))
