"""Reads from the store what members here have not been told, many members at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from bongsu import telemetry
from bongsu.live.messages import read_messages
from bongsu.live.vocabulary import Vocabulary, as_frames
from bongsu.loop import Loop
from bongsu.store import Store
from bongsu.store import live as statements
from bongsu.store.live import News, Standing

# Read in one statement: some milliseconds of work, so that whoever else uses the store or this loop does not notice.
MEMBERS = 500
NEWS = 2_000


class Present(Protocol):
    """Who is here, and how they are told."""

    def members(self) -> list[str]: ...

    def cursor_of(self, member_id: str) -> int | None: ...

    def deliver(self, member_id: str, chunks: Sequence[tuple[int, bytes]], standing: Standing | None) -> int: ...


class CatchUp(Loop):
    """Marks say that a member may have news. They are a set: however often one is marked, it is read once."""

    def __init__(self, store: Store, present: Present, vocabulary: Vocabulary) -> None:
        super().__init__("live-catch-up", poll_seconds=60)
        self._store = store
        self._present = present
        self._vocabulary = vocabulary
        # At most everybody who is here. In the order they were marked.
        self._marked: dict[str, None] = {}
        self._messages: set[int] = set()

    def mark(self, member_ids: Iterable[str]) -> None:
        self._marked.update(dict.fromkeys(member_ids))
        self.wake()

    def hear(self, data: bytes | None) -> None:
        """A signal names messages with many readers. While we read for one signal, the next ones gather."""
        if data is None:
            self.mark(self._present.members())
            return
        self._messages.update(read_messages(data))
        self.wake()

    async def tick(self) -> int:
        if self._messages:
            await self._mark_readers()
        members = list(islice(self._marked, MEMBERS))
        for one in members:
            del self._marked[one]
        cursors = {one: cursor for one in members if (cursor := self._present.cursor_of(one)) is not None}
        if cursors:
            try:
                await self._read(cursors)
            except BaseException:
                self._marked.update(dict.fromkeys(members))
                raise
        return len(members)

    async def _mark_readers(self) -> None:
        messages, self._messages = self._messages, set()
        try:
            for some in _portions(self._present.members()):
                async with self._store.read() as connection:
                    self.mark(await statements.find_recipients(connection, sorted(messages), some))
        except BaseException:
            self._messages |= messages
            raise

    async def _read(self, cursors: dict[str, int]) -> None:
        async with self._store.read() as connection:
            news = await statements.find_news(connection, cursors, NEWS)
            counts = await statements.find_counts(connection, list(cursors))
        words = await self._vocabulary.learn(self._store, news)
        by_member: defaultdict[str, list[News]] = defaultdict(list)
        for one in news:
            by_member[one.member_id].append(one)
        told = 0
        for member_id in cursors:
            standing = counts.get(member_id)
            chunks = list(as_frames(by_member.get(member_id, ()), words, standing))
            told += self._present.deliver(member_id, chunks, standing)
        telemetry.LIVE_TOLD.inc(told)
        if len(news) == NEWS:
            self.mark(by_member)


def _portions(members: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(members), MEMBERS):
        yield members[start : start + MEMBERS]
