"""Pictures of a report, taken by a real browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.fixtures.browser import find_browser
from tests.fixtures.small_report import small_report

SCRIPT = ROOT / "scripts/report_pictures.py"


def pictures(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    find_browser()
    path = tmp_path_factory.mktemp("report") / "results.html"
    path.write_text(small_report(path.parent).page(), encoding="utf-8")
    return path


def test_each_section_is_a_picture(report: Path) -> None:
    done = pictures(report, report.parent / "docs" / "small")
    assert done.returncode == 0, done.stderr
    assert [Path(line).name for line in done.stdout.splitlines()] == [
        "small_table.png", "small_speed.png", "small_curves.png", "small_queries.png", "small_scores.png",
        "small_translations.png",
    ]  # fmt: skip
    assert all(Path(line).read_bytes().startswith(b"\x89PNG") for line in done.stdout.splitlines())


def test_a_page_that_requests_something_from_elsewhere_gets_none(report: Path) -> None:
    text = report.read_text().replace("default-src 'none';", "").replace("img-src data:", "")
    other = report.with_name("other.html")
    other.write_text(text.replace("<body>", "<body><img src='http://127.0.0.1:9/a.png'>"))
    done = pictures(other, report.parent / "other")
    assert done.returncode == 2 and "requests something from elsewhere: http://127.0.0.1:9/a.png" in done.stderr
    assert not list(report.parent.glob("other*.png"))


def test_a_mistyped_section_gets_one_line(report: Path) -> None:
    done = pictures(report, report.parent / "small", "--sections", "tabel")
    assert done.returncode == 2 and "has none of the sections tabel; known are: table, speed" in done.stderr


def test_no_report_gets_one_line(report: Path) -> None:
    done = pictures(report.parent / "none.html", "small")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "python evaluate.py writes it" in done.stderr
