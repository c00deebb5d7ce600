"""A real Chromium: the one in PATH, else Debian's, installed when we may. Skips saying what is missing.

Its headless shell is preferred: the same engine without the desktop around it; a page takes a fifth of the processor time.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import cache

from playwright.sync_api import Browser, sync_playwright

from tests.support.debian import INSTALL_SECONDS, find_or_install

PACKAGE = "chromium-headless-shell"
NAMES = (PACKAGE, "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# For tests of a module with a browser: the first of them may have to wait for the installation.
TEST_SECONDS = 2 * INSTALL_SECONDS + 120
# Root has no sandbox to give, and a container's /dev/shm is often too small for a page. No service of the maker's is asked.
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"]


@cache
def find_chromium() -> str:
    return find_or_install("browser to test with", PACKAGE, _in_path)


def _in_path() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
