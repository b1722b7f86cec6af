"""A BERT ranker as a folder that another project loads with one line:

    ranker = BertRanker.from_pretrained("folder")
    scores = ranker.score_texts(["how to sort"] * 2, ["sorts a list in place", "opens a file"])

It holds weights and settings, no code:

    config.json, model.safetensors   the encoder, as Hugging Face's AutoModel reads it
    head.safetensors                 the head
    tokenizer.json                   the word pieces
    ranker.json                      head, chunks and the other settings of the ranker
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from lexical.batches import RankingBatch
from lexical.encoders import encoder_folder
from lexical.errors import UserError
from lexical.index.ragged import Ragged, offsets_of, ragged

if TYPE_CHECKING:
    from lightning_modules.bert.ranker import BertRanker

SETTINGS = ("head", "chunks", "positions", "query_pieces", "projection", "hidden")  # what the weights are made for
PRECISION = "precision"  # that the encoder was trained in


def save_ranker(ranker: BertRanker, folder: Path) -> None:
    """Everything that scoring needs; the settings of the training are left behind."""
    from transformers import AutoTokenizer

    beside = folder.with_name(f".{folder.name}.{os.getpid()}")  # a folder is whole or not there
    beside.mkdir(parents=True)
    transformer: Any = ranker.encoder.transformer
    transformer.save_pretrained(beside)
    save_file({name: one.contiguous() for name, one in ranker.head.state_dict().items()}, beside / "head.safetensors")
    AutoTokenizer.from_pretrained(encoder_folder(ranker.backbone)).save_pretrained(beside)
    limits, model1 = ranker.limits, ranker.model1
    values = (
        ranker.head_name, limits.chunks, limits.positions, limits.query_pieces, model1.projection, model1.hidden,
    )  # fmt: skip
    settings = {**dict(zip(SETTINGS, values, strict=True)), PRECISION: ranker.trained_in}
    (beside / "ranker.json").write_text(json.dumps(settings, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def load_saved_ranker(target: type[BertRanker], folder: Path) -> BertRanker:
    """The ranker in evaluation mode; a folder that is not whole is refused."""
    try:
        settings = json.loads((folder / "ranker.json").read_text(encoding="utf-8"))
        precision = settings.pop(PRECISION, None)  # older folders do not say it
        if set(settings) != set(SETTINGS):
            raise ValueError(f"ranker.json must have {', '.join(SETTINGS)}")
        tokenizer = read_tokenizer(folder)
        ranker = target(backbone=str(folder), **settings)
        ranker.use_precision(precision)
        pieces = sorted(tokenizer.get_vocab().items(), key=lambda piece: piece[1])
        vocabulary = [piece for piece, _ in pieces]
        ranker.use_vocabulary(vocabulary)
        ranker.start_weights(vocabulary)
        ranker.head.load_state_dict(load_file(folder / "head.safetensors"), strict=True)
    except Exception as error:  # missing, cut short, hostile or of another version: it is not trusted
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{folder} is no saved ranker that can be loaded ({first})") from error
    ranker.tokenizer = tokenizer
    return ranker.eval()


def read_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text, no separator
    return tokenizer


def text_pairs(tokenizer: Tokenizer, queries: list[str], documents: list[str]) -> RankingBatch:
    """The pairs (queries[i], documents[i])."""
    if len(queries) != len(documents):
        raise ValueError(f"{len(queries):,} queries for {len(documents):,} documents: give a query for each")
    tokens = [
        ragged([one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)], np.int32)
        for texts in (queries, documents)
    ]
    candidates = Ragged(offsets_of(np.ones(len(documents), np.int64)), np.arange(len(documents), dtype=np.int32))
    forward: Any = None  # bags of words are not looked at
    return RankingBatch(forward, tokens[0], candidates, tokens[1])
