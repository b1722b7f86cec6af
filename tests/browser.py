"""Pages in a real browser: Chromium, as the system has it, driven by Playwright.

Without Chromium these tests are skipped, but where the environment variable CI is set that is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scripts.report_pictures import BROWSERS


class OpenPage(NamedTuple):
    """A tab, and what happened in it."""

    page: Any  # playwright's Page
    errors: list[str]  # of the console and of scripts
    requests: list[str]  # addresses

    def open(self, file: Path) -> Any:
        self.page.goto(file.as_uri())
        return self.page


def find_browser() -> str:
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    message = "no Chromium here, so no page is tested: make browser"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for the tests of a file: Playwright's event loop should not outlive them in this process."""
    from playwright.sync_api import sync_playwright

    path = find_browser()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def browser_page(browser: Any) -> Iterator[OpenPage]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = OpenPage(context.new_page(), [], [])
    opened.page.on("console", lambda message: opened.errors.append(message.text) if message.type == "error" else None)
    opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    yield opened
    context.close()
