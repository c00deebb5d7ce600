"""Header fields of a mail, encoded here and not by Python's email package. Pure.

That package decodes an encoded word (RFC 2047) that stands in a text, and writes what it decoded: a title that contains
`=?utf-8?q?a=0D=0ABcc:_x?=` became a header of its own. So a text that could be read as anything but itself is written as
encoded words of our own, which a reader decodes once, to the text as it was.
"""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Iterator

# RFC 2047 wants lines with encoded words to have at most 76 characters.
LINE_LENGTH = 76
# 39 bytes are 52 characters of base64 and 64 with what surrounds them: `Subject: ` still fits in front.
WORD_BYTES = 39
# A longer word would stand on a line of its own below the field's name, which some readers take for an empty field.
PLAIN_WORD = 60

_PLAIN = re.compile(r"[!-~]+( [!-~]+)*")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+( [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")


def text_field(name: str, line: str) -> str:
    """A field that holds a line of text, folded: as it is if it is short ASCII words, else as encoded words."""
    is_plain = _PLAIN.fullmatch(line) and "=?" not in line and max(map(len, line.split(" "))) <= PLAIN_WORD
    if not is_plain:
        return f"{name}: {_fold(encoded_words(line))}"
    wrap = textwrap.TextWrapper(LINE_LENGTH, subsequent_indent=" ", break_long_words=False, break_on_hyphens=False)
    return "\r\n".join(wrap.wrap(f"{name}: {line}"))


def address_field(name: str, display_name: str, mailbox: str) -> str:
    """A field that holds one address. The mailbox is one that `model.addresses.mailbox` returned."""
    if not display_name:
        return f"{name}: {mailbox}"
    is_plain = _ATOMS.fullmatch(display_name) and "=?" not in display_name and len(display_name) <= PLAIN_WORD
    words = [display_name] if is_plain else encoded_words(display_name)
    return f"{name}: {_fold([*words, f'<{mailbox}>'])}"


def encoded_words(line: str) -> list[str]:
    """The text in base64, no character divided between two words."""
    return [f"=?utf-8?b?{base64.b64encode(piece).decode()}?=" for piece in _pieces(line)]


def _pieces(line: str) -> Iterator[bytes]:
    piece = b""
    for character in line:
        encoded = character.encode()
        if len(piece) + len(encoded) > WORD_BYTES:
            yield piece
            piece = b""
        piece += encoded
    if piece:
        yield piece


def _fold(words: list[str]) -> str:
    return "\r\n ".join(words)
