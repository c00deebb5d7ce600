"""A cache of message content, so that what was just written is not read again, and the frames of notifications."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set

from bongsu.live import frames
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import Message
from bongsu.store.inbox import live as statements
from bongsu.store.inbox.live import InboxState, MessageContent, NewNotification

# A message is sent to all its readers within seconds; at about a kilobyte each this is a megabyte.
CACHED_MESSAGES = 1_000

Messages = Mapping[int, MessageContent]


class MessageCache:
    """Messages by id; the least recently used go first."""

    def __init__(self) -> None:
        self._cached: OrderedDict[int, MessageContent] = OrderedDict()

    async def load(self, tx: Transaction, message_ids: Set[int]) -> Messages:
        """These messages, read from the store where they are not cached. Messages that were deleted are left out."""
        found = {message_id: self._cached[message_id] for message_id in message_ids if message_id in self._cached}
        if missing := [message_id for message_id in message_ids if message_id not in found]:
            found |= await statements.find_content(tx, missing)
        self._keep(found.values())
        return found

    def add(self, messages: Iterable[Message]) -> None:
        """Messages that were just stored, so that they need not be read."""
        self._keep(
            MessageContent(
                message.message_id,
                message.type,
                message.title,
                message.body,
                message.ref_id,
                message.data,
                message.is_critical,
            )
            for message in messages
        )

    def _keep(self, messages: Iterable[MessageContent]) -> None:
        for message in messages:
            self._cached[message.message_id] = message
            self._cached.move_to_end(message.message_id)
        while len(self._cached) > CACHED_MESSAGES:
            self._cached.popitem(last=False)


def encode_notifications(
    notifications: Iterable[NewNotification], messages: Messages, state: InboxState | None
) -> list[tuple[int, bytes]]:
    """Ids and frames. A member who wants no notifications gets the critical ones only; without a state, all."""
    encoded = []
    for notification in notifications:
        content = messages.get(notification.message_id)
        if content is not None and (state is None or state.is_enabled or content.is_critical):
            rest = frames.after_id(notification.created_at, content)
            frame = frames.notification(notification.notification_id, rest)
            encoded.append((notification.notification_id, frame))
    return encoded
