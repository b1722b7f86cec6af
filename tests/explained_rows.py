"""Trained and measured rankers on a small folder whose texts are partly hostile: what explain.py and serve.py show."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from evaluate import evaluate
from tests.test_bert_training import SMALL as SMALL_BERT
from tests.test_nn_model1_training import SMALL as SMALL_NETWORK
from tests.tiny_bert import with_packaged_tokenizer, write_tiny_bert
from tests.training_place import Place
from train import train

OUT = "out"
ROWS = ["bm25_lemm", "model1_word", "model1_bwps", "nn_model1", "nn_model1_exp", "bert_model1_full"]
HOSTILE = "hostile-1"
HOSTILE_TEXT = "<script>alert('document')</script> <img src=x onerror=alert(2)> brakes of Abbott & 😀 the gearbox"


class Explained(NamedTuple):
    place: Place

    def command(self, *arguments: str) -> list[str]:
        return self.place.command(OUT, *arguments)

    def query(self, number: int, query_set: str = "test") -> tuple[str, str]:
        """(id, text)"""
        queries = self.place.opened().prepared.query_sets[query_set]
        return queries.ids[number], queries.texts[number]


def train_explained(small_folder: Path, work: Path) -> Explained:
    """Trains and measures the rows; about a minute."""
    os.environ["WANDB_MODE"] = "disabled"  # its files are looked at elsewhere
    folder = work / "hostile"
    shutil.copytree(small_folder, folder)
    with (folder / "collection.tsv").open("a", encoding="utf-8") as file:
        file.write(f"{HOSTILE}\t{HOSTILE_TEXT}\n")
    backbone = with_packaged_tokenizer(write_tiny_bert(work / "bert", positions=64))
    found = Explained(Place(folder, work))
    for row in ("bm25_lemm", "model1_word", "model1_bwps"):
        train(found.command("--model", row))
    train(found.command("--model", "nn_model1", *SMALL_NETWORK))
    train(found.command("--model", "bert_model1_full", "--model.backbone", str(backbone), *SMALL_BERT))
    train(found.command("--model", "bert_vanilla_short", "--model.backbone", str(backbone), *SMALL_BERT))
    evaluate(found.command("--models", ",".join(ROWS)))
    os.environ["WANDB_MODE"] = "offline"
    return found
