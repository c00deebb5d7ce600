"""Titles and bodies as every channel may send them. They carry what users wrote, so nothing in them is trusted."""

from __future__ import annotations

import re

# All that some reader takes for the end of a line.
_LINE_BREAK = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def clean_text(text: str) -> str:
    """Each line break as one \\n; without other control characters and without what UTF-8 cannot encode."""
    text = text.encode("utf-8", "replace").decode()
    return _CONTROL.sub("", _LINE_BREAK.sub("\n", text))


def one_line(text: str) -> str:
    """The same without line breaks, words separated by one space."""
    return " ".join(clean_text(text).split())
