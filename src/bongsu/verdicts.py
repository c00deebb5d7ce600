"""Carry, without I/O: what a delivery says to its channel, and what becomes of it by the channel's answer."""

from __future__ import annotations

import hashlib
import random
from binascii import b2a_base64

from bongsu.backoff import doubling
from bongsu.channels.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Unknown
from bongsu.model import Guarantee, Platform, Priority
from bongsu.settings import Settings
from bongsu.store.deliveries import MOST_CLAIMS, Claimed, DeliveryStatus, Success, Verdict, Words, storable

PRIORITIES = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
PLATFORMS = {one.value: one for one in Platform}

_URL_SAFE = bytes.maketrans(b"+/", b"-_")


# --- before -----------------------------------------------------------------------------------------------------------


def outgoing(claimed: Claimed, words: Words) -> Outgoing:
    assert claimed.address is not None
    return Outgoing(
        claimed.delivery_id, claimed.notification_id, claimed.member_id, claimed.address,
        words.type, words.title, words.body, words.ref_id, words.data, PRIORITIES[words.lane],
        PLATFORMS[claimed.platform] if claimed.platform else None, words.locale or None,
        collapse_id(claimed, words.event_id), words.expires_at,
        message_id=claimed.message_id, attempt=claimed.attempts + 1,
    )  # fmt: skip


def collapse_id(claimed: Claimed, event_id: str) -> str:
    """The same for every try of one notification on one device, and for no other. A replay may ask for a new series."""
    named = f"{event_id} {claimed.message_id} {claimed.member_id} {claimed.device_id or ''} {claimed.series}"
    return b2a_base64(hashlib.blake2b(named.encode(), digest_size=24).digest(), newline=False).translate(_URL_SAFE).decode()


def unsent(claimed: Claimed, words: Words | None) -> Verdict:
    """Why this one is not to be sent. What was left on the wire may have arrived, whatever ends it now."""
    was_sending = claimed.status == DeliveryStatus.SENDING

    def end(code: str, detail: str) -> Verdict:
        status = DeliveryStatus.UNKNOWN if was_sending else DeliveryStatus.FAIL
        return Verdict(claimed.delivery_id, claimed.epoch, status, code, detail, is_try=False)

    if words is None:
        return end("NO_MESSAGE", "what it was to say is no longer there")
    if was_sending and words.guarantee is Guarantee.AT_MOST_ONCE:
        return end("ABANDONED", "the dispatcher died while sending: it may have arrived")
    if claimed.claims > MOST_CLAIMS:
        return end("POISONED", f"every dispatcher that took it has died, {claimed.claims - 1} in a row")
    if claimed.is_expired:
        return end("EXPIRED", "it was due after the moment until which it is worth anything")
    if claimed.address is None:
        return end("NO_ADDRESS", "the device or address is gone, invalid or without consent")
    return end("NO_MESSAGE", "what it was to say is no longer there")


# --- after ------------------------------------------------------------------------------------------------------------


def verdict(
    claimed: Claimed, guarantee: Guarantee, outcome: Outcome, at: float, millis: int, settings: Settings
) -> Verdict | Success:
    """What an answer means for a delivery. The try began then, and took so long."""
    if isinstance(outcome, Accepted):
        reference = storable(outcome.reference)
        return Success(claimed.delivery_id, claimed.epoch, at, millis, reference, outcome.is_simulated)
    judged = _verdict(claimed, guarantee, outcome, settings)
    if not (isinstance(outcome, Retry) and outcome.is_held):
        judged.at, judged.millis = at, millis
    return judged


def _verdict(  # noqa: PLR0911 (one case, one answer)
    claimed: Claimed, guarantee: Guarantee, outcome: Retry | Gone | Refused | Misconfigured | Unknown, settings: Settings
) -> Verdict:
    one, epoch = claimed.delivery_id, claimed.epoch
    match outcome:
        case Retry(is_held=True) as held:
            wait = max(held.after_seconds, settings.retry_base_seconds)
            return Verdict(one, epoch, DeliveryStatus.READY, held.code, held.detail, wait, is_try=False)
        case Retry(may_have_arrived=True) | Unknown() if guarantee is Guarantee.AT_MOST_ONCE:
            return Verdict(one, epoch, DeliveryStatus.UNKNOWN, outcome.code, outcome.detail)
        case Unknown():
            return _again(claimed, outcome.code, outcome.detail, 0.0, DeliveryStatus.UNKNOWN, settings)
        case Retry():
            return _again(claimed, outcome.code, outcome.detail, outcome.after_seconds, DeliveryStatus.FAIL, settings)
        case Gone():
            gone = (claimed.member_id, claimed.device_id, claimed.address or "") if claimed.device_id else None
            return Verdict(one, epoch, DeliveryStatus.FAIL, outcome.code, outcome.detail, gone=gone)
        case Refused():
            return Verdict(one, epoch, DeliveryStatus.FAIL, outcome.code, outcome.detail)
        case Misconfigured():
            # Ours to mend, and then it may go: the recovery job tries again.
            return Verdict(one, epoch, DeliveryStatus.FAIL, outcome.code, outcome.detail, is_retryable=True)


def _again(claimed: Claimed, code: str, detail: str, floor: float, at_last: DeliveryStatus, settings: Settings) -> Verdict:
    """1 s, 2 s, 4 s with jitter, or longer if the provider asks for it; then that is the end."""
    tries = claimed.attempts + 1
    if tries > settings.max_retries:
        return Verdict(claimed.delivery_id, claimed.epoch, at_last, code, detail, is_retryable=True)
    # What a provider asks for is a least; those who were told the same are spread behind it.
    asked = floor * random.uniform(1.0, 1.1)  # noqa: S311 (spreading load, not keeping secrets)
    wait = max(doubling(settings.retry_base_seconds, tries), asked)
    return Verdict(claimed.delivery_id, claimed.epoch, DeliveryStatus.READY, code, detail, wait)
