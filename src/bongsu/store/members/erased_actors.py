"""A member who is erased is forgotten as an actor of others' digests: the id, the name, and the texts that have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bongsu.store.core.locks import lock_members
from bongsu.store.core.query import NOTIFICATION_ID, Table, Transaction, in_both, same
from bongsu.store.desk.digest_remainders import Rewrite, find_remainders, rewrite_texts

# Up to $2 digests that have something of the actor $1, and whose they are, by the index of actors. Locks nothing.
FIND_ACTED = same("""
    SELECT member_id, notification_id FROM bongsu_digest_entries
    WHERE actor_id = $1 AND actor_id IS NOT NULL ORDER BY notification_id LIMIT $2""")

# Forget who it was, where $2 is an actor of the digests given ($1). Run under the locks of the digests' members.
FORGET_ACTOR = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_digest_entries SET actor_id = NULL, actor_name = NULL
    WHERE actor_id = $2 AND notification_id IN (
        SELECT given.notification_id FROM {d.table("given", NOTIFICATION_ID, 1)})"""
    )
)


@dataclass(frozen=True)
class Forgotten:
    """How many acts were forgotten, and the members whose pages show a digest that has another text now."""

    entries: int
    updated: Sequence[str] = ()


async def forget_actor(tx: Transaction, member_id: str, limit: int, rewrite: Rewrite) -> Forgotten:
    """In up to `limit` digests. The caller has locked no member."""
    acted = await tx.fetch(FIND_ACTED(member_id, limit))
    if not acted:
        return Forgotten(0)
    digests = [row["notification_id"] for row in acted]
    await tx.fetch(lock_members(row["member_id"] for row in acted))
    (entries,) = await tx.execute(FORGET_ACTOR(Table.of(NOTIFICATION_ID, digests), member_id))
    rows = await find_remainders(tx, digests)
    return Forgotten(entries, await rewrite_texts(tx, [row for row in rows if row["size"]], rewrite))
