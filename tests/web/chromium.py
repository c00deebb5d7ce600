"""A real Chromium: the one in PATH, else Debian's, installed when we may. Skips saying what is missing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# A few hundred megabytes from a mirror near by; longer only delays the report that there is none.
INSTALL_SECONDS = 300
# For tests of a module with a browser: the first of them may have to wait for the installation.
TEST_SECONDS = 2 * INSTALL_SECONDS + 120
# Root has no sandbox to give, and a container's /dev/shm is often too small for a page. No service of the maker's is asked.
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"]


class ChromiumMissing(RuntimeError):
    """No browser can be had here; the message says what was tried and how to get one. Fixtures skip on this."""


@cache
def find_chromium() -> str:
    found = _in_path()
    if found is not None:
        return found
    # The processes of a test run look at the same time: one installs, and the others find what it has installed.
    with Path(tempfile.gettempdir(), "bongsu-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        why_not = "" if _in_path() else _install()
    found = _in_path()
    if found is None:
        tried = f"none of {', '.join(NAMES)} is in PATH, and {why_not}"
        raise ChromiumMissing(f"No browser to test with: {tried}. `apt install chromium` gives you one.")
    return found


def _in_path() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def _install() -> str:
    """Debian's package, if that is ours to do. Why it is not there afterwards."""
    if os.geteuid() != 0:
        return "only root may install one"
    if shutil.which("apt-get") is None:
        return "there is no apt-get to install one with"
    for command in ("apt-get update", "apt-get install -y --no-install-recommends chromium"):
        why_not = _run(command)
        if why_not:
            return why_not
    return "the package that was installed has another name"


def _run(command: str) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command.split(), env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"`{command}` did not end within {INSTALL_SECONDS} s"
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"`{command}` failed: {said[-1] if said else done.returncode}" if done.returncode else ""


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
