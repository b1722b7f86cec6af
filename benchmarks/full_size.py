"""Take a generated collection of MS MARCO's size through every step; report time, memory and disk of each.

    python benchmarks/full_size.py --folder DIR [--passages 8800000] [--documents N] [--results FILE]

Runs at a tenth of the size first, then at the size that is given: with the default at 880,000 and 8,800,000 passages.
The steps are the project's own, each in a process of its own:

    generate     write the collection, about 500,000 training queries and 20,000 others as a folder for `--data folder`
    texts        read them into the cache
    words        tokens and forward indexes of word, lemm and word_all
    pieces       the same for word pieces
    index        of the first stage, BM25 (lemm)
    candidates   1,000 for each of the 20,000 queries: train_fusion, development, test
    negatives    of all training queries
    EM           train.py --model model1_word on words without stop words: EM, tuning, fusion
    network      train.py --model nn_model1: 1,000 steps, validation, export, fusion
    table        train.py --model nn_model1_exp: fusion of the exported table
    evaluation   evaluate.py: both tables on test

A smaller size has fewer training queries in proportion, and 20,000 others as long as there are 880,000 texts.

A step that is done is recorded in DIR/SIZE/steps.json and not repeated. Ctrl-C ends the running step; the same command
repeats it from its beginning and continues. Full size takes many hours and up to 50 GB of disk.

Memory is the peak of a step's processes together, sampled twice a second, with shared pages counted once. Pages of
mapped files are reported apart: the system gives them up when it needs memory. CPU seconds are those of all processes,
for a machine that is shared. Disk is what a step leaves behind.

Text is made up: stop words and dictionary words with Zipf frequencies, a topic for each text that decides a quarter of
its words, and an endless tail of names and numbers that lets the vocabulary grow with the collection. A query has words
of its text and of its topic. The same `--seed` gives the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lexical.errors import ArgumentParser, UserError, require, run_script  # noqa: E402
from lexical.index.ragged import offsets_of  # noqa: E402
from lexical.small_files import read_json, write_json  # noqa: E402
from lexical.terminal import say  # noqa: E402

PASSAGES, TRAIN_QUERIES, RANKED_QUERIES = 8_800_000, 500_000, 20_000
RANKED_SHARE = 1 / 44  # ranked queries of a small collection, for each text
DISK_PER_WORD = 100  # bytes, of everything that is written, at most
SAMPLE_SECONDS = 0.5

# --- text

STOP_SHARE, COMMON_SHARE, TOPIC_SHARE = 0.45, 0.25, 0.26  # of the words of a text; the rest is the tail
TOPICS, TOPIC_WORDS, TOPIC_STEP = 5_000, 2_000, 97
TAIL_EXPONENT = 1.25  # distinct words of the tail grow with the power 1 / 1.25 of its words
SYLLABLES = [onset + vowel for onset in "bcdfghlmnprstvwz" for vowel in "aeio"]
TEXTS_PER_CHUNK = 10_000
PLAIN, CAPITAL, COMMA, FULL_STOP = range(4)  # how a word is written
FORM_SHARES = 0.85, 0.02, 0.06  # of the first three
PREPARATION = ("texts", "words", "pieces", "index", "candidates", "negatives")
TRAINING_STEPS = 1000  # of the network
NETWORK_DEPTH = 100  # candidates that the network re-ranks when it is validated and fused


class TextKind(NamedTuple):
    """How long texts are: the logarithm of their number of words is normal."""

    name: str
    log_mean: float
    log_deviation: float
    longest: int

    @property
    def mean_words(self) -> float:
        return float(np.exp(self.log_mean + self.log_deviation**2 / 2))


PASSAGE = TextKind("passages", 3.95, 0.40, 250)  # 56 words on average
DOCUMENT = TextKind("documents", 6.50, 0.95, 10_000)  # 1,040 words


class Size(NamedTuple):
    kind: TextKind
    texts: int
    seed: int

    @property
    def train_queries(self) -> int:
        return max(60, self.texts * TRAIN_QUERIES // PASSAGES)

    @property
    def ranked_queries(self) -> int:
        return min(RANKED_QUERIES, max(60, int(self.texts * RANKED_SHARE)))

    @property
    def queries(self) -> dict[str, int]:
        """Queries of each file; a tenth of the ranked ones is drawn from train as train_fusion."""
        tenth = self.ranked_queries // 10
        return {"train": self.train_queries + tenth, "dev": tenth, "test": self.ranked_queries - 2 * tenth}


class Language:
    """Words by number: stop words, then dictionary words, short ones more often first, then the endless tail."""

    def __init__(self, seed: int) -> None:
        import spacy_lookups_data

        lemmas = Path(spacy_lookups_data.__file__).parent / "data" / "en_lemma_lookup.json.gz"
        pairs = json.loads(gzip.decompress(lemmas.read_bytes())).items()
        lines = (ROOT / "datamodules" / "text" / "stop_words.txt").read_text(encoding="utf-8").splitlines()
        stop_words = {line for line in lines if re.fullmatch("[a-z]+", line)}
        dictionary = {word for pair in pairs for word in pair if re.fullmatch("[a-z]{2,}", word)} - stop_words
        rng = np.random.default_rng(seed)
        words = [*self._ordered(stop_words, rng), *self._ordered(dictionary, rng)]
        self.stop_words, self.dictionary = len(stop_words), len(dictionary)
        forms = [words, [word.capitalize() for word in words], [f"{word}," for word in words]]
        self._forms = np.array([*forms, [f"{word}." for word in words]], dtype=object)  # (4, words)
        self._frequency = {count: np.cumsum(1 / np.arange(1.0, count + 1)) for count in self._ranges()}

    def _ranges(self) -> tuple[int, int, int]:
        return self.stop_words, self.dictionary, TOPIC_WORDS

    @staticmethod
    def _ordered(words: set[str], rng: np.random.Generator) -> list[str]:
        ordered = sorted(words)
        return [ordered[i] for i in np.argsort([len(word) for word in ordered] + rng.normal(0, 2, len(ordered)))]

    def draw(self, rng: np.random.Generator, topics: np.ndarray) -> np.ndarray:
        """Return (words,) int64 numbers of words of texts with these topics (words,)."""
        count = len(topics)
        stop, common, topical = (self._zipf(rng, words, count) for words in self._ranges())
        topical = (topics * TOPIC_STEP + topical) % self.dictionary
        tail = np.minimum((1 - rng.random(count)) ** (-1 / (TAIL_EXPONENT - 1)), 2.0**50).astype(np.int64)
        kind = np.searchsorted(np.cumsum([STOP_SHARE, COMMON_SHARE, TOPIC_SHARE]), rng.random(count), side="right")
        first = self.stop_words + self.dictionary
        return np.choose(kind, [stop, self.stop_words + common, self.stop_words + topical, first + tail])

    def _zipf(self, rng: np.random.Generator, words: int, count: int) -> np.ndarray:
        """Return (count,) ranks from 0 with frequency 1 / (rank + 1)."""
        cumulative = self._frequency[words]
        return np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")

    def write(self, words: np.ndarray, forms: np.ndarray) -> np.ndarray:
        """Return (words,) strings; words of the tail are always written plainly."""
        known = self._forms.shape[1]
        texts = self._forms[forms, np.minimum(words, known - 1)]
        rare = np.flatnonzero(words >= known)
        distinct, inverse = np.unique(words[rare] - known, return_inverse=True)
        texts[rare] = np.array([_spelled(int(number)) for number in distinct], dtype=object)[inverse]
        return texts


def _spelled(number: int) -> str:
    """Spell every fourth word of the tail as a number, the others as two syllables or more."""
    if number % 4 == 0:
        return str(number // 4)
    syllables: list[str] = []
    while number or len(syllables) < 2:
        number, digit = divmod(number, len(SYLLABLES))
        syllables.append(SYLLABLES[digit])
    return "".join(syllables)


def generate(size: Size, folder: Path) -> None:
    """Write a folder in the MS MARCO layout: passages in two columns, documents in four."""
    folder.mkdir(parents=True, exist_ok=True)
    language = Language(size.seed)
    names = np.repeat(list(size.queries), list(size.queries.values()))
    np.random.default_rng([size.seed, 1]).shuffle(names)
    with contextlib.ExitStack() as stack:

        def new(name: str) -> Any:
            return stack.enter_context((folder / name).open("w", encoding="utf-8"))

        collection = new("collection.tsv")
        queries, qrels = ({name: new(f"{kind}.{name}.tsv") for name in size.queries} for kind in ("queries", "qrels"))
        for start in range(0, size.texts, TEXTS_PER_CHUNK):
            end = min(start + TEXTS_PER_CHUNK, size.texts)
            first, last = (len(names) * row // size.texts for row in (start, end))
            rows = np.linspace(start, end, last - first, endpoint=False).astype(int)
            columns, asked = _texts(language, size, start, end, rows)
            collection.writelines(f"D{row}\t{text}\n" for row, text in enumerate(columns, start))
            for number, (row, text) in enumerate(zip(rows, asked, strict=True), first):
                queries[names[number]].write(f"Q{number}\t{text}\n")
                qrels[names[number]].write(f"Q{number} 0 D{row} 1\n")


def _texts(language: Language, size: Size, start: int, end: int, asked: np.ndarray) -> tuple[list[str], list[str]]:
    """Return the columns after the id of the texts `start` to `end` - 1, and a query for each of the texts `asked`."""
    rng, kind = np.random.default_rng([size.seed, 2, start]), size.kind
    lengths = np.exp(rng.normal(kind.log_mean, kind.log_deviation, end - start)).astype(np.int64)
    offsets = offsets_of(np.clip(lengths, 8, kind.longest))
    topics = rng.integers(0, TOPICS, end - start)
    words = language.draw(rng, np.repeat(topics, np.diff(offsets)))
    forms = np.searchsorted(np.cumsum(FORM_SHARES), rng.random(len(words)), side="right")
    forms[offsets[1:] - 1] = FULL_STOP
    begins = np.concatenate([[True], forms[:-1] == FULL_STOP])
    forms[begins & (forms == PLAIN)] = CAPITAL
    written = language.write(words, forms)
    texts = [" ".join(written[a:b]) for a, b in pairwise(offsets)]
    if kind is DOCUMENT:
        titles = language.write(words[offsets[:-1]], forms[offsets[:-1]])
        texts = [
            f"https://example.org/{i}\t{title}\t{text}"
            for i, (title, text) in enumerate(zip(titles, texts, strict=True), start)
        ]
    queries = []
    for row in asked - start:
        own = words[offsets[row] : offsets[row + 1]]
        own = rng.permutation(np.unique(own[own >= language.stop_words]))[: rng.integers(1, 4)]
        drawn = language.draw(rng, np.full(rng.integers(2, 6), topics[row]))
        of_query = np.concatenate([drawn, own])
        queries.append(" ".join(language.write(of_query, np.full(len(of_query), PLAIN))))
    return texts, queries


# --- steps


class Steps:
    """The steps of one size; what is done is in ``steps.json``."""

    def __init__(self, size: Size, folder: Path) -> None:
        self.size, self.folder = size, folder / f"{size.texts}-{size.kind.name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "steps.json"
        settings = {"texts": size.texts, "kind": size.kind.name, "seed": size.seed, **size.queries}
        self.record: dict[str, Any] = {"settings": settings, "steps": {}, "files": []}
        if self.file.is_file():
            self.record = read_json(self.file, f"remove {self.folder}")
            if self.record["settings"] != settings:
                raise UserError(f"{self.folder} was made with other settings: remove it, or give another --folder")
        write_json(self.file, self.record)

    def commands(self) -> dict[str, list[str]]:
        """Return the arguments of each step's process."""
        own = [str(Path(__file__).resolve()), "--folder", str(self.folder), "--step"]
        prepared = {name: [*own, name] for name in PREPARATION}
        generated = [*own, "generate", f"--{self.size.kind.name}", str(self.size.texts), "--seed", str(self.size.seed)]
        data = ["--data", "folder", *(f"--data.{key}={value}" for key, value in data_settings(self.folder).items())]
        data += ["--output_dir", str(self.folder / "outputs")]
        train, evaluate = str(ROOT / "train.py"), str(ROOT / "evaluate.py")
        steps = ["--trainer.max_epochs=1", f"--trainer.limit_train_batches={TRAINING_STEPS}"]
        return {
            "generate": generated,
            **prepared,
            "EM": [train, "--model", "model1_word", "--model.fields=[word]", *data],
            "network": [train, "--model", "nn_model1", f"--model.rerank_depth={NETWORK_DEPTH}", *steps, *data],
            "table": [train, "--model", "nn_model1_exp", *data],
            "evaluation": [evaluate, "--models", "model1_word,nn_model1_exp", *data],
        }

    def run(self) -> None:
        for name, arguments in self.commands().items():
            if name not in self.record["steps"]:
                say(f"{self.size.texts:,} {self.size.kind.name}: {name}")
                self.remove_leftovers()
                self.record["steps"][name] = self._measured(name, arguments)
                self.record["files"] = sorted(self._files())
                write_json(self.file, self.record)

    def remove_leftovers(self) -> None:
        """Remove what an interrupted step has left: it would make the repeated step look faster than it is."""
        for name in self._files() - {self.file.name, *self.record["files"]}:
            (self.folder / name).unlink()

    def _files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir()}

    def _measured(self, name: str, arguments: list[str]) -> dict[str, float]:
        log, disk, started = self.folder / f"{name}.log", used_disk(self.folder), time.perf_counter()
        cpu = cpu_seconds()
        with log.open("w") as output:
            environment = {**os.environ, "WANDB_MODE": "disabled"}
            process = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=output, env=environment)
            memory = mapped = 0
            try:
                while process.poll() is None:
                    anonymous, total = tree_memory(process.pid)
                    memory, mapped = max(memory, anonymous), max(mapped, total - anonymous)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(SAMPLE_SECONDS)
            except BaseException:
                end(process)
                raise
        if process.returncode:
            last = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise UserError(f"the step {name} failed ({process.returncode}), see {log}: {' | '.join(last)}")
        return {
            "seconds": round(time.perf_counter() - started, 1),
            "cpu_seconds": round(cpu_seconds() - cpu, 1),
            "memory_mib": round(memory / 2**20),
            "mapped_mib": round(mapped / 2**20),
            "disk_mib": round((used_disk(self.folder) - disk) / 2**20),
        }


def end(process: subprocess.Popen[bytes]) -> None:
    """Let a step end as after Ctrl-C, which its process may have received already; kill it if it does not."""
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()


def data_settings(folder: Path) -> dict[str, Any]:
    """Return the settings `--data.*` of all steps; k1 and b are given, so that no step tunes them."""
    path, cache, train_fusion = (
        str(folder / "data"),
        str(folder / "cache"),
        read_json(folder / "steps.json")["settings"],
    )
    return {"path": path, "cache_dir": cache, "k1": 0.9, "b": 0.4, "train_fusion_queries": train_fusion["dev"]}


def prepare(step: str, folder: Path) -> None:
    """Run a step of the preparation as a ranker's training would, in this process."""
    from datamodules import Folder
    from datamodules.text.query_sets import TEST

    prepared = Folder(**data_settings(folder)).prepared
    if step == "texts":
        _ = prepared.texts
    elif step in ("words", "pieces"):
        prepared.field_folder({"words": "lemm", "pieces": "bwps"}[step])
    elif step == "index":
        prepared.index_folder(prepared.first_stage_parameters)
    elif step == "candidates":
        prepared.candidates(TEST)
    else:
        prepared.negatives()


# --- measurements


def cpu_seconds() -> float:
    """Return CPU seconds of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree_memory(pid: int) -> tuple[int, int]:
    """Return (bytes without mapped files, all resident bytes) of a process and those below it; shared pages count
    once."""
    anonymous = total = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it ended meanwhile
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
            elif line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                anonymous += int(line.split()[1]) * 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                below = tree_memory(int(child))
                anonymous, total = anonymous + below[0], total + below[1]
    return anonymous, total


def used_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


# --- report


def table(small: Steps, large: Steps) -> str:
    """Return a Markdown table of both sizes; x is the larger one's value divided by the smaller one's."""
    sizes = [f"{steps.size.texts:,}" for steps in (small, large)]
    columns = {
        "seconds": "s",
        "cpu_seconds": "CPU s",
        "memory_mib": "MiB",
        "mapped_mib": "MiB mapped",
        "disk_mib": "MiB disk",
    }
    heads = [f"{unit} at {sizes[0]} | at {sizes[1]} | x" for unit in columns.values()]
    lines = [f"| step | {' | '.join(heads)} |", "|---|" + "---:|" * (3 * len(columns))]
    for name in large.commands():
        cells = [name]
        for column in columns:
            values = [steps.record["steps"].get(name, {}).get(column) for steps in (small, large)]
            cells += ["" if value is None else f"{value:,}" for value in values]
            cells.append(f"{values[1] / values[0]:.1f}" if all(values) else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="all files; a second run continues there")
    parser.add_argument("--passages", type=int, default=PASSAGES, help="of the larger size (default: %(default)s)")
    parser.add_argument("--documents", type=int, help="long documents in place of passages")
    parser.add_argument("--seed", type=int, default=1, help="of the made-up texts")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "full_size.json")
    parser.add_argument("--step", help=argparse.SUPPRESS)  # how it starts its own processes
    options = parser.parse_args(argv)
    kind, texts = (PASSAGE, options.passages) if options.documents is None else (DOCUMENT, options.documents)
    if options.step == "generate":
        generate(Size(kind, texts, options.seed), options.folder / "data")
    elif options.step is not None:
        prepare(options.step, options.folder)
    else:
        require(texts >= 10_000, "--passages", texts, "10,000 or more")
        compare([Size(kind, count, options.seed) for count in (texts // 10, texts)], options.folder, options.results)


def compare(sizes: Sequence[Size], folder: Path, results: Path) -> None:
    """Run all steps of both sizes; print the table and write what is measured, even if a step fails."""
    small, large = (Steps(size, folder.resolve()) for size in sizes)
    expected = sum(size.texts * size.kind.mean_words * DISK_PER_WORD for size in sizes)
    expected -= used_disk(small.folder) + used_disk(large.folder)
    if (free := shutil.disk_usage(folder).free) < expected:
        raise UserError(f"{folder}: {free / 1e9:.1f} GB are free, up to {expected / 1e9:.1f} GB are needed")
    try:
        small.run()
        large.run()
    finally:
        measured = {
            steps.folder.name: {key: steps.record[key] for key in ("settings", "steps")}
            for steps in (small, large)
            if steps.record["steps"]
        }
        earlier = read_json(results, "remove it") if results.is_file() else {}
        write_json(results, {**earlier, **measured})
        print(table(small, large))
        for steps in (small, large):
            print(f"{steps.folder.name}: {used_disk(steps.folder) / 2**30:.1f} GiB of disk")


if __name__ == "__main__":
    sys.exit(run_script(main))
