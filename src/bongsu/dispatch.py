"""Carry: takes due deliveries of one channel, sends them, and records what became of each.

Sending is pre-locked: to take one is to say that it will be sent, committed before it is. A dispatcher killed at any moment
leaves SENDING behind what it may have sent, at most as many as it has slots. What becomes of those is the type's choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import socket
import time
from binascii import b2a_base64
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from bongsu import telemetry
from bongsu.backoff import doubling
from bongsu.channels.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Sender, Unknown
from bongsu.errors import StoreError, StoreTooSlow
from bongsu.loop import Loop
from bongsu.model import Channel, Guarantee, Platform, Priority, utc_now
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import MOST_CLAIMS, Claimed, DeliveryStatus, Verdict, Words

# Deliveries of one channel in hand at once, on the wire or with an outcome yet to be recorded; a provider that hangs holds
# no more than these, and no other channel's. FCM lets a project send 10,000 a second and takes about 100 ms for each: a
# thousand on the wire, and half as many again on their way into the store.
CONCURRENCY = {Channel.PUSH: 1_536, Channel.EMAIL: 512, Channel.SMS: 512}
# The next ones are claimed when this part of the slots is free, as many at a time, and outcomes recorded when this part of
# them has landed, so that statements are about many rows.
SHARE = 4
# What has landed is recorded after this time, however little it is.
LINGER_SECONDS = 0.1
# Messages whose words are kept at hand: a fan-out's deliveries all say the same.
WORDS_KEPT = 1_000
# Of sixteen turns, which lane is asked first: HIGH goes before NORMAL before LOW, and none waits for ever.
TURNS = ((0, 1, 2),) * 7 + ((1, 0, 2),) + ((0, 1, 2),) * 7 + ((2, 0, 1),)
PRIORITIES = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
PLATFORMS = {one.value: one for one in Platform}

DELIVERIES_TOPIC = "deliveries"

_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Delivery(NamedTuple):
    """A claimed delivery with all that is needed to send it."""

    claimed: Claimed
    words: Words

    def outgoing(self) -> Outgoing:
        claimed, words = self.claimed, self.words
        assert claimed.address is not None
        return Outgoing(
            delivery_id=claimed.delivery_id,
            notification_id=claimed.notification_id,
            member_id=claimed.member_id,
            message_id=claimed.message_id,
            address=claimed.address,
            type=words.type,
            title=words.title,
            body=words.body,
            ref_id=words.ref_id,
            data=words.data,
            priority=PRIORITIES[words.lane],
            platform=PLATFORMS[claimed.platform] if claimed.platform else None,
            locale=words.locale or None,
            collapse_id=collapse_id(claimed, words.event_id),
            expires_at=words.expires_at,
            attempt=claimed.attempts + 1,
        )


def collapse_id(claimed: Claimed, event_id: str) -> str:
    """The same for every try of one notification on one device, and for no other. A replay may ask for a new series."""
    named = f"{event_id} {claimed.message_id} {claimed.member_id} {claimed.device_id or ''} {claimed.series}"
    return b2a_base64(hashlib.blake2b(named.encode(), digest_size=24).digest(), newline=False).translate(_URL_SAFE).decode()


# --- decisions, without I/O ---------------------------------------------------------------------------------------------


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


def verdict(delivery: Delivery, outcome: Outcome, settings: Settings) -> Verdict:  # noqa: PLR0911 (one case, one answer)
    """What an answer means for a delivery."""
    claimed, guarantee = delivery.claimed, delivery.words.guarantee
    one, epoch = claimed.delivery_id, claimed.epoch
    match outcome:
        case Accepted(reference, is_simulated):
            return Verdict(one, epoch, DeliveryStatus.SUCCESS, reference=reference, is_simulated=is_simulated)
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


# --- the loop -----------------------------------------------------------------------------------------------------------


_OVERDUE = "overdue"


class _Sending(NamedTuple):
    """One on the wire."""

    claimed: Claimed
    began: float
    task: asyncio.Task[None]


class Dispatcher(Loop):
    """Carries one channel. Any number may run, in any number of processes."""

    def __init__(
        self, store: Store, sender: Sender, settings: Settings, concurrency: int | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:  # fmt: skip
        super().__init__(f"dispatch-{sender.channel.value.lower()}", settings.poll_seconds)
        self.channel: Channel = sender.channel
        self._store = store
        self._sender = sender
        self._settings = settings
        self._concurrency = CONCURRENCY[sender.channel] if concurrency is None else concurrency
        self._clock = clock
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        # In the order they were sent: when that was, and who sees to it.
        self._sending: dict[int, _Sending] = {}
        # Outcomes not yet recorded, and how many are just being. They hold slots too, so there are never more than those.
        self._verdicts: list[Verdict] = []
        self._being_recorded = 0
        self._landed = asyncio.Event()
        # Until it is over, what has landed waits for more.
        self._linger: asyncio.TimerHandle | None = None
        self._is_to_record = False
        self._recording: asyncio.Task[int] | None = None
        self._words: OrderedDict[int, Words] = OrderedDict()
        self._turn = 0
        self._renewed = time.monotonic()
        # Never shorter than a send may take: a lease that ends while its delivery is on the wire is a second send.
        self._lease = max(settings.lease_seconds, 2 * (settings.send_timeout_seconds + settings.poll_seconds))

    async def tick(self) -> int:
        self._give_up_overdue()
        await self._keep_leases()
        # Side by side: while the outcomes of the last ones are written down the next ones set out.
        if self._is_to_record and self._recording is None:
            self._recording = asyncio.create_task(self._record(), name=f"bongsu-{self.name}-record")
            self._recording.add_done_callback(lambda _task: self.wake())
        moved = await self._take_on()
        moved += await self._recorded()
        if not moved and (self._sending or self._recording):
            await self._wait_for_landing()
        return moved + len(self._verdicts) + (self._recording is not None)

    def wake(self) -> None:
        super().wake()
        self._landed.set()

    async def stop(self) -> None:
        """What is on the wire is waited for, up to the send timeout, and recorded."""
        await super().stop()
        tasks = [one.task for one in self._sending.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.send_timeout_seconds + 1)
        with contextlib.suppress(StoreError):
            if self._recording is not None:
                await asyncio.wait({self._recording})
                await self._recorded()
            await self._record()

    async def _take_on(self) -> int:
        began = time.monotonic()
        claimed = [] if self.is_stopping else await self._claim()
        await self._send(claimed, began)
        return len(claimed)

    async def _claim(self) -> list[Claimed]:
        """A portion: so many that each costs little, so few that some are on the wire while the next are claimed."""
        free = self._concurrency - len(self._sending) - len(self._verdicts) - self._being_recorded
        portion = max(1, self._concurrency // SHARE)
        if free < portion:
            return []
        lanes = TURNS[self._turn % len(TURNS)]
        async with self._store.write_once() as tx:
            claimed = await statements.claim(tx, self.channel, lanes, portion, self._lease, self._worker)
        if claimed:
            self._turn += 1
        return claimed

    async def _send(self, claimed: Sequence[Claimed], claimed_at: float) -> None:
        """Those that can go: that they will is committed, so now the wire."""
        if not claimed:
            return
        try:
            await self._learn_words(claimed)
            if time.monotonic() - claimed_at > self._lease / 2:
                raise StoreTooSlow(
                    f"{len(claimed)} deliveries were claimed, and are given back: the lease may end under way"
                )
        except BaseException:
            # None was sent. They are READY again as soon as that can be recorded; but what another has left on the wire is
            # not made READY by that, and is judged when the lease ends.
            ready = [one for one in claimed if one.status == DeliveryStatus.READY]
            self._verdicts += (Verdict(c.delivery_id, c.epoch, DeliveryStatus.READY, is_try=False) for c in ready)
            self._is_to_record = True
            raise
        began, loop = time.monotonic(), asyncio.get_running_loop()
        for one in claimed:
            words = self._words.get(one.message_id)
            if words is not None and one.can_go:
                task = loop.create_task(self._send_one(Delivery(one, words)))
                self._sending[one.delivery_id] = _Sending(one, began, task)
            else:
                self._verdicts.append(unsent(one, words))
                self._is_to_record = True
        while len(self._words) > WORDS_KEPT:
            self._words.popitem(last=False)

    async def _learn_words(self, claimed: Sequence[Claimed]) -> None:
        missing = sorted({one.message_id for one in claimed} - self._words.keys())
        if missing:
            async with self._store.read() as connection:
                self._words.update(await statements.find_words(connection, missing))

    async def _send_one(self, delivery: Delivery) -> None:
        """Whatever else a sender does than to answer, nobody can tell how far it came."""
        at, began = self._clock(), time.monotonic()
        try:
            outcome: object = await self._sender.send(delivery.outgoing())
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (_OVERDUE,):
                raise
            outcome = Unknown("TIMEOUT", "the channel did not come back")
        except Exception as error:
            self._log.error("a channel raised", channel=self.channel.value, exc_info=True)
            outcome = Unknown("CRASHED", type(error).__name__)
        if not isinstance(outcome, Outcome):
            self._log.error("a channel gave no outcome", channel=self.channel.value, gave=repr(outcome)[:100])
            outcome = Unknown("BAD_OUTCOME", "the channel's answer is none of those there are")
        judged = verdict(delivery, outcome, self._settings)
        if not (isinstance(outcome, Retry) and outcome.is_held):
            judged.at, judged.millis = at, int((time.monotonic() - began) * 1000)
        del self._sending[delivery.claimed.delivery_id]
        self._land(judged)

    def _give_up_overdue(self) -> None:
        """Senders have a limit of their own; this one is for those that do not keep it."""
        limit = time.monotonic() - 2 * self._settings.send_timeout_seconds
        for one in self._sending.values():
            if one.began > limit:
                break
            one.task.cancel(_OVERDUE)

    def _land(self, judged: Verdict) -> None:
        self._verdicts.append(judged)
        if not self._sending or len(self._verdicts) >= self._concurrency // SHARE:
            self._end_linger()
        elif self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._end_linger)

    def _end_linger(self) -> None:
        self._is_to_record = True
        self.wake()

    async def _recorded(self) -> int:
        """What the recording under way has come to, once it has."""
        if self._recording is None or not self._recording.done():
            return 0
        recording, self._recording = self._recording, None
        return await recording

    async def _record(self) -> int:
        if self._linger is not None:
            self._linger.cancel()
        self._linger, self._is_to_record = None, False
        verdicts, self._verdicts = self._verdicts, []
        self._being_recorded = len(verdicts)
        try:
            if verdicts:
                await self._record_all(verdicts)
        finally:
            self._being_recorded = 0
        return len(verdicts)

    async def _record_all(self, verdicts: list[Verdict]) -> None:
        # When all went well it is one statement, which is its own transaction.
        begin = self._store.write_once if all(one.is_success for one in verdicts) else self._store.write
        try:
            async with begin() as tx:
                ours = await statements.record(tx, verdicts)
        except Exception as error:
            if isinstance(error, StoreError) or len(verdicts) == 1:
                # Not lost: recorded when the store is back. If we die first, they are SENDING and judged as such.
                self._verdicts += verdicts
                self._is_to_record = True
                raise
            # One of them cannot be stored: the others can.
            await self._record_each(verdicts)
            return
        self._tell([one for one in verdicts if one.delivery_id in ours])

    async def _record_each(self, verdicts: list[Verdict]) -> None:
        failed: Exception | None = None
        for one in verdicts:
            try:
                await self._record_all([one])
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _tell(self, verdicts: Sequence[Verdict]) -> None:
        counts = Counter((one.status, one.code) for one in verdicts)
        for (status, code), count in counts.items():
            telemetry.DELIVERIES.labels(self.channel.value, status.value, code or "").inc(count)
        for one in verdicts:
            if one.status in (DeliveryStatus.FAIL, DeliveryStatus.UNKNOWN):
                self._log.error(
                    "delivery ended", status=one.status.value, delivery_id=one.delivery_id, code=one.code, detail=one.detail
                )

    async def _keep_leases(self) -> None:
        if not self._sending or time.monotonic() - self._renewed < self._lease / 3:
            return
        claims = [(one.claimed.delivery_id, one.claimed.epoch) for one in self._sending.values()]
        async with self._store.write_once() as tx:
            await statements.renew(tx, claims, self._lease)
        self._renewed = time.monotonic()

    async def _wait_for_landing(self) -> None:
        """Nothing to claim: until something has landed, or more may be due."""
        self._landed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._settings.poll_seconds, self._lease / 3)):
                await self._landed.wait()
