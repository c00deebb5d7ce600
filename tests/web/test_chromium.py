"""Without a browser the tests are skipped, and say what is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.debian import PackageMissing
from tests.web.chromium import find_chromium


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine with nothing in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    find_chromium.cache_clear()
    yield
    find_chromium.cache_clear()


def put(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("")
    path.chmod(0o755)
    return path


def test_the_browser_in_path_is_taken(tmp_path: Path) -> None:
    path = put(tmp_path, "chromium")
    assert find_chromium() == str(path)


def test_the_headless_shell_is_preferred(tmp_path: Path) -> None:
    put(tmp_path, "chromium")
    shell = put(tmp_path, "chromium-headless-shell")
    assert find_chromium() == str(shell)


def test_who_may_not_install_one_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PackageMissing, match="only root may install it. `apt install chromium-headless-shell`"):
        find_chromium()


def test_root_without_apt_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(PackageMissing, match="there is no apt-get"):
        find_chromium()


@pytest.mark.parametrize("is_there", [True, False])
def test_root_installs_debians(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    put(tmp_path, "apt-get")

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "install" in command and is_there:
            put(tmp_path, "chromium-headless-shell")
        return subprocess.CompletedProcess(command, 0 if is_there else 100, "", "E: Unable to fetch some archives")

    monkeypatch.setattr(subprocess, "run", run)
    if is_there:
        assert find_chromium() == str(tmp_path / "chromium-headless-shell")
        return
    with pytest.raises(PackageMissing, match="`apt-get update` failed: E: Unable to fetch some archives"):
        find_chromium()
