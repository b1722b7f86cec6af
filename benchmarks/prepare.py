"""How preparation grows with the collection: time per passage and peak memory at 100K and 1M generated passages.

    python benchmarks/prepare.py [--sizes 100000,1000000] [--workers 2] [--folder DIR]

Each size is prepared stage by stage, each stage in a fresh process: texts, words and lemmas, word pieces, the bm25s
index, candidates. Peak memory is that of a stage's process and its workers together (PSS: shared pages count once),
sampled every 50 ms; the index's own peak is printed beside that of everything else.

Time per passage is printed twice: of the whole, and without the start-up (imports, worker processes), which is
measured on a collection of 10,000 passages and would flatter the larger size.

Bounds: time per passage (both figures) grows by less than 20%, peak memory of everything but the index by less than
1.5x. Exits with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.full_size import tree_memory

TIME_BOUND, MEMORY_BOUND = 1.20, 1.5
WARM = 10_000  # enough for worker processes to be started
COMMON_WORDS = 5_000
QUERIES = {"train": 2_000, "dev": 1_000, "test": 1_000}


def generate(folder: Path, passages: int, seed: int = 7) -> None:
    """Write a folder in the MS MARCO layout, 40-70 words a passage.

    85% of the words are 5,000 common ones (frequency 1 / rank), the rest has a heavy tail that keeps giving new words:
    the vocabulary grows like that of English text, roughly with the power 0.7 of the number of words.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    syllables = np.array(
        ["ba", "co", "di", "fu", "ga", "ho", "in", "ju", "ka", "lo", "mi", "nu", "or", "pe", "ra", "sto"]
    )

    def spell(numbers: np.ndarray) -> list[str]:
        """Spell the hexadecimal digits of a number as syllables: at least two, so that no word is a stop word."""
        lengths = [max(8, int(n).bit_length()) for n in numbers]
        digits = ([(int(n) >> s) & 15 for s in range(0, bits, 4)] for n, bits in zip(numbers, lengths, strict=True))
        return ["".join(syllables[number]) for number in digits]

    common = 1.0 / np.arange(1, COMMON_WORDS + 1)
    common /= common.sum()

    kept: dict[int, list[str]] = {}
    chosen = set(rng.choice(passages, sum(QUERIES.values()), replace=False).tolist())
    with (folder / "collection.tsv").open("w") as file:
        for start in range(0, passages, 10_000):
            lengths = rng.integers(40, 71, min(10_000, passages - start))
            count = int(lengths.sum())
            rare = COMMON_WORDS + np.minimum(rng.zipf(1.3, count), 1 << 40)
            words = np.where(rng.random(count) < 0.85, rng.choice(COMMON_WORDS, count, p=common), rare)
            distinct, inverse = np.unique(words, return_inverse=True)
            spelled = np.array(spell(distinct), dtype=object)[inverse]
            ends = np.cumsum(lengths)
            for i, (end, length) in enumerate(zip(ends, lengths, strict=True), start=start):
                text = spelled[end - length : end]
                file.write(f"{i}\t{' '.join(text)}\n")
                if i in chosen:
                    kept[i] = text.tolist()
    documents = iter(sorted(kept))
    number = 0
    for name, count in QUERIES.items():
        with (folder / f"queries.{name}.tsv").open("w") as queries, (folder / f"qrels.{name}.tsv").open("w") as qrels:
            for _ in range(count):
                document = next(documents)
                words = sorted(set(kept[document]), key=lambda word: (-len(word), word))[:12]
                chosen_words = rng.choice(words, min(6, len(words)), replace=False)
                queries.write(f"q{number}\t{' '.join(chosen_words)} {number}\n")
                qrels.write(f"q{number} 0 {document} 1\n")
                number += 1


def preparation(folder: Path, cache: Path, workers: int):  # type: ignore[no-untyped-def]
    from datamodules.preparation import Preparation, PreparationSettings
    from datamodules.text.sources import SplitTexts, folder_texts

    return Preparation("generated", SplitTexts(folder_texts(folder)), PreparationSettings(workers=workers), cache)


def stage_texts(folder: Path, cache: Path, workers: int) -> None:
    _ = preparation(folder, cache, workers).texts


def stage_words(folder: Path, cache: Path, workers: int) -> None:
    preparation(folder, cache, workers).field("lemm")


def stage_pieces(folder: Path, cache: Path, workers: int) -> None:
    preparation(folder, cache, workers).field("bwps")


def stage_index(folder: Path, cache: Path, workers: int) -> None:
    from lexical.bm25 import BM25Parameters

    preparation(folder, cache, workers).index_folder(BM25Parameters())


def stage_candidates(folder: Path, cache: Path, workers: int) -> None:
    """Retrieve development candidates; reading the memory-mapped index counts as memory of the index."""
    preparation(folder, cache, workers).tuning_task()


STAGES: dict[str, Callable[[Path, Path, int], None]] = {
    "texts": stage_texts,
    "words": stage_words,
    "pieces": stage_pieces,
    "index": stage_index,
    "candidates": stage_candidates,
}
INDEX_STAGES = {"index", "candidates"}


def measured(stage: str, folder: Path, cache: Path, workers: int) -> tuple[float, float]:
    """Return (seconds, peak MiB of the process and its children) of a stage in a fresh process."""
    process = multiprocessing.get_context("spawn").Process(target=STAGES[stage], args=(folder, cache, workers))
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, tree_memory(process.pid or 0)[1])

    started = time.perf_counter()
    process.start()
    watcher = threading.Thread(target=watch)
    watcher.start()
    process.join()
    done.set()
    watcher.join()
    if process.exitcode != 0:
        raise SystemExit(f"stage {stage} failed with exit code {process.exitcode}")
    return time.perf_counter() - started, peak / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100000,1000000")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=None, help="work here (kept); default: a temporary folder")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    work = options.folder or Path(tempfile.mkdtemp(prefix="prepare-"))
    results: dict[int, dict[str, tuple[float, float]]] = {}
    try:
        for size in (WARM, WARM, *sizes):  # twice small: numba compiles once per machine, not once per collection
            folder = work / str(size)
            if not (folder / "data").exists():
                generate(folder / "data", size)
            shutil.rmtree(folder / "cache", ignore_errors=True)
            results[size] = {
                stage: measured(stage, folder / "data", folder / "cache", options.workers) for stage in STAGES
            }
        for size, stages in results.items():
            for stage, (seconds, peak) in stages.items():
                print(f"{size:>9,} passages  {stage:<10}  {seconds:8.1f} s  peak {peak:7.0f} MiB")
    finally:
        if options.folder is None:
            shutil.rmtree(work, ignore_errors=True)
    total = {size: sum(seconds for seconds, _ in stages.values()) for size, stages in results.items()}
    whole = [1e6 * total[size] / size for size in sizes]
    net = [1e6 * (total[size] - total[WARM]) / (size - WARM) for size in sizes]
    others = [max(peak for stage, (_, peak) in results[size].items() if stage not in INDEX_STAGES) for size in sizes]
    index = [max(peak for stage, (_, peak) in results[size].items() if stage in INDEX_STAGES) for size in sizes]
    within_bounds = [
        compare("time per passage, whole, us", whole, TIME_BOUND),
        compare("time per passage without start-up, us", net, TIME_BOUND),
        compare("peak memory without the index, MiB", others, MEMORY_BOUND),
        compare("peak memory of the index stages, MiB", index, None),
    ]
    return 0 if all(within_bounds) else 1


def compare(what: str, values: list[float], bound: float | None) -> bool:
    ratio = values[-1] / values[0]
    verdict = "no bound" if bound is None else f"bound {bound}: {'held' if ratio < bound else 'MISSED'}"
    print(f"{what}: {' -> '.join(f'{value:,.1f}' for value in values)}, ratio {ratio:.2f} ({verdict})")
    return bound is None or ratio < bound


if __name__ == "__main__":
    sys.exit(main())
