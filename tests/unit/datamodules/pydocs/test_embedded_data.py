"""The embedded data: pages, leaks between query sets, and the pinned real content."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from datamodules.pydocs.embedded_data import (
    SMALLEST_PAGE,
    UNPARSABLE,
    EmbeddedData,
    build_embedded_data,
    content_hash,
    fold_pages,
)
from datamodules.pydocs.mining import (
    SOURCE_PACKAGES,
    Docstring,
    InstalledSource,
    MinedPackage,
    installed_sources,
    mine_packages,
)
from datamodules.pydocs.pairs import SIMILAR_PASSAGE, SIMILAR_QUERY
from datamodules.text.query_sets import SPLIT_SETS
from tests.unit.datamodules.pydocs.test_mining import fake_source

CONTENT_HASHES = {
    "passage": "37c6b3bcc7ac6c38ef6b418656d5c8e87a93908a8014df8f68a38c4964155c89",
    "page": "2bf2701dad48f1c003a17a12f24d2e70b0023ee8f76bd0835004a4caa239ec38",
}


def test_small_pages_fold_into_their_parents_in_source_order() -> None:
    rows = [
        Docstring("pkg", "", "", "", ""),
        Docstring("pkg.mod", "Big", "Big", "", ""),
        Docstring("pkg.mod", "Small", "Small", "", ""),
        Docstring("pkg.mod", "", "f", "", ""),
        Docstring("pkg.deep.er.tiny", "", "g", "", ""),
    ]
    words = [3, SMALLEST_PAGE, SMALLEST_PAGE - 1, 1, 2]
    texts = [" ".join(["word"] * count) for count in words]
    assert fold_pages(rows, range(5), texts) == {"pkg": [0, 4], "pkg.mod:Big": [1], "pkg.mod": [2, 3]}
    assert fold_pages(rows, [0, 1, 3, 4], texts) == {"pkg": [0, 3, 4], "pkg.mod:Big": [1]}


@pytest.fixture
def made_up_packages(tmp_path: Path) -> list[InstalledSource]:
    rng = random.Random(3)
    words = [f"{a}{b}" for a in ("ba", "du", "ke", "lo", "mi") for b in ("gan", "pol", "rist", "tem", "vak", "zun")]

    def sentence(length: int) -> str:
        return " ".join(rng.choices(words, k=length)).capitalize() + "."

    def module() -> str:
        functions = [
            f'def f{i}():\n    """{sentence(6)}\n\n    {sentence(30)}\n    """\n' for i in range(rng.randint(1, 9))
        ]
        methods = ['    def m(self):\n        """' + sentence(5) + "\n\n        " + sentence(25) + '\n        """\n']
        return f'"""{sentence(4)}"""\n' + "".join(functions) + "class C:\n" + methods[0]

    def files(prefix: str) -> dict[str, str | bytes]:
        return {f"{prefix}/m{i}.py": module() for i in range(40)}

    return [fake_source(tmp_path, files("sub"), "one"), fake_source(tmp_path, files("other"), "two")]


@pytest.mark.parametrize("granularity", ["passage", "page"])
def test_the_number_of_workers_changes_nothing(made_up_packages: list[InstalledSource], granularity: str) -> None:
    one, two = (
        build_embedded_data(mine_packages(made_up_packages, workers), granularity)  # type: ignore[arg-type]
        for workers in (1, 2)
    )
    assert one == two and content_hash(one) == content_hash(two)
    assert len(one.documents) > (100 if granularity == "passage" else 1)
    assert set(one.query_sets) == set(SPLIT_SETS)


def test_the_hash_sees_every_part(made_up_packages: list[InstalledSource]) -> None:
    data = build_embedded_data(mine_packages(made_up_packages), "passage")
    first, second, *others = data.query_sets["test"]
    tests = [[second, *others], [first._replace(documents=second.documents), second, *others]]
    changed = [data._replace(documents=data.documents[::-1])]
    changed += [data._replace(query_sets={**data.query_sets, "test": queries}) for queries in tests]
    assert len({content_hash(data), *map(content_hash, changed)}) == 4


@pytest.fixture(scope="module")
def mined() -> list[MinedPackage]:
    return mine_packages(installed_sources(), workers=2)


@pytest.fixture(scope="module")
def real(mined: list[MinedPackage]) -> dict[str, EmbeddedData]:
    return {"passage": build_embedded_data(mined, "passage"), "page": build_embedded_data(mined, "page")}


@pytest.mark.parametrize("granularity", ["passage", "page"])
def test_real_content_is_the_pinned_one(real: dict[str, EmbeddedData], granularity: str) -> None:
    assert content_hash(real[granularity]) == CONTENT_HASHES[granularity]


def test_real_sizes(real: dict[str, EmbeddedData]) -> None:
    passages, pages = real["passage"], real["page"]
    sizes = {name: len(queries) for name, queries in passages.query_sets.items()}
    assert sizes["development"] >= 2_000 and sizes["test"] >= 2_000 and sizes["train_modeling"] >= 18_000
    assert sizes["train_fusion"] == round(0.1 * (sizes["train_fusion"] + sizes["train_modeling"]))
    for name, queries in passages.query_sets.items():
        assert [query[:2] for query in queries] == [query[:2] for query in pages.query_sets[name]]
    words = [len(text.split()) for _, text in pages.documents]
    assert np.median(words) >= 500 and np.mean(words) >= 1_000


def test_real_account_is_complete(real: dict[str, EmbeddedData], mined: list[MinedPackage]) -> None:
    data = real["passage"]
    assert [source["package"] for source in data.sources] == list(SOURCE_PACKAGES)
    docstrings = sum(len(package.docstrings) for package in mined)
    left_out = sum(count for reason, count in data.left_out.items() if reason != UNPARSABLE)
    assert len(data.documents) == docstrings - left_out == sum(source["pairs"] for source in data.sources)


@pytest.mark.parametrize("granularity", ["passage", "page"])
def test_real_data_is_well_formed(real: dict[str, EmbeddedData], granularity: str) -> None:
    data = real[granularity]
    texts = dict(data.documents)
    assert len(texts) == len(data.documents)
    queries = [query for query_set in data.query_sets.values() for query in query_set]
    query_ids = {query.id for query in queries}
    assert len(query_ids) == len(queries)
    assert all(re.fullmatch(r"\S+", name) for name in [*texts, *query_ids])
    assert all(
        text == " ".join(text.split()) and text for text in [*texts.values(), *(query.text for query in queries)]
    )
    for query in queries:
        assert 1 <= len(query.documents) <= 5
        for doc_id, row, grade in query.documents:
            assert data.documents[row][0] == doc_id and grade == 1
            assert query.text.lower() not in texts[doc_id].lower()


def test_real_query_sets_do_not_leak(real: dict[str, EmbeddedData]) -> None:
    """100 random held-out queries and their passages against EVERY query and passage of the other sets."""
    data = real["passage"]
    texts = dict(data.documents)
    rows = [(name, query) for name in SPLIT_SETS for query in data.query_sets[name]]
    held_out = [row for row in rows if row[0] != "train_modeling"]
    query_sets = [(name, _words(query.text)) for name, query in rows]
    passage_sets = [(name, _triples(texts[doc_id])) for name, query in rows for doc_id, _, _ in query.documents]
    for name, query in random.Random(11).sample(held_out, 100):
        own = _words(query.text)
        assert max(_similarity(own, other) for where, other in query_sets if where != name) < SIMILAR_QUERY
        for doc_id, _, _ in query.documents:
            own_triples = _triples(texts[doc_id])
            rivals = (other for where, other in passage_sets if where != name)
            assert max(_similarity(own_triples, other) for other in rivals) < SIMILAR_PASSAGE


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


def _triples(text: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(words, words[1:], words[2:], strict=False))


def _similarity(first: frozenset, second: frozenset) -> float:
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)
