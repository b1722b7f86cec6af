"""A BERT ranker as a folder that another project loads in one line:

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
from lexical.index.ragged import Ragged, ragged
from lexical.small_files import write_json

if TYPE_CHECKING:
    from lightning_modules.bert.ranker import BertRanker

SETTINGS = ("head", "chunks", "positions", "query_pieces", "projection", "hidden")  # decide the shapes of the weights


def save_ranker(ranker: BertRanker, folder: Path) -> None:
    """Write all that scoring needs; the settings of the training are left out."""
    from transformers import AutoTokenizer

    beside = folder.with_name(f".{folder.name}.{os.getpid()}")  # the folder is complete or not there
    ranker.encoder.transformer.save_pretrained(beside)
    weights = {name: weight.contiguous() for name, weight in ranker.head.state_dict().items()}
    save_file(weights, beside / "head.safetensors")
    AutoTokenizer.from_pretrained(encoder_folder(ranker.backbone)).save_pretrained(beside)
    settings = {name: ranker.hparams[name] for name in SETTINGS}
    write_json(beside / "ranker.json", {**settings, "precision": ranker.precision})
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def load_saved_ranker(ranker_class: type[BertRanker], folder: Path) -> BertRanker:
    """Return the ranker in evaluation mode; a damaged folder is an error."""
    try:
        settings = json.loads((folder / "ranker.json").read_text(encoding="utf-8"))
        precision = settings.pop("precision", None)  # missing in folders of older versions
        if set(settings) != set(SETTINGS):
            raise ValueError(f"ranker.json must have {', '.join(SETTINGS)}")
        tokenizer = read_tokenizer(folder)
        ids = tokenizer.get_vocab()
        vocabulary = sorted(ids, key=lambda piece: ids[piece])
        ranker = ranker_class(backbone=str(folder), **settings)
        ranker.use_precision(precision)
        ranker.build_for(vocabulary)
        ranker.start_weights(vocabulary)
        ranker.head.load_state_dict(load_file(folder / "head.safetensors"), strict=True)
    except Exception as error:  # missing, cut short, hostile or of another version: not trusted
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{folder} is not a saved ranker that can be loaded ({reason})") from error
    ranker.tokenizer = tokenizer
    return ranker.eval()


def read_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text, not a separator
    return tokenizer


def text_pairs(tokenizer: Tokenizer, queries: list[str], documents: list[str]) -> RankingBatch:
    """Return a batch of the pairs (queries[i], documents[i])."""
    if len(queries) != len(documents):
        raise ValueError(f"{len(queries):,} queries for {len(documents):,} documents: give a query for each")
    query_tokens, document_tokens = (
        ragged([text.ids for text in tokenizer.encode_batch_fast(texts, add_special_tokens=False)], np.int32)
        for texts in (queries, documents)
    )
    candidates = Ragged(np.arange(len(documents) + 1), np.arange(len(documents), dtype=np.int32))
    forward: Any = None  # bags of words are not read
    return RankingBatch(forward, query_tokens, candidates, document_tokens)
