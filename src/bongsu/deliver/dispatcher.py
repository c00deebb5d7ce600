"""Dispatch: claims due deliveries of one channel, sends them, and records the results.

The intent to send is committed before the send: the claim itself makes deliveries SENDING. A dispatcher that is killed at
any moment leaves SENDING what it may have sent, at most as many deliveries as it has slots. What happens to those is the
notification type's choice.
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
from bongsu.deliver.transitions import outgoing, unsent, verdict
from bongsu.errors import StoreError, StoreTooSlow
from bongsu.loop import Loop
from bongsu.model import Channel
from bongsu.outcome import Outcome, PromptSender, Sender, Unknown
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import LANES, ClaimedDelivery, DeliveryResult, DeliveryStatus, MessageContent, Success

# Slots: deliveries of one channel that may be claimed and not yet recorded. A provider that hangs takes no more than these,
# and none of another channel's. FCM lets a project send 10,000 a second and takes about 100 ms for each: a thousand are
# being sent, and half as many again are waiting to be recorded.
CONCURRENCY = {Channel.PUSH: 1_536, Channel.EMAIL: 512, Channel.SMS: 512}
# Claim when this part of the slots is free, and as many; record when this part of them has results: statements then are
# about many rows.
SHARE = 4
# Results are recorded after this time at the latest, however few they are.
LINGER_SECONDS = 0.1
# Messages whose content is cached: all deliveries of a fan-out have the same one.
CONTENTS_CACHED = 1_000


def _lanes_from(first: int) -> tuple[int, ...]:
    """All lanes, this one before the others."""
    return (first, *(lane for lane in LANES if lane != first))


# Of sixteen claims, which lane is asked first: HIGH goes before NORMAL before LOW, and none waits for ever.
TURNS = (LANES,) * 7 + (_lanes_from(1),) + (LANES,) * 7 + (_lanes_from(2),)

DELIVERIES_TOPIC = "deliveries"


# --- the loop -----------------------------------------------------------------------------------------------------------


_OVERDUE = "overdue"
_LATE = Unknown("TIMEOUT", "the channel did not come back")


@dataclass(slots=True, eq=False)
class _Sending:
    """A delivery that is being sent."""

    claimed: ClaimedDelivery
    content: MessageContent
    # By time.monotonic().
    began: float
    # The task that waits for the outcome; None where the sender itself calls back.
    task: asyncio.Task[None] | None = None


class Dispatcher(Loop):
    """Serves one channel. Any number may run, in any number of processes."""

    def __init__(self, store: Store, sender: Sender, settings: Settings, concurrency: int | None = None) -> None:
        super().__init__(f"dispatch-{sender.channel.value.lower()}", settings.poll_seconds)
        self.channel: Channel = sender.channel
        self._store = store
        self._sender = sender
        self._settings = settings
        self._concurrency = CONCURRENCY[sender.channel] if concurrency is None else concurrency
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._at_once = sender.send_at_once if isinstance(sender, PromptSender) else None
        # In the order in which they were sent.
        self._sending: dict[int, _Sending] = {}
        # Results to be recorded, and how many are being recorded. They hold slots too, so there are never more than those.
        self._results: list[DeliveryResult | Success] = []
        self._being_recorded = 0
        self._woken = asyncio.Event()
        # While it runs, results wait for more.
        self._linger: asyncio.TimerHandle | None = None
        self._is_to_record = False
        self._recording: asyncio.Task[int] | None = None
        self._contents: OrderedDict[int, MessageContent] = OrderedDict()
        self._turn = 0
        self._renewed = time.monotonic()
        # Never shorter than a send may take: if the lease ended during the send, another dispatcher would send it again.
        self._lease = max(settings.lease_seconds, 2 * (settings.send_timeout_seconds + settings.poll_seconds))

    async def tick(self) -> int:
        self._give_up_overdue()
        await self._renew_leases()
        # At the same time: the next deliveries are sent while the results of the last ones are recorded.
        if self._is_to_record and self._recording is None:
            self._recording = asyncio.create_task(self._record(), name=f"bongsu-{self.name}-record")
            self._recording.add_done_callback(lambda _task: self.wake())
        moved = await self._claim_and_send()
        moved += await self._recorded()
        if not moved and (self._sending or self._recording):
            await self._wait_for_outcome()
        return moved + len(self._results) + (self._recording is not None)

    def wake(self) -> None:
        super().wake()
        self._woken.set()

    async def stop(self) -> None:
        """Wait for what is being sent, up to the send timeout, and record it."""
        await super().stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.send_timeout_seconds + 1):
                while self._sending:
                    self._woken.clear()
                    await self._woken.wait()
        with contextlib.suppress(StoreError):
            if self._recording is not None:
                await asyncio.wait({self._recording})
                await self._recorded()
            await self._record()

    async def _claim_and_send(self) -> int:
        began = time.monotonic()
        claimed = [] if self.is_stopping else await self._claim()
        await self._send(claimed, began)
        return len(claimed)

    async def _claim(self) -> list[ClaimedDelivery]:
        """A part of the slots: many enough to make the statement cheap, few enough to send some while more are claimed."""
        free = self._concurrency - len(self._sending) - len(self._results) - self._being_recorded
        portion = max(1, self._concurrency // SHARE)
        if free < portion:
            return []
        lanes = TURNS[self._turn % len(TURNS)]
        claimed = await statements.claim(self._store, self.channel, lanes, portion, self._lease, self._worker)
        if claimed:
            self._turn += 1
        return claimed

    async def _send(self, claimed: Sequence[ClaimedDelivery], claimed_at: float) -> None:
        """Send those that can go: the claim that says so is committed."""
        if not claimed:
            return
        try:
            await self._load_contents(claimed)
            if time.monotonic() - claimed_at > self._lease / 2:
                raise StoreTooSlow(
                    f"{len(claimed)} deliveries were claimed and are given back: their leases might end during the send"
                )
        except BaseException:
            # None was sent: record them as READY again. Not those that were SENDING before, which an earlier claim may have
            # sent: they stay so until their leases end.
            ready = [one for one in claimed if one.status == DeliveryStatus.READY]
            self._results += (DeliveryResult(c.delivery_id, c.epoch, DeliveryStatus.READY, is_attempt=False) for c in ready)
            self._is_to_record = True
            raise
        for one in claimed:
            content = self._contents.get(one.message_id)
            if content is not None and one.can_go:
                self._start_send(one, content)
            else:
                self._results.append(unsent(one, content))
                self._is_to_record = True
        while len(self._contents) > CONTENTS_CACHED:
            self._contents.popitem(last=False)

    async def _load_contents(self, claimed: Sequence[ClaimedDelivery]) -> None:
        missing = sorted({one.message_id for one in claimed} - self._contents.keys())
        if missing:
            async with self._store.read() as tx:
                self._contents.update(await statements.find_content(tx, missing))

    def _start_send(self, claimed: ClaimedDelivery, content: MessageContent) -> None:
        sending = _Sending(claimed, content, time.monotonic())
        self._sending[claimed.delivery_id] = sending
        try:
            if self._at_once is None or not self._at_once(outgoing(claimed, content), partial(self._called_back, sending)):
                self._wait_for(sending)
        except Exception as error:
            self._on_outcome(sending, self._crashed(error))

    def _called_back(self, sending: _Sending, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._on_outcome(sending, outcome)
        elif self._is_being_sent(sending):
            self._wait_for(sending)

    def _wait_for(self, sending: _Sending) -> None:
        sending.task = asyncio.create_task(self._send_one(sending))

    async def _send_one(self, sending: _Sending) -> None:
        try:
            outcome = await self._sender.send(outgoing(sending.claimed, sending.content))
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (_OVERDUE,):
                raise
            outcome = _LATE
        except Exception as error:
            outcome = self._crashed(error)
        self._on_outcome(sending, outcome)

    def _crashed(self, error: Exception) -> Outcome:
        """A sender that raises may have sent before."""
        self._log.error("a channel raised", channel=self.channel.value, exc_info=error)
        return Unknown("CRASHED", type(error).__name__)

    def _give_up_overdue(self) -> None:
        """Senders have a timeout of their own; this one is for those that do not keep it."""
        limit = time.monotonic() - 2 * self._settings.send_timeout_seconds
        for one in list(takewhile(lambda one: one.began <= limit, self._sending.values())):
            if one.task is not None:
                one.task.cancel(_OVERDUE)
            else:
                self._on_outcome(one, _LATE)

    def _is_being_sent(self, sending: _Sending) -> bool:
        """False if it was given up before."""
        return self._sending.get(sending.claimed.delivery_id) is sending

    def _on_outcome(self, sending: _Sending, outcome: object) -> None:
        if not self._is_being_sent(sending):
            return
        claimed, guarantee = sending.claimed, sending.content.guarantee
        del self._sending[claimed.delivery_id]
        if not isinstance(outcome, Outcome):
            self._log.error("a channel gave no outcome", channel=self.channel.value, gave=repr(outcome)[:100])
            outcome = Unknown("BAD_OUTCOME", "the channel returned something that is no outcome")
        millis = int((time.monotonic() - sending.began) * 1000)
        try:
            result = verdict(claimed, guarantee, outcome, sending.began, millis, self._settings)
        except Exception as error:
            # A user's own channel may put anything into an outcome.
            result = verdict(claimed, guarantee, self._crashed(error), sending.began, millis, self._settings)
        self._results.append(result)
        if not self._sending or len(self._results) >= self._concurrency // SHARE:
            self._end_linger()
        elif self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._end_linger)

    def _end_linger(self) -> None:
        self._is_to_record = True
        self.wake()

    async def _recorded(self) -> int:
        """How many the recording task has recorded, if it is done. Raises what it raised."""
        if self._recording is None or not self._recording.done():
            return 0
        recording, self._recording = self._recording, None
        return await recording

    async def _record(self) -> int:
        if self._linger is not None:
            self._linger.cancel()
        self._linger, self._is_to_record = None, False
        results, self._results = self._results, []
        self._being_recorded = len(results)
        try:
            if results:
                await self._record_all(results)
        finally:
            self._being_recorded = 0
        return len(results)

    async def _record_all(self, results: list[DeliveryResult | Success]) -> None:
        try:
            recorded = await statements.record(self._store, results)
        except Exception as error:
            if isinstance(error, StoreError) or len(results) == 1:
                # Kept, and recorded when the store is back. If this process dies before, they stay SENDING.
                self._results += results
                self._is_to_record = True
                raise
            # One of them cannot be stored; the others can.
            await self._record_each(results)
            return
        self._report([one for one in results if one.delivery_id in recorded])

    async def _record_each(self, results: list[DeliveryResult | Success]) -> None:
        failed: Exception | None = None
        for one in results:
            try:
                await self._record_all([one])
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _report(self, results: Sequence[DeliveryResult | Success]) -> None:
        others = [one for one in results if isinstance(one, DeliveryResult)]
        counts = Counter((one.status.value, one.code or "") for one in others)
        counts[DeliveryStatus.SUCCESS.value, ""] += len(results) - len(others)
        for (status, code), count in counts.items():
            telemetry.DELIVERIES.labels(self.channel.value, status, code).inc(count)
        for one in others:
            if one.status in (DeliveryStatus.FAIL, DeliveryStatus.UNKNOWN):
                self._log.error(
                    "delivery ended", status=one.status.value, delivery_id=one.delivery_id, code=one.code, detail=one.detail
                )

    async def _renew_leases(self) -> None:
        if not self._sending or time.monotonic() - self._renewed < self._lease / 3:
            return
        claims = [(one.claimed.delivery_id, one.claimed.epoch) for one in self._sending.values()]
        async with self._store.single() as tx:
            await statements.renew(tx, claims, self._lease)
        self._renewed = time.monotonic()

    async def _wait_for_outcome(self) -> None:
        """Until there is an outcome, or more may be due."""
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._settings.poll_seconds, self._lease / 3)):
                await self._woken.wait()
