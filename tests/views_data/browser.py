"""Headless Chromium without a network, for tests that open a page."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRAWN = "[...document.querySelectorAll('.drawing')].every(d => d.dataset.drawn === 'yes')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


class Visit:
    """An open page, what it logged, and what it asked the network for."""

    def __init__(self, browser: Any, path: Path) -> None:
        context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        self.page = context.new_page()
        self.logged: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self.requests.append(request.url))
        start = time.perf_counter()
        self.page.goto(path.as_uri())
        self.seconds = time.perf_counter() - start
        self.page.wait_for_function(DRAWN, timeout=30_000)
        self.url = path.as_uri()

    def _dialog(self, dialog: Any) -> None:
        self.logged.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check(self) -> None:
        assert self.logged == [], self.logged
        outside = [url for url in self.requests if not url.startswith(("data:", "blob:"))]
        assert outside == [self.url]
        assert self.page.evaluate("window.pwned") is None
