"""Carry: takes due deliveries of one channel, sends them, and records what became of each.

Sending is pre-locked: to take one is to say that it will be sent, committed before it is. A dispatcher killed at any moment
leaves SENDING behind what it may have sent, at most as many as it has slots. What becomes of those is the type's choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from bongsu import telemetry
from bongsu.channels.outcome import Outcome, PromptSender, Sender, Unknown
from bongsu.errors import StoreError, StoreTooSlow
from bongsu.loop import Loop
from bongsu.model import Channel
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import Claimed, DeliveryStatus, Success, Verdict, Words
from bongsu.verdicts import outgoing, unsent, verdict

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

DELIVERIES_TOPIC = "deliveries"


# --- the loop -----------------------------------------------------------------------------------------------------------


_OVERDUE = "overdue"
_LATE = Unknown("TIMEOUT", "the channel did not come back")


@dataclass(slots=True, eq=False)
class _Sending:
    """One on the wire."""

    claimed: Claimed
    words: Words
    # By two clocks: seconds since 1970, and what counts how long it takes.
    at: float
    began: float
    # Who sees to it; nobody where the sender itself says when it is back.
    task: asyncio.Task[None] | None = None


class Dispatcher(Loop):
    """Carries one channel. Any number may run, in any number of processes."""

    def __init__(self, store: Store, sender: Sender, settings: Settings, concurrency: int | None = None) -> None:
        super().__init__(f"dispatch-{sender.channel.value.lower()}", settings.poll_seconds)
        self.channel: Channel = sender.channel
        self._store = store
        self._sender = sender
        self._settings = settings
        self._concurrency = CONCURRENCY[sender.channel] if concurrency is None else concurrency
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._at_once = sender.send_at_once if isinstance(sender, PromptSender) else None
        # In the order they were sent.
        self._sending: dict[int, _Sending] = {}
        # Outcomes not yet recorded, and how many are just being. They hold slots too, so there are never more than those.
        self._verdicts: list[Verdict | Success] = []
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.send_timeout_seconds + 1):
                while self._sending:
                    self._landed.clear()
                    await self._landed.wait()
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
        for one in claimed:
            words = self._words.get(one.message_id)
            if words is not None and one.can_go:
                self._set_out(one, words)
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

    def _set_out(self, claimed: Claimed, words: Words) -> None:
        sending = _Sending(claimed, words, time.time(), time.monotonic())
        self._sending[claimed.delivery_id] = sending
        try:
            if self._at_once is None or not self._at_once(outgoing(claimed, words), partial(self._heard, sending)):
                self._wait_for(sending)
        except Exception as error:
            self._land(sending, self._crashed(error))

    def _heard(self, sending: _Sending, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._land(sending, outcome)
        elif self._is_under_way(sending):
            self._wait_for(sending)

    def _wait_for(self, sending: _Sending) -> None:
        sending.task = asyncio.create_task(self._send_one(sending))

    async def _send_one(self, sending: _Sending) -> None:
        try:
            outcome = await self._sender.send(outgoing(sending.claimed, sending.words))
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (_OVERDUE,):
                raise
            outcome = _LATE
        except Exception as error:
            outcome = self._crashed(error)
        self._land(sending, outcome)

    def _crashed(self, error: Exception) -> Outcome:
        """Whatever else a sender does than to answer, nobody can tell how far it came."""
        self._log.error("a channel raised", channel=self.channel.value, exc_info=error)
        return Unknown("CRASHED", type(error).__name__)

    def _give_up_overdue(self) -> None:
        """Senders have a limit of their own; this one is for those that do not keep it."""
        limit = time.monotonic() - 2 * self._settings.send_timeout_seconds
        for one in list(takewhile(lambda one: one.began <= limit, self._sending.values())):
            if one.task is not None:
                one.task.cancel(_OVERDUE)
            else:
                self._land(one, _LATE)

    def _is_under_way(self, sending: _Sending) -> bool:
        """Not when it was given up before."""
        return self._sending.get(sending.claimed.delivery_id) is sending

    def _land(self, sending: _Sending, outcome: object) -> None:
        if not self._is_under_way(sending):
            return
        claimed, guarantee = sending.claimed, sending.words.guarantee
        del self._sending[claimed.delivery_id]
        if not isinstance(outcome, Outcome):
            self._log.error("a channel gave no outcome", channel=self.channel.value, gave=repr(outcome)[:100])
            outcome = Unknown("BAD_OUTCOME", "the channel's answer is none of those there are")
        millis = int((time.monotonic() - sending.began) * 1000)
        try:
            judged = verdict(claimed, guarantee, outcome, sending.at, millis, self._settings)
        except Exception as error:
            # A channel of the user's own may put anything into an outcome.
            judged = verdict(claimed, guarantee, self._crashed(error), sending.at, millis, self._settings)
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

    async def _record_all(self, verdicts: list[Verdict | Success]) -> None:
        # When all went well it is one statement, which is its own transaction.
        is_one = all(isinstance(one, Success) for one in verdicts)
        begin = self._store.write_once if is_one else self._store.write
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

    async def _record_each(self, verdicts: list[Verdict | Success]) -> None:
        failed: Exception | None = None
        for one in verdicts:
            try:
                await self._record_all([one])
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _tell(self, verdicts: Sequence[Verdict | Success]) -> None:
        others = [one for one in verdicts if isinstance(one, Verdict)]
        counts = Counter((one.status.value, one.code or "") for one in others)
        counts[DeliveryStatus.SUCCESS.value, ""] += len(verdicts) - len(others)
        for (status, code), count in counts.items():
            telemetry.DELIVERIES.labels(self.channel.value, status, code).inc(count)
        for one in others:
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
