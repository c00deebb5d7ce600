"""The messages that were sent last, encoded: a broadcast encodes its text once, not once per reader."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from bongsu.live import frames
from bongsu.store import live as statements
from bongsu.store.decisions import Message
from bongsu.store.live import InboxState, MessageContent, NewNotification
from bongsu.store.query import Transaction

# A message is sent to all its readers within seconds; at about a kilobyte each this is a megabyte.
CACHED_MESSAGES = 1_000


@dataclass(frozen=True)
class EncodedMessage:
    # The end of the notification's frame, the same for every reader.
    tail: bytes
    is_critical: bool


EncodedMessages = Mapping[int, EncodedMessage]


class FrameCache:
    """Encoded messages by id; the least recently used go first."""

    def __init__(self) -> None:
        self._cached: OrderedDict[int, EncodedMessage] = OrderedDict()

    async def load(self, tx: Transaction, message_ids: Set[int]) -> EncodedMessages:
        """These messages, read from the store where they are not cached. Messages that were deleted are left out."""
        found = {one: self._cached[one] for one in message_ids if one in self._cached}
        missing = [one for one in message_ids if one not in found]
        if missing:
            found |= _encode((await statements.find_content(tx, missing)).values())
        self._keep(found)
        return found

    def add(self, messages: Iterable[Message]) -> None:
        """Messages that were just stored, so that they need not be read."""
        self._keep(
            _encode(
                MessageContent(one.message_id, one.type, one.title, one.body, one.ref_id, one.data, one.is_critical)
                for one in messages
            )
        )

    def _keep(self, messages: EncodedMessages) -> None:
        for message_id, message in messages.items():
            self._cached[message_id] = message
            self._cached.move_to_end(message_id)
        while len(self._cached) > CACHED_MESSAGES:
            self._cached.popitem(last=False)


def _encode(contents: Iterable[MessageContent]) -> dict[int, EncodedMessage]:
    return {one.message_id: EncodedMessage(frames.tail(one), one.is_critical) for one in contents}


def encode_notifications(
    notifications: Iterable[NewNotification], messages: EncodedMessages, state: InboxState | None
) -> list[tuple[int, bytes]]:
    """Ids and frames. A member who wants no notifications gets the critical ones only; without a state, all."""
    encoded = []
    for one in notifications:
        message = messages.get(one.message_id)
        if message is not None and (state is None or state.is_enabled or message.is_critical):
            rest = frames.rest(one.created_at, message.tail)
            encoded.append((one.notification_id, frames.notification(one.notification_id, rest)))
    return encoded
