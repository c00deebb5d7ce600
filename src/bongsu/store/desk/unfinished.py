"""Events that concern a member and have not led to all they should: they wait, failed, were not handled or were cancelled.

An event concerns its target, by an index, and the members that its payload lists (`userIds` of a direct send, `memberIds` of
built-in events): those lists are in no index, so only the newest waiting and the newest dead events are searched for them.
"""

from __future__ import annotations

from bongsu.store.core.query import Statement, Transaction, in_both
from bongsu.store.outbox.rows import ROW_COLUMNS, EventRow, read_event_row

# Events of each kind whose lists are searched. A list may have 100,000 members, which takes some 10 ms.
SEARCHED = 1_000


# Events about a member that are not DONE, newest first, by the index of them. Locks nothing. $1 member, $2 limit.
BY_TARGET = in_both(
    lambda d: (
        f"""
    SELECT {ROW_COLUMNS} FROM bongsu_events AS e {d.index_hint("bongsu_events_target")}
    WHERE e.target_id = $1 AND e.status <> 'DONE'
    ORDER BY e.created_at DESC LIMIT $2"""
    )
)
# Events that list a member, of the $3 that are due last and the $3 that failed last, by the partial indexes of both. Locks
# nothing. $1 member, $2 limit. On SQLite a payload is parsed only if the id stands in it, or something that is escaped.
BY_LIST = Statement(
    postgres=f"""
    WITH searched AS MATERIALIZED (
        (SELECT event_id FROM bongsu_events WHERE status = 'PENDING' ORDER BY due DESC LIMIT $3)
        UNION ALL
        (SELECT event_id FROM bongsu_events WHERE status IN ('FAILED', 'UNHANDLED') ORDER BY finished_at DESC LIMIT $3))
    SELECT {ROW_COLUMNS}
    FROM searched
    CROSS JOIN LATERAL (SELECT * FROM bongsu_events e WHERE e.event_id = searched.event_id OFFSET 0) AS e
    WHERE e.payload -> 'userIds' ? $1 OR e.payload -> 'memberIds' ? $1
    ORDER BY e.created_at DESC LIMIT $2""",
    sqlite=f"""
    WITH searched AS MATERIALIZED (
        SELECT * FROM (
            SELECT event_id FROM bongsu_events INDEXED BY bongsu_events_due
            WHERE status = 'PENDING' ORDER BY due DESC LIMIT $3)
        UNION ALL
        SELECT * FROM (
            SELECT event_id FROM bongsu_events INDEXED BY bongsu_events_dead
            WHERE status IN ('FAILED', 'UNHANDLED') ORDER BY finished_at DESC LIMIT $3))
    SELECT {ROW_COLUMNS}
    FROM searched CROSS JOIN bongsu_events e ON e.event_id = searched.event_id
    WHERE (instr(e.payload, json_quote($1)) > 0 OR instr(e.payload, '\\u') > 0)
      AND (EXISTS (SELECT 1 FROM json_each(e.payload, '$.userIds') AS one WHERE one.value = $1)
           OR EXISTS (SELECT 1 FROM json_each(e.payload, '$.memberIds') AS one WHERE one.value = $1))
    ORDER BY e.created_at DESC LIMIT $2""",
)


async def find_unfinished(tx: Transaction, member_id: str, limit: int) -> list[EventRow]:
    """The newest of them: first those about the member alone, then those that list the member among others."""
    about = await tx.fetch(BY_TARGET(member_id, limit))
    listing = await tx.fetch(BY_LIST(member_id, limit, SEARCHED))
    found = {event.event_id: event for event in (read_event_row(tx.dialect, row) for row in (*about, *listing))}
    return list(found.values())[:limit]
