"""Dispatch: claims due deliveries of one channel, sends them, and records the results.

The intent to send is committed before the send: the claim itself makes deliveries SENDING. A dispatcher that is killed at
any moment leaves SENDING what it may have sent, at most as many deliveries as it has slots. What happens to those is the
notification type's choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from bongsu.deliver.channels.callback import CallbackSender
from bongsu.deliver.claimer import SHARE, Claimer
from bongsu.deliver.current_contents import CurrentContentLoader, CurrentContents
from bongsu.deliver.leases import continuity_of, lease_of
from bongsu.deliver.recorder import Recorder
from bongsu.deliver.transitions import (
    given_back,
    outgoing,
    result_of,
    result_of_cancelled,
    result_of_withheld,
    result_without_sending,
)
from bongsu.deliver.withheld import Withheld
from bongsu.errors import StoreClosed, StoreError, StoreTooSlow
from bongsu.model.channels import find_channel
from bongsu.model.outcome import Outcome, Retry, Unknown
from bongsu.runtime.backoff import doubling
from bongsu.runtime.loop import FIRST_BACKOFF, LAST_BACKOFF, Loop
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import ClaimedDelivery, DeliveryResult, DeliveryStatus
from bongsu.store.messages.content import Contents, MessageCache, MessageContent

# How often it checks whether the event of a send that waits was cancelled. A tick may wait so long, and the loop as long
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
        self._current_contents = CurrentContentLoader()
        # Slots: deliveries that are claimed and not yet recorded.
        self._concurrency = find_channel(sender.channel).concurrency if concurrency is None else concurrency
        self._lease = lease_of(settings)
        self._claimer = Claimer(store, sender.channel, self._concurrency, settings.poll_seconds, continuity_of(settings))
        # In the order in which they were sent.
        self._sending: dict[int, _Sending] = {}
        self._recorder = Recorder(
            store, self.channel, self._concurrency // SHARE, self._log, on_change=self._go_on, on_recorded=self._claimer.free
        )
        self._woken = asyncio.Event()
        self._check_cancelled_at = 0.0
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
        if not self._recorder.is_behind:
            # At the same time: the next deliveries are sent while the results of the last ones are recorded.
            self._recorder.begin_if_due(f"bongsu-{self.name}-record")
        await self._renew_leases()
        moved += await self._claim_and_send()
        moved += await self._recorder.finish()
        if not moved and (self._sending or self._recorder.unfinished):
            await self._wait_for_outcome()
        return moved + self._recorder.unfinished

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
        while self._sending or self._recorder.unfinished:
            self._woken.clear()
            try:
                await self._recorder.record_all()
                failures = 0
            except StoreClosed:
                return
            except Exception as error:
                failures += 1
                self._log.error("recording results failed", error=str(error), results=len(self._recorder.results))
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
                self._recorder.add_unsent([given_back(sending.claimed)])

    # --- claim --------------------------------------------------------------------------------------------------------

    async def _claim_and_send(self) -> int:
        began = time.monotonic()
        claimed = [] if self.is_stopping else await self._claim()
        await self._send(claimed, began)
        return len(claimed)

    async def _claim(self) -> list[ClaimedDelivery]:
        used = len(self._sending) + self._recorder.slots
        claimed = await self._claimer.claim(used, self._lease.seconds, is_held=self._sender.is_held)
        return self._without_own(claimed or [])

    def _without_own(self, claimed: list[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Without those that this dispatcher is sending or recording already: these go on under the newer claim.

        Renewing in time makes this rare: for example, the machine was suspended and leases ended unnoticed.
        """
        again = {delivery.delivery_id: delivery for delivery in claimed if delivery.status == DeliveryStatus.SENDING}
        if not again:
            return claimed
        known = self._recorder.claimed_again({delivery_id: claim.epoch for delivery_id, claim in again.items()})
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
            current = await self._load_current_contents(claimed, contents)
            if time.monotonic() - claimed_at > self._lease.seconds / 2:
                raise StoreTooSlow(
                    f"{len(claimed)} deliveries were claimed and are given back: their leases might end during the send"
                )
        except BaseException:
            # None was sent: record them as READY again. Not those that were SENDING before, which an earlier claim may have
            # sent: they stay so until their leases end.
            ready = [delivery for delivery in claimed if delivery.status == DeliveryStatus.READY]
            self._recorder.add_unsent(map(given_back, ready))
            self._claimer.free(delivery.delivery_id for delivery in claimed)
            raise
        for delivery in claimed:
            content = contents.get(delivery.message_id)
            current_content = current.get(delivery.notification_id)
            if content is None or not delivery.can_go:
                self._recorder.add_unsent([result_without_sending(delivery, content)])
            elif isinstance(current_content, Withheld):
                self._recorder.add_unsent([result_of_withheld(delivery, current_content)])
            else:
                self._start_send(delivery, current_content or content)

    async def _load_contents(self, claimed: Sequence[ClaimedDelivery]) -> Contents:
        """The claim holds what it needs: while it reads, others may fill the cache and evict from it."""
        needed = {delivery.message_id for delivery in claimed}
        found = self._message_cache.cached(needed)
        if len(found) == len(needed):
            return found
        async with self._store.read() as tx:
            return await self._message_cache.load(tx, needed)

    async def _load_current_contents(self, claimed: Sequence[ClaimedDelivery], contents: Contents) -> CurrentContents:
        """Of digests and pushes about chat, whose texts change while they wait to be sent."""
        if not any(content.is_digest for content in contents.values()):
            return {}
        async with self._store.read() as tx:
            return await self._current_contents.load(tx, claimed, contents)

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
        if now < self._check_cancelled_at:
            return
        self._check_cancelled_at = now + CANCELLED_SECONDS
        waiting = [sending for sending in self._sending.values() if self._is_waiting(sending)]
        if not waiting:
            return
        of_digests = {sending.claimed.notification_id: sending.content for sending in waiting if sending.content.is_digest}
        async with self._store.read() as tx:
            cancelled = await statements.find_cancelled(tx, {sending.claimed.message_id for sending in waiting})
            outdated = await self._current_contents.find_outdated(tx, [sending.claimed for sending in waiting], of_digests)
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
            self._recorder.add_unsent([result])

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
        self._recorder.add(result, is_last=self.is_stopping and not self._sending)

    # --- record and renew ---------------------------------------------------------------------------------------------

    async def _record_before_claiming(self) -> int:
        """Finish the recording under way, and repeat one that failed. While the store takes no results, their leases are
        renewed: it may take the claims of others all the same."""
        try:
            recorded = await self._recorder.finish()
            return recorded + (await self._recorder.record() if self._recorder.is_behind else 0)
        except StoreError:
            with contextlib.suppress(StoreError):
                await self._renew_all()
            raise

    async def _renew_leases(self) -> None:
        """Long before they end. Not of what is being recorded: both would change the same rows."""
        if self._lease.is_renewal_due(time.monotonic()):
            await self._renew_all()

    async def _renew_all(self) -> None:
        if not self._sending and not self._recorder.results:
            return
        now = time.monotonic()
        claims = [(sending.claimed.delivery_id, sending.claimed.epoch) for sending in self._sending.values()]
        claims += [(result.delivery_id, result.epoch) for result in self._recorder.results]
        async with self._store.single() as tx:
            await statements.renew(tx, claims, self._lease.seconds)
        self._lease.renewed(now)

    async def _wait_for_outcome(self) -> None:
        """Until results are to be recorded or are recorded, or more may be due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._settings.poll_seconds, self._lease.renewal_seconds, CANCELLED_SECONDS)):
                await self._woken.wait()
