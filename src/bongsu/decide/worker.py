"""The event worker: claims due events, runs the rules, has their notices decided, and records the result of each.

The decision and the record are one transaction, fenced by the claim's epoch. So a worker that crashes at any moment has
either completed a step of an event or not touched it, and the next claim continues from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable, Sequence

from bongsu.decide.audience.selected import AudienceSelects
from bongsu.decide.progress import Decision, EventInProgress
from bongsu.decide.step import Decider, NotPrepared
from bongsu.decide.turns import behind_others, next_alone, next_together
from bongsu.errors import StoreError, StoreTooSlow
from bongsu.model import EventStatus
from bongsu.model.payload import storable_text
from bongsu.rules import Rules
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling
from bongsu.runtime.lease import Lease
from bongsu.runtime.loop import Loop
from bongsu.runtime.process import process_name
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store.decisions import audience_snapshots
from bongsu.store.outbox import ClaimedEvent, EventResult

# Large enough that claim and record cost little per event, small enough that a crash hands few events to the next worker.
BATCH = 500
# The traceback's last line is what an operator reads; the whole of it is in the log.
ERROR_LIMIT = 1_000
# Debounce: after a step, events gather for so long, because a step of two costs hardly more than a step of one. An event
# that finds the worker idle is decided at once. Shorter → more CPU for each event at a hundred a second; longer → pages
# show them later.
PAUSE_SECONDS = 0.02
# Events with a large payload in progress at a time. Each keeps its payload and perhaps 100,000 ids in memory.
MOST_LARGE = 4
# Events with large audiences beyond a batch are given back for so long. Shorter → a worker with thousands of them claims the
# same ones again and again; longer → they wait although it is done with the others.
LARGE_WAIT_SECONDS = 5.0
# Event types without a rule are logged once each, up to so many: a sender that makes up types must not fill memory.
MOST_UNHANDLED = 1_000


class EventWorker(Loop):
    """Any number may run, in any number of processes.

    Events with small audiences are decided many at a time. One with a large audience takes step after step, and between two
    of its steps the others have their turn.
    """

    def __init__(
        self,
        store: Store,
        rules: Rules,
        settings: Settings,
        decider: Decider,
        *on_decided: Callable[[Decision], None],
    ) -> None:
        """`on_decided` are called after each step's commit, in this order."""
        super().__init__("event-worker", settings.poll_seconds)
        self._store = store
        self._rules = rules
        self._decider = decider
        self._settings = settings
        self._on_decided = on_decided
        self._worker = process_name()
        self.selects = AudienceSelects(store, settings.audience_timeout_seconds, decider.chunk, self.wake)
        # Claimed and not finished: at most a batch, as many again with large audiences or a SELECT to wait for, and
        # MOST_LARGE with a large payload. If this process dies, their leases end and others claim them.
        self._in_progress: list[EventInProgress] = []
        # Claims to end as if they had never been made, by after how many seconds their events are due again.
        self._to_give_back: dict[float, list[ClaimedEvent]] = {}
        self._is_more_due = False
        self._is_turn_of_large = False
        self._unhandled: set[str] = set()
        self._lease = Lease(settings.lease_seconds)
        # While there is other work, suspects are claimed no more often than when there is none: they can wait, and the
        # claim would only delay the next event.
        self._suspects_at = 0.0

    @property
    def pause_seconds(self) -> float:
        """A claim that was not full has left nothing: wait a moment for the next events, to decide them together."""
        is_more = self._is_more_due or any(event.is_ready for event in self._in_progress)
        return 0.0 if is_more else min(PAUSE_SECONDS, self._settings.poll_seconds)

    async def tick(self) -> int:
        """Claim events and decide one step of each; return how many events had a step."""
        await self._give_back()
        await self._renew_leases()
        await self._end_selects()
        events = await self._begin_in_order(await self._claim())
        events += await self._continue()
        if not events or time.monotonic() >= self._suspects_at:
            # In a claim and a step of its own: if it crashes this process too, it takes no other event with it.
            suspects = await self._claim_suspect()
            events += await self._begin(suspects)
            self._is_more_due |= bool(suspects)
            self._suspects_at = time.monotonic() + self._settings.poll_seconds
        return events

    async def stop(self) -> None:
        await super().stop()
        await self.selects.stop()
        self._release_all()
        with contextlib.suppress(StoreError):
            await self._give_back()

    # --- claims -------------------------------------------------------------------------------------------------------

    async def _claim(self) -> list[ClaimedEvent]:
        """Events with large audiences do not count towards the batch, because others are decided between two of their steps.
        Nor do those that wait for a SELECT. Those with a large payload are claimed one at a time, up to MOST_LARGE."""
        uncounted = [event for event in self._in_progress if event.is_long or not event.is_ready]
        if len(uncounted) > BATCH:
            # They wait in the store, where other workers may take them.
            self._release([event.claimed for event in uncounted[BATCH:]], LARGE_WAIT_SECONDS)
            await self._give_back()
        free = BATCH - (len(self._in_progress) - len(uncounted))
        if free <= 0:
            return []
        with_large_payload = [event for event in self._in_progress if event.claimed.is_large]
        # The next one when the last has had its first step: it may be critical, and a campaign takes long.
        is_next_large = len(with_large_payload) < MOST_LARGE and all(event in uncounted for event in with_large_payload)
        lease, types = self._lease.seconds, self._rules.critical_types
        async with self._store.single() as tx:
            claimed = await outbox.claim(tx, free, lease, self._worker, types, int(is_next_large))
        are_large = [claim.is_large for claim in claimed]
        self._is_more_due = any(are_large) or are_large.count(False) == free
        return claimed

    async def _claim_critical(self) -> list[ClaimedEvent]:
        """Between two steps: those that can give critical notices wait for no more than one step of others."""
        types, free = self._rules.critical_types, 2 * BATCH - len(self._in_progress)
        if not types or free <= 0:
            return []
        async with self._store.single() as tx:
            return await outbox.claim_critical(tx, min(free, BATCH), self._lease.seconds, self._worker, types)

    async def _claim_suspect(self) -> list[ClaimedEvent]:
        async with self._store.single() as tx:
            return await outbox.claim_suspect(tx, self._lease.seconds, self._worker)

    async def _renew_leases(self) -> None:
        now = time.monotonic()
        if not self._in_progress or not self._lease.is_renewal_due(now):
            return
        claims = [event.claim for event in self._in_progress]
        async with self._store.single() as tx:
            renewed = await outbox.renew(tx, claims, self._lease.seconds)
        self.selects.cancel([event.claim for event in self._in_progress if event.event_id not in renewed])
        self._in_progress = [event for event in self._in_progress if event.event_id in renewed]
        self._lease.renewed(now)

    def _release(self, claimed: Sequence[ClaimedEvent], after_seconds: float) -> None:
        """Stop deciding these events. The next `_give_back` ends their claims."""
        self._to_give_back.setdefault(after_seconds, []).extend(claimed)
        self.selects.cancel([(claim.event.event_id, claim.epoch) for claim in claimed])
        released = {claim.event.event_id for claim in claimed}
        self._in_progress = [event for event in self._in_progress if event.event_id not in released]

    def _release_all(self) -> None:
        self._release([event.claimed for event in self._in_progress], self._settings.retry_base_seconds)

    async def _give_back(self) -> None:
        """Make unfinished events due again without counting it as a crash. If this fails, their leases end anyway."""
        while self._to_give_back:
            after_seconds, claimed = next(iter(self._to_give_back.items()))
            async with self._store.single() as tx:
                await outbox.give_back(tx, claimed, after_seconds)
            del self._to_give_back[after_seconds]

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _begin_in_order(self, claimed: Sequence[ClaimedEvent]) -> int:
        """In steps of their own: first those that can give critical notices, last the one with a large payload."""
        parts: list[list[ClaimedEvent]] = [[], [], []]
        for claim in claimed:
            parts[2 if claim.is_large else 0 if self._rules.is_critical(claim.event.event_type) else 1].append(claim)
        while parts:
            try:
                await self._begin(parts.pop(0))
            except Exception:
                for rest in parts:
                    self._release(rest, self._settings.retry_base_seconds)
                raise
        return len(claimed)

    async def _begin(self, claimed: Sequence[ClaimedEvent]) -> int:
        """Run the rules for events just claimed and decide as many as fit into one step; the rest stays in progress."""
        if not claimed:
            return 0
        events: list[EventInProgress] = []
        ended: list[tuple[ClaimedEvent, EventResult]] = []
        for claim in claimed:
            # Rules for a large payload run in a thread, and between any two events others have the event loop.
            begun = await asyncio.to_thread(self._run_rules, claim) if claim.is_large else self._run_rules(claim)
            await asyncio.sleep(0)
            if isinstance(begun, EventResult):
                ended.append((claim, begun))
            else:
                events.append(begun)
        # An event whose lease has ended may be claimed again while it is in progress here: the new claim replaces the old.
        again = {claim.event.event_id for claim in claimed}
        self.selects.cancel([event.claim for event in self._in_progress if event.event_id in again])
        self._in_progress = [event for event in self._in_progress if event.event_id not in again] + events
        try:
            await self._resume(events)
            await self._record(ended)
        except StoreError:
            self._release([claim for claim, _ in ended], self._settings.retry_base_seconds)
            self._release_all()
            raise
        if events:
            await self._step(events)
        return len(claimed)

    async def _continue(self) -> int:
        """One more step for what did not fit: for the small ones together, then for one event alone (turns.py)."""
        together = next_together(self._in_progress)
        if together.events:
            await self._begin(await self._claim_critical())
            await self._step(together.events)
        alone = next_alone(self._in_progress, together, was_turn_of_large=self._is_turn_of_large)
        self._is_turn_of_large = alone.is_turn_of_large
        if alone.event is not None:
            await self._begin(await self._claim_critical())
            await self._step([alone.event])
            self._in_progress = behind_others(self._in_progress, alone.event)
        return len(together.events) + (alone.event is not None)

    async def _resume(self, events: Sequence[EventInProgress]) -> None:
        """Events that an earlier claim has advanced continue from their cursor."""
        # The first claim of an event cannot find a cursor.
        claimed_before = [event for event in events if event.notices and event.claimed.epoch > 1]
        if not claimed_before:
            return
        async with self._store.read() as tx:
            begun = await outbox.find_begun(tx, [event.event_id for event in claimed_before])
        for event in claimed_before:
            if event.event_id in begun:
                event.resume(begun[event.event_id])

    async def _step(self, events: Sequence[EventInProgress]) -> None:
        """All in one transaction. If an event's own fault ends it, one by one, so that only that event fails.

        If the store is away, locked or slow, nothing is recorded against the events, and they are due again soon. Events
        whose audience is a SELECT that has not run yet are left to a later step.
        """
        for event in events:
            if not event.is_ready:
                self.selects.start(event)
        if not (events := [event for event in events if event.is_ready]):
            return
        try:
            decision = await self._decider.decide_step(events)
        except StoreTooSlow:
            # Perhaps one of them is what is slow. Alone it holds up none of the others, if it waits longer than they do.
            if len(events) == 1:
                self._release([events[0].claimed], self._lease.seconds)
                self._release_all()
                raise
            await self._step_one_by_one(events)
        except (StoreError, NotPrepared):
            self._release_all()
            raise
        except Exception as error:
            if len(events) == 1:
                await self._fail(events[0], error)
            else:
                await self._step_one_by_one(events)
        else:
            self._settle(decision)

    async def _step_one_by_one(self, events: Sequence[EventInProgress]) -> None:
        for event in events:
            await self._step([event])

    async def _end_selects(self) -> None:
        """An event whose SELECT failed fails alone; the others can be decided now."""
        failed = [(event, error) for event, error in self.selects.take_finished() if error and event in self._in_progress]
        while failed:
            event, error = failed.pop()
            if isinstance(error, StoreError):
                self._release([event.claimed], self._settings.retry_base_seconds)
                continue
            try:
                await self._fail(event, error)
            except StoreError:
                # What became of them cannot be recorded now: they are due again soon, and fail again.
                unrecorded = [event.claimed, *(other.claimed for other, _ in failed)]
                self._release(unrecorded, self._settings.retry_base_seconds)
                raise

    async def _fail(self, event: EventInProgress, error: Exception) -> None:
        self._log.warning("deciding failed", event_id=str(event.event_id), exc_info=error)
        self._in_progress.remove(event)
        await self._record([(event.claimed, self._failed(event.claimed, error))])

    def _settle(self, decision: Decision) -> None:
        telemetry.EVENTS_FINISHED.labels(EventStatus.DONE.value).inc(len(decision.finished))
        ended = {event.claim for event in (*decision.finished, *decision.lost)}
        self._in_progress = [event for event in self._in_progress if event.claim not in ended]
        for event in self._in_progress:
            if not event.is_ready:
                self.selects.start(event)
        for on_decided in self._on_decided:
            on_decided(decision)

    # --- events that end without a decision -----------------------------------------------------------------------------

    def _run_rules(self, claimed: ClaimedEvent) -> EventInProgress | EventResult:
        """The event with the effects of all rules, or what becomes of it without them."""
        event, epoch = claimed.event, claimed.epoch
        if claimed.hopeless:
            return EventResult(event.event_id, epoch, EventStatus.FAILED, claimed.hopeless)
        if not self._rules.knows(event.event_type):
            return EventResult(event.event_id, epoch, EventStatus.UNHANDLED)
        try:
            effects = self._rules.evaluate(event)
            return EventInProgress(claimed, effects.notices, effects.deltas)
        except Exception as error:
            self._log.warning("rule failed", event_id=str(event.event_id), exc_info=True)
            return self._failed(claimed, error)

    def _failed(self, claimed: ClaimedEvent, error: Exception) -> EventResult:
        """Retry later, or end as FAILED after the last attempt."""
        event_id, epoch = claimed.event.event_id, claimed.epoch
        if claimed.attempts >= self._settings.max_retries:
            return EventResult(event_id, epoch, EventStatus.FAILED, _last_line(error))
        wait = doubling(self._settings.retry_base_seconds, claimed.attempts + 1)
        return EventResult(event_id, epoch, EventStatus.PENDING, _last_line(error), wait)

    async def _record(self, ended: Sequence[tuple[ClaimedEvent, EventResult]]) -> None:
        if not ended:
            return
        async with self._store.transaction() as tx:
            recorded = await outbox.record(tx, [result for _, result in ended])
            failed = {result.event_id for _, result in ended if result.status is EventStatus.FAILED}
            if failed & recorded:
                await audience_snapshots.forget(tx, sorted(failed & recorded))
        for claimed, result in ended:
            if result.event_id in recorded:
                self._report(claimed, result)

    def _report(self, claimed: ClaimedEvent, result: EventResult) -> None:
        match result.status:
            case EventStatus.PENDING:
                telemetry.EVENTS_RETRIED.inc()
                return
            case EventStatus.UNHANDLED:
                self._warn_unhandled(claimed.event.event_type)
            case EventStatus.FAILED:
                self._log.error(
                    "event failed",
                    event_id=str(result.event_id),
                    event_type=claimed.event.event_type,
                    attempts=claimed.attempts + 1,
                    error=result.error,
                )
        telemetry.EVENTS_FINISHED.labels(result.status.value).inc()

    def _warn_unhandled(self, event_type: str) -> None:
        """Warn once per event type that no rule handles: a typo, or a worker that was started without the rule."""
        telemetry.EVENTS_UNHANDLED.inc()
        if event_type not in self._unhandled and len(self._unhandled) < MOST_UNHANDLED:
            self._unhandled.add(event_type)
            self._log.warning("no rule handles this event type", event_type=event_type, status=EventStatus.UNHANDLED.value)


def _last_line(error: BaseException) -> str:
    """The kind of error and the first line of its message. Further lines are statements and values, and personal data."""
    return storable_text(traceback.format_exception_only(error)[-1].strip().partition("\n")[0], ERROR_LIMIT)
