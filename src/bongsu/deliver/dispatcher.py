"""Dispatch: claims due deliveries of one channel, sends them, and records the results.

The intent to send is committed before the send: the claim itself makes deliveries SENDING. A dispatcher that is killed at
any moment leaves SENDING what it may have sent, at most as many deliveries as it has slots. What happens to those is the
notification type's choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from bongsu.deliver.channels.callback import CallbackSender
from bongsu.deliver.claimer import SHARE, Claimer
from bongsu.deliver.own_contents import OwnContentLoader, OwnContents
from bongsu.deliver.transitions import (
    given_back,
    outgoing,
    result_of,
    result_of_cancelled,
    result_of_withheld,
    result_without_sending,
    with_epoch,
)
from bongsu.deliver.withheld import Withheld
from bongsu.errors import StoreClosed, StoreError, StoreTooSlow
from bongsu.model.channels import find_channel
from bongsu.model.outcome import Outcome, Retry, Unknown
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling
from bongsu.runtime.lease import Lease
from bongsu.runtime.loop import FIRST_BACKOFF, LAST_BACKOFF, Loop
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import ClaimedDelivery, Contact, DeliveryResult, DeliveryStatus, Success
from bongsu.store.messages.content import Contents, MessageCache, MessageContent

# Debounce: results are recorded after this time at the latest, however few they are. Shorter → more CPU for each delivery at
# a hundred a second; longer → more of them are UNKNOWN or sent again after a crash.
LINGER_SECONDS = 0.03
# After an outage of the store in which leases may have ended, abandoned deliveries are claimed only after this time: by then
# every live process has tried to record what it knows and to renew its leases. One that has just started knows nothing of
# outages, and waits as long.
GRACE_SECONDS = 2 * LAST_BACKOFF
# A claim is waited for no longer than this: one that the store begins later may have lost its sender.
CLAIM_SECONDS = 30.0
# How often it looks whether the event of a send that waits was cancelled. A tick may wait so long, and the loop as long
# again: within two seconds of a cancellation nothing of it goes out.
CANCELLED_SECONDS = 0.5

_LATE = Unknown("TIMEOUT", "the channel did not come back")
_WAITED = Retry("NO_TURN", detail="connections or quota were short: it waits to be claimed again", is_held=True)


@dataclass(slots=True, eq=False)
class _Sending:
    """A delivery that is being sent."""

    claimed: ClaimedDelivery
    content: MessageContent
    # By time.monotonic().
    began: float
    # The task that sends it, if the sender needs one.
    task: asyncio.Task[None] | None = None


def lease_of(settings: Settings) -> Lease:
    """Longer than a send may take."""
    return Lease(settings.lease_seconds, busy_seconds=settings.send_timeout_seconds + settings.poll_seconds)


def contact_of(settings: Settings) -> Contact:
    """What decides whether abandoned deliveries are claimed.

    Leases are renewed after a third of their time: in a gap shorter than half of it none ends. Claims are a poll interval
    apart, which is shorter than that.
    """
    return Contact(min(lease_of(settings).seconds / 2, settings.poll_seconds + CLAIM_SECONDS), GRACE_SECONDS)


class Dispatcher(Loop):
    """Serves one channel. Any number may run, in any number of processes."""

    def __init__(
        self,
        store: Store,
        sender: CallbackSender,
        settings: Settings,
        concurrency: int | None = None,
        message_cache: MessageCache | None = None,
    ) -> None:
        super().__init__(f"dispatch-{sender.channel.lower()}", min(settings.poll_seconds, CANCELLED_SECONDS))
        self.channel = sender.channel
        self._store = store
        self._sender = sender
        self._settings = settings
        self._message_cache = message_cache or MessageCache()
        self._own_contents = OwnContentLoader()
        # Slots: deliveries that are claimed and not yet recorded.
        self._concurrency = find_channel(sender.channel).concurrency if concurrency is None else concurrency
        self._lease = lease_of(settings)
        self._claimer = Claimer(store, sender.channel, self._concurrency, settings.poll_seconds, contact_of(settings))
        # In the order in which they were sent.
        self._sending: dict[int, _Sending] = {}
        # Results to be recorded, and those being recorded. They hold slots too, so there are never more than those.
        self._results: list[DeliveryResult | Success] = []
        self._being_recorded: list[DeliveryResult | Success] = []
        # Epochs of newer claims of this process, by the deliveries whose results are known and not yet recorded.
        self._newer: dict[int, int] = {}
        self._woken = asyncio.Event()
        # While it runs, results wait for more.
        self._linger: asyncio.TimerHandle | None = None
        self._is_to_record = False
        self._recording: asyncio.Task[int] | None = None
        # Whether the store did not take the last results.
        self._is_behind = False
        self._look_for_cancelled_at = 0.0
        # A stop waits until then, however often it is called. By time.monotonic().
        self._stop_by: float | None = None

    async def start(self) -> None:
        self._stop_by = None
        await super().start()

    async def tick(self) -> int:
        """Record known outcomes, renew the leases of what is held, then claim and send more.

        In this order: a claim takes back deliveries whose leases have ended, and must not find those that this process has
        an outcome of. While the store takes no results, nothing is claimed; while it gives no claims, results are recorded.
        """
        self._woken.clear()
        self._give_up_overdue()
        await self._drop_cancelled()
        moved = await self._record_before_claiming()
        if not self._is_behind and self._is_to_record and self._recording is None:
            # At the same time: the next deliveries are sent while the results of the last ones are recorded. They are taken
            # now, so that their leases are not renewed by another transaction meanwhile.
            recording = self._record(self._take_results())
            self._recording = asyncio.create_task(recording, name=f"bongsu-{self.name}-record")
            self._recording.add_done_callback(lambda _task: self._go_on())
        await self._renew_leases()
        moved += await self._claim_and_send()
        moved += await self._finish_recording()
        if not moved and (self._sending or self._results or self._recording):
            await self._wait_for_outcome()
        return moved + len(self._results) + (self._recording is not None)

    def wake(self) -> None:
        """Deliveries may be due."""
        self._claimer.wake()
        self._go_on()

    def _go_on(self) -> None:
        """There is an outcome, or the results are recorded."""
        super().wake()
        self._woken.set()

    async def stop(self) -> None:
        """Give back what waits for its turn, then wait for what is being sent, up to the send timeout; record all of it."""
        await super().stop()
        self._give_back_waiting()
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._settings.send_timeout_seconds + 1
        failures = 0
        while self._sending or self._results or self._recording is not None:
            self._woken.clear()
            try:
                await self._record_all_known()
                failures = 0
            except StoreClosed:
                return
            except Exception as error:
                failures += 1
                self._log.error("recording results failed", error=str(error), results=len(self._results))
                if not isinstance(error, StoreError) and failures > 1 and not self._sending:
                    return  # the others are recorded, and what cannot be stored now cannot be stored later
            if time.monotonic() >= self._stop_by:
                return
            if failures:
                await asyncio.sleep(doubling(FIRST_BACKOFF, failures, LAST_BACKOFF))
            elif self._sending:
                await self._wait_for_outcome()

    def _give_back_waiting(self) -> None:
        """Nothing was sent of these: others may send them at once."""
        for sending in list(self._sending.values()):
            if sending.task is not None and self._is_waiting(sending):
                sending.task.cancel()
                del self._sending[sending.claimed.delivery_id]
                self._results.append(given_back(sending.claimed))

    # --- claim --------------------------------------------------------------------------------------------------------

    async def _claim_and_send(self) -> int:
        began = time.monotonic()
        claimed = [] if self.is_stopping else await self._claim()
        await self._send(claimed, began)
        return len(claimed)

    async def _claim(self) -> list[ClaimedDelivery]:
        used = len(self._sending) + len(self._results) + len(self._being_recorded)
        claimed = await self._claimer.claim(used, self._lease.seconds, is_held=self._sender.is_held)
        return self._without_own(claimed or [])

    def _without_own(self, claimed: list[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Without those that this dispatcher is sending or recording already: these go on under the newer claim.

        Renewing in time makes this rare: for example, the machine was suspended and leases ended unnoticed.
        """
        again = {delivery.delivery_id: delivery for delivery in claimed if delivery.status == DeliveryStatus.SENDING}
        if not again:
            return claimed
        known = {result.delivery_id for result in (*self._results, *self._being_recorded)} & again.keys()
        self._newer |= {delivery_id: again[delivery_id].epoch for delivery_id in known}
        sending = self._sending.keys() & again.keys()
        for delivery_id in sending:
            self._sending[delivery_id].claimed = again[delivery_id]
        return [delivery for delivery in claimed if delivery.delivery_id not in known | sending]

    # --- send ---------------------------------------------------------------------------------------------------------

    async def _send(self, claimed: Sequence[ClaimedDelivery], claimed_at: float) -> None:
        """Send those that can go: their claim has committed SENDING."""
        if not claimed:
            return
        try:
            contents = await self._load_contents(claimed)
            own = await self._load_own_contents(claimed, contents)
            if time.monotonic() - claimed_at > self._lease.seconds / 2:
                raise StoreTooSlow(
                    f"{len(claimed)} deliveries were claimed and are given back: their leases might end during the send"
                )
        except BaseException:
            # None was sent: record them as READY again. Not those that were SENDING before, which an earlier claim may have
            # sent: they stay so until their leases end.
            ready = [delivery for delivery in claimed if delivery.status == DeliveryStatus.READY]
            self._results += map(given_back, ready)
            self._claimer.free(delivery.delivery_id for delivery in claimed)
            self._is_to_record = True
            raise
        for delivery in claimed:
            content = contents.get(delivery.message_id)
            own_content = own.get(delivery.notification_id)
            if content is None or not delivery.can_go:
                self._add_result(result_without_sending(delivery, content))
            elif isinstance(own_content, Withheld):
                self._add_result(result_of_withheld(delivery, own_content))
            else:
                self._start_send(delivery, own_content or content)

    def _add_result(self, result: DeliveryResult) -> None:
        """Of what is not sent: recorded as soon as can be."""
        self._results.append(result)
        self._is_to_record = True

    async def _load_contents(self, claimed: Sequence[ClaimedDelivery]) -> Contents:
        """The claim holds what it needs: while it reads, others may fill the cache and evict from it."""
        needed = {delivery.message_id for delivery in claimed}
        found = self._message_cache.cached(needed)
        if len(found) == len(needed):
            return found
        async with self._store.read() as tx:
            return await self._message_cache.load(tx, needed)

    async def _load_own_contents(self, claimed: Sequence[ClaimedDelivery], contents: Contents) -> OwnContents:
        """What digests and pushes about chat say now, by notification."""
        if not any(content.is_digest for content in contents.values()):
            return {}
        async with self._store.read() as tx:
            return await self._own_contents.load(tx, claimed, contents)

    def _start_send(self, claimed: ClaimedDelivery, content: MessageContent) -> None:
        sending = _Sending(claimed, content, time.monotonic())
        self._sending[claimed.delivery_id] = sending
        try:
            sending.task = self._sender.start(outgoing(claimed, content), partial(self._on_outcome, sending))
        except Exception as error:
            self._on_outcome(sending, self._crashed(error))

    def _crashed(self, error: Exception) -> Outcome:
        """A sender that raises may have sent before."""
        self._log.error("channel raised", channel=self.channel, exc_info=error)
        return Unknown("CRASHED", type(error).__name__)

    def _give_up_overdue(self) -> None:
        """Senders have a timeout of their own; this one is for those that do not keep it.

        What has waited that long for its turn was not sent, and goes back: by then others may come before it. Whatever has
        its turn before has the whole of the sender's timeout.
        """
        timeout, now = self._settings.send_timeout_seconds, time.monotonic()
        for sending in list(takewhile(lambda sending: sending.began <= now - timeout, self._sending.values())):
            is_waiting = self._is_waiting(sending)
            if is_waiting or sending.began <= now - 2 * timeout:
                self._on_outcome(sending, _WAITED if is_waiting else _LATE)
                if sending.task is not None:
                    sending.task.cancel()

    def _is_waiting(self, sending: _Sending) -> bool:
        return sending.task is not None and self._sender.is_waiting(sending.task)

    async def _drop_cancelled(self) -> None:
        """Sends that wait for their turn, for a quota or a connection, may wait long: their event may be cancelled since,
        a digest read, and a chat message deleted or read."""
        now = time.monotonic()
        if now < self._look_for_cancelled_at:
            return
        self._look_for_cancelled_at = now + CANCELLED_SECONDS
        waiting = [sending for sending in self._sending.values() if self._is_waiting(sending)]
        if not waiting:
            return
        of_digests = {one.claimed.notification_id: one.content for one in waiting if one.content.is_digest}
        async with self._store.read() as tx:
            cancelled = await statements.find_cancelled(tx, {sending.claimed.message_id for sending in waiting})
            outdated = await self._own_contents.find_outdated(tx, [sending.claimed for sending in waiting], of_digests)
        for sending in waiting:
            notification_id = sending.claimed.notification_id
            if sending.claimed.message_id in cancelled:
                self._take_back(sending, result_of_cancelled(sending.claimed, sending.content))
            elif notification_id in outdated:
                withheld = outdated[notification_id]
                result = given_back(sending.claimed) if withheld is None else result_of_withheld(sending.claimed, withheld)
                self._take_back(sending, result)

    def _take_back(self, sending: _Sending, result: DeliveryResult) -> None:
        """Unless it has begun meanwhile."""
        if sending.task is not None and self._is_waiting(sending):
            sending.task.cancel()
            del self._sending[sending.claimed.delivery_id]
            self._add_result(result)

    def _on_outcome(self, sending: _Sending, outcome: object) -> None:
        if self._sending.get(sending.claimed.delivery_id) is not sending:
            return  # given up before
        claimed, content = sending.claimed, sending.content
        del self._sending[claimed.delivery_id]
        if not isinstance(outcome, Outcome):
            self._log.error("channel returned no outcome", channel=self.channel, returned=repr(outcome)[:100])
            outcome = Unknown("BAD_OUTCOME", "the channel returned something that is not an outcome")
        millis = int((time.monotonic() - sending.began) * 1000)
        try:
            result = result_of(claimed, content, outcome, sending.began, millis, self._settings)
        except Exception as error:
            # A user's own channel may put anything into an outcome.
            result = result_of(claimed, content, self._crashed(error), sending.began, millis, self._settings)
        self._results.append(result)
        is_last = self.is_stopping and not self._sending
        if is_last or len(self._results) >= self._concurrency // SHARE:
            self._end_linger()
        elif self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._end_linger)

    def _end_linger(self) -> None:
        self._is_to_record = True
        self._go_on()

    # --- record -------------------------------------------------------------------------------------------------------

    async def _record_before_claiming(self) -> int:
        """Finish the recording under way, and repeat one that failed. While the store takes no results, their leases are
        renewed: it may take the claims of others all the same."""
        try:
            recorded = await self._finish_recording()
            return recorded + (await self._record(self._take_results()) if self._is_behind else 0)
        except StoreError:
            with contextlib.suppress(StoreError):
                await self._renew_all()
            raise

    async def _finish_recording(self) -> int:
        """How many results the recording task has stored, if it is done. Raises what it raised."""
        if self._recording is None or not self._recording.done():
            return 0
        recording, self._recording = self._recording, None
        return await recording

    async def _record_all_known(self) -> None:
        """Wait for what is being recorded, and record the others."""
        if self._recording is not None:
            await asyncio.wait({self._recording})
            await self._finish_recording()
        await self._record(self._take_results())

    def _take_results(self) -> list[DeliveryResult | Success]:
        """The results so far, to be recorded now."""
        if self._linger is not None:
            self._linger.cancel()
        self._linger, self._is_to_record = None, False
        results, self._results = self._results, []
        if self._newer:
            results = [with_epoch(result, self._newer.pop(result.delivery_id, result.epoch)) for result in results]
        self._being_recorded = results
        return results

    async def _record(self, results: list[DeliveryResult | Success]) -> int:
        """Store results that were taken; return how many."""
        try:
            if results:
                await self._store_results(results)
        finally:
            self._being_recorded = []
        return len(results)

    async def _store_results(self, results: list[DeliveryResult | Success]) -> None:
        """In one transaction. If one of them cannot be stored, one by one."""
        try:
            recorded = await statements.record(self._store, self.channel, results)
        except Exception as error:
            if isinstance(error, StoreError) or len(results) == 1:
                # Kept, and recorded when the store is back. If this process dies before, they stay SENDING.
                self._results += results
                self._is_to_record = True
                self._is_behind = isinstance(error, StoreError)
                raise
            # One of them cannot be stored; the others can.
            await self._store_one_by_one(results)
            return
        self._is_behind = False
        self._claimer.free(result.delivery_id for result in results)
        if overtaken := [result for result in results if result.delivery_id in self._newer]:
            # Claimed again by this process before they were recorded.
            self._results += overtaken
            self._is_to_record = True
        self._report([result for result in results if result.delivery_id in recorded])

    async def _store_one_by_one(self, results: list[DeliveryResult | Success]) -> None:
        failed: Exception | None = None
        for result in results:
            try:
                await self._store_results([result])
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _report(self, results: Sequence[DeliveryResult | Success]) -> None:
        others = [result for result in results if isinstance(result, DeliveryResult)]
        counts = Counter((result.status.value, result.code or "") for result in others)
        counts[DeliveryStatus.SUCCESS.value, ""] += len(results) - len(others)
        for (status, code), count in counts.items():
            telemetry.DELIVERIES.labels(self.channel, status, code).inc(count)
        for result in others:
            if result.status in (DeliveryStatus.FAIL, DeliveryStatus.UNKNOWN):
                self._log.error(
                    "delivery ended",
                    status=result.status.value,
                    delivery_id=result.delivery_id,
                    code=result.code,
                    detail=result.detail,
                )

    async def _renew_leases(self) -> None:
        """Long before they end. Not of what is being recorded: both would change the same rows."""
        if self._lease.is_renewal_due(time.monotonic()):
            await self._renew_all()

    async def _renew_all(self) -> None:
        if not self._sending and not self._results:
            return
        now = time.monotonic()
        claims = [(sending.claimed.delivery_id, sending.claimed.epoch) for sending in self._sending.values()]
        claims += [(result.delivery_id, result.epoch) for result in self._results]
        async with self._store.single() as tx:
            await statements.renew(tx, claims, self._lease.seconds)
        self._lease.renewed(now)

    async def _wait_for_outcome(self) -> None:
        """Until results are to be recorded or are recorded, or more may be due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._settings.poll_seconds, self._lease.renewal_seconds, CANCELLED_SECONDS)):
                await self._woken.wait()
