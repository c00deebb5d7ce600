"""Properties that the driver cannot read: a time in microseconds where seconds belong, text that is not UTF-8.

The driver ends the connection over one. The broker would deliver the message again and again, and after the last attempt
dead-letter it with everything that was prefetched beside it. So what cannot be read is left out, and the body decides.
"""

from __future__ import annotations

import struct
from typing import Any

from pamqp import decode

# Stands for a byte that is not UTF-8.
UNREADABLE = "\ufffd"


def read_leniently() -> None:
    """From now on, in this process. May be called twice."""
    decode.METHODS.update(timestamp=_time, shortstr=_short_text, table=_table)
    decode.TABLE_MAPPING.update({b"T": _time, b"F": _table})


def _time(value: bytes) -> tuple[int, Any]:
    try:
        return decode.timestamp(value)
    except (ValueError, OverflowError, OSError):
        return 8, None


def _short_text(value: bytes) -> tuple[int, str]:
    try:
        return decode.short_str(value)
    except UnicodeDecodeError:
        end = 1 + value[0]
        return end, value[1:end].decode(errors="replace")


def _table(value: bytes) -> tuple[int, Any]:
    try:
        return decode.field_table(value)
    except UnicodeDecodeError:  # the name of a header
        (size,) = struct.unpack(">I", value[:4])
        return 4 + size, {}
