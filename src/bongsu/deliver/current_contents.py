"""The contents of digests and pushes about chat when they are sent, as they change until then; or why one is not sent.

A digest is not sent if its member has read or deleted it in the inbox, or if all that it had gathered was cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bongsu.deliver.chat_contents import ChatContentLoader
from bongsu.deliver.withheld import Withheld
from bongsu.store import Transaction
from bongsu.store.deliveries import ClaimedDelivery
from bongsu.store.messages.content import Contents, MessageContent
from bongsu.store.messages.digests import DigestState, find_digest_contents, find_gathered, find_states

# By notification.
CurrentContents = Mapping[int, MessageContent | Withheld]

EVENT_CANCELLED = "its event was cancelled before it was sent"


class CurrentContentLoader:
    def __init__(self) -> None:
        self._chat = ChatContentLoader()

    async def load(self, tx: Transaction, claimed: Sequence[ClaimedDelivery], contents: Contents) -> CurrentContents:
        """The contents that those of these deliveries have now which may have changed. `contents` are by message."""
        gathered = find_gathered(((delivery.notification_id, delivery.message_id) for delivery in claimed), contents)
        if not gathered:
            return {}
        digests = await find_digest_contents(tx, gathered)
        withheld = await _find_withheld(tx, digests)
        return digests | await self._chat.load(tx, claimed, digests) | withheld

    async def find_outdated(
        self, tx: Transaction, claimed: Iterable[ClaimedDelivery], contents: Mapping[int, MessageContent]
    ) -> dict[int, Withheld | None]:
        """Those of these, which were loaded and wait to be sent, that must not go as they are. None: they are to be loaded
        again. `contents` are by notification, of those that may change."""
        return await self._chat.find_outdated(tx, claimed, contents) | await _find_withheld(tx, contents)


async def _find_withheld(tx: Transaction, contents: Mapping[int, MessageContent]) -> dict[int, Withheld]:
    states = await find_states(tx, contents) if contents else {}
    found = ((one, _why_withheld(state, contents[one])) for one, state in states.items())
    return {one: withheld for one, withheld in found if withheld is not None}


def _why_withheld(state: DigestState, content: MessageContent) -> Withheld | None:
    if state.is_empty:
        return Withheld("CANCELLED", content.is_bulk, EVENT_CANCELLED)
    if state.is_deleted:
        return Withheld("DELETED", content.is_bulk)
    return Withheld("READ", content.is_bulk) if state.is_read else None
