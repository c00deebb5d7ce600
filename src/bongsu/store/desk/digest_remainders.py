"""Digests that have lost some of what they had gathered, or an actor's name: their texts are rendered again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bongsu.model import Event
from bongsu.model.channels import Channel
from bongsu.model.payload import read_payload
from bongsu.store.core.clock import find_now
from bongsu.store.core.query import NOTIFICATION_ID, Row, Table, Transaction, in_both
from bongsu.store.decisions.digests import Actor, DigestText, GrownDigest, find_actors, set_texts
from bongsu.store.inbox import changes
from bongsu.store.members.channel_bits import BITS

_IN_APP = BITS[Channel.IN_APP]


@dataclass(frozen=True)
class Remainder:
    """What is left of a digest: how many, its newest actors, and the message and event of its newest entry."""

    size: int
    actors: Sequence[Actor]
    type: str
    locale: str
    ref_id: str | None
    title: str
    body: str
    data: dict[str, object]
    event: Event


# What a digest says with what is left of it; None: as before.
Rewrite = Callable[[Remainder], DigestText | None]


# The digests given ($1) with how many each has, whether it is in the inbox, and the newest message that counts in it, with
# its event. Locks nothing; run under the members' locks.
FIND_REMAINDERS = in_both(
    lambda d: (
        f"""
    SELECT g.notification_id, g.member_id, g.size, g.title AS old_title, g.body AS old_body, g.data AS old_data,
           n.channels & {_IN_APP} <> 0 AS is_in_inbox, n.channels & {_IN_APP} <> 0 OR n.archived_at IS NOT NULL AS is_shown,
           m.type, m.locale, m.ref_id, m.title, m.body, m.data,
           v.event_type, v.actor_id, v.target_id, v.ref_id AS event_ref_id,
           CAST(v.payload AS text) AS payload
    FROM {d.table("given", NOTIFICATION_ID, 1)}
    JOIN bongsu_digests AS g ON g.notification_id = given.notification_id
    JOIN bongsu_notifications AS n ON n.member_id = g.member_id AND n.notification_id = g.notification_id
    LEFT JOIN bongsu_messages AS m ON m.message_id = (
        SELECT max(e.message_id) FROM bongsu_digest_entries AS e
        WHERE e.notification_id = g.notification_id AND e.left_at IS NULL)
    LEFT JOIN bongsu_events AS v ON v.event_id = m.event_id"""
    )
)


async def find_remainders(tx: Transaction, notification_ids: Sequence[int]) -> Sequence[Row]:
    """These digests as they are now. Run under the members' locks."""
    return await tx.fetch(FIND_REMAINDERS(Table.of(NOTIFICATION_ID, notification_ids)))


async def rewrite_texts(tx: Transaction, rows: Sequence[Row], rewrite: Rewrite | None) -> list[str]:
    """Give digests that have something left the text of that. Returns the members whose pages show one that has changed."""
    if not rows or rewrite is None:
        return []
    actors = await find_actors(tx, [row["notification_id"] for row in rows])
    texts = [_text(row, actors.get(row["notification_id"], ()), rewrite) for row in rows]
    changed = [(row, text) for row, text in zip(rows, texts, strict=True) if text not in (None, _old_text(row))]
    if not changed:
        return []
    drawn = await changes.draw(tx, len(changed))
    grown = [
        GrownDigest(row["notification_id"], row["member_id"], row["size"], *text, change_id if row["is_in_inbox"] else None)
        for (row, text), change_id in zip(changed, drawn, strict=True)
        if text is not None
    ]
    await set_texts(tx, grown, await find_now(tx))
    return [digest.member_id for digest in grown if digest.change_id is not None]


def _old_text(row: Row) -> DigestText:
    return DigestText(row["old_title"], row["old_body"], row["old_data"])


def _text(row: Row, actors: Sequence[Actor], rewrite: Rewrite) -> DigestText | None:
    if row["type"] is None:
        return None
    # An event may have been deleted or erased since.
    payload = {} if row["payload"] is None else read_payload(row["payload"])
    event = Event.model_construct(
        event_type=row["event_type"] or "",
        actor_id=row["actor_id"],
        target_id=row["target_id"],
        ref_id=row["event_ref_id"],
        payload=payload,
    )
    content = (row["type"], row["locale"], row["ref_id"], row["title"], row["body"], dict(read_payload(row["data"])))
    return rewrite(Remainder(row["size"], actors, *content, event))
