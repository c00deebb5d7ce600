"""What reaches a terminal: text from outside must not move the cursor, change colours, or reverse what is read."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from bongsu.runtime import telemetry

# An escape sequence, the same as one C1 control, a bell, a line of its own, bidirectional controls, a tag.
HOSTILE = "/a\x1b[2J\x9b31m\x07\r\nfake\x7f\u202eevil\u2066\u200f\U000e0041/é한"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def logging_to(stderr: io.StringIO) -> Iterator[None]:
    """Not a fixture: pytest has a stderr of its own for each phase of a test."""
    handlers, level, config = logging.root.handlers[:], logging.root.level, structlog.get_config()
    try:
        with contextlib.redirect_stderr(stderr):
            telemetry.configure_logs()
            yield
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        structlog.configure(**config)


def shown(stderr: io.StringIO) -> str:
    return COLOURS.sub("", stderr.getvalue())


def controls(text: str) -> set[str]:
    return {one for one in text if not one.isprintable()}


def crash() -> None:
    raise ValueError(HOSTILE)


@pytest.mark.parametrize("stderr", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_text_from_outside_is_escaped_wherever_it_is_in_a_line(stderr: io.StringIO) -> None:
    with logging_to(stderr):
        telemetry.log("test").info(HOSTILE, path=HOSTILE, nested={"a": [HOSTILE]}, **{HOSTILE: 1})
        logging.getLogger("test").warning("%s", HOSTILE)
    assert controls(shown(stderr)) == {"\n"}
    assert stderr.getvalue().count("\n") == 2
    assert "é한" in stderr.getvalue()


@pytest.mark.parametrize("stderr", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_text_from_outside_is_escaped_in_a_traceback(stderr: io.StringIO) -> None:
    with logging_to(stderr):
        try:
            crash()
        except ValueError:
            telemetry.log("test").exception("crashed")
            logging.getLogger("test").exception("crashed")
    assert controls(shown(stderr)) == {"\n"}
    assert stderr.getvalue().count("Traceback") == 2


def test_a_line_of_json_still_has_every_character() -> None:
    with logging_to(stderr := io.StringIO()):
        telemetry.log("test").info("request", path=HOSTILE)
    assert json.loads(stderr.getvalue())["path"] == HOSTILE
