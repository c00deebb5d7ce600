"""Announces to open streams, in all processes, what was just committed: new notifications, and changes of others.

With few recipients, each one's signal carries the notification. With many, one signal names the message, and each gateway
reads what the members it serves have. Signals may be lost: a stream that missed one reads the store at its next ping.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from itertools import islice

from bongsu.decide.progress import Decision
from bongsu.errors import StoreError
from bongsu.live.encode import encode_notifications
from bongsu.live.messages import (
    LOGGED_OUT,
    READ_STORE,
    write_changed_range,
    write_messages,
    write_notification,
)
from bongsu.model import Channel
from bongsu.runtime.loop import Loop
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import MESSAGES_TOPIC, member_topic
from bongsu.store import Store
from bongsu.store.core.query import Transaction
from bongsu.store.inbox import live as statements
from bongsu.store.messages.content import MessageCache
from bongsu.store.messages.digests import load_contents

# A message with up to this many recipients is announced to each of them; so is a change for so many at a time.
FEW = 100
# And this many in all, for messages announced together: signals wait in a queue of bounded length.
FEW_TOGETHER = 2_000
# Messages read together.
BATCH = 500
# Messages waiting to be announced, while the store is slow. Beyond these the oldest are left to the next ping.
WAITING_LIMIT = 50_000


class Announcer(Loop):
    """Sends the signals for messages that were stored. A message that cannot be read yet stays queued."""

    def __init__(self, store: Store, signals: Signals, message_cache: MessageCache) -> None:
        super().__init__("announcer", poll_seconds=60)
        self._store = store
        self._signals = signals
        self._message_cache = message_cache
        # The number of recipients by message id; None where they have to be counted.
        self._waiting: dict[int, int | None] = {}

    def decided(self, decision: Decision) -> None:
        """Queue the messages of a step. For the event worker, after each commit."""
        announce_changes(self._signals, decision.updated)
        notified = decision.notified_by_message
        if not notified:
            return
        # The step has all recipients of a message if it was written in this step and its audience ends there.
        new = {message.message_id for message in decision.contents}
        is_complete = {
            message_id: message_id in new and not event.is_long
            for event in decision.events
            for (notice, _), message_id in event.messages.items()
            if Channel.IN_APP in event.notices[notice].type.channels
        }
        self._enqueue(
            {
                message_id: count if is_complete[message_id] else None
                for message_id, count in notified.items()
                if message_id in is_complete
            }
        )

    def announce(self, message_ids: Iterable[int]) -> None:
        """These messages have new recipients, to be counted. Announcing one twice sends nothing twice."""
        self._enqueue(dict.fromkeys(message_ids))

    def _enqueue(self, recipients: Mapping[int, int | None]) -> None:
        self._waiting.update(recipients)
        while len(self._waiting) > WAITING_LIMIT:
            del self._waiting[next(iter(self._waiting))]
        if self._waiting:
            self.wake()

    async def stop(self) -> None:
        """Announce what was decided last; if the store fails, streams find it at their next ping."""
        await super().stop()
        with contextlib.suppress(StoreError):
            while await self.tick():
                pass

    async def tick(self) -> int:
        messages = dict(islice(self._waiting.items(), BATCH))
        for message_id in messages:
            del self._waiting[message_id]
        if messages:
            try:
                await self._announce(messages)
            except BaseException:
                self.announce(messages)
                raise
        return len(messages)

    async def _announce(self, messages: Mapping[int, int | None]) -> None:
        async with self._store.read() as tx:
            few, many = await self._split(tx, messages)
            recipients = await statements.find_recipients(tx, few) if few else []
            named = [(one.notification.notification_id, one.notification.message_id) for one in recipients]
            contents = await load_contents(tx, self._message_cache, named)
        if many:
            self._signals.send(MESSAGES_TOPIC, write_messages(many))
        encoded = encode_notifications((recipient.notification for recipient in recipients), contents, None)
        data = {event.key: event.data for event in encoded}
        for recipient in recipients:
            json = data.get(recipient.notification.notification_id, b"")
            self._signals.send(member_topic(recipient.notification.member_id), write_notification(recipient, json))

    async def _split(self, tx: Transaction, messages: Mapping[int, int | None]) -> tuple[list[int], list[int]]:
        """The messages with few recipients, and those with many."""
        counts = {message_id: count for message_id, count in messages.items() if count is not None}
        if uncounted := [message_id for message_id in messages if message_id not in counts]:
            counts |= await statements.count_recipients(tx, uncounted, FEW + 1)
        few: list[int] = []
        many: list[int] = []
        left = FEW_TOGETHER
        for message_id, count in counts.items():
            if count > min(FEW, left):
                many.append(message_id)
            elif count:
                few.append(message_id)
                left -= count
        return few, many


def announce_logout(signals: Signals, member_id: str) -> None:
    """End the streams that the member opened with the session cookie, in every process."""
    signals.send(member_topic(member_id), LOGGED_OUT)


def announce_change(signals: Signals, member_id: str) -> None:
    """Something of the member's inbox was changed, and committed: their streams read the store. What has changed and the
    unread count are not sent with it, because signals may overtake each other."""
    signals.send(member_topic(member_id), READ_STORE)


def announce_changes(signals: Signals, member_ids: Iterable[str]) -> None:
    """Something of these members' inboxes was changed: digests have another text, or notifications have left. Call it after
    each step's commit.

    Of few, each one's streams read the store. Of many, the signal has the first and the last member. Steps in the order of
    member ids have ranges that do not overlap, so a gateway reads each member with an open stream once, however many steps
    there are.
    """
    members = list(dict.fromkeys(member_ids))
    if len(members) <= FEW:
        for member_id in members:
            announce_change(signals, member_id)
    else:
        signals.send(MESSAGES_TOPIC, write_changed_range(min(members), max(members)))
