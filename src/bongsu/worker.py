"""The event worker: takes due events, asks the rules, has their notices decided, and records what became of each.

The decision and the record are one transaction, fenced by the claim's epoch. So a worker killed at any moment has either
finished an event or not touched it, and whoever takes it next starts from there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import telemetry
from bongsu.backoff import doubling
from bongsu.errors import StoreError
from bongsu.loop import Loop
from bongsu.model import Event, EventStatus, Notice
from bongsu.rules import Rules
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import events as statements
from bongsu.store.events import Claimed, Verdict

# Large enough that claim and record cost little per event, small enough that a crash hands few events to the next.
BATCH = 500
# The traceback's last line is what an operator reads; the whole of it is in the log.
ERROR_LIMIT = 1_000

_log = telemetry.log("bongsu.event-worker")

Decide = Callable[[AsyncConnection, Event, Sequence[Notice]], Awaitable[None]]


async def decide_nothing(_tx: AsyncConnection, event: Event, notices: Sequence[Notice]) -> None:
    """Stands where fan-out will: says aloud that what a rule wanted said has not been said to anyone."""
    for notice in notices:
        _log.warning(
            "a notice reaches nobody: fan-out is not built yet", type=notice.type.name, event_id=str(event.event_id)
        )


class EventWorker(Loop):
    """Any number may run, in any number of processes."""

    def __init__(self, store: Store, rules: Rules, settings: Settings, decide: Decide = decide_nothing) -> None:
        super().__init__("event-worker", settings.poll_seconds)
        self._store = store
        self._rules = rules
        self._decide = decide
        self._settings = settings
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._unfinished: list[Claimed] = []

    async def tick(self) -> int:
        await self._give_back()
        claimed = await self._claim()
        await self._finish(claimed)
        # In a transaction and a step of its own: if it ends this process too, it takes nothing else along.
        suspect = await self._claim_suspect()
        await self._finish(suspect)
        return len(claimed) + len(suspect)

    async def stop(self) -> None:
        await super().stop()
        with contextlib.suppress(StoreError):
            await self._give_back()

    async def _give_back(self) -> None:
        """What could not be finished is due again, and does not count as a death. If we die first, the leases end anyway."""
        if self._unfinished:
            async with self._store.write() as tx:
                await statements.give_back(tx, self._unfinished, self._settings.retry_base_seconds)
            self._unfinished = []

    async def _claim(self) -> list[Claimed]:
        async with self._store.write_once() as tx:
            return await statements.claim(tx, BATCH, self._settings.lease_seconds, self._worker)

    async def _claim_suspect(self) -> list[Claimed]:
        async with self._store.write_once() as tx:
            return await statements.claim_suspect(tx, self._settings.lease_seconds, self._worker)

    async def _finish(self, claimed: Sequence[Claimed]) -> None:
        """All in one transaction. If that fails, one by one, so that the one at fault fails alone."""
        if not claimed:
            return
        detected = [(one, self._detect(one)) for one in claimed]
        try:
            await self._finish_together(detected)
        except StoreError:
            # The store is away, and no event is to blame. Until it is back nothing can be recorded, not even this.
            self._unfinished += claimed
            raise
        except Exception as error:
            if len(detected) == 1:
                await self._finish_together([(claimed[0], _last_line(error))])
            else:
                for one in claimed:
                    await self._finish([one])

    async def _finish_together(self, detected: Sequence[tuple[Claimed, Sequence[Notice] | str]]) -> None:
        verdicts = [self._verdict(one, said) for one, said in detected]
        async with self._store.write() as tx:
            ours = await statements.record(tx, verdicts)
            for one, said in detected:
                if said and not isinstance(said, str) and one.event.event_id in ours:
                    await self._decide(tx, one.event, said)
        for (one, _), verdict in zip(detected, verdicts, strict=True):
            if verdict.event_id in ours:
                self._tell(one, verdict)

    def _detect(self, claimed: Claimed) -> list[Notice] | str:
        """The notices the rules want, or the error they ended in."""
        if claimed.hopeless:
            return claimed.hopeless
        try:
            return self._rules.detect(claimed.event)
        except Exception as error:
            self._log.warning("a rule failed", event_id=str(claimed.event.event_id), exc_info=True)
            return _last_line(error)

    def _verdict(self, claimed: Claimed, said: Sequence[Notice] | str) -> Verdict:
        event_id, epoch = claimed.event.event_id, claimed.epoch
        if not isinstance(said, str):
            return Verdict(event_id, epoch, EventStatus.DONE)
        if claimed.hopeless or claimed.attempts >= self._settings.max_retries:
            return Verdict(event_id, epoch, EventStatus.FAILED, said)
        wait = doubling(self._settings.retry_base_seconds, claimed.attempts + 1)
        return Verdict(event_id, epoch, EventStatus.PENDING, said, wait)

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
