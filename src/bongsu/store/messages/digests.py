"""The texts of digests: their own title, body and data instead of those of the message that opened them.

A digest changes when others are merged into it, so its text is read when it is shown or sent, and never cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bongsu.store.core.query import NOTIFICATION_ID, Table, Transaction, in_both
from bongsu.store.messages.content import Contents, MessageCache, MessageContent

# The texts of those of the notifications given ($1) that are digests, each found by its key. Locks nothing.
FIND_TEXTS = in_both(
    lambda d: (
        f"""
    SELECT g.notification_id, g.title, g.body, g.data
    FROM {d.table("given", NOTIFICATION_ID, 1)} CROSS JOIN bongsu_digests AS g
    WHERE g.notification_id = given.notification_id"""
    )
)

# Of the digests given ($1): whether nothing is left, because all was cancelled, and whether their members have read or
# deleted them. Each found by its key. Locks nothing.
FIND_STATES = in_both(
    lambda d: (
        f"""
    SELECT g.notification_id, g.size = 0 AS is_empty,
           n.read_at IS NOT NULL AS is_read, n.deleted_at IS NOT NULL AS is_deleted
    FROM {d.table("given", NOTIFICATION_ID, 1)} CROSS JOIN bongsu_digests AS g
    JOIN bongsu_notifications AS n ON n.member_id = g.member_id AND n.notification_id = g.notification_id
    WHERE g.notification_id = given.notification_id"""
    )
)


class DigestState(NamedTuple):
    """Whether all that a digest had gathered was cancelled, and what its member has done with it."""

    is_empty: bool
    is_read: bool
    is_deleted: bool


@dataclass(frozen=True)
class NotificationContents:
    """The texts of notifications: digests have texts of their own, all others those of their messages."""

    messages: Contents
    # By notification.
    digests: Mapping[int, MessageContent]

    def of(self, notification_id: int, message_id: int) -> MessageContent | None:
        """None if its message was deleted."""
        return self.digests.get(notification_id) or self.messages.get(message_id)


async def load_contents(
    tx: Transaction, cache: MessageCache, notifications: Sequence[tuple[int, int]]
) -> NotificationContents:
    """The texts of these notifications (id, message): the messages from the cache, and digests as they are now."""
    messages = await cache.load(tx, {message_id for _, message_id in notifications})
    gathered = find_gathered(notifications, messages)
    return NotificationContents(messages, await find_digest_contents(tx, gathered) if gathered else {})


def find_gathered(notifications: Iterable[tuple[int, int]], contents: Contents) -> list[tuple[int, MessageContent]]:
    """Those of these notifications (id, message) that are digests, each with the content of its message."""
    found = ((notification_id, contents.get(message_id)) for notification_id, message_id in notifications)
    return [(notification_id, content) for notification_id, content in found if content is not None and content.is_digest]


async def find_digest_contents(tx: Transaction, gathered: Sequence[tuple[int, MessageContent]]) -> dict[int, MessageContent]:
    """By notification: the present texts of these digests. Those that were deleted are left out."""
    given = Table.of(NOTIFICATION_ID, (notification_id for notification_id, _ in gathered))
    texts = {row["notification_id"]: row for row in await tx.fetch(FIND_TEXTS(given))}
    return {
        notification_id: replace(content, title=row["title"], body=row["body"], data_json=row["data"])
        for notification_id, content in gathered
        if (row := texts.get(notification_id)) is not None
    }


async def find_states(tx: Transaction, notification_ids: Iterable[int]) -> dict[int, DigestState]:
    """By notification. Those that were deleted from the store are left out."""
    given = Table.of(NOTIFICATION_ID, notification_ids)
    return {
        row["notification_id"]: DigestState(bool(row["is_empty"]), bool(row["is_read"]), bool(row["is_deleted"]))
        for row in await tx.fetch(FIND_STATES(given))
    }
