"""BERT rankers: throughput beside sentence-transformers' CrossEncoder, cost of the heads, distance to the CPU scorer.

    python benchmarks/bert.py [--pairs 64] [--repeats 5] [--parts cross_encoder,table,heads] [--small]

Texts are made of frequent whole words of the packaged tokenizer, with the lengths of the embedded docstrings (deciles),
so that both sides read the same pieces. The encoder is the packaged one, 6 x 384; for the cost of the heads it is a
random 12 x 768 BERT, and documents have 1,431 pieces, three full chunks. Ours and theirs alternate, and the median of
the ratios of all rounds is compared. Everything is float32.

Cost of a head: whole passes differ more from round to round than a head costs. So what follows the encoder is timed by
itself, in many short rounds on the same hidden states; the extra time of a head over vanilla is divided by the time of
a whole vanilla pass. That leaves out what the encoder takes more (keeping all its layers for a CEDR head, gradients for
them): the ratios of whole rounds are printed beside it.

Training: forward, backward and optimiser over (query, relevant, other) triples, `--at_once` of them at once on both
sides; ours starts from prepared word pieces, as train.py does. The CrossEncoder is trained with its own MarginMSELoss.
Re-ranking: `score_texts`, tokenisation included as in `CrossEncoder.predict`; and `score` on prepared word pieces, as
in train.py and evaluate.py.

Bounds: training and re-ranking at least as fast as CrossEncoder; a head adds at most 5 % of a vanilla pass for Model 1,
10 % for DRMM; the CPU scorer of `nn_model1_exp` has at least 1,000 times the throughput of bert_vanilla_short. Exits
with 1 if a bound is missed. Needs two idle cores. --small: tiny sizes, no bounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch.nn import functional as F

from lexical.batches import RankingBatch
from lexical.encoders import PACKAGED, packaged_encoder, read_tokenizer
from lexical.index.forward_index import build_forward_index, open_forward_index
from lexical.index.ragged import Ragged, offsets_of, ragged
from lexical.model1.scorer import model1_scores
from lexical.model1.table import TranslationTable
from lightning_modules import BertRanker
from lightning_modules.bert.chunks import PairInputs
from lightning_modules.neural_ranker import to_tensors

QUERY_LENGTHS = [3, 6, 8, 9, 10, 12, 13, 15, 18, 23, 32]  # deciles of the training queries of pydocs_passage, cut
DOCUMENT_LENGTHS = [12, 29, 43, 61, 83, 113, 154, 219, 326, 561, 9551]  # and of its documents
LONGEST = 477
HEAD_BOUNDS = {"model1": 1.05, "drmm": 1.10}
TABLE_SPEEDUP = 1000.0
SHORT_ROUNDS = 20  # of what follows the encoder
QUICK_RUNS = 50  # of the CPU scorer for each run of BERT
TABLE_ROW = 840  # entries of a query token: 2.75% of the vocabulary, as the exported table of the README


class Texts:
    """Queries, each with a relevant and another document: texts, and their word pieces."""

    def __init__(self, triples: int, rng: np.random.Generator) -> None:
        tokenizer = read_tokenizer(PACKAGED)
        words = [piece for piece, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
                 if piece.isascii() and piece.isalpha() and len(piece) > 2]  # fmt: skip
        decile = np.linspace(0, 1, 11)

        def text(deciles: list[int], most: int) -> str:
            length = min(most, int(np.interp(rng.random(), decile, deciles)))
            return " ".join(words[int(i)] for i in len(words) * rng.random(length) ** 3)

        self.queries = [text(QUERY_LENGTHS, 32) for _ in range(triples)]
        self.documents = [text(DOCUMENT_LENGTHS, LONGEST) for _ in range(2 * triples)]
        pieces = [tokenizer.encode(text, add_special_tokens=False).ids for text in (*self.queries, *self.documents)]
        self.query_pieces = ragged(pieces[:triples], np.int32)
        self.document_pieces = ragged(pieces[triples:], np.int32)

    def batch(self, first: int = 0, end: int | None = None) -> RankingBatch:
        """The candidates of query i are documents 2 i and 2 i + 1."""
        end = len(self.queries) if end is None else end
        rows = [self.query_pieces.row(i) for i in range(first, end)]
        candidates = ragged([[2 * i, 2 * i + 1] for i in range(first, end)], np.int32)
        forward: Any = None  # bags of words are not read
        return RankingBatch(forward, ragged(rows, np.int32), candidates, self.document_pieces)


def ranker_of(head: str, backbone: str, chunks: int = 1, trained: bool = True) -> BertRanker:
    ranker = BertRanker(head, chunks, backbone)  # type: ignore[arg-type]
    pieces = read_tokenizer(PACKAGED).get_vocab()
    vocabulary = sorted(pieces, key=lambda piece: pieces[piece])
    ranker.build_for(vocabulary)
    ranker.margin = 1e6  # no pair keeps it: every backward pass is computed, as by the CrossEncoder
    if trained:
        ranker.start_weights(vocabulary)
    return ranker


def our_step(ranker: BertRanker, optimizer: torch.optim.Optimizer, batches: list[RankingBatch]) -> float:
    """Make one optimiser step over all batches; return the share of positions that were padding."""
    optimizer.zero_grad()
    padding = []
    for batch in batches:
        inputs = ranker.collate(batch)
        padding.append(inputs.padding)
        _, loss = ranker.losses(ranker.transfer_batch_to_device(inputs, ranker.device, 0))
        loss.backward()
    optimizer.step()
    return median(padding)


def seconds(run: Callable[..., Any], *arguments: Any) -> float:
    started = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - started


def alternate(ours: Callable[[], Any], other: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Return the median seconds of ours and of the other, and the median of other / ours; the first round warms up."""
    times = [(seconds(ours), seconds(other)) for _ in range(repeats + 1)][1:]
    our_times, other_times = zip(*times, strict=True)
    return median(our_times), median(other_times), median(b / a for a, b in times)


def report(line: str, met: bool, bounded: bool) -> bool:
    print(f"  {line}: {'met' if met else 'MISSED' if bounded else 'no bound here'}", flush=True)
    return met or not bounded


def beside_cross_encoder(options: argparse.Namespace) -> bool:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.losses import MarginMSELoss

    texts, bounded = Texts(options.pairs, np.random.default_rng(0)), not options.small
    ranker = ranker_of("vanilla", "packaged").train()
    optimizer = ranker.optimizer()
    theirs = CrossEncoder(str(packaged_encoder()), num_labels=1, max_length=512, device="cpu")
    loss, at_once = MarginMSELoss(theirs), options.at_once
    their_optimizer = torch.optim.AdamW(theirs.parameters(), 2e-5, weight_decay=1e-7)
    borders = [(first, min(first + at_once, options.pairs)) for first in range(0, options.pairs, at_once)]
    padding: list[float] = []

    def their_step() -> None:
        theirs.train()
        their_optimizer.zero_grad()
        for first, end in borders:
            pairs = texts.documents[2 * first : 2 * end]
            loss([texts.queries[first:end], pairs[::2], pairs[1::2]], torch.ones(end - first)).backward()
        their_optimizer.step()

    def step() -> None:
        padding.append(our_step(ranker, optimizer, [texts.batch(*border) for border in borders]))

    lengths = texts.document_pieces.lengths() + texts.query_pieces.lengths().repeat(2) + 3
    blocks = [lengths[2 * first : 2 * end][side::2] for first, end in borders for side in (0, 1)]
    their_padding = 1 - sum(int(block.sum()) for block in blocks) / sum(
        int(block.max()) * len(block) for block in blocks
    )
    our_seconds, other, ratio = alternate(step, their_step, options.repeats)
    count = 2 * options.pairs
    print(f"training, {options.pairs} triples, {at_once} at once, {lengths.mean():.0f} positions a sequence:")
    print(f"  ours {count / our_seconds:.1f} sequences/s (padding {median(padding):.1%})")
    print(f"  CrossEncoder {count / other:.1f} sequences/s (padding {their_padding:.1%})")
    met = report(f"ours / CrossEncoder {ratio:.2f}, bound 1", ratio >= 1, bounded)

    ranker.eval()
    ranker.tokenizer = read_tokenizer(PACKAGED)
    pairs = [(texts.queries[i // 2], document) for i, document in enumerate(texts.documents)]
    columns = [list(column) for column in zip(*pairs, strict=True)]
    for name, run in (
        ("score_texts", lambda: ranker.score_texts(*columns)),
        ("score on prepared pieces", lambda: ranker.score(texts.batch())),
    ):
        our_seconds, other, ratio = alternate(run, lambda: theirs.predict(pairs, batch_size=32), options.repeats)
        print(f"re-ranking, {name}: ours {count / our_seconds:.1f} passages/s, CrossEncoder {count / other:.1f}")
        met = report(f"ours / CrossEncoder {ratio:.2f}, bound 1", ratio >= 1, bounded) and met
    inputs = ranker.inputs_of(texts.batch(), np.arange(count), for_scores=True)
    print(f"  padding of ours when re-ranking: {PairInputs((inputs,)).padding:.1%}")
    return met


def cost_of_heads(options: argparse.Namespace) -> bool:
    from transformers import BertConfig

    layers, width = (2, 64) if options.small else (12, 768)
    heads = width // 64
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width
    )
    rng = np.random.default_rng(0)
    documents = ragged([rng.integers(1000, 30_000, 1431) for _ in range(2)], np.int32)
    queries = ragged([rng.integers(1000, 30_000, 16)], np.int32)
    forward: Any = None
    batch = RankingBatch(forward, queries, ragged([[0, 1]], np.int32), documents)
    met, rankers = True, {}
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        for head in ("vanilla", "knrm", "drmm", "pacrr", "model1"):
            ranker = ranker_of(head, folder, chunks=3, trained=False)
            rankers[head] = (ranker, ranker.optimizer())

    def step(head: str) -> Any:
        ranker, optimizer = rankers[head]
        return our_step(ranker.train(), optimizer, [batch])

    def score(head: str) -> Any:
        return rankers[head][0].eval().score(batch)

    print(f"cost of the heads over vanilla, {layers} x {width}, two documents of 1,431 pieces, query of 16:")
    for name, run, training in (("training step", step, True), ("re-ranking", score, False)):
        whole = [{head: seconds(run, head) for head in rankers} for _ in range(options.repeats + 1)][1:]
        vanilla = median(times["vanilla"] for times in whole)
        after = {head: AfterTheEncoder(ranker, batch, training) for head, (ranker, _) in rankers.items()}
        short = [{head: seconds(run_head) for head, run_head in after.items()} for _ in range(SHORT_ROUNDS + 2)][2:]
        print(f"  {name}: vanilla {vanilla:.2f} s, {options.repeats} rounds", flush=True)
        for head in list(rankers)[1:]:
            more = median(times[head] - times["vanilla"] for times in short)
            ratio, bound = 1 + more / vanilla, HEAD_BOUNDS.get(head)
            rounds = sorted(times[head] / times["vanilla"] for times in whole)
            limit = "" if bound is None else f", bound {bound:.2f}"
            by_rounds = f"whole rounds {median(rounds):.3f}, from {rounds[0]:.3f} to {rounds[-1]:.3f}"
            line = f"{head} takes {1000 * more:.0f} ms more: {ratio:.3f} of vanilla{limit} ({by_rounds})"
            met = report(line, bound is None or ratio <= bound, not options.small) and met
    return met


class AfterTheEncoder:
    """Gathering and head on given hidden states and, in training, the backward pass to those states."""

    def __init__(self, ranker: BertRanker, batch: RankingBatch, training: bool) -> None:
        self.ranker, self.training = ranker.train(training), training
        inputs = ranker.inputs_of(batch, np.arange(len(batch.candidates.values)), for_scores=not training)
        self.inputs = to_tensors(inputs, ranker.device)
        with torch.no_grad():
            self.hidden = [ranker.encoder.hidden(group) for group in self.inputs.groups]
        for states in self.hidden:
            for state in states:
                state.requires_grad_(training)

    def __call__(self) -> None:
        ranker = self.ranker
        if not self.training:
            with torch.no_grad():
                for pair in ranker.encoder.gather(self.inputs, self.hidden).pairs():
                    ranker.head(pair)
            return
        scores = ranker.head(ranker.encoder.gather(self.inputs, self.hidden)).view(-1, 2)
        F.relu(1 - scores[:, 0] + scores[:, 1]).sum().backward()
        for states in self.hidden:
            for state in states:
                state.grad = None


def distance_to_the_table(options: argparse.Namespace) -> bool:
    texts, rng = Texts(options.pairs, np.random.default_rng(1)), np.random.default_rng(2)
    ranker = ranker_of("vanilla", "packaged").eval()
    vocabulary = 30_522
    entries = np.sort(rng.integers(0, vocabulary, (vocabulary, TABLE_ROW), np.int32), axis=1)
    offsets = offsets_of(np.full(vocabulary, TABLE_ROW))
    table = TranslationTable(Ragged(offsets, entries.ravel()), rng.random(entries.size, np.float32) * 0.01)
    batch = texts.batch()
    with tempfile.TemporaryDirectory() as folder:
        build_forward_index([texts.document_pieces], vocabulary, Path(folder))
        forward = open_forward_index(Path(folder))
        quick = lambda: model1_scores(table, forward, batch.queries, batch.candidates, 0.0, floor=3e-5)  # noqa: E731
        times = []
        for _ in range(options.repeats + 1):
            slow = seconds(lambda: ranker.score(batch))
            times.append((slow, seconds(lambda: [quick() for _ in range(QUICK_RUNS)]) / QUICK_RUNS))
    slow, fast = (median(column) for column in zip(*times[1:], strict=True))
    ratio, count = median(a / b for a, b in times[1:]), 2 * options.pairs
    print(
        f"bert_vanilla_short {slow / count * 1e6:,.0f} ms per 1,000 passages, nn_model1_exp {fast / count * 1e6:.2f} ms"
    )
    return report(f"ratio {ratio:,.0f}, bound {TABLE_SPEEDUP:,.0f}", ratio >= TABLE_SPEEDUP, not options.small)


PARTS = {"cross_encoder": beside_cross_encoder, "table": distance_to_the_table, "heads": cost_of_heads}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("pairs", 64), ("at_once", 8), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.pairs, options.at_once, options.repeats = 4, 2, 1
    met = [PARTS[part](options) for part in options.parts.split(",")]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
