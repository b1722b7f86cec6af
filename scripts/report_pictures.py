"""Take a picture of each section of a report; the README shows some of them.

    pip install playwright                                   # Chromium is the system's
    python scripts/report_pictures.py outputs/pydocs_passage/results.html docs/report

Writes docs/report_table.png, _speed, _curves, _queries, _scores and _translations. There are no pictures of a page
that logs an error or requests anything from elsewhere.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lexical.errors import UserError, run_script

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECTIONS = ("table", "speed", "curves", "queries", "scores", "translations")


def take_pictures(report: Path, prefix: str, sections: Sequence[str] = SECTIONS, width: int = 1100) -> list[Path]:
    """Write PREFIX_<section>.png and return the paths."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise UserError("the package is not installed: pip install playwright") from error
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise UserError("no Chromium here: make browser")
    if not report.is_file():
        raise UserError(f"there is no report {report}: python evaluate.py writes it")
    pictures: dict[Path, bytes] = {}
    errors: list[str] = []
    with sync_playwright() as playwright:
        tab = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page(
            viewport={"width": width, "height": 900}, color_scheme="light"
        )
        tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda request: None if request.url.startswith("file:") else errors.append(request.url))
        tab.goto(report.resolve().as_uri())
        tab.evaluate("Promise.all([...document.querySelectorAll('figure')].map((figure) => figure.drawn))")
        tab.add_style_tag(content="nav { position: static !important; }")  # it would cover a part of a section
        for name in sections:
            section = tab.locator(f"section#{name}")
            if section.count():
                pictures[Path(f"{prefix}_{name}.png")] = section.screenshot()
    if errors:
        raise UserError(f"{report} has errors or requests something from elsewhere: {errors[0]}")
    if not pictures:
        raise UserError(f"{report} has none of the sections {', '.join(sections)}; known are: {', '.join(SECTIONS)}")
    for path, content in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return list(pictures)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("report_pictures.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("report", type=Path, help="results.html")
    parser.add_argument("prefix", help="of the files: FOLDER/NAME")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--width", type=int, default=1100, help="of the window, in pixels")
    arguments = parser.parse_args(argv)
    written = take_pictures(arguments.report, arguments.prefix, arguments.sections.split(","), arguments.width)
    print("\n".join(map(str, written)))


if __name__ == "__main__":
    sys.exit(run_script(main))
