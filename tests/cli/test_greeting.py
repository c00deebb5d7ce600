"""What `bongsu serve` prints when it is ready: secrets are shown to a terminal only, and only those it made itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bongsu.cli import main as cli
from bongsu.runtime.keys import Keys
from bongsu.settings import Settings


def greeting(capsys: pytest.CaptureFixture[str], settings: Settings, *, is_demo: bool = False) -> str:
    cli._greet(settings, "http://127.0.0.1:8080", is_demo=is_demo)
    return capsys.readouterr().out


@pytest.mark.parametrize("is_demo", [False, True])
def test_a_file_or_pipe_gets_the_commands_and_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_demo: bool
) -> None:
    # With it, Rich takes everything for a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    settings = Settings(data_dir=tmp_path / "data")
    keys = Keys.load(settings)
    shown = greeting(capsys, settings, is_demo=is_demo)
    assert "bongsu apikey" in shown
    assert "bongsu token" in shown
    for secret in (*keys.api_keys, *keys.jwt_secrets, "eyJ"):
        assert secret not in shown


def test_a_terminal_gets_the_key_that_was_made_here_and_not_one_that_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    made, given = Settings(data_dir=tmp_path / "data"), Settings(data_dir=tmp_path / "data", api_keys="given-key,second-key")
    assert Keys.load(made).api_keys[0] in greeting(capsys, made)
    shown = greeting(capsys, given)
    assert "bongsu apikey" in shown
    assert "given-key" not in shown
