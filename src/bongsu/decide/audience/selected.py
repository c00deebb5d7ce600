"""Selected: the members that a user's own SELECT finds. It runs before the steps that need it, in a task of its own.

A SELECT may take long. So it runs on a read-only connection that is kept for this, no lock is held meanwhile, other events
are decided, and after a time limit it is stopped. An audience that fits into a step becomes a list, a larger one is stored
as a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from uuid import UUID

from bongsu.decide.audience.recipients import Recipients, Remainder
from bongsu.decide.progress import EventInProgress
from bongsu.model import Selected
from bongsu.store import AUDIENCE_READERS, Store, outbox
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import audience_snapshots
from bongsu.store.decisions.audience_snapshots import NoticeKey


async def add_selected(tx: Transaction, found: Recipients, remainder: Remainder) -> None:
    """The next members of a SELECT that has run before the first step."""
    snapshot = await audience_snapshots.find(tx, remainder.key, remainder.after)
    if snapshot is None:
        raise LookupError("the members that its SELECT found are no longer stored: it runs again")
    found.add(remainder.notice_index, snapshot.member_ids, is_more=not snapshot.is_last)
    taken = found.members[remainder.notice_index]
    if len(taken) == len(snapshot.member_ids):
        await audience_snapshots.drop(tx, remainder.key, taken[-1])


class AudienceSelects:
    """Start one for an event, go on with others, and see which have finished."""

    def __init__(self, store: Store, seconds: float, chunk: int, on_finished: Callable[[], None]) -> None:
        self._store = store
        self._seconds = seconds
        self._chunk = chunk
        self._on_finished = on_finished
        # As many at a time as there are connections for it; the others wait here, in the order they came.
        self._turn = asyncio.Semaphore(AUDIENCE_READERS)
        self._tasks: dict[tuple[UUID, int], asyncio.Task[None]] = {}
        self._finished: list[tuple[EventInProgress, Exception | None]] = []

    def start(self, event: EventInProgress) -> None:
        """Unless it is running, or has failed and was not taken. One that succeeded is over at once: its event may be
        decided, and need the SELECT of its next notice, before it is taken."""
        if event.claim not in self._tasks:
            self._tasks[event.claim] = asyncio.create_task(self._run(event), name=f"bongsu-audience-{event.event_id}")

    def take_finished(self) -> list[tuple[EventInProgress, Exception | None]]:
        """The events whose SELECT has ended since the last call, each with what went wrong."""
        finished, self._finished = self._finished, []
        for event, error in finished:
            if error is not None:
                self._tasks.pop(event.claim, None)
        return finished

    async def wait(self) -> bool:
        """Until one has ended; False if none is running and none has ended. For tests and drains."""
        if not self._finished and self._tasks:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        return bool(self._finished)

    def cancel(self, claims: Collection[tuple[UUID, int]]) -> None:
        """Those of claims that are given back."""
        for claim in claims:
            if (task := self._tasks.pop(claim, None)) is not None:
                task.cancel()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self.cancel(list(self._tasks))
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, event: EventInProgress) -> None:
        error = None
        try:
            async with self._turn:
                await self._select(event)
        except Exception as caught:
            error = caught
        else:
            self._tasks.pop(event.claim, None)
        self._finished.append((event, error))
        self._on_finished()

    async def _select(self, event: EventInProgress) -> None:
        """Learn who is in the audience behind the last member decided."""
        selected, key = event.current_notice.audience, NoticeKey(event.event_id, event.notice)
        assert isinstance(selected, Selected)
        if event.after and await self._is_stored(key, event.after):
            event.stored_audiences.add(event.notice)
            return
        async with self._store.read_within(self._seconds) as tx:
            portions = await audience_snapshots.select_portions(tx, selected, event.after, self._chunk, self._seconds)
        if len(portions) <= 1:
            event.list_audience([member_id for portion in portions for member_id in portion.member_ids])
            return
        async with self._store.transaction() as tx:
            # Only the newest claim stores: the members of two claims' SELECTs must not mix.
            if (await outbox.lock_claims(tx, [event.claim])).claims:
                await audience_snapshots.store_portions(tx, key, portions)
        event.stored_audiences.add(event.notice)

    async def _is_stored(self, key: NoticeKey, after: str) -> bool:
        """By an earlier claim of the event."""
        async with self._store.read() as tx:
            return await audience_snapshots.find(tx, key, after) is not None
