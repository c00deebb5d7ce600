"""The detail of an outcome, without the address it is about: details are logged and listed, addresses are personal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

from bongsu.model.outcome import Accepted, Outcome, Outgoing

HIDDEN = "[address]"


def without_address(outcome: Outcome, outgoing: Outgoing) -> Outcome:
    """Mail servers and SMS gateways repeat in their errors whom they refused."""
    if isinstance(outcome, Accepted):
        return outcome
    # A user's own channel may return anything; what is wrong with it is reported when it is recorded.
    given = getattr(outcome, "detail", None)
    if not isinstance(given, str) or not given or not outgoing.address:
        return outcome
    detail = given
    for written in _spellings(outgoing.address):
        detail = re.sub(re.escape(written), HIDDEN, detail, flags=re.IGNORECASE)
    return outcome if detail == given else replace(outcome, detail=detail)


def _spellings(address: str) -> Iterator[str]:
    """As it is stored, in a URL, and of a phone number the digits alone. The longest first."""
    yield quote(address, safe="")
    yield address
    digits = re.sub(r"[ ()+-]", "", address)
    if digits.isdigit():
        yield f"%2B{digits}"
        yield f"+{digits}"
        yield digits
