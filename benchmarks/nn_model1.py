"""What the fast paths of the neural Model 1 are worth on a CPU, each beside the plain computation in one run.

    python benchmarks/nn_model1.py [--batch 32] [--tokens 256] [--width 64] [--repeats 7] [--small]

Generated texts over 30,522 tokens by Zipf's law: queries, each with a relevant and another document, with the lengths
of the embedded docstrings (deciles), queries cut at 32 and documents at --tokens. Half of the tokens of a document are
distinct, as there. All layers have --width, in the export twice that.

Step: collation, forward, backward, optimiser; distinct pairs against all padded positions, and the network as it is
against `torch.compile`. A new batch each time, equal weights (the rate is too small to change them), no dropout; with a
margin of 1 and with one that no query keeps, in turns.
Rows: `fast_rows` against the network pair by pair, and against that compiled; 2 (projection hidden1 + hidden1 hidden2 +
hidden2) FLOP a pair, beside `torch.mm`.
Optimiser: `RowAdamW` against torch's fused AdamW on two embedding matrices of the vocabulary, 384 wide.

Bounds: medians of padded / distinct at least 15 for either margin, scores less than 1e-4 apart, fast rows at least 1.5
times as fast as the compiled network, RowAdamW at least 1.2 times as fast as AdamW; exits with 1 if one is missed.
Measure on two idle cores. --small: tiny sizes, only the scores are bounded.
"""

from __future__ import annotations

import argparse
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
from torch import Tensor
from torch.nn import functional as F

from lexical.batches import RankingBatch
from lexical.index.forward_index import build_forward_index, open_forward_index
from lexical.index.ragged import Ragged, offsets_of
from lexical.model1.distinct_pairs import distinct_pairs
from lightning_modules import NeuralModel1
from lightning_modules.neural_model1.network import TranslationNetwork
from lightning_modules.neural_model1.row_adamw import RowAdamW
from lightning_modules.neural_model1.rows import fast_rows, plain_rows

PADDED, APART, ROWS, ROW_ADAMW, RATE = 15.0, 1e-4, 1.5, 1.2, 1e-12
QUERY_LENGTHS = [3, 6, 8, 9, 10, 12, 13, 15, 18, 23, 32]  # deciles of the training queries of pydocs_passage, cut
DOCUMENT_LENGTHS = [12, 29, 43, 61, 83, 113, 154, 219, 326, 561, 9551]  # and of its documents


def generated_batch(
    queries: int, tokens: int, vocabulary: int, rng: np.random.Generator
) -> tuple[RankingBatch, Ragged]:
    """Return a batch with two candidates a query, and the texts of the documents."""
    cumulative = np.cumsum(1.0 / np.arange(3, vocabulary + 3))

    def texts(lengths: np.ndarray, repeated: float) -> Ragged:
        offsets = offsets_of(lengths)
        values = np.searchsorted(cumulative, rng.random(offsets[-1]) * cumulative[-1]).astype(np.int32)
        back = Ragged(offsets, values).positions() * rng.random(len(values)) * (rng.random(len(values)) < repeated)
        return Ragged(offsets, values[np.arange(len(values)) - np.ceil(back).astype(int)])

    uniform, decile = rng.random(3 * queries), np.linspace(0, 1, 11)
    query_lengths = np.interp(uniform[:queries], decile, QUERY_LENGTHS).astype(np.int64)
    document_lengths = np.interp(uniform[queries:], decile, DOCUMENT_LENGTHS).astype(np.int64).clip(max=tokens)
    documents = texts(document_lengths, 0.7)
    candidates = Ragged(2 * np.arange(queries + 1), np.arange(2 * queries, dtype=np.int32))
    with tempfile.TemporaryDirectory() as folder:
        build_forward_index([documents], vocabulary, Path(folder))
        return RankingBatch(open_forward_index(Path(folder)), texts(query_lengths, 0.0), candidates), documents


def new_model(vocabulary: int, width: int) -> NeuralModel1:
    model = NeuralModel1("bwps", width, width, [width, width], dropout=0.0, learning_rate=RATE)
    model.build_for([f"t{i}" for i in range(vocabulary)])
    model.embed_q.sparse = model.embed_d.sparse = True
    return model


def padded_scores(model: Any, q: Tensor, d: Tensor) -> Tensor:
    """Return (queries, 2) log P(Q|D), the formulas as they stand. q, d: (2 queries, longest) tokens, -1 is padding."""
    sides = ((q, model.embed_q, model.network.query), (d, model.embed_d, model.network.document))
    x_q, x_d = (side(embed(tokens.clamp(min=0))) for tokens, embed, side in sides)
    x_q, x_d = torch.broadcast_tensors(x_q[:, :, None], x_d[:, None])
    hidden = F.relu(model.network.f1(torch.cat([x_q, x_d, x_q * x_d], dim=-1)))
    translation = torch.sigmoid(model.network.f3(F.relu(model.network.f2(hidden)))).squeeze(-1)
    translation = torch.where(q[:, :, None] == d[:, None], model.p_self, (1 - model.p_self) * translation)
    p = (translation * (d[:, None] >= 0)).sum(-1) / (d >= 0).sum(-1, keepdim=True)
    return (torch.log(p.clamp(min=model.floor)) * (q >= 0)).sum(-1).view(-1, 2)


def padded(texts: Ragged) -> Tensor:
    tokens = np.full((texts.rows, texts.lengths().max()), -1, np.int64)
    tokens[texts.row_numbers(), texts.positions()] = texts.values
    return torch.from_numpy(tokens)


def step(model: Any, optimizer: torch.optim.Optimizer, batch: Any, margin: float, distinct: bool = True) -> Tensor:
    optimizer.zero_grad()
    if distinct:
        (scores,) = model.pair_scores(model.transfer_batch_to_device(distinct_pairs(batch[0]), model.device, 0))
    else:
        scores = padded_scores(model, padded(batch[0].queries).repeat_interleave(2, 0), padded(batch[1]))
    F.relu(margin - scores[:, 0] + scores[:, 1]).sum().backward()
    optimizer.step()
    return scores.detach()


def seconds(run: Callable[..., Any], *arguments: Any) -> float:
    started = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - started


def holds(what: str, met: bool, bounded: bool = True) -> bool:
    print(f"  {what}: {'held' if met else 'MISSED' if bounded else 'not bounded here'}")
    return met or not bounded


def measure_step(options: argparse.Namespace, vocabulary: int, margin: float) -> bool:
    """Print the time of a step on distinct pairs, compiled, and on padded texts; return whether the bounds hold."""
    rng = np.random.default_rng(0)
    models = {name: new_model(vocabulary, options.width) for name in ("distinct", "compiled", "padded")}
    for model in models.values():
        model.load_state_dict(models["distinct"].state_dict())
    models["compiled"].network.compile(dynamic=True)
    models["padded"].embed_q.sparse = models["padded"].embed_d.sparse = False
    optimizers = {name: model.optimizer() for name, model in models.items()}
    optimizers["padded"] = torch.optim.AdamW(models["padded"].parameters(), RATE, weight_decay=1e-7, fused=True)
    times: dict[str, list[float]] = {name: [] for name in models}
    apart = 0.0
    for _ in range(options.repeats + 1):  # the first one warms up
        batch = generated_batch(options.batch, options.tokens, vocabulary, rng)
        scores = {}
        for name, model in models.items():
            started = time.perf_counter()
            scores[name] = step(model, optimizers[name], batch, margin, name != "padded")
            times[name].append(1000 * (time.perf_counter() - started))
        apart = max(apart, float((scores["distinct"] - scores["padded"]).abs().max()))
    taken = {name: median(values[1:]) for name, values in times.items()}
    ratio = median(slow / fast for slow, fast in zip(times["padded"][1:], times["distinct"][1:], strict=True))
    print(f"step, batch {options.batch}, vocabulary {vocabulary:,}, width {options.width}, margin {margin:g}:")
    print("  " + ", ".join(f"{name} {value:,.1f} ms" for name, value in taken.items()))
    fast = holds(f"padded / distinct {ratio:.1f}, bound {PADDED:g}", ratio >= PADDED, not options.small)
    return holds(f"largest difference of the scores {apart:.1e}, bound {APART:g}", apart < APART) and fast


@torch.inference_mode()
def measure_rows(options: argparse.Namespace, vocabulary: int) -> bool:
    """Print the time of whole rows of T: fast, pair by pair, and that compiled; return whether the bound holds."""
    width, rows = 2 * options.width, 4 if options.small else 40
    network = TranslationNetwork(width, width, (width, width), dropout=0.0).eval()
    compiled = TranslationNetwork(width, width, (width, width), dropout=0.0).eval()
    compiled.load_state_dict(network.state_dict())
    compiled.compile(dynamic=True)
    x_q, x_d, matrix = torch.randn(rows, width), torch.randn(vocabulary, width), torch.rand(2048, 2048)
    ways: dict[str, Callable[[], Any]] = {
        "fast": lambda: [row.sum() for row in fast_rows(network, x_q, x_d)],
        "plain": lambda: [row.sum() for row in plain_rows(network, x_q, x_d)],
        "compiled": lambda: [row.sum() for row in plain_rows(compiled, x_q, x_d)],
    }
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    mm = []
    for _ in range(options.repeats):
        for name, way in ways.items():
            times[name].append(seconds(way))
        mm.append(2 * 2.048**3 / seconds(torch.mm, matrix, matrix))
    gflop = rows * vocabulary * 2 * (2 * width**2 + width) / 1e9
    ratios = {name: median(a / b for a, b in zip(times[name], times["fast"], strict=True)) for name in times}
    rate = gflop / median(times["fast"])
    print(f"rows of T, width {width}, {rows:,} x {vocabulary:,}: {rate:.0f} GFLOP/s, torch.mm {median(mm):.0f}")
    print(f"  plain / fast {ratios['plain']:.1f}")
    return holds(
        f"compiled / fast {ratios['compiled']:.1f}, bound {ROWS:g}", ratios["compiled"] >= ROWS, not options.small
    )


def measure_optimizer(options: argparse.Namespace, vocabulary: int) -> bool:
    """Print the time of an optimiser's step on two embedding matrices; return whether the bound holds."""
    width, used = (8, (10, 60)) if options.small else (384, (300, 2000))
    ours, fused = ([torch.nn.Parameter(torch.randn(vocabulary, width)) for _ in used] for _ in range(2))
    optimizers = RowAdamW(ours, RATE, 1e-7), torch.optim.AdamW(fused, RATE, weight_decay=1e-7, fused=True)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(3 * options.repeats):
        for weight, dense, rows in zip(ours, fused, used, strict=True):
            tokens = torch.randperm(vocabulary)[:rows]
            gradient = torch.sparse_coo_tensor(
                tokens[None], torch.randn(rows, width), weight.shape, check_invariants=True
            )
            weight.grad, dense.grad = gradient, gradient.to_dense()
        for optimizer, values in zip(optimizers, times, strict=True):
            values.append(1000 * seconds(optimizer.step))
    ours_time, fused_time = (median(values[2:]) for values in times)
    print(f"optimiser, 2 x {vocabulary:,} x {width}: RowAdamW {ours_time:.1f} ms, fused AdamW {fused_time:.1f} ms")
    ratio = fused_time / ours_time
    return holds(f"AdamW / RowAdamW {ratio:.1f}, bound {ROW_ADAMW:g}", ratio >= ROW_ADAMW, not options.small)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 32), ("tokens", 256), ("width", 64), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    vocabulary = 2_000 if options.small else 30_522
    if options.small:
        options.batch, options.tokens, options.width, options.repeats = 4, 64, 16, 2
    met = [measure_step(options, vocabulary, margin) for margin in (1.0, 1e6)]
    met += [measure_rows(options, vocabulary), measure_optimizer(options, vocabulary)]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
