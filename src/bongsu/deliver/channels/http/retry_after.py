"""Reads the Retry-After header. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# A provider gets the wait that it asks for; but a date in the year 9999 is a mistake, and must not become one of ours.
LONGEST_ASKED = 86_400.0


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The seconds a Retry-After asks for, written as a number or a date; None when there is none that can be read."""
    text = next((value.strip() for name, value in headers.items() if name.lower() == "retry-after"), "")
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())
