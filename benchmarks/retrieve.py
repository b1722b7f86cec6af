"""First-stage retrieval with the project's tie rule: our kernel against bm25s, one thread, CPU time of a query.

    python benchmarks/retrieve.py [--documents 1000000] [--queries 200] [--depths 500,1000] [--repeats 3]

Made-up input: documents of 10 to 60 tokens and queries of 1 to 5, both by Zipf's law over 200,000 tokens. Short texts
have few distinct scores, so many queries have a tie at the cut. Three ways take turns over the same queries:

    kernel     `RetrievalIndex.top`
    bm25s      the compiled search of bm25s, where any document of a tie may come first
    with ties  bm25s one document deeper, and all scores once more for queries with a tie at the cut

bm25s compiles `retrieve` of its numba backend in any case. The scores of `get_scores_from_ids` it compiles on request
only: it skips that as long as the variable NUMBA_DISABLE_JIT is not set, the wrong way round. They are compiled here.

Bound: the kernel takes less time than bm25s with ties and finds the same documents. Exits with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

for variable in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy and numba are imported: they read it once
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

from lexical.bm25 import BM25Parameters  # noqa: E402
from lexical.index.forward_index import build_forward_index, open_forward_index  # noqa: E402
from lexical.index.ragged import Ragged, offsets_of  # noqa: E402
from lexical.index.retrieval import RetrievalIndex  # noqa: E402

VOCABULARY = 200_000


class MadeUpTexts:
    """Texts of any length by Zipf's law; the most frequent token is about 1% of all."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._cumulative = np.cumsum(1.0 / np.arange(10.0, VOCABULARY + 10))

    def texts(self, count: int, shortest: int, longest: int) -> Ragged:
        lengths = self._rng.integers(shortest, longest + 1, count)
        drawn = self._rng.random(int(lengths.sum())) * self._cumulative[-1]
        return Ragged(offsets_of(lengths), np.searchsorted(self._cumulative, drawn).astype(np.int32))

    def blocks(self, documents: int) -> Iterator[Ragged]:
        for start in range(0, documents, 20_000):
            yield self.texts(min(20_000, documents - start), 10, 60)


def with_ties(index: RetrievalIndex, query: list[int], depth: int, id_order: np.ndarray) -> np.ndarray:
    """Return the best documents of one query, as a search with bm25s's functions alone has to find them."""
    (best,), (scores,) = index._index.retrieve([query], k=depth + 1, n_threads=1, show_progress=False)
    if scores[depth - 1] == scores[depth] > 0:
        every = index._index.get_scores_from_ids(query)
        eligible = np.flatnonzero(every >= scores[depth - 1])
        return eligible[np.lexsort((id_order[eligible], -every[eligible]))[:depth]]
    best, scores = best[:depth][scores[:depth] > 0], scores[:depth][scores[:depth] > 0]
    return best[np.lexsort((id_order[best], -scores))]


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--depths", default="500,1000")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    made_up = MadeUpTexts(0)
    with tempfile.TemporaryDirectory(prefix="retrieve-") as name:
        folder = Path(name)
        build_forward_index(made_up.blocks(options.documents), VOCABULARY, folder / "forward")
        RetrievalIndex.build(open_forward_index(folder / "forward"), BM25Parameters(0.9, 0.4)).save(folder / "index")
        index = RetrievalIndex.load(folder / "index")
        index._index.activate_numba_scorer()
        queries = made_up.texts(options.queries, 1, 5)
        id_order = np.random.default_rng(1).permutation(options.documents).astype(np.int32)
        met = [measure(index, queries, int(depth), id_order, options.repeats) for depth in options.depths.split(",")]
    return 0 if all(met) else 1


def measure(index: RetrievalIndex, queries: Ragged, depth: int, id_order: np.ndarray, repeats: int) -> bool:
    texts = [queries.row(i).tolist() for i in range(queries.rows)]
    found: dict[str, np.ndarray] = {}

    def kernel() -> None:
        found["kernel"] = index.top(queries, depth, 1, id_order=id_order)[0].values

    def plain_bm25s() -> None:
        for text in texts:
            index._index.retrieve([text], k=depth, n_threads=1, show_progress=False)

    def bm25s_with_ties() -> None:
        found["ties"] = np.concatenate([with_ties(index, text, depth, id_order) for text in texts])

    ways = {"kernel": kernel, "bm25s": plain_bm25s, "with ties": bm25s_with_ties}
    rounds = [[seconds(way) for way in ways.values()] for _ in range(repeats + 1)][1:]  # the first one compiles
    times = [statistics.median(column) * 1000 / queries.rows for column in zip(*rounds, strict=True)]
    tied = sum(scores[depth - 1] == scores[depth] > 0 for scores in index._index.retrieve(
        texts, k=depth + 1, n_threads=1, show_progress=False
    )[1])  # fmt: skip
    same = np.array_equal(found["kernel"], found["ties"])
    shown = ", ".join(f"{name} {value:.2f}" for name, value in zip(ways, times, strict=True))
    print(f"depth {depth}: ms a query: {shown}; a tie at the cut in {tied} of {queries.rows} queries")
    print(f"  kernel / bm25s {times[0] / times[1]:.2f}, kernel / with ties {times[0] / times[2]:.2f}; ", end="")
    print(f"the same documents: {'yes' if same else 'NO'}")
    return same and times[0] < times[2]


if __name__ == "__main__":
    sys.exit(main())
