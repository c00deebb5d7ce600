"""Pushes to members who are not connected: looks at rooms with new messages and publishes who is to be pushed to.

A send marks its room in the statement that it needs anyhow. Some seconds later, when those who are there have read, one
worker looks at the room: members who have not read, have not muted it and are not connected become the audience of an event
`chat.unread`, a thousand in each. From there on it is an event like any other. So the cost is per room and look, however
many messages came.

The event and the note that it is decided for its members are one transaction, fenced by the epoch of the look: a crash loses
no push and doubles none. A member whose connection is dead, or who closes the page without reading, is found by a second
look. The text of a push is read when it is sent (deliver/chat_contents.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid5

from bongsu.live.presence import Presence
from bongsu.model import Event
from bongsu.rules.chat import UNREAD
from bongsu.runtime.loop import Loop
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import EVENTS_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.chat import pushes
from bongsu.store.chat.pushes import RoomToLookAt

# Rooms claimed at a time. Each takes some milliseconds, so all are done long before the lease ends.
ROOMS = 20
# Members of an event: few enough that it is an ordinary one, and that senders hardly wait for the room's lock.
MEMBERS = 1_000
# How long a room waits after a look, so that it makes a hundred pushes a second on average at most. Looking at a member is a
# tenth of a push. A room of ten hardly waits, a busy one with ten thousand absent members waits 110 seconds.
SECONDS_PER_PUSH = 0.01
SECONDS_PER_CANDIDATE = 0.001
# When connected members who have not read are looked at again: by then a dead connection was closed, or its entry expired.
AGAIN_SECONDS = 60.0
# Older messages are not pushed: after a long outage members get no pushes about yesterday.
MAX_AGE = timedelta(days=1)


class _OvertakenError(Exception):
    """The lease of a look has ended, and another look at the room has begun. It goes on with the members that are left."""


class ChatPush(Loop):
    """Any number may run, in any number of processes."""

    def __init__(self, store: Store, signals: Signals, presence: Presence, settings: Settings) -> None:
        super().__init__("chat-push", settings.poll_seconds)
        self._store = store
        self._signals = signals
        self._presence = presence
        self._wait_seconds = settings.chat_push_seconds
        self._lease_seconds = settings.lease_seconds
        self._looks_from = 0.0

    async def start(self) -> None:
        """Those who were connected to this process before it was restarted come back first."""
        self._looks_from = time.monotonic() + self._wait_seconds
        await super().start()

    async def tick(self) -> int:
        if time.monotonic() < self._looks_from:
            return 0
        async with self._store.single() as tx:
            rooms = await pushes.claim_rooms(tx, self._wait_seconds, ROOMS, self._lease_seconds, MAX_AGE)
        for room in rooms:
            await self._look_unless_overtaken(room)
        return len(rooms)

    async def _look_unless_overtaken(self, room: RoomToLookAt) -> None:
        with contextlib.suppress(_OvertakenError):
            await self._look(room)

    async def _look(self, room: RoomToLookAt) -> None:
        """Publish who is to be pushed to. If this process dies, another goes on when the lease ends, with those who are
        left."""
        pushed = connected = 0
        last = ""
        is_more = not room.is_stale
        while is_more:
            async with self._store.read() as tx:
                candidates = await pushes.find_candidates(tx, room, last, MEMBERS)
            absent = await self._absent(candidates)
            if absent:
                await self._publish(room, absent)
            pushed += len(absent)
            connected += len(candidates) - len(absent)
            is_more = len(candidates) == MEMBERS
            last = candidates[-1] if candidates else ""
        rest = pushed * SECONDS_PER_PUSH + (pushed + connected) * SECONDS_PER_CANDIDATE
        is_again = bool(connected) and room.last_seq > room.looked_seq
        async with self._store.single() as tx:
            await pushes.end_look(tx, room, rest, AGAIN_SECONDS, is_again=is_again)

    async def _absent(self, member_ids: Sequence[str]) -> list[str]:
        """Those who are not connected. While that is not known, all: without Redis no connection stays open for long, and
        a push too many is better than one that is missing."""
        connected = await self._presence.online(member_ids) if member_ids else set()
        return [member_id for member_id in member_ids if not connected or member_id not in connected]

    async def _publish(self, room: RoomToLookAt, member_ids: Sequence[str]) -> None:
        event = Event(
            # From what it is about: published again, it is the same event.
            event_id=uuid5(room.room_id, f"{room.last_seq} {member_ids[0]}"),
            event_type=UNREAD,
            ref_id=str(room.room_id),
            payload={"roomName": room.name, "lastSeq": room.last_seq, "memberIds": list(member_ids)},
        )
        async with self._store.transaction() as tx:
            if not await pushes.add_push(tx, room, event, member_ids):
                raise _OvertakenError
        self._signals.send(EVENTS_TOPIC)
