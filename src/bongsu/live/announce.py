"""Tells open streams, on whatever instance they are, what a fan-out has just committed.

Few readers: each one's signal carries the notification. Many: one signal names the message, and each gateway reads what
concerns the members it has. All of it is hints: who misses one reads the store a ping later at most.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.errors import StoreError
from bongsu.fanout import Decision
from bongsu.live.messages import LOOK, MESSAGES_TOPIC, member_topic, write_chat, write_messages, write_notification
from bongsu.live.vocabulary import Vocabulary, as_frames
from bongsu.loop import Loop
from bongsu.signals import Signals
from bongsu.store import Store
from bongsu.store import live as statements

# Up to so many readers of a message are told one by one.
FEW = 100
# And so many in all, of messages announced together: signals wait in a queue of bounded length.
FEW_TOGETHER = 2_000
# Messages read together.
BATCH = 500
# Messages waiting to be announced, while the store is slow. Beyond these the oldest are left to the next ping.
WAITING_LIMIT = 50_000


class Announcer(Loop):
    def __init__(self, store: Store, signals: Signals) -> None:
        super().__init__("announcer", poll_seconds=60)
        self._store = store
        self._signals = signals
        self._vocabulary = Vocabulary()
        # By message, how many readers it has on the average of its step; None where that has to be counted.
        self._waiting: dict[int, int | None] = {}

    def decided(self, decision: Decision) -> None:
        """For the event worker, after each commit."""
        told = sum(count for (_, reason), count in decision.counts.items() if reason is None)
        if not told:
            return
        self._vocabulary.know(decision.words)
        works = [*decision.finished, *(work for work, _ in decision.unfinished)]
        messages = [one for work in works for one in work.messages.values()]
        # Events that were decided whole in this one step have no readers beside those it told.
        is_whole = all(work.notice == 0 and not work.is_long for work in works)
        self.announce(messages, -(-told // len(messages)) if is_whole and told <= FEW else None)

    def announce(self, message_ids: Iterable[int], readers: int | None = None) -> None:
        """These messages have new readers. Announced twice they are told once."""
        self._waiting.update(dict.fromkeys(message_ids, readers))
        while len(self._waiting) > WAITING_LIMIT:
            del self._waiting[next(iter(self._waiting))]
        self.wake()

    async def stop(self) -> None:
        """What was decided last is announced before we go; if it cannot be, a ping finds it."""
        await super().stop()
        with contextlib.suppress(StoreError):
            while await self.tick():
                pass

    async def tick(self) -> int:
        messages = dict(islice(self._waiting.items(), BATCH))
        for one in messages:
            del self._waiting[one]
        if messages:
            try:
                await self._announce(messages)
            except BaseException:
                self.announce(messages)
                raise
        return len(messages)

    async def _announce(self, messages: Mapping[int, int | None]) -> None:
        async with self._store.read() as connection:
            few, many = await self._sort(connection, messages)
            told = await statements.find_told(connection, few) if few else []
            words = await self._vocabulary.learn(connection, {one.news.message_id for one in told})
        if many:
            self._signals.send(MESSAGES_TOPIC, write_messages(many))
        chunks = dict(as_frames((one.news for one in told if one.is_live), words, None))
        for one in told:
            chunk = chunks.get(one.news.notification_id, b"")
            self._signals.send(member_topic(one.news.member_id), write_notification(one, chunk))

    async def _sort(self, connection: AsyncConnection, messages: Mapping[int, int | None]) -> tuple[list[int], list[int]]:
        counts = {one: count for one, count in messages.items() if count is not None}
        if uncounted := [one for one in messages if one not in counts]:
            counts |= await statements.count_told(connection, uncounted, FEW + 1)
        few: list[int] = []
        many: list[int] = []
        room = FEW_TOGETHER
        for message_id, count in counts.items():
            if count > min(FEW, room):
                many.append(message_id)
            elif count:
                few.append(message_id)
                room -= count
        return few, many


async def announce_read(signals: Signals, member_id: str) -> None:
    """The member has read something: their pages look up how much is left. Two counts under way could change places."""
    signals.send(member_topic(member_id), LOOK)


def announce_chat(signals: Signals, member_id: str, message: dict[str, Any]) -> None:
    """Something was said in a room of the member."""
    signals.send(member_topic(member_id), write_chat(message))
