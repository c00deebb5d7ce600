"""The event worker: claims due events, runs the rules, has their notices decided, and records the result of each.

The decision and the record are one transaction, fenced by the claim's epoch. So a worker that crashes at any moment has
either completed a step of an event or not touched it, and the next claim continues from there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence

from bongsu import telemetry
from bongsu.backoff import doubling
from bongsu.errors import StoreError, StoreTooSlow
from bongsu.fanout import Decision, EventInProgress, FanOut, MissingMembers
from bongsu.loop import Loop
from bongsu.model import EventStatus, Notice
from bongsu.rules import Rules
from bongsu.settings import Settings
from bongsu.store import Store, audience_snapshots, decisions, members, outbox
from bongsu.store.decisions import StepChanges
from bongsu.store.outbox import ClaimedEvent, EventResult

# Large enough that claim and record cost little per event, small enough that a crash hands few events to the next worker.
BATCH = 500
# Missing members are inserted and the step repeated, this often. Once is enough unless the audience changes each time.
PREPARATIONS = 10
# The traceback's last line is what an operator reads; the whole of it is in the log.
ERROR_LIMIT = 1_000
# Events accepted by another process without Redis send no signal: the worker looks for them this soon.
PAUSE_SECONDS = 0.02
# Event types without a rule that were logged. More than these are made up by the sender.
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
        fanout: FanOut,
        on_decided: Callable[[Decision], None] = lambda _decision: None,
    ) -> None:
        super().__init__("event-worker", settings.poll_seconds)
        self._store = store
        self._rules = rules
        self._fanout = fanout
        self._settings = settings
        self._on_decided = on_decided
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        # Claimed and not finished, at most a batch. If this process dies, their leases end and others claim them.
        self._in_progress: list[EventInProgress] = []
        self._to_give_back: list[ClaimedEvent] = []
        self._is_more_due = False
        self._unhandled: set[str] = set()
        self._renewed = time.monotonic()
        # While there is other work, suspects are looked for no more often than when there is none: they can wait, and the
        # look would only delay the next event.
        self._suspects_at = 0.0

    @property
    def pause_seconds(self) -> float:
        """A claim that was not full has left nothing. To look again at once would delay the event that comes next."""
        return 0.0 if self._is_more_due or self._in_progress else min(PAUSE_SECONDS, self._settings.poll_seconds)

    async def tick(self) -> int:
        await self._give_back()
        await self._renew_leases()
        claimed = await self._claim()
        steps = await self._begin(claimed)
        steps += await self._continue()
        if not steps or time.monotonic() >= self._suspects_at:
            # In a claim and a step of its own: if it crashes this process too, it takes no other event with it.
            suspects = await self._claim_suspect()
            steps += await self._begin(suspects)
            self._is_more_due |= bool(suspects)
            self._suspects_at = time.monotonic() + self._settings.poll_seconds
        return steps

    async def stop(self) -> None:
        await super().stop()
        self._release_all()
        with contextlib.suppress(StoreError):
            await self._give_back()

    # --- claims -------------------------------------------------------------------------------------------------------

    async def _claim(self) -> list[ClaimedEvent]:
        room = BATCH - len(self._in_progress)
        if room <= 0:
            return []
        async with self._store.single() as tx:
            claimed = await outbox.claim(tx, room, self._settings.lease_seconds, self._worker)
        self._is_more_due = len(claimed) == room
        return claimed

    async def _claim_suspect(self) -> list[ClaimedEvent]:
        async with self._store.single() as tx:
            return await outbox.claim_suspect(tx, self._settings.lease_seconds, self._worker)

    async def _renew_leases(self) -> None:
        """At a third of their time, so that one failed attempt and a slow step leave another in time."""
        if not self._in_progress or time.monotonic() - self._renewed < self._settings.lease_seconds / 3:
            return
        claims = [event.claim for event in self._in_progress]
        async with self._store.single() as tx:
            renewed = await outbox.renew(tx, claims, self._settings.lease_seconds)
        self._in_progress = [event for event in self._in_progress if event.event_id in renewed]
        self._renewed = time.monotonic()

    def _release_all(self) -> None:
        self._to_give_back += [event.claimed for event in self._in_progress]
        self._in_progress = []

    async def _give_back(self) -> None:
        """Make unfinished events due again without counting it as a crash. If this fails, their leases end anyway."""
        if self._to_give_back:
            async with self._store.single() as tx:
                await outbox.give_back(tx, self._to_give_back, self._settings.retry_base_seconds)
            self._to_give_back = []

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _begin(self, claimed: Sequence[ClaimedEvent]) -> int:
        """Run the rules for events just claimed and decide as many as fit into one step; the rest stays in progress."""
        if not claimed:
            return 0
        events: list[EventInProgress] = []
        failed: list[tuple[ClaimedEvent, str]] = []
        for one in claimed:
            notices = self._detect(one)
            if isinstance(notices, str):
                failed.append((one, notices))
            else:
                events.append(EventInProgress(one, notices))
        # An event whose lease has ended may be claimed again while it is in progress here: the new claim replaces the old.
        again = {one.event.event_id for one in claimed}
        self._in_progress = [event for event in self._in_progress if event.event_id not in again] + events
        try:
            await self._resume(events)
            await self._fail(failed)
        except StoreError:
            self._to_give_back += [one for one, _ in failed]
            self._release_all()
            raise
        await self._step(events)
        return len(claimed)

    async def _continue(self) -> int:
        """One more step for what did not fit: for the small ones together, and for the first of the large ones."""
        small = [event for event in self._in_progress if not event.is_long]
        large = [event for event in self._in_progress if event.is_long]
        if small:
            await self._step(small)
        if large:
            await self._step(large[:1])
            # The next time another has its turn.
            if large[0] in self._in_progress:
                self._in_progress.remove(large[0])
                self._in_progress.append(large[0])
        return len(small) + len(large)

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
        """All in one transaction. If that fails, one by one, so that only the event at fault fails."""
        try:
            await self._step_together(events)
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreTooSlow):
                # The store is unavailable, which is no event's fault. Nothing can be recorded until it is back.
                self._release_all()
                raise
            if len(events) > 1:
                for event in events:
                    await self._step([event])
            else:
                self._log.warning("deciding failed", event_id=str(events[0].event_id), exc_info=True)
                self._in_progress.remove(events[0])
                await self._fail([(events[0].claimed, _last_line(error))])

    async def _step_together(self, events: Sequence[EventInProgress]) -> None:
        for _ in range(PREPARATIONS):
            try:
                await self._step_once(events)
                return
            except MissingMembers as missing:
                # In a transaction of its own: rows inserted under locks already held would break the lock order.
                async with self._store.transaction() as tx:
                    await members.ensure_members(tx, missing.member_ids)
        await self._step_once(events)

    async def _step_once(self, events: Sequence[EventInProgress]) -> None:
        locks = self._fanout.required_locks(events)
        async with self._store.transaction() as tx:
            held = await outbox.lock_claims(tx, [event.claim for event in events], locks.names, locks.messages)
            decision = await self._fanout.decide(tx, [event for event in events if event.claim in held.claims], held)
            decision.deliveries = await decisions.apply_decision(tx, decision.rows, self._changes(decision))
        decision.settle()
        telemetry.EVENTS_FINISHED.labels(EventStatus.DONE.value).inc(len(decision.finished))
        # What is finished, or claimed by another by now, is no longer in progress here.
        kept = held.claims - {event.claim for event in decision.finished}
        gone = {event.claim for event in events} - kept
        self._in_progress = [event for event in self._in_progress if event.claim not in gone]
        self._on_decided(decision)

    def _changes(self, decision: Decision) -> StepChanges:
        return StepChanges(
            lease_seconds=self._settings.lease_seconds,
            new_messages=decision.words,
            used_again=decision.used_again,
            finished=[event.claim for event in decision.finished],
            cursors=decision.cursors,
        )

    async def _fail(self, failed: Sequence[tuple[ClaimedEvent, str]]) -> None:
        """Retry later, or end as FAILED after the last attempt."""
        if not failed:
            return
        results = [self._result(one, error) for one, error in failed]
        async with self._store.transaction() as tx:
            recorded = await outbox.record(tx, results)
            if ended := recorded & {one.event_id for one in results if one.status is EventStatus.FAILED}:
                await audience_snapshots.forget(tx, sorted(ended))
        for (one, _), result in zip(failed, results, strict=True):
            if result.event_id in recorded:
                self._report(one, result)

    def _detect(self, claimed: ClaimedEvent) -> list[Notice] | str:
        """The notices of all rules, or the error that ended them."""
        if claimed.hopeless:
            return claimed.hopeless
        try:
            notices = self._rules.detect(claimed.event)
        except Exception as error:
            self._log.warning("a rule failed", event_id=str(claimed.event.event_id), exc_info=True)
            return _last_line(error)
        if not notices and not self._rules.knows(claimed.event.event_type):
            self._warn_unhandled(claimed.event.event_type)
        return notices

    def _warn_unhandled(self, event_type: str) -> None:
        """Warn once per event type that no rule handles: it may be intended, or a typo."""
        telemetry.EVENTS_UNHEARD.inc()
        if event_type not in self._unhandled and len(self._unhandled) < MOST_UNHANDLED:
            self._unhandled.add(event_type)
            self._log.warning("no rule handles this event type", event_type=event_type, status=EventStatus.DONE.value)

    def _result(self, claimed: ClaimedEvent, error: str) -> EventResult:
        event_id, epoch = claimed.event.event_id, claimed.epoch
        if claimed.hopeless or claimed.attempts >= self._settings.max_retries:
            return EventResult(event_id, epoch, EventStatus.FAILED, error)
        wait = doubling(self._settings.retry_base_seconds, claimed.attempts + 1)
        return EventResult(event_id, epoch, EventStatus.PENDING, error, wait)

    def _report(self, claimed: ClaimedEvent, result: EventResult) -> None:
        match result.status:
            case EventStatus.PENDING:
                telemetry.EVENTS_RETRIED.inc()
                return
            case EventStatus.FAILED:
                self._log.error(
                    "event failed",
                    event_id=str(result.event_id),
                    event_type=claimed.event.event_type,
                    attempts=claimed.attempts + 1,
                    error=result.error,
                )
        telemetry.EVENTS_FINISHED.labels(result.status.value).inc()


def _last_line(error: BaseException) -> str:
    """The kind of error and the first line of its message. Further lines are statements and values, and personal data."""
    text = traceback.format_exception_only(error)[-1].strip().replace("\x00", "")
    return text.partition("\n")[0][:ERROR_LIMIT]
