"""Order: gives every message its place in its room, with a group commit.

Messages that come together share one transaction, which locks their rooms and gives each the next seq: without holes, in the
order in which a sender's messages came. A sender has the answer when the message is committed. Then it is announced, which
never waits: storing and fan-out do not wait for each other.

While the store fails, the batch under way is tried again with back-off and everything behind it waits, so that no message
overtakes another of its sender. What cannot be stored after that is refused, and recorded as a dead letter as soon as the
store can be written to: a replay stores it, unless its sender has sent it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from uuid import UUID

from bongsu.chat.fanout import Fanout
from bongsu.chat.rooms import lock_accessible
from bongsu.errors import (
    BadChatMessage,
    ChatRateLimited,
    MessageDeleted,
    NoSuchMessage,
    NotInRoom,
    NotYourMessage,
    StoreBusy,
    StoreError,
    StoreUnreachable,
)
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling
from bongsu.runtime.group_commit import GroupCommit
from bongsu.runtime.rate_limit import RateLimit
from bongsu.settings import Settings
from bongsu.store import Share, Store, Transaction
from bongsu.store.chat import ChatMessage
from bongsu.store.chat import messages as statements
from bongsu.store.chat.dead_letters import Unstored, add_dead_letters
from bongsu.store.chat.messages import NewMessage, NotAMember, Stored
from bongsu.store.chat.rooms import count_change

# Messages in one transaction: at 4 KB each, 2 MB that the store parses at once.
BATCH_LIMIT = 500
# Messages in memory, not yet stored. Past this a send is refused with "busy".
WAITING_LIMIT = 5_000
# A batch that the store refuses is tried so often, after a quarter of a second, twice that, … A sender waits for about four
# seconds then, and a client that gives up and sends again gets the same answer.
TRIES = 5
FIRST_WAIT_SECONDS = 0.25


class ChatOrder(GroupCommit[NewMessage, Stored | NotAMember]):
    """Start it, then `send` from any number of tasks."""

    def __init__(self, store: Store, fanout: Fanout, settings: Settings) -> None:
        super().__init__("chat", self._store_messages, batch_limit=BATCH_LIMIT, waiting_limit=WAITING_LIMIT)
        self._store = store.share(Share.INGEST)
        self._members_store = store.share(Share.MEMBERS)
        self._fanout = fanout
        self._max_bytes = settings.chat_max_bytes
        # Refused and not yet recorded. Of more the oldest are left out: their senders know.
        self._unstored: deque[Unstored] = deque(maxlen=WAITING_LIMIT)
        self._limit = RateLimit(settings.chat_rate, settings.chat_rate, refusal=ChatRateLimited)

    async def send(
        self, room_id: UUID, sender_id: str, client_message_id: str, message: str, *, is_limited: bool = True
    ) -> ChatMessage:
        """Store a message; return it when it is committed. One with the same clientMessageId is stored once, and each call
        returns it. Without `is_limited` (a server call) the rate of the sender does not count."""
        check_text(message, self._max_bytes)
        if is_limited:
            self._limit.count(sender_id)
        (result,) = await self.submit([NewMessage(room_id, sender_id, client_message_id, message)])
        if isinstance(result, NotAMember):
            raise NotInRoom(f"{sender_id} is not in this room")
        return result.message

    async def edit(self, room_id: UUID, sender_id: str, seq: int, message: str) -> ChatMessage:
        """Replace the text of the sender's own message."""
        check_text(message, self._max_bytes)

        async def edit(tx: Transaction) -> tuple[ChatMessage, int, int]:
            room = await lock_accessible(tx, room_id, sender_id)
            found = await _find_own(tx, room_id, sender_id, seq)
            if found.deleted_at is not None:
                raise MessageDeleted(f"Message {seq} was deleted")
            await count_change(tx, room_id)
            edited = await statements.edit_message(tx, room_id, seq, message, room.last_seq)
            return edited, room.last_seq, room.changes + 1

        edited, last_seq, changes = await self._members_store.run(edit)
        self._fanout.edited(edited, last_seq, changes)
        return edited

    async def delete(self, room_id: UUID, sender_id: str, seq: int) -> None:
        """Delete the text of the sender's own message; its seq stays. Deleting it again changes nothing."""

        async def delete(tx: Transaction) -> tuple[ChatMessage, int, int] | None:
            room = await lock_accessible(tx, room_id, sender_id)
            found = await _find_own(tx, room_id, sender_id, seq)
            if found.deleted_at is not None:
                return None
            await count_change(tx, room_id)
            deleted = await statements.delete_message(tx, room_id, seq, room.last_seq)
            return deleted, room.last_seq, room.changes + 1

        deleted = await self._members_store.run(delete)
        if deleted is not None:
            self._fanout.deleted(*deleted)

    async def _store_messages(self, sends: Sequence[NewMessage]) -> Sequence[Stored | NotAMember]:
        for tries in range(1, TRIES + 1):
            try:
                return await store_messages(self._store, self._fanout, sends)
            except (StoreUnreachable, StoreBusy) as error:
                if tries == TRIES or self.is_stopping:
                    self._log.error("chat messages not stored", messages=len(sends), error=str(error))
                    reason = f"{type(error).__name__}: {error.detail}"
                    self._unstored.extend(Unstored(send, reason) for send in sends)
                    raise
                self._log.warning("chat messages not stored, trying again", messages=len(sends), error=str(error))
                await asyncio.sleep(doubling(FIRST_WAIT_SECONDS, tries))
        raise AssertionError("the last try returns or raises")

    async def tick(self) -> int:
        """Store a batch; and record as dead letters what could not be stored, in this one or before."""
        done = await super().tick()
        await self._record_unstored()
        return done

    async def stop(self) -> None:
        await super().stop()
        with contextlib.suppress(StoreError):
            await self._record_unstored()

    async def _record_unstored(self) -> None:
        """If it raises, the loop backs off and tries again: nothing else could be stored now either."""
        if unstored := list(self._unstored):
            await self._store.run(lambda tx: add_dead_letters(tx, unstored, TRIES))
            self._unstored.clear()


async def store_messages(store: Store, fanout: Fanout, sends: Sequence[NewMessage]) -> Sequence[Stored | NotAMember]:
    """Store them in one transaction, in the order given; then announce those that are new."""
    results = await store.run(lambda tx: statements.add_messages(tx, sends))
    new: dict[UUID, list[Stored]] = {}
    for result in results:
        if isinstance(result, Stored) and result.is_new:
            new.setdefault(result.message.room_id, []).append(result)
    for stored in new.values():
        telemetry.CHAT_MESSAGES.inc(len(stored))
        fanout.sent([result.message for result in stored], stored[0].changes)
    return results


def check_text(message: str, max_bytes: int) -> None:
    """Raise BadChatMessage unless both databases can store it and it is neither empty nor too long."""
    try:
        size = len(message.encode())
    except UnicodeEncodeError:
        raise BadChatMessage("The text has half of a surrogate pair, which is not a character") from None
    if not message or "\0" in message:
        raise BadChatMessage("The text has a NUL character" if message else "The text is empty")
    if size > max_bytes:
        raise BadChatMessage(f"The text has {size} bytes, and {max_bytes} are allowed (BONGSU_CHAT_MAX_BYTES)")


async def _find_own(tx: Transaction, room_id: UUID, sender_id: str, seq: int) -> ChatMessage:
    found = await statements.find_message(tx, room_id, seq)
    if found is None:
        raise NoSuchMessage(f"There is no message {seq} in this room")
    if found.sender_id != sender_id:
        raise NotYourMessage(f"Message {seq} is not {sender_id}'s")
    return found
