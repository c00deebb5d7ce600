"""The content of messages: the row, the statement that reads it, and the cache that a process keeps of it.

Dispatchers send it and gateways stream it, so a process has one cache for both. A message never changes once it is stored:
nothing has to be invalidated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from bongsu.model import Guarantee, utc_now
from bongsu.model.payload import read_payload
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MESSAGE_ID, Dialect, Row, Statement, Table, Transaction, optional_time
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.decisions.rows import Message

# Messages that a process caches. A message is sent to all its recipients within seconds; at about a kilobyte each this is a
# megabyte.
CACHED_MESSAGES = 1_000


# The content of these messages, each found by its key; deleted ones are left out. Locks nothing.
FIND_CONTENT = Statement(
    postgres=f"""
        SELECT m.*, {POSTGRES.now} AS now
        FROM {POSTGRES.table("given", MESSAGE_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT x.message_id, x.event_id, x.type, x.title, x.body, x.ref_id, x.data, x.guarantee, x.locale, x.priority,
                   x.expires_at, x.is_critical, x.is_bulk, x.is_digest
            FROM bongsu_messages x WHERE x.message_id = given.message_id OFFSET 0) AS m""",
    sqlite=f"""
        SELECT m.message_id, m.event_id, m.type, m.title, m.body, m.ref_id, m.data, m.guarantee, m.locale, m.priority,
               m.expires_at, m.is_critical, m.is_bulk, m.is_digest, {SQLITE.now} AS now
        FROM {SQLITE.table("given", MESSAGE_ID, 1)}
        CROSS JOIN bongsu_messages AS m ON m.message_id = given.message_id""",
)


@dataclass(frozen=True)
class MessageContent:
    """What all notifications and deliveries of a message have in common."""

    message_id: int
    event_id: str
    type: str
    title: str
    body: str
    ref_id: str | None
    # As the rule's data was stored, numbers of any length included.
    data_json: str
    guarantee: Guarantee
    locale: str
    priority: int
    # By this process's clock, with which channels compare it.
    expires_at: datetime | None
    is_critical: bool = False
    # Whether the results of its deliveries are counted (bongsu_message_counts).
    is_bulk: bool = False
    # Whether its notifications have texts of their own (digests.py).
    is_digest: bool = False

    @cached_property
    def data(self) -> dict[str, Any]:
        return dict(read_payload(self.data_json))


# By message id.
Contents = Mapping[int, MessageContent]


async def find_content(tx: Transaction, message_ids: Sequence[int]) -> dict[int, MessageContent]:
    """By message id. Messages that were deleted are left out."""
    rows = await tx.fetch(FIND_CONTENT(Table.of(MESSAGE_ID, message_ids)))
    return {row["message_id"]: _from_row(tx.dialect, row) for row in rows}


class MessageCache:
    """The content of messages by id; the least recently used go first. One for a process."""

    def __init__(self) -> None:
        self._cached: OrderedDict[int, MessageContent] = OrderedDict()

    def add(self, messages: Iterable[Message]) -> None:
        """Messages that this process has just stored: they need not be read."""
        self._keep(map(_from_message, messages))

    def cached(self, message_ids: Iterable[int]) -> dict[int, MessageContent]:
        """Those of these messages that are cached. The caller's to keep: adding others does not take any of them away."""
        found = {message_id: self._cached[message_id] for message_id in message_ids if message_id in self._cached}
        for message_id in found:
            self._cached.move_to_end(message_id)
        return found

    async def load(self, tx: Transaction, message_ids: Set[int]) -> Contents:
        """These messages, read from the store where they are not cached. Messages that were deleted are left out."""
        found = self.cached(message_ids)
        if missing := sorted(message_ids - found.keys()):
            read = await find_content(tx, missing)
            self._keep(read.values())
            found |= read
        return found

    def _keep(self, contents: Iterable[MessageContent]) -> None:
        for content in contents:
            self._cached[content.message_id] = content
            self._cached.move_to_end(content.message_id)
        while len(self._cached) > CACHED_MESSAGES:
            self._cached.popitem(last=False)


def _from_message(message: Message) -> MessageContent:
    return MessageContent(
        message_id=message.message_id,
        event_id=str(message.event_id),
        type=message.type,
        title=message.title,
        body=message.body,
        ref_id=message.ref_id,
        data_json=message.data,
        guarantee=Guarantee(message.guarantee),
        locale=message.locale,
        priority=message.priority,
        expires_at=_by_our_clock(message.expires_at, message.created_at),
        is_critical=message.is_critical,
        is_bulk=message.is_bulk,
        is_digest=message.is_digest,
    )


def _from_row(dialect: Dialect, row: Row) -> MessageContent:
    return MessageContent(
        message_id=row["message_id"],
        event_id=str(row["event_id"]),
        type=row["type"],
        title=row["title"],
        body=row["body"],
        ref_id=row["ref_id"],
        data_json=row["data"],
        guarantee=Guarantee(row["guarantee"]),
        locale=row["locale"],
        priority=row["priority"],
        expires_at=_by_our_clock(optional_time(dialect, row["expires_at"]), dialect.time(row["now"])),
        is_critical=bool(row["is_critical"]),
        is_bulk=bool(row["is_bulk"]),
        is_digest=bool(row["is_digest"]),
    )


def _by_our_clock(expires_at: datetime | None, now: datetime) -> datetime | None:
    """The expiry by this process's clock: as far ahead as it is by the store's."""
    return None if expires_at is None else utc_now() + (expires_at - now)
