"""Sends to the streams open here which notifications were withdrawn.

CatchUp runs it between its reads. A read that was under way when the signal came may have found the notification still, and
has sent it by then; a later one does not find it. So a page never gets a notification after its `withdrawn`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from bongsu.errors import StoreError
from bongsu.live import frames
from bongsu.live.member_streams import OpenStreams
from bongsu.live.messages import WithdrawnMessage
from bongsu.runtime.loop import Loop
from bongsu.store import Store
from bongsu.store.inbox import live as statements

# Members read in one statement, as CatchUp reads them.
MEMBERS = 500
# Frames sent before other tasks run.
PIECE = 100
# Ids remembered, so that none is sent twice and a signal that carries the notification itself and comes late is not sent.
# It is late by milliseconds; a withdrawal from every member with a stream here fits.
REMEMBERED = 20_000
# How far back missed ones are looked for: longer than the transaction that ends a withdrawal takes, and than an outage of
# the store in which streams stay open.
LOOK_BACK_SECONDS = 120.0
# No member id comes after it.
_LAST_MEMBER = "\U0010ffff" * 2


class Withdrawals:
    def __init__(self, open_streams: OpenStreams, mark: Callable[[Iterable[str]], None]) -> None:
        """Members who were sent something are marked: their unread counts are to be read."""
        self._open_streams = open_streams
        self._mark = mark
        # To be sent: notification ids with their members. At most one for each signal that comes while CatchUp reads.
        self._notifications: dict[int, str] = {}
        # To be read: one range of members for each message, however many signals name it. A campaign has a few messages.
        self._messages: dict[int, WithdrawnMessage] = {}
        self._remembered: dict[int, None] = {}

    def __contains__(self, notification_id: int) -> bool:
        """Whether it was withdrawn a short time ago."""
        return notification_id in self._remembered

    def add(self, member_id: str, notification_id: int) -> None:
        if self._is_new(notification_id):
            self._notifications[notification_id] = member_id

    def add_message(self, message: WithdrawnMessage) -> None:
        known = self._messages.get(message.message_id, message)
        self._messages[message.message_id] = WithdrawnMessage(
            message.message_id,
            min(known.first_member, message.first_member),
            max(known.last_member, message.last_member),
        )

    async def send(self, store: Store) -> int:
        """Send what is known now; return how many notifications. If the store fails, the messages stay to be read."""
        notifications, self._notifications = self._notifications, {}
        messages, self._messages = self._messages, {}
        await self._send(notifications)
        sent = len(notifications)
        try:
            while messages:
                message = next(iter(messages.values()))
                sent += await self._send_message(store, message)
                del messages[message.message_id]
        except StoreError:
            for unsent in messages.values():
                self.add_message(unsent)
            raise
        return sent

    async def _send_message(self, store: Store, message: WithdrawnMessage) -> int:
        members = [
            member.member_id
            for member in self._open_streams.members()
            if message.first_member <= member.member_id <= message.last_member
        ]
        if not members:
            return 0
        sent = 0
        async with store.read() as tx:
            for first in range(0, len(members), MEMBERS):
                found = await statements.find_withdrawn(tx, message.message_id, members[first : first + MEMBERS])
                new = {withdrawn: member_id for withdrawn, member_id in found.items() if self._is_new(withdrawn)}
                await self._send(new)
                sent += len(new)
        return sent

    async def _send(self, notifications: Mapping[int, str]) -> None:
        for number, (notification_id, member_id) in enumerate(notifications.items(), 1):
            if (member := self._open_streams.member(member_id)) is not None:
                member.send_withdrawn(frames.withdrawn(notification_id))
            if number % PIECE == 0:
                await asyncio.sleep(0)
        if notifications:
            self._mark(notifications.values())

    def _is_new(self, notification_id: int) -> bool:
        """Remember it; False if it was remembered already."""
        if notification_id in self._remembered:
            return False
        self._remembered[notification_id] = None
        if len(self._remembered) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return True


class MissedWithdrawals(Loop):
    """Finds withdrawals for which no signal arrived: without Redis, those that other processes make, such as the command
    `bongsu event cancel`."""

    def __init__(
        self, store: Store, open_streams: OpenStreams, on_found: Callable[[WithdrawnMessage], None], poll_seconds: float
    ) -> None:
        super().__init__("live-withdrawals", poll_seconds)
        self._store = store
        self._open_streams = open_streams
        self._on_found = on_found
        self._seen: set[tuple[int, datetime]] = set()

    async def tick(self) -> int:
        if not len(self._open_streams):
            return 0
        async with self._store.read() as tx:
            found = set(await statements.find_recently_withdrawn(tx, LOOK_BACK_SECONDS))
        for message_id, _ in found - self._seen:
            self._on_found(WithdrawnMessage(message_id, "", _LAST_MEMBER))
        self._seen = found
        return 0
