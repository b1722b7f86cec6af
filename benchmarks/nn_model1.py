"""Time of the neural Model 1 on the CPU: export of the table against `torch.mm`, training step against a padded one.

    python benchmarks/nn_model1.py [--batch 32] [--tokens 256] [--width 64] [--repeats 7] [--small]

Made-up texts over 30,522 tokens by Zipf's law: queries, each with a relevant and another document, with the lengths of
the embedded docstrings (deciles), queries cut at 32 and documents at --tokens. Half of the tokens of a document are
distinct, as there. All layers have --width, in the export twice that.
Export: 400 x 30,522 tokens, one pair in twenty kept; 2 (projection hidden1 + hidden1 hidden2 + hidden2) FLOP a pair.
Step: collation, forward, backward, optimiser. The padded one puts all padded positions through the network. A new batch
each time, equal weights (the rate is too small to change them), no dropout. Our backward pass has nothing to do where a
query keeps its margin: the margin of 1 is measured, and one that no query keeps. Ours and the other take turns. Texts
of even length, hardly padded (queries of 4 to 20 tokens, documents of 100 to --tokens), are measured too, unbounded.

Bounds: medians of padded / ours at least 15 for either margin, of export / `torch.mm` at least 60 %, scores less than
1e-4 apart; exits with 1 if one is missed. Wants two idle cores. --small: tiny sizes, only the scores are bounded.
"""

from __future__ import annotations

import argparse
import copy
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lexical.batches import RankingBatch
from lexical.index.forward_index import build_forward_index, open_forward_index
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.distinct_pairs import distinct_pairs
from lightning_modules.neural_model1.export import ExportReport, ExportSettings, export_table
from lightning_modules.neural_model1.ranker import FLOOR, NNModel1

Batch = tuple[RankingBatch, Ragged]  # what ours is given, and the documents' texts: two a query
FASTER, APART, OF_MM, RATE = 15.0, 1e-4, 0.6, 1e-12
QUERY_LENGTHS = [3, 6, 8, 9, 10, 12, 13, 15, 18, 23, 32]  # deciles of the training queries of pydocs_passage, cut
DOCUMENT_LENGTHS = [12, 29, 43, 61, 83, 113, 154, 219, 326, 561, 9551]  # and of its documents


def made_up_batch(queries: int, tokens: int, vocabulary: int, rng: np.random.Generator, even: bool = False) -> Batch:
    cumulative = np.cumsum(1.0 / np.arange(3, vocabulary + 3))

    def texts(lengths: np.ndarray, repeated: float) -> Ragged:
        offsets = offsets_of(lengths)
        values = np.searchsorted(cumulative, rng.random(offsets[-1]) * cumulative[-1]).astype(np.int32)
        back = Ragged(offsets, values).positions() * rng.random(len(values)) * (rng.random(len(values)) < repeated)
        return Ragged(offsets, values[np.arange(len(values)) - np.ceil(back).astype(int)])

    if even:
        of_q, of_d = rng.integers(4, 21, queries), rng.integers(min(100, tokens // 2), tokens + 1, 2 * queries)
    else:
        uniform, decile = rng.random(3 * queries), np.linspace(0, 1, 11)
        of_q = np.interp(uniform[:queries], decile, QUERY_LENGTHS).astype(np.int64)
        of_d = np.interp(uniform[queries:], decile, DOCUMENT_LENGTHS).astype(np.int64).clip(max=tokens)
    documents = texts(of_d, 0.7)
    candidates = Ragged(2 * np.arange(queries + 1), np.arange(2 * queries, dtype=np.int32))
    with tempfile.TemporaryDirectory() as folder:
        build_forward_index([documents], vocabulary, Path(folder))
        return RankingBatch(open_forward_index(Path(folder)), texts(of_q, 0.0), candidates), documents


def new_model(vocabulary: int, width: int) -> NNModel1:
    model = NNModel1("bwps", width, width, [width, width], dropout=0.0, learning_rate=RATE)
    model.use_vocabulary([f"t{i}" for i in range(vocabulary)])
    model.sparse_gradients(True)
    return model


def padded_scores(model: Any, q: Tensor, d: Tensor) -> Tensor:
    """(queries, 2) log P(Q|D), the formulas as they stand. q, d: (2 queries, longest) tokens, -1 is padding."""
    sides = ((q, model.embed_q, model.network.query), (d, model.embed_d, model.network.document))
    x_q, x_d = (side.project(torch.tanh(side.norm(embed(one.clamp(min=0))))) for one, embed, side in sides)
    x_q, x_d = torch.broadcast_tensors(x_q[:, :, None], x_d[:, None])
    hidden = F.relu(model.network.f1(torch.cat([x_q, x_d, x_q * x_d], dim=-1)))
    translation = torch.sigmoid(model.network.f3(F.relu(model.network.f2(hidden)))).squeeze(-1)
    translation = torch.where(q[:, :, None] == d[:, None], model.p_self, (1 - model.p_self) * translation)
    p = (translation * (d[:, None] >= 0)).sum(-1) / (d >= 0).sum(-1, keepdim=True)
    return (torch.log(p.clamp(min=FLOOR)) * (q >= 0)).sum(-1).view(-1, 2)


def padded(texts: Ragged) -> Tensor:
    tokens = np.full((texts.rows, texts.lengths().max()), -1, np.int64)
    tokens[texts.row_numbers(), texts.positions()] = texts.values
    return torch.from_numpy(tokens)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, margin: float, ours: bool) -> Tensor:
    optimizer.zero_grad()
    if ours and isinstance(model, NNModel1):
        (scores,) = model.pair_scores(model.transfer_batch_to_device(distinct_pairs(batch[0]), model.device, 0))
    else:
        scores = padded_scores(model, padded(batch[0].queries).repeat_interleave(2, 0), padded(batch[1]))
    F.relu(margin - scores[:, 0] + scores[:, 1]).sum().backward()
    optimizer.step()
    return scores.detach()


def timed(run: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = run(*arguments)
    return time.perf_counter() - started, result


def peak() -> str:
    return f"peak so far {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:,.0f} MiB"


def held(what: str, met: bool, bounded: bool = True) -> bool:
    print(f"  {what}: {'held' if met else 'MISSED' if bounded else 'not bounded here'}")
    return met or not bounded


def measure_export(vocabulary: int, some: int, tables: list[int], width: int, repeats: int, small: bool) -> bool:
    model, matrix = new_model(vocabulary, width), torch.rand(2048, 2048)
    threshold = np.quantile(next(iter(model.translation_rows(np.arange(1), np.arange(vocabulary)))), 0.95)

    def export(queries: int, documents: int) -> ExportReport:  # more documents than queries: no table one could load
        with tempfile.TemporaryDirectory() as folder:
            tokens, used = [f"t{i}" for i in range(queries)], np.ones(documents, bool)
            return export_table(model, tokens, used, ExportSettings(float(threshold)), Path(folder) / "table", {})

    rates, report = [], export(some, vocabulary)
    gflop = report.pairs * 2 * (2 * width**2 + width) / 1e9
    for _ in range(repeats):
        mm = median(2 * 2.048**3 / timed(torch.mm, matrix, matrix)[0] for _ in range(5))
        rates.append((gflop / export(some, vocabulary).seconds, mm))
    rate, of_mm, share = *(median(one) for one in zip(*rates, strict=True)), median(one / mm for one, mm in rates)
    minutes = vocabulary**2 / report.pairs * gflop / rate / 60
    print(f"export, width {width}, {some:,} x {vocabulary:,} tokens, {report.share_of_pairs:.0%} of the pairs kept:")
    print(
        f"  {rate:.0f} GFLOP/s, torch.mm {of_mm:.0f}; {vocabulary:,} x {vocabulary:,} would take {minutes:.1f} minutes"
    )
    for size in tables:
        whole = export(size, size)
        print(f"  {size:,} x {size:,}: {whole.seconds / whole.pairs * 1e6:.3f} s per million pairs, {peak()}")
    return held(f"export / torch.mm {share:.0%}, bound {OF_MM:.0%}", share >= OF_MM, not small)


def measure_step(
    batch_size: int, vocabulary: int, options: argparse.Namespace, margin: float, compared: bool, even: bool = False
) -> bool:
    """Prints our step's time, if `compared` beside the padded one's; whether the bounds are kept."""
    model, rng, times, others = new_model(vocabulary, options.width), np.random.default_rng(0), [], []
    plain, optimizer = copy.deepcopy(model), model.optimizer()
    plain.embed_q.sparse = plain.embed_d.sparse = False
    adamw = torch.optim.AdamW(plain.parameters(), RATE, weight_decay=model.weight_decay, fused=True)
    for _ in range(options.repeats + 1):  # the first one warms up
        batch = made_up_batch(batch_size, options.tokens, vocabulary, rng, even)
        seconds, scores = timed(step, model, optimizer, batch, margin, True)
        times.append(seconds * 1e3)
        if compared:
            seconds, expected = timed(step, plain, adamw, batch, margin, False)
            positions = padded(batch[0].queries).shape[1] * padded(batch[1]).numel()
            share = len(distinct_pairs(batch[0]).pair_query) / positions
            lossy, apart = (scores[:, 1] + margin > scores[:, 0]).float().mean(), (scores - expected).abs().max()
            others.append((seconds * 1e3, seconds * 1e3 / times[-1], float(apart), share, float(lossy)))
    lengths = ", even lengths" if even else ""
    sizes = f"batch {batch_size:3}, vocabulary {vocabulary:7,}, margin {margin:g}{lengths}"
    print(f"our step, {sizes}: {median(times[1:]):.1f} ms")
    if not compared:
        return True
    worst = max(one[2] for one in others)
    padded_time, ratio, _, share, lossy = (median(column) for column in zip(*others[1:], strict=True))
    print(
        f"  padded {padded_time:,.0f} ms; distinct pairs {share:.1%} of the padded; {lossy:.0%} of queries with a loss"
    )
    bounded = not options.small and not even
    fast = held(f"padded / ours {ratio:.1f}, bound {FASTER:g}", ratio >= FASTER, bounded)
    return held(f"largest difference of the scores {worst:.1e}, bound {APART:g}", worst < APART) and fast


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 32), ("tokens", 256), ("width", 64), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    small, vocabulary = options.small, 2_000 if options.small else 30_522
    if small:
        options.batch, options.tokens, options.width, options.repeats = 4, 64, 16, 2
    tables = [100, 200] if small else [2_000, 4_000, 8_000]
    met = [measure_export(vocabulary, 10 if small else 400, tables, 2 * options.width, options.repeats, small)]
    cases = [(batch, vocabulary) for batch in ([2, 4] if small else [8, 16, 32, 64, 128])]
    for case in [*cases, *((options.batch, size) for size in ([500] if small else [5_000, 30_522, 120_000]))]:
        measure_step(*case, options, 1.0, False)
    for even in (False, True):
        met += [measure_step(options.batch, vocabulary, options, margin, True, even) for margin in (1.0, 1e6)]
    print(f"padded formulation included, {peak()}")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
