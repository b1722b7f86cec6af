"""The embedded data: mining, near-duplicates, splits without leaks, pages, and the pinned real content."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.pydocs.docstring_text import contains_verbatim, split_docstring, without_phrase
from datamodules.pydocs.embedded_data import EmbeddedData, build_embedded_data, content_hash
from datamodules.pydocs.mining import (
    Docstring,
    MinedPackage,
    SourceFile,
    mine_file,
    mine_packages,
    source_files,
)
from datamodules.pydocs.near_duplicates import near_duplicate_groups
from datamodules.pydocs.pages import SMALLEST_PAGE, fold_pages
from datamodules.pydocs.pairs import BOILERPLATE, GENERIC, KEPT, PASSAGE_TOO_SHORT, SIGNATURE, select_pairs
from datamodules.pydocs.sources import SOURCE_PACKAGES, InstalledSource, installed_sources
from datamodules.pydocs.splits import QUERY_SETS, SIMILAR_PASSAGE, SIMILAR_QUERY, look_alike_groups, split_queries
from lexical.errors import UserError

CONTENT_HASHES = {
    "passage": "37c6b3bcc7ac6c38ef6b418656d5c8e87a93908a8014df8f68a38c4964155c89",
    "page": "2bf2701dad48f1c003a17a12f24d2e70b0023ee8f76bd0835004a4caa239ec38",
}

LONG_REST = "Parameters are read from the file one after another and returned as a list of numbers for the caller."


# ---------------------------------------------------------------------------------------------- sources


@pytest.fixture
def fake_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution `Fake.Docs` 1.2.3+cpu with the folder `fakedocs`, and a stray file in it."""
    site = tmp_path / "site"
    folder = site / "fakedocs"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text('"""Reads all the numbers.\n\n' + LONG_REST + '\n"""\n')
    (folder / "stray.py").write_text('"""Not in the record of the wheel.\n\n' + LONG_REST + '\n"""\n')
    info = site / "fake_docs-1.2.3+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: Fake.Docs\nVersion: 1.2.3+cpu\nLicense: MIT\n")
    (info / "RECORD").write_text("fakedocs/__init__.py,,\nfake_docs-1.2.3+cpu.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(site))
    return tmp_path


def test_source_is_found_by_its_pin_and_lists_only_the_files_of_its_wheel(fake_distribution: Path) -> None:
    requirements = fake_distribution / "requirements.txt"
    requirements.write_text("# mined\nfake-docs==1.2.3  # the local part does not matter\n")
    (source,) = installed_sources(requirements, {"fake_docs": "fakedocs"})
    assert (source.version, source.licence) == ("1.2.3", "MIT")
    assert source.python_files == (PurePosixPath("__init__.py"),)
    (mined,) = mine_packages([source])
    assert [docstring.summary for docstring in mined.docstrings] == ["Reads all the numbers"]


@pytest.mark.parametrize(
    ("pins", "distribution", "message"),
    [
        ("fake-docs==1.2.4", "fake-docs", r"fake-docs is installed as 1\.2\.3.*pip install -r"),
        ("fake-docs>=1", "fake-docs", r"must pin fake-docs==VERSION"),
        ("no-such-docs==1.0", "no-such-docs", r"no-such-docs is not installed.*no-such-docs==1\.0"),
    ],
)
def test_wrong_or_missing_package_is_one_clear_line(
    fake_distribution: Path, pins: str, distribution: str, message: str
) -> None:
    requirements = fake_distribution / "requirements.txt"
    requirements.write_text(pins + "\n")
    with pytest.raises(UserError, match=message) as error:
        installed_sources(requirements, {distribution: "fakedocs"})
    assert "\n" not in str(error.value)


def test_damaged_installation_and_missing_requirements_are_said(fake_distribution: Path) -> None:
    package = {"fake-docs": "fakedocs"}
    with pytest.raises(UserError, match="cannot be read"):
        installed_sources(fake_distribution / "nowhere.txt", package)
    requirements = fake_distribution / "requirements.txt"
    requirements.write_text("fake-docs==1.2.3\n")
    (fake_distribution / "site" / "fakedocs" / "__init__.py").unlink()
    with pytest.raises(UserError, match=r"is incomplete.*--force-reinstall"):
        installed_sources(requirements, package)


# ----------------------------------------------------------------------------------------------- mining


def fake_source(root: Path, files: dict[str, str | bytes], folder: str = "pkg") -> InstalledSource:
    """A package written to disk, as `installed_sources` would describe it."""
    for name, content in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    names = tuple(PurePosixPath(name) for name in sorted(files))
    return InstalledSource(folder, folder, "1.0", "MIT", root / folder, names)


def test_every_kind_of_docstring_is_found_in_source_order(tmp_path: Path) -> None:
    code = '''
"""Module summary.

Module rest."""
import sys
if sys.platform == "win32":
    def conditional():
        """Conditional summary."""
try:
    class Outer:
        """Outer summary."""
        def method(self):
            """Method summary."""
            def local():
                """Not documentation."""
        async def awaited(self):
            """Awaited summary."""
        class Inner:
            """Inner summary."""
            @property
            def value(self):
                """Value summary."""
finally:
    async def coroutine():
        """Coroutine summary."""
def empty():
    """   """
def none():
    "not " + "a docstring"
'''
    (mined,) = mine_packages([fake_source(tmp_path, {"sub/__init__.py": code})])
    assert [(d.qualified_name, d.owner, d.summary, d.rest) for d in mined.docstrings] == [
        ("pkg.sub", "", "Module summary", "Module rest."),
        ("pkg.sub:conditional", "", "Conditional summary", ""),
        ("pkg.sub:Outer", "Outer", "Outer summary", ""),
        ("pkg.sub:Outer.method", "Outer", "Method summary", ""),
        ("pkg.sub:Outer.awaited", "Outer", "Awaited summary", ""),
        ("pkg.sub:Outer.Inner", "Outer.Inner", "Inner summary", ""),
        ("pkg.sub:Outer.Inner.value", "Outer.Inner", "Value summary", ""),
        ("pkg.sub:coroutine", "", "Coroutine summary", ""),
    ]


def test_tests_and_vendored_copies_are_not_mined(tmp_path: Path) -> None:
    names = [
        "a.py",
        "tests/a.py",
        "x/_vendor/y/b.py",
        "conftest.py",
        "externals/c.py",
        "test_d.py",
        "z/testing/e.py",
    ]
    source = fake_source(tmp_path, dict.fromkeys(names, '"""Text."""'))
    assert [file.module for file in source_files(source)] == ["pkg.a"]


@pytest.mark.parametrize(
    "content",
    [
        b'"""Summary."""\nx = "\x00"\n',
        b'"""Summary \xff\xfe in no known encoding."""\n',
        b'"""Summary."""\nx = ' + b"-" * 10_000 + b"1\n",
        b'"""Summary."""\nx = ' + b"(" * 10_000 + b")" * 10_000 + b"\n",
        b'"""Summary."""\nx = a' + b".a" * 10_000 + b"\n",
        b'"""Summary."""\ndef broken(:\n',
    ],
    ids=["nul", "bad-utf8", "unary", "parentheses", "attributes", "syntax"],
)
def test_hostile_files_are_counted_and_end_nothing(tmp_path: Path, content: bytes) -> None:
    source = fake_source(tmp_path, {"bad.py": content, "good.py": '"""Good summary here."""'})
    (mined,) = mine_packages([source])
    assert mined.files == 2
    assert [d.summary for d in mined.docstrings if d.module == "pkg.good"] == ["Good summary here"]
    parsed = any(d.module == "pkg.bad" for d in mined.docstrings)  # a later Python may well parse deep nesting
    assert mined.unparsable_files == (0 if parsed else 1)


def test_text_stays_text_and_is_safe_in_a_tsv_file(tmp_path: Path) -> None:
    code = (
        r'"""Escape <script>alert(1)</script> tags'
        + "\t"
        + r"""\x00 and \ud800 surrogates.

Rest with a tab\there, a line separator\u2028there, <b>bold</b> & more.
"""
        + '"""'
    )
    (docstring,) = mine_file(_written(tmp_path, code)) or []
    assert docstring.summary == "Escape <script>alert(1)</script> tags and surrogates"
    assert docstring.rest == "Rest with a tab here, a line separator there, <b>bold</b> & more."
    assert f"{docstring}".encode()


def test_parsing_prints_no_warnings(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert mine_file(_written(tmp_path, '"""Invalid \\d escape."""\nx = 1 is 1\n'))
    assert not recwarn.list


def _written(folder: Path, code: str) -> SourceFile:
    path = folder / "file.py"
    path.write_text(code, encoding="utf-8")
    return SourceFile(path, "pkg", "pkg.file")


# ----------------------------------------------------------------------------------------- docstring text


@pytest.mark.parametrize(
    ("docstring", "summary", "rest"),
    [
        (
            "Compute the norm.\n\nParameters\n----------\nx : array",
            "Compute the norm",
            "Parameters x : array",
        ),
        ("Compute a\nlong norm. It is\nfast.", "Compute a long norm", "It is fast."),
        ("Compute it, e.g. The norm. Then stop.", "Compute it, e.g. The norm", "Then stop."),
        ("Load :class:`~a.b.Model` now.\nArgs:\n    x: y", "Load a.b.Model now", "Args: x: y"),
        ("abs(input, *, out=None) -> Tensor\n\nComputes it.\n\nMore.", "Computes it", "More."),
        ("Args:\n    x (int): the x", "", "Args: x (int): the x"),
        ("x (`int`, *optional*):\n    The x.", "", "x (int, *optional*): The x."),
        ("=====\nTitle here\n=====\n\nText.", "Title here", "Text."),
        ("See `the guide <http://a.b>`_ **now**, x**2.", "See the guide now, x**2", ""),
        ("", "", ""),
    ],
)
def test_summary_and_rest(docstring: str, summary: str, rest: str) -> None:
    assert split_docstring(docstring) == (summary, rest)


def test_cutting_a_phrase_also_cuts_what_the_cut_brings_together() -> None:
    assert without_phrase("Sum of sum of all rows all rows. Ok", "Sum of all rows") == ". Ok"
    assert without_phrase("İstanbul: SUM OF ROWS", "sum of rows").endswith("stanbul:")


@given(st.text(max_size=60), st.text(min_size=1, max_size=4))
def test_a_cut_phrase_is_gone(text: str, phrase: str) -> None:
    assert not contains_verbatim(without_phrase(text, phrase), phrase)


# ----------------------------------------------------------------------------------------- near-duplicates


def jaccard(first: str, second: str, shingle: int) -> float:
    """Straight from the definition; independent of the code under test."""
    sets = []
    for text in (first, second):
        words = re.findall(r"\w+", text.lower())
        words += [""] * (shingle - len(words))
        sets.append({tuple(words[i : i + shingle]) for i in range(len(words) - shingle + 1)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def brute_force_groups(texts: list[str], threshold: float, shingle: int) -> list[int]:
    groups = list(range(len(texts)))
    for i in range(len(texts)):
        for j in range(i):
            if jaccard(texts[i], texts[j], shingle) >= threshold - 1e-9 and groups[i] != groups[j]:
                low, high = sorted((groups[i], groups[j]))
                groups = [low if group == high else group for group in groups]
    return groups


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=9).map(" ".join), max_size=12),
    st.sampled_from([0.2, 0.5, 0.6, 2 / 3, 0.75, 0.8, 1.0]),
    st.integers(1, 3),
)
def test_groups_equal_brute_force(texts: list[str], threshold: float, shingle: int) -> None:
    assert near_duplicate_groups(texts, threshold, shingle).tolist() == brute_force_groups(texts, threshold, shingle)


def test_groups_equal_brute_force_on_long_edited_texts() -> None:
    rng = random.Random(7)
    vocabulary = [f"w{i}" for i in range(400)]
    texts = [" ".join(rng.choices(vocabulary, k=rng.randint(5, 80))) for _ in range(60)]
    for text in list(texts):
        for changes in (1, 3, 8):
            words = text.split()
            for _ in range(changes):
                words[rng.randrange(len(words))] = rng.choice(vocabulary)
            texts.append(" ".join(words))
    groups = near_duplicate_groups(texts, 0.6, 3)
    assert groups.tolist() == brute_force_groups(texts, 0.6, 3)
    assert 60 < len(np.unique(groups)) < len(texts)  # some edits are close enough, some are not


def test_threshold_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold"):
        near_duplicate_groups(["a"], 0.0)


# ------------------------------------------------------------------------------------- pairs, splits, pages


def docstring(name: str, summary: str, rest: str, module: str = "pkg.mod", owner: str = "") -> Docstring:
    return Docstring("pkg", module, owner, name, summary, rest)


def distinct_rest(number: int, length: int = 20) -> str:
    return " ".join(f"word{number}x{i}" for i in range(length))


def test_fates_and_shared_summaries() -> None:
    rows = [
        docstring("a", "Read the numbers", distinct_rest(1)),
        docstring("b", "read the Numbers", distinct_rest(2)),
        docstring("c", "Write the numbers", distinct_rest(1) + " more"),  # near-duplicate of a
        docstring("d", "Sort the numbers", "Too short."),
        docstring("e", "sort(a, b) -> c", distinct_rest(3)),
        docstring("f", "See base class", distinct_rest(4)),
        *(docstring(f"g{i}", "Run this thing now", distinct_rest(10 + i)) for i in range(6)),
    ]
    pairs = select_pairs(rows)
    assert [(query.text, query.relevant) for query in pairs.queries] == [("Read the numbers", (0, 1))]
    assert pairs.fates[:6] == [
        KEPT,
        KEPT,
        "near-duplicate passage",
        PASSAGE_TOO_SHORT,
        SIGNATURE,
        BOILERPLATE,
    ]
    assert pairs.fates[6:] == [GENERIC] * 6


def test_look_alikes_stay_in_one_set_and_a_giant_family_is_trained_on() -> None:
    alike = [f"Return the {word} of all the given numbers" for word in ("sum", "mean", "product")]
    giant = [f"{distinct_rest(0, 9)} variant{i}" for i in range(60)]
    single = [distinct_rest(100 + i, 6) for i in range(900)]
    queries = alike + giant + single
    passages = [[distinct_rest(5000 + i)] for i in range(len(queries))]
    passages[500] = [passages[700][0] + " and one more"]
    query_sets, groups = split_queries(queries, passages), look_alike_groups(queries, passages)
    assert len(set(query_sets[:3])) == 1
    assert set(query_sets[3:63]) == {"train_modeling"}
    assert query_sets[500] == query_sets[700] and groups[500] == groups[700]
    sizes = Counter(query_sets)
    assert sizes["development"] == sizes["test"] == round(0.09 * len(queries))
    assert sizes["train_fusion"] == round(0.1 * (sizes["train_fusion"] + sizes["train_modeling"]))


def test_small_pages_fold_into_their_parents_in_source_order() -> None:
    rows = [
        docstring("", "", "", module="pkg"),
        docstring("Big", "", "", module="pkg.mod", owner="Big"),
        docstring("Small", "", "", module="pkg.mod", owner="Small"),
        docstring("f", "", "", module="pkg.mod"),
        docstring("g", "", "", module="pkg.deep.er.tiny"),
    ]
    words = [3, SMALLEST_PAGE, SMALLEST_PAGE - 1, 1, 2]
    texts = [" ".join(["word"] * count) for count in words]
    assert fold_pages(rows, range(5), texts) == {"pkg": [0, 4], "pkg.mod:Big": [1], "pkg.mod": [2, 3]}
    assert fold_pages(rows, [0, 1, 3, 4], texts) == {"pkg": [0, 3, 4], "pkg.mod:Big": [1]}


# ----------------------------------------------------------------------------------------- the whole, made up


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
    assert set(one.queries) == set(one.qrels) == set(QUERY_SETS)


def test_the_hash_sees_every_part(made_up_packages: list[InstalledSource]) -> None:
    data = build_embedded_data(mine_packages(made_up_packages), "passage")
    changed = [
        data._replace(documents=data.documents[::-1]),
        data._replace(queries={**data.queries, "test": data.queries["test"][1:]}),
        data._replace(qrels={**data.qrels, "test": data.qrels["test"][1:]}),
    ]
    assert len({content_hash(data), *map(content_hash, changed)}) == 4


# --------------------------------------------------------------------------------------------- the real data


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
    sizes = {name: len(rows) for name, rows in passages.queries.items()}
    assert sizes["development"] >= 2_000 and sizes["test"] >= 2_000 and sizes["train_modeling"] >= 18_000
    assert sizes["train_fusion"] == round(0.1 * (sizes["train_fusion"] + sizes["train_modeling"]))
    assert pages.queries == passages.queries
    words = [len(text.split()) for _, text in pages.documents]
    assert np.median(words) >= 500 and np.mean(words) >= 1_000


def test_real_account_is_complete(real: dict[str, EmbeddedData], mined: list[MinedPackage]) -> None:
    data = real["passage"]
    assert [source["package"] for source in data.sources] == list(SOURCE_PACKAGES)
    docstrings = sum(len(package.docstrings) for package in mined)
    dropped = sum(count for reason, count in data.drops.items() if reason != "unparsable file")
    assert len(data.documents) == docstrings - dropped == sum(source["pairs"] for source in data.sources)


@pytest.mark.parametrize("granularity", ["passage", "page"])
def test_real_data_is_well_formed(real: dict[str, EmbeddedData], granularity: str) -> None:
    data = real[granularity]
    texts = dict(data.documents)
    assert len(texts) == len(data.documents)
    queries = {query_id: text for rows in data.queries.values() for query_id, text in rows}
    assert len(queries) == sum(map(len, data.queries.values()))
    assert all(re.fullmatch(r"\S+", name) for name in [*texts, *queries])
    assert all(text == " ".join(text.split()) and text for text in [*texts.values(), *queries.values()])
    for query_set in QUERY_SETS:
        judged = Counter(query_id for query_id, _ in data.qrels[query_set])
        assert set(judged) == {query_id for query_id, _ in data.queries[query_set]}
        assert max(judged.values()) <= 5
        for query_id, doc_id in data.qrels[query_set]:
            assert queries[query_id].lower() not in texts[doc_id].lower()


def test_real_query_sets_do_not_leak(real: dict[str, EmbeddedData]) -> None:
    """100 random held-out queries and their passages against EVERY query and passage of the other sets."""
    data = real["passage"]
    texts = dict(data.documents)
    rng = random.Random(11)
    rows = [(name, q, text) for name in QUERY_SETS for q, text in data.queries[name]]
    passages = [(name, texts[doc_id]) for name in QUERY_SETS for _, doc_id in data.qrels[name]]
    held_out = [row for row in rows if row[0] != "train_modeling"]
    query_sets = [(name, frozenset(re.findall(r"\w+", text.lower()))) for name, _, text in rows]
    passage_sets = [(name, _triples(text)) for name, text in passages]
    for name, query_id, text in rng.sample(held_out, 100):
        own = frozenset(re.findall(r"\w+", text.lower()))
        assert max(_similarity(own, other) for where, other in query_sets if where != name) < SIMILAR_QUERY
        for doc_id in (doc_id for q, doc_id in data.qrels[name] if q == query_id):
            own_triples = _triples(texts[doc_id])
            rivals = (other for where, other in passage_sets if where != name)
            assert max(_similarity(own_triples, other) for other in rivals) < SIMILAR_PASSAGE


def _triples(text: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(words, words[1:], words[2:], strict=False))


def _similarity(first: frozenset, second: frozenset) -> float:
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)
