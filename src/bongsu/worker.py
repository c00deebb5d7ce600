"""The event worker: takes due events, asks the rules, has their notices decided, and records what became of each.

The decision and the record are one transaction, fenced by the claim's epoch. So a worker killed at any moment has either
finished a step of an event or not touched it, and whoever takes it next goes on from there.
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
from bongsu.fanout import Decision, FanOut, Unprepared, Work
from bongsu.loop import Loop
from bongsu.model import EventStatus, Notice
from bongsu.rules import Rules
from bongsu.settings import Settings
from bongsu.store import Store, decisions, people, portions, progress
from bongsu.store import events as statements
from bongsu.store.dialect import Statement
from bongsu.store.events import Claimed, Verdict

# Large enough that claim and record cost little per event, small enough that a crash hands few events to the next.
BATCH = 500
# Once is enough unless the audience changes under our hands each time.
PREPARATIONS = 10
# The traceback's last line is what an operator reads; the whole of it is in the log.
ERROR_LIMIT = 1_000
# Whoever accepts an event wakes us. Where nobody can, in another process without Redis, it is found this soon all the same.
PAUSE_SECONDS = 0.02
# Types that no rule is about and of which the log was told. More than these are made up by whoever sends them.
MOST_UNHEARD = 1_000


class EventWorker(Loop):
    """Any number may run, in any number of processes.

    Events with few to tell are decided many at a time. One with many to tell takes step after step, and between two of its
    steps the others have their turn.
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
        # At most a batch: what is claimed and not finished. If we die, the leases end and others take it.
        self._hand: list[Work] = []
        self._unfinished: list[Claimed] = []
        self._is_more_due = False
        self._unheard: set[str] = set()
        self._renewed = time.monotonic()
        # While there is other work, suspects are looked for no more often than when there is none: they can wait, and
        # between two events that come one after the other the look would be in the way.
        self._suspects_at = 0.0

    @property
    def pause_seconds(self) -> float:
        """A claim that was not full has left nothing. To look at once would be in the way of the event that comes next."""
        return 0.0 if self._is_more_due or self._hand else min(PAUSE_SECONDS, self._settings.poll_seconds)

    async def tick(self) -> int:
        await self._give_back()
        await self._keep_leases()
        claimed = await self._claim()
        steps = await self._finish(claimed)
        steps += await self._go_on()
        if not steps or time.monotonic() >= self._suspects_at:
            # In a transaction and a step of its own: if it ends this process too, it takes nothing else along.
            suspects = await self._claim_suspect()
            steps += await self._finish(suspects)
            self._is_more_due |= bool(suspects)
            self._suspects_at = time.monotonic() + self._settings.poll_seconds
        return steps

    async def stop(self) -> None:
        await super().stop()
        self._let_go()
        with contextlib.suppress(StoreError):
            await self._give_back()

    # --- claims -------------------------------------------------------------------------------------------------------

    async def _claim(self) -> list[Claimed]:
        room = BATCH - len(self._hand)
        if room <= 0:
            return []
        async with self._store.single() as tx:
            claimed = await statements.claim(tx, room, self._settings.lease_seconds, self._worker)
        self._is_more_due = len(claimed) == room
        return claimed

    async def _claim_suspect(self) -> list[Claimed]:
        async with self._store.single() as tx:
            return await statements.claim_suspect(tx, self._settings.lease_seconds, self._worker)

    async def _keep_leases(self) -> None:
        """At a third of their time, so that one failed attempt and a slow step leave another in time."""
        if not self._hand or time.monotonic() - self._renewed < self._settings.lease_seconds / 3:
            return
        held = [work.claim for work in self._hand]
        async with self._store.write() as tx:
            ours = await progress.renew(tx, held, self._settings.lease_seconds)
        self._hand = [work for work in self._hand if work.event_id in ours]
        self._renewed = time.monotonic()

    def _let_go(self) -> None:
        self._unfinished += [work.claimed for work in self._hand]
        self._hand = []

    async def _give_back(self) -> None:
        """What could not be finished is due again, and does not count as a death. If we die first, the leases end anyway."""
        if self._unfinished:
            async with self._store.write() as tx:
                await statements.give_back(tx, self._unfinished, self._settings.retry_base_seconds)
            self._unfinished = []

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _finish(self, claimed: Sequence[Claimed]) -> int:
        """Events just claimed, as many as one step has room for; what it has no room for stays in hand."""
        if not claimed:
            return 0
        works: list[Work] = []
        failed: list[tuple[Claimed, str]] = []
        for one in claimed:
            said = self._detect(one)
            if isinstance(said, str):
                failed.append((one, said))
            else:
                works.append(Work(one, said))
        # A lease that ended in our own hands, too, was another's to take: what was known under it is no longer so.
        again = {one.event.event_id for one in claimed}
        self._hand = [work for work in self._hand if work.event_id not in again] + works
        try:
            await self._resume(works)
            await self._fail(failed)
        except StoreError:
            self._unfinished += [one for one, _ in failed]
            self._let_go()
            raise
        await self._step(works)
        return len(claimed)

    async def _go_on(self) -> int:
        """One more step for what did not fit: for the small ones together, and for the first of the large ones."""
        small = [work for work in self._hand if not work.is_long]
        large = [work for work in self._hand if work.is_long]
        if small:
            await self._step(small)
        if large:
            await self._step(large[:1])
            # The next time another has its turn.
            if large[0] in self._hand:
                self._hand.remove(large[0])
                self._hand.append(large[0])
        return len(small) + len(large)

    async def _resume(self, works: Sequence[Work]) -> None:
        """Events that an earlier claim had brought forward go on from there."""
        # Nothing can have been begun by an earlier claim where there was none.
        claimed_before = [work for work in works if work.notices and work.claimed.epoch > 1]
        if not claimed_before:
            return
        async with self._store.read() as connection:
            begun = await progress.find_begun(connection, [work.event_id for work in claimed_before])
        for work in claimed_before:
            if work.event_id in begun:
                work.resume(begun[work.event_id])

    async def _step(self, works: Sequence[Work]) -> None:
        """All in one transaction. If that fails, one by one, so that the one at fault fails alone."""
        try:
            await self._step_together(works)
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreTooSlow):
                # The store is away, and no event is to blame. Until it is back nothing can be recorded, not even this.
                self._let_go()
                raise
            if len(works) > 1:
                for work in works:
                    await self._step([work])
            else:
                self._log.warning("a decision failed", event_id=str(works[0].event_id), exc_info=True)
                self._hand.remove(works[0])
                await self._fail([(works[0].claimed, _last_line(error))])

    async def _step_together(self, works: Sequence[Work]) -> None:
        for _ in range(PREPARATIONS):
            try:
                await self._step_once(works)
                return
            except Unprepared as unprepared:
                # In a transaction of its own, because locks already held and rows yet to be made would be out of order.
                async with self._store.write() as tx:
                    await people.mention(tx, unprepared.member_ids)
        await self._step_once(works)

    async def _step_once(self, works: Sequence[Work]) -> None:
        needs = self._fanout.foresee(works)
        async with self._store.write(*decisions.beginning(self._store.dialect)) as tx:
            ours, message_ids = await progress.hold(tx, [work.claim for work in works], needs.names, needs.messages)
            decision = await self._fanout.decide(tx, [work for work in works if work.claim in ours], message_ids)
            decision.deliveries = await decisions.carry_out(tx, decision.step, self._closing(decision))
        decision.settle()
        telemetry.EVENTS_FINISHED.labels(EventStatus.DONE.value).inc(len(decision.finished))
        # Finished, or another's by now.
        kept = ours - {work.claim for work in decision.finished}
        gone = {work.claim for work in works} - kept
        self._hand = [work for work in self._hand if work.claim not in gone]
        self._on_decided(decision)

    def _closing(self, decision: Decision) -> list[Statement]:
        """What records how far the events have come by it."""
        closing = []
        if done := [Verdict(*work.claim, EventStatus.DONE) for work in decision.finished]:
            closing.append(statements.recording(self._store.dialect, done))
        if decision.unfinished:
            closing.append(progress.advancing(self._store.dialect, decision.cursors, self._settings.lease_seconds))
        return closing

    async def _fail(self, failed: Sequence[tuple[Claimed, str]]) -> None:
        """Again later, or for good when it has been tried often enough."""
        if not failed:
            return
        verdicts = [self._verdict(one, error) for one, error in failed]
        async with self._store.write() as tx:
            ours = await statements.record(tx, verdicts)
            if ended := ours & {one.event_id for one in verdicts if one.status is EventStatus.FAILED}:
                await portions.forget(tx, sorted(ended))
        for (one, _), verdict in zip(failed, verdicts, strict=True):
            if verdict.event_id in ours:
                self._tell(one, verdict)

    def _detect(self, claimed: Claimed) -> list[Notice] | str:
        """The notices the rules want, or the error they ended in."""
        if claimed.hopeless:
            return claimed.hopeless
        try:
            notices = self._rules.detect(claimed.event)
        except Exception as error:
            self._log.warning("a rule failed", event_id=str(claimed.event.event_id), exc_info=True)
            return _last_line(error)
        if not notices and not self._rules.knows(claimed.event.event_type):
            self._wonder(claimed.event.event_type)
        return notices

    def _wonder(self, event_type: str) -> None:
        """An event that nobody hears of may be meant so, or its type is misspelt. Said once for each type."""
        telemetry.EVENTS_UNHEARD.inc()
        if event_type not in self._unheard and len(self._unheard) < MOST_UNHEARD:
            self._unheard.add(event_type)
            self._log.warning("no rule is about this type of event: it is DONE, and nobody is told", event_type=event_type)

    def _verdict(self, claimed: Claimed, error: str) -> Verdict:
        event_id, epoch = claimed.event.event_id, claimed.epoch
        if claimed.hopeless or claimed.attempts >= self._settings.max_retries:
            return Verdict(event_id, epoch, EventStatus.FAILED, error)
        wait = doubling(self._settings.retry_base_seconds, claimed.attempts + 1)
        return Verdict(event_id, epoch, EventStatus.PENDING, error, wait)

    def _tell(self, claimed: Claimed, verdict: Verdict) -> None:
        match verdict.status:
            case EventStatus.PENDING:
                telemetry.EVENTS_RETRIED.inc()
                return
            case EventStatus.FAILED:
                self._log.error(
                    "event failed",
                    event_id=str(verdict.event_id),
                    event_type=claimed.event.event_type,
                    attempts=claimed.attempts + 1,
                    error=verdict.error,
                )
        telemetry.EVENTS_FINISHED.labels(verdict.status.value).inc()


def _last_line(error: BaseException) -> str:
    """The kind of error and the first line of what it says: further lines are statements and values, and people's data."""
    text = traceback.format_exception_only(error)[-1].strip().replace("\x00", "")
    return text.partition("\n")[0][:ERROR_LIMIT]
