"""Digests: store what a step opens and what it merges, in its transaction. The members' rows are locked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import NOTIFICATION_ID, Query, Statement, Table, Transaction, in_both
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.inbox.changes import set_changed

# Actors of a digest that its text and its data can name.
NAMED_ACTORS = 5


class Actor(NamedTuple):
    actor_id: str | None
    name: str | None


class DigestText(NamedTuple):
    """The text of a digest."""

    title: str
    body: str
    # Fields for the client, as a JSON object.
    data: str


class DigestRow(NamedTuple):
    """A digest that a step opens, and its text."""

    notification_id: int
    member_id: str
    type: str
    key: str
    ends_at: datetime
    size: int
    title: str
    body: str
    data: str


class GrownDigest(NamedTuple):
    """A digest that others are merged into or leave, its text after that, and its change id if it is in the inbox."""

    notification_id: int
    member_id: str
    size: int
    title: str
    body: str
    data: str
    change_id: int | None


class Entry(NamedTuple):
    """What a digest has gathered."""

    message_id: int
    member_id: str
    notification_id: int
    actor_id: str | None
    actor_name: str | None


@dataclass(frozen=True)
class DigestChanges:
    """What a step does to digests."""

    opened: Sequence[DigestRow] = ()
    grown: Sequence[GrownDigest] = ()
    entries: Sequence[Entry] = ()


_DIGEST = {
    "notification_id": "bigint",
    "member_id": "text",
    "type": "text",
    "key": "text",
    "ends_at": "timestamptz",
    "size": "integer",
    "title": "text",
    "body": "text",
    "data": "text",
}
_GROWN = {
    "notification_id": "bigint",
    "member_id": "text",
    "size": "integer",
    "title": "text",
    "body": "text",
    "data": "text",
    "change_id": "bigint",
}
_ENTRY = {
    "message_id": "bigint",
    "member_id": "text",
    "notification_id": "bigint",
    "actor_id": "text",
    "actor_name": "text",
}

# The newest actors of the digests given ($1), up to $2 of each, newest first. Locks nothing.
FIND_ACTORS = Statement(
    postgres=f"""
        SELECT given.notification_id, e.actor_id, e.actor_name
        FROM {POSTGRES.table("given", NOTIFICATION_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT x.message_id, x.actor_id, x.actor_name FROM bongsu_digest_entries AS x
            WHERE x.notification_id = given.notification_id AND x.left_at IS NULL
            ORDER BY x.message_id DESC LIMIT $2) AS e
        ORDER BY given.notification_id, e.message_id DESC""",
    sqlite=f"""
        SELECT given.notification_id, e.actor_id, e.actor_name
        FROM {SQLITE.table("given", NOTIFICATION_ID, 1)}
        CROSS JOIN bongsu_digest_entries AS e INDEXED BY bongsu_digest_entries_digest
            ON e.notification_id = given.notification_id
        WHERE e.message_id IN (
            SELECT x.message_id FROM bongsu_digest_entries AS x INDEXED BY bongsu_digest_entries_digest
            WHERE x.notification_id = given.notification_id AND x.left_at IS NULL
            ORDER BY x.message_id DESC LIMIT $2)
        ORDER BY given.notification_id, e.message_id DESC""",
)

# Inserts the digests that a step opens ($1). Run under the members' locks.
OPEN = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_digests ({", ".join(_DIGEST)})
    SELECT {", ".join(_DIGEST)} FROM {d.table("given", _DIGEST, 1)}"""
    )
)

# Inserts what digests have gathered ($1), at a time ($2). Run under the members' locks.
ADD_ENTRIES = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_digest_entries ({", ".join(_ENTRY)}, created_at)
    SELECT {", ".join(_ENTRY)}, CAST($2 AS timestamptz) FROM {d.table("given", _ENTRY, 1)}"""
    )
)

# Sets how many these digests ($1) have, and their text. Run under the members' locks.
SET_TEXTS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_digests
    SET size = given.size, title = given.title, body = given.body, data = given.data
    FROM {d.table("given", _GROWN, 1)} WHERE bongsu_digests.notification_id = given.notification_id"""
    )
)

# Gives the notifications of these digests ($1) their change ids, and when their content changed ($2). Run under the members'
# locks.
SET_CHANGED = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_notifications SET change_id = given.change_id, updated_at = $2
    FROM {d.table("given", _GROWN, 1)}
    WHERE bongsu_notifications.member_id = given.member_id
      AND bongsu_notifications.notification_id = given.notification_id"""
    )
)


async def find_actors(tx: Transaction, notification_ids: Sequence[int]) -> dict[int, list[Actor]]:
    """The newest actors of these digests, newest first."""
    actors: dict[int, list[Actor]] = defaultdict(list)
    if notification_ids:
        given = Table.of(NOTIFICATION_ID, notification_ids)
        for row in await tx.fetch(FIND_ACTORS(given, NAMED_ACTORS)):
            actors[row["notification_id"]].append(Actor(row["actor_id"], row["actor_name"]))
    return actors


async def apply_digests(tx: Transaction, changes: DigestChanges, now: datetime) -> None:
    """Store what a step has gathered. Its notifications are stored."""
    queries: list[Query] = []
    if changes.opened:
        queries.append(OPEN(Table(_DIGEST, changes.opened)))
    if changes.entries:
        queries.append(ADD_ENTRIES(Table(_ENTRY, changes.entries), now))
    if queries:
        await tx.execute(*queries)
    await set_texts(tx, changes.grown, now)


async def set_texts(tx: Transaction, grown: Sequence[GrownDigest], now: datetime) -> None:
    """Store the texts of digests that have changed; those in the inbox get their change ids."""
    if grown:
        await tx.execute(SET_TEXTS(Table(_GROWN, grown)))
    if changed := [digest for digest in grown if digest.change_id is not None]:
        await tx.execute(SET_CHANGED(Table(_GROWN, changed), now))
        newest: dict[str, int] = {}
        for digest in changed:
            assert digest.change_id is not None
            newest[digest.member_id] = max(digest.change_id, newest.get(digest.member_id, 0))
        await set_changed(tx, sorted(newest.items()))
