"""What an SMS gateway's answers mean: its status and, if it answers as Twilio does, its code. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from bongsu.deliver.channels.http.retry_after import LONGEST_ASKED, retry_after
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Scope, Unknown

# How long to wait if a gateway asks for a wait without a time.
BUSY_SECONDS = 10.0
# A daily allowance does not come back within minutes.
QUOTA_SECONDS = 3600.0

# Twilio's codes that are more precise than the status they come with. https://www.twilio.com/docs/api/errors
TWILIO: Mapping[int, type[Gone | Refused | Misconfigured] | float] = {
    14107: BUSY_SECONDS,  # too many messages from this sender at once
    20003: Misconfigured,  # wrong credentials
    20005: Misconfigured,  # the account is not active
    20404: Misconfigured,  # the URL names an account that is not there
    20429: BUSY_SECONDS,  # too many requests
    21211: Gone,  # "To" is not a number
    21212: Misconfigured,  # "From" is not a number
    21214: Gone,  # "To" cannot be reached
    21217: Gone,  # the number is not valid
    21266: Refused,  # "To" and "From" are the same
    21408: Refused,  # the account may not send to that country
    21602: Refused,  # no text
    21603: Misconfigured,  # no "From"
    21606: Misconfigured,  # "From" is not a number of the account's that can send
    21608: Refused,  # a trial account sends to verified numbers alone
    21610: Refused,  # the member has opted out with the carrier, and may opt in again
    21611: BUSY_SECONDS,  # the sender's queue is full
    21612: Refused,  # no route between these two numbers
    21614: Gone,  # no mobile number
    21617: Refused,  # longer than 1,600 characters
    21635: Gone,  # a landline
    63038: QUOTA_SECONDS,  # the account's messages of the day are used up
}
# Those that concern every message of the account.
LOGIN = frozenset({20003, 20005, 20404})
# Fields in which gateways return the id of an accepted message.
REFERENCES = ("sid", "messageId", "message_id", "id")


def read_answer(status: int, headers: Mapping[str, str], body: bytes, now: datetime, *, is_twilio: bool) -> Outcome:
    """What the gateway's answer means. Codes count only for Twilio: elsewhere a number means something else."""
    answer = _object(body)
    if 200 <= status < 300:
        return Accepted(next((str(answer[key])[:200] for key in REFERENCES if answer.get(key)), ""))
    detail = str(answer.get("message") or body[:300].decode("utf-8", "replace"))[:300]
    asked = retry_after(headers, now)
    if asked is not None:
        asked = min(asked, LONGEST_ASKED)
    code = answer.get("code")
    if is_twilio and isinstance(code, int) and code in TWILIO:
        return by_code(code, detail, asked)
    return by_status(status, detail, asked)


def by_code(code: int, detail: str, asked: float | None = None) -> Outcome:
    """What one of the codes above means."""
    meaning, name = TWILIO[code], f"TWILIO_{code}"
    if isinstance(meaning, float):
        return Retry(name, meaning if asked is None else asked, Scope.CHANNEL, detail)
    return Misconfigured(name, detail, is_for_all=True) if code in LOGIN else meaning(name, detail)


def by_status(status: int, detail: str, asked: float | None = None) -> Outcome:
    """What a status means that came without such a code."""
    name = f"HTTP_{status}"
    if status == 504:
        # The gateway has passed it on and was not answered either.
        return Unknown(name, detail)
    if status in (408, 425, 429) or status >= 500:
        wait = BUSY_SECONDS if status == 429 else 0.0
        return Retry(name, wait if asked is None else asked, Scope.DELIVERY if status < 429 else Scope.CHANNEL, detail)
    if status in (401, 402, 403, 405, 407) or status < 400:
        return Misconfigured(name, detail, is_for_all=status in (401, 403, 407))
    # 404 too: it may be the URL, and it may be one number that the gateway does not know.
    return Refused(name, detail)


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
