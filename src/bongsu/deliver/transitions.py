"""The transitions of a delivery, without I/O: from a claim to what is sent, and from an outcome to what is recorded."""

from __future__ import annotations

import hashlib
import random
from binascii import b2a_base64
from dataclasses import replace

from bongsu.deliver.current_contents import EVENT_CANCELLED
from bongsu.deliver.withheld import Withheld
from bongsu.model import Guarantee, Platform
from bongsu.model.notice import CHAT_MESSAGE
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Unknown
from bongsu.runtime.backoff import doubling
from bongsu.settings import Settings
from bongsu.store.deliveries import (
    MOST_CLAIMS,
    ClaimedDelivery,
    DeliveryResult,
    DeliveryStatus,
    Success,
    recordable,
)
from bongsu.store.deliveries.rows import ABANDONED, EXPIRED
from bongsu.store.messages.content import MessageContent
from bongsu.store.ranks import PRIORITY_OF

PLATFORMS = {platform.value: platform for platform in Platform}

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_NO_MESSAGE = "its message no longer exists"
CANCELLED = DeliveryStatus.CANCELLED.value


# --- before sending ---------------------------------------------------------------------------------------------------


def outgoing(claimed: ClaimedDelivery, content: MessageContent) -> Outgoing:
    assert claimed.address is not None
    return Outgoing(
        claimed.delivery_id, claimed.notification_id, claimed.member_id, claimed.address,
        content.type, content.title, content.body, content.ref_id, content.data, PRIORITY_OF[content.priority],
        PLATFORMS[claimed.platform] if claimed.platform else None, content.locale or None,
        collapse_id(claimed, _shown_as(content)), content.expires_at,
        attempt=claimed.attempts + 1, is_critical=content.is_critical, is_bulk=content.is_bulk,
    )  # fmt: skip


def _shown_as(content: MessageContent) -> str:
    """What one line on the device is about: the message, or a chat room, of which the newest push replaces the others."""
    if content.type == CHAT_MESSAGE and content.is_digest:
        return f"{CHAT_MESSAGE} {content.ref_id}"
    return f"{content.event_id} {content.message_id}"


def collapse_id(claimed: ClaimedDelivery, shown_as: str) -> str:
    """The same for every attempt of one notification on one device, and for no other but those of the same chat room. A
    replay may start a new series."""
    named = f"{shown_as} {claimed.member_id} {claimed.device_id or ''} {claimed.collapse_series}"
    return b2a_base64(hashlib.blake2b(named.encode(), digest_size=24).digest(), newline=False).translate(_URL_SAFE).decode()


def result_without_sending(claimed: ClaimedDelivery, content: MessageContent | None) -> DeliveryResult:
    """Why a delivery that was claimed must not be sent. If it was SENDING before, it may have arrived: UNKNOWN, not FAIL."""
    code, detail = _why_not_sent(claimed, content)
    status = DeliveryStatus.CANCELLED if code == CANCELLED else DeliveryStatus.FAIL
    if claimed.status == DeliveryStatus.SENDING:
        status = DeliveryStatus.UNKNOWN
    bulk = claimed.message_id if content is not None and content.is_bulk else None
    return DeliveryResult(claimed.delivery_id, claimed.epoch, status, code, detail, is_attempt=False, bulk_message=bulk)


def result_of_cancelled(claimed: ClaimedDelivery, content: MessageContent) -> DeliveryResult:
    """One that was claimed, waited for its turn to be sent, and was cancelled before it came."""
    return result_without_sending(claimed._replace(is_cancelled=True), content)


def result_of_withheld(claimed: ClaimedDelivery, withheld: Withheld) -> DeliveryResult:
    """One that was claimed although there is nothing left to push. If it was SENDING before, it may have arrived."""
    is_first = claimed.status != DeliveryStatus.SENDING
    status, code, detail = DeliveryStatus.CANCELLED, withheld.code, withheld.detail
    if not is_first:
        status, code, detail = DeliveryStatus.UNKNOWN, "ABANDONED", ABANDONED
    bulk = claimed.message_id if withheld.is_bulk else None
    return DeliveryResult(claimed.delivery_id, claimed.epoch, status, code, detail, is_attempt=False, bulk_message=bulk)


def given_back(claimed: ClaimedDelivery) -> DeliveryResult:
    """One that was claimed and not sent: it is due at once, for the next claim."""
    # With its message: it ends CANCELLED if its event was cancelled, and then it is counted.
    return DeliveryResult(
        claimed.delivery_id, claimed.epoch, DeliveryStatus.READY, is_attempt=False, bulk_message=claimed.message_id
    )


def _why_not_sent(claimed: ClaimedDelivery, content: MessageContent | None) -> tuple[str, str]:  # noqa: PLR0911 (a reason each)
    """Code and text of the first reason."""
    was_sending = claimed.status == DeliveryStatus.SENDING
    if content is None:
        return "NO_MESSAGE", _NO_MESSAGE
    if was_sending and (content.guarantee is Guarantee.AT_MOST_ONCE or claimed.is_cancelled):
        return "ABANDONED", ABANDONED
    if claimed.is_cancelled:
        return CANCELLED, EVENT_CANCELLED
    if claimed.claim_count > MOST_CLAIMS:
        return "POISONED", f"{claimed.claim_count - 1} claims in a row ended without an outcome"
    if claimed.is_expired:
        return "EXPIRED", EXPIRED
    if claimed.address is None:
        return "NO_ADDRESS", "the device or address is missing, invalid or without consent"
    return "NO_MESSAGE", _NO_MESSAGE


# --- after sending ----------------------------------------------------------------------------------------------------


def result_of(
    claimed: ClaimedDelivery, content: MessageContent, outcome: Outcome, began: float, millis: int, settings: Settings
) -> DeliveryResult | Success:
    """The result of an attempt by its outcome. `began` is a time.monotonic()."""
    bulk = claimed.message_id if content.is_bulk else None
    if isinstance(outcome, Accepted):
        reference = recordable(outcome.reference)
        return Success(claimed.delivery_id, claimed.epoch, began, millis, reference, outcome.is_simulated, bulk)
    result = _transition(claimed, content.guarantee, outcome, settings)
    result.bulk_message = bulk
    if not (isinstance(outcome, Retry) and outcome.is_held):
        result.began, result.millis = began, millis
    return result


def _transition(  # noqa: PLR0911 (one case, one result)
    claimed: ClaimedDelivery,
    guarantee: Guarantee,
    outcome: Retry | Gone | Refused | Misconfigured | Unknown,
    settings: Settings,
) -> DeliveryResult:
    delivery_id, epoch = claimed.delivery_id, claimed.epoch
    match outcome:
        case Retry(is_held=True) as held:
            wait = max(held.after_seconds, settings.retry_base_seconds)
            return DeliveryResult(delivery_id, epoch, DeliveryStatus.READY, held.code, held.detail, wait, is_attempt=False)
        case Retry(may_have_arrived=True) | Unknown() if guarantee is Guarantee.AT_MOST_ONCE:
            return DeliveryResult(delivery_id, epoch, DeliveryStatus.UNKNOWN, outcome.code, outcome.detail)
        case Unknown():
            return _again(claimed, outcome.code, outcome.detail, 0.0, DeliveryStatus.UNKNOWN, settings)
        case Retry():
            # The last try may have arrived: so it cannot be recorded as failed.
            at_last = DeliveryStatus.UNKNOWN if outcome.may_have_arrived else DeliveryStatus.FAIL
            return _again(claimed, outcome.code, outcome.detail, outcome.after_seconds, at_last, settings)
        case Gone():
            invalid = (claimed.member_id, claimed.device_id, claimed.address or "") if claimed.device_id else None
            return DeliveryResult(
                delivery_id, epoch, DeliveryStatus.FAIL, outcome.code, outcome.detail, invalid_device=invalid
            )
        case Refused():
            return DeliveryResult(delivery_id, epoch, DeliveryStatus.FAIL, outcome.code, outcome.detail)
        case Misconfigured():
            # The operator can correct it, and then the recovery job tries again.
            return DeliveryResult(delivery_id, epoch, DeliveryStatus.FAIL, outcome.code, outcome.detail, is_retryable=True)


def _again(
    claimed: ClaimedDelivery, code: str, detail: str, floor: float, at_last: DeliveryStatus, settings: Settings
) -> DeliveryResult:
    """Retry after 1 s, 2 s, 4 s with jitter, or later if the provider asks for it; after the last retry it ends."""
    attempts = claimed.attempts + 1
    if attempts > settings.max_retries:
        return DeliveryResult(claimed.delivery_id, claimed.epoch, at_last, code, detail, is_retryable=True)
    # A provider asks for a minimum: spread those with the same answer behind it.
    asked = floor * random.uniform(1.0, 1.1)  # noqa: S311 (spreading load, not keeping secrets)
    wait = max(doubling(settings.retry_base_seconds, attempts), asked)
    return DeliveryResult(claimed.delivery_id, claimed.epoch, DeliveryStatus.READY, code, detail, wait)


def with_epoch(result: DeliveryResult | Success, epoch: int) -> DeliveryResult | Success:
    """The same result under a newer claim of the same process."""
    return result._replace(epoch=epoch) if isinstance(result, Success) else replace(result, epoch=epoch)
