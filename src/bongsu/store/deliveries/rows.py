"""Rows of deliveries as Python values: what a claim returns, and what is recorded of an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bongsu.model.payload import storable_text

RANK = {"rank": "integer"}
# A delivery that was claimed so often in a row without a result is not sent again: it seems to crash its dispatchers.
MOST_CLAIMS = 6
# A provider that asks for a longer wait gets a day.
LONGEST_WAIT = 86_400.0
TEXT_LIMIT = 500

# Why a delivery ended, as the dispatcher and the recovery job store it.
EXPIRED = "it expired before it could be sent"
ABANDONED = "the lease ended without an outcome: it may have arrived"


class DeliveryStatus(StrEnum):
    """READY until it is claimed to be sent, and again before a retry; SENDING until the result is recorded; then one of the
    others. CANCELLED: its event was cancelled before it was claimed, or before it was retried. docs/STATES.md"""

    READY = "READY"
    SENDING = "SENDING"
    SUCCESS = "SUCCESS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    CANCELLED = "CANCELLED"


class ClaimedDelivery(NamedTuple):
    """A delivery that a dispatcher has leased, and its address at the time of the claim."""

    delivery_id: int
    epoch: int
    # Before this claim. SENDING: an earlier claim ended without a result, so it may have been sent.
    status: str
    attempts: int
    claim_count: int
    collapse_series: int
    notification_id: int
    member_id: str
    message_id: int
    device_id: str | None
    # None if there is none, or none that may be used.
    address: str | None
    platform: str | None
    is_expired: bool
    is_cancelled: bool
    # Whether this claim made it SENDING. If not, it must not be sent, and the dispatcher records why.
    can_go: bool


# What a claim selects: a row is made into a ClaimedDelivery by the order of its columns, in a third of the time.
CLAIMED_COLUMNS = ", ".join(ClaimedDelivery._fields)


class Success(NamedTuple):
    """The result of an attempt that the provider accepted, as nearly all are."""

    delivery_id: int
    epoch: int
    # When the attempt began, by time.monotonic(), and how long it took.
    began: float
    millis: int
    reference: str | None = None
    is_simulated: bool = False
    # Its message, if the results of that are counted.
    bulk_message: int | None = None


@dataclass(slots=True)
class DeliveryResult:
    """Any other result. READY means: again, after that many seconds."""

    delivery_id: int
    epoch: int
    status: DeliveryStatus
    code: str | None = None
    detail: str | None = None
    after_seconds: float = 0.0
    # Whether it counts against the retries. What was held back before it reached the provider does not.
    is_attempt: bool = True
    is_retryable: bool = False
    is_simulated: bool = False
    reference: str | None = None
    # When the attempt began, by time.monotonic(), and how long it took. None if nothing was sent.
    began: float | None = None
    millis: int = 0
    # Member, device and token that the provider no longer knows. With the token, because it may have been replaced since.
    invalid_device: tuple[str, str, str] | None = None
    # Its message, if the results of that are counted.
    bulk_message: int | None = None

    def __post_init__(self) -> None:
        self.code, self.detail, self.reference = recordable(self.code), recordable(self.detail), recordable(self.reference)
        # NaN is not greater than zero either.
        self.after_seconds = min(self.after_seconds, LONGEST_WAIT) if self.after_seconds > 0 else 0.0


def recordable(text: str | None) -> str | None:
    """A provider's text: one odd answer must not keep a batch from being recorded."""
    if not text or (len(text) <= TEXT_LIMIT and text.isascii() and "\x00" not in text):
        return text
    return storable_text(text, TEXT_LIMIT)
