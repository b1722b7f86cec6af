"""MS MARCO v1 in little: 40 documents and a few real queries, in exactly the layout of the official files.

Ids, columns and separators as in the files of MS MARCO and of TREC: passages are numbered, documents are D..., qrels
of passages are separated by tabs, those of documents and of TREC by blanks, TREC grades go from 0 to 3.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.small_folder import write_lines

TRAIN = {
    "121352": "define extreme",
    "634306": "what does chattel mean on credit history",
    "920825": "what was the great",
}
TRAIN |= {str(510633 + i): f"tattoo fixers how much does it cost {i}" for i in range(17)}
DEV = {"1048578": "cost of endless pools/swim spa", "1048579": "what is pcnt", "2": "Androgen receptor define"}
DEV |= {str(1048580 + i): f"average annual income data analyst {i}" for i in range(7)}
TREC2019 = {
    "1108939": "what slows down the flow of blood",
    "1112389": "what is the county for grand rapids, mn",
    "87181": "causes of left ventricular hypertrophy",
}
TREC2020 = {"1030303": "who is aziz hashim", "1037496": "who is rep scalise?"}
FIRST_DOCUMENT, DOCUMENTS = 1_017_750, 40
OFFICIAL = {
    "passage": {
        "train": ("queries.train.tsv", "qrels.train.tsv"),
        "dev": ("queries.dev.tsv", "qrels.dev.tsv"),
        "trec2019": ("msmarco-test2019-queries.tsv", "2019qrels-pass.txt"),
        "trec2020": ("msmarco-test2020-queries.tsv", "2020qrels-pass.txt"),
    },
    "document": {
        "train": ("msmarco-doctrain-queries.tsv", "msmarco-doctrain-qrels.tsv"),
        "dev": ("msmarco-docdev-queries.tsv", "msmarco-docdev-qrels.tsv"),
        "trec2019": ("msmarco-test2019-queries.tsv", "2019qrels-docs.txt"),
        "trec2020": ("msmarco-test2020-queries.tsv", "2020qrels-docs.txt"),
    },
}


def document_id(kind: str, number: int) -> str:
    return f"{'D' if kind == 'document' else ''}{FIRST_DOCUMENT + number}"


def passage(number: int) -> str:
    return f"Passage {number}: the manhattan project didn’t need café number {number}."


def qrel_lines(kind: str, name: str) -> list[str]:
    if name in ("train", "dev"):
        separator = "\t" if kind == "passage" else " "
        queries = TRAIN if name == "train" else DEV
        return [separator.join([query, "0", document_id(kind, i), "1"]) for i, query in enumerate(queries)]
    queries = TREC2019 if name == "trec2019" else TREC2020
    judged = list(queries)[:2]  # TREC judges some of the queries only
    return [
        f"{query} Q0 {document_id(kind, 4 * i + grade)} {grade}"
        for i, query in enumerate(judged)
        for grade in (0, 1, 2, 3)
    ]


def query_lines(name: str) -> list[str]:
    queries = {"train": TRAIN, "dev": DEV, "trec2019": TREC2019, "trec2020": TREC2020}[name]
    return [f"{query}\t{text}" for query, text in queries.items()]


def write_official(folder: Path, kind: str) -> Path:
    folder.mkdir(parents=True)
    numbers = range(DOCUMENTS)
    if kind == "passage":
        write_lines(folder / "collection.tsv", (f"{document_id(kind, i)}\t{passage(i)}" for i in numbers))
    else:
        lines = (f"{document_id(kind, i)}\thttp://x.org/{i}\tTitle {i}\t{passage(i)}" for i in numbers)
        write_lines(folder / "msmarco-docs.tsv", lines)
    for name, (queries, qrels) in OFFICIAL[kind].items():
        write_lines(folder / queries, query_lines(name))
        write_lines(folder / qrels, qrel_lines(kind, name))
    return folder


def pack(folder: Path) -> None:
    """Every file of `folder` gzipped, as the official files are distributed."""
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
