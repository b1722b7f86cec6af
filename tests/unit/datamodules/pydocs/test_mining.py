"""Where the packages are found, and which docstrings are read from their files."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from datamodules.pydocs.mining import InstalledSource, installed_sources, mine_file, mine_packages, source_files
from lexical.errors import UserError

LONG_REST = "Parameters are read from the file one after another and returned as a list of numbers for the caller."


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
    assert [module for _, module in source_files(source)] == ["pkg.a"]


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
    (docstring,) = mine_file(_written(tmp_path, code), "pkg.file") or []
    assert docstring.summary == "Escape <script>alert(1)</script> tags and surrogates"
    assert docstring.rest == "Rest with a tab here, a line separator there, <b>bold</b> & more."
    assert f"{docstring}".encode()


def test_parsing_prints_no_warnings(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert mine_file(_written(tmp_path, '"""Invalid \\d escape."""\nx = 1 is 1\n'), "pkg.file")
    assert not recwarn.list


def _written(folder: Path, code: str) -> Path:
    path = folder / "file.py"
    path.write_text(code, encoding="utf-8")
    return path
