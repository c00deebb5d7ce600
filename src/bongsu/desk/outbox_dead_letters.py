"""The dead letters of outboxes: rows that the relay has set aside, because they cannot be events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import NamedTuple

from bongsu.clock.run import Run
from bongsu.desk.dead_filter import DeadFilter, System
from bongsu.desk.dead_letters import LetterPage, MessageCursor, RejectedMessage
from bongsu.errors import BadCursor, NoSuchDeadLetter
from bongsu.ingress.relay import OutboxDatabase, RejectedFilter, RejectedRow, open_outbox
from bongsu.ingress.relay.outbox import RejectedCursor
from bongsu.settings.checks import NamedUrl

# Rows that one statement lets the relay try again.
BATCH = 1_000
# The cursor of a replay that has seen all.
_END = "end"


class _Position(NamedTuple):
    """The last row that was seen, and in which outbox."""

    name: str
    after: RejectedCursor

    def write(self) -> str:
        return json.dumps([self.name, self.after.rejected_at.isoformat(), self.after.event_id])

    @classmethod
    def read(cls, text: str) -> _Position:
        """Raises BadCursor for one of another source."""
        try:
            name, rejected_at, event_id = json.loads(text)
            return cls(name, RejectedCursor(datetime.fromisoformat(rejected_at), event_id))
        except (ValueError, TypeError):
            raise BadCursor from None


class OutboxDeadLetters:
    """A DeadLetterSource. One outbox after the other, in the order of the setting, and each from the newest row."""

    def __init__(self, outboxes: Sequence[NamedUrl], batch: int = BATCH) -> None:
        self._outboxes = outboxes
        self._batch = batch

    async def list(self, asked: DeadFilter, after: MessageCursor | None, limit: int) -> LetterPage:
        found, end = await self._find(asked, None if after is None else _Position.read(after.position), limit)
        return LetterPage([_letter(name, row) for name, row in found], end and MessageCursor(end.write()))

    async def show(self, dead_id: str) -> RejectedMessage:
        found, _ = await self._find(DeadFilter.model_validate({"source": System.OUTBOX, "id": str(dead_id)}), None, 1)
        if not found:
            raise NoSuchDeadLetter(f"There is no rejected row {dead_id} in an outbox")
        return _letter(*found[0])

    async def count(self, asked: DeadFilter) -> int:
        total = 0
        for outbox in self._asked(asked):
            async with _opened(outbox) as database:
                total += await database.count_rejected(_rejected_filter(asked))
        return total

    async def replay_step(self, asked: DeadFilter, run: Run) -> bool:
        """A row that the relay rejects again meanwhile is newer than the cursor: it is visited once."""
        if run.cursor == _END:
            return False
        found, end = await self._find(asked, None if run.cursor is None else _Position.read(run.cursor), self._batch)
        replayed = 0
        for outbox in self._outboxes:
            if ids := [row.event_id for name, row in found if name == outbox.name]:
                async with _opened(outbox) as database:
                    replayed += await database.replay(ids)
        counts = {"matched": len(found), "replayed": replayed}
        await run.save(cursor=_END if end is None else end.write(), counts=counts, done=len(found))
        return True

    async def _find(
        self, asked: DeadFilter, after: _Position | None, limit: int
    ) -> tuple[Sequence[tuple[str, RejectedRow]], _Position | None]:
        """Up to so many, and where they end if more may follow."""
        found: list[tuple[str, RejectedRow]] = []
        for outbox in self._asked(asked, after):
            last = after.after if after is not None and after.name == outbox.name else None
            async with _opened(outbox) as database:
                rows = await database.find_rejected(_rejected_filter(asked), last, limit + 1 - len(found))
            found += [(outbox.name, row) for row in rows]
            if len(found) > limit:
                name, row = found[limit - 1]
                return found[:limit], _Position(name, RejectedCursor(row.rejected_at, row.event_id))
        return found, None

    def _asked(self, asked: DeadFilter, after: _Position | None = None) -> Sequence[NamedUrl]:
        """Those that the filter is about, from the one where the page before ended."""
        names = [outbox.name for outbox in self._outboxes]
        first = names.index(after.name) if after is not None and after.name in names else 0
        return [outbox for outbox in self._outboxes[first:] if asked.queue in (None, outbox.name)]


@contextlib.asynccontextmanager
async def _opened(outbox: NamedUrl) -> AsyncIterator[OutboxDatabase]:
    database = open_outbox(outbox.url)
    try:
        yield database
    finally:
        await database.close()


def _rejected_filter(asked: DeadFilter) -> RejectedFilter:
    event_id = str(asked.event_id) if asked.event_id is not None else None
    return RejectedFilter(
        event_id=str(asked.id) if asked.id is not None else event_id,
        event_type=asked.type,
        since=asked.since,
        until=asked.until,
    )


def _letter(name: str, row: RejectedRow) -> RejectedMessage:
    return RejectedMessage(
        system=System.OUTBOX,
        queue=name,
        id=row.event_id,
        error=row.error,
        type=row.event_type,
        event_id=row.event_id,
        written_at=row.written_at,
        rejected_at=row.rejected_at,
        body=row.payload,
    )
