"""How far events have come: one event with the counts of its members and deliveries, and pages of events, newest first.

A read of an event touches no more than a few tens of thousands of rows. A message with `is_bulk` has its counts in
bongsu_message_counts; every other has at most one step of recipients, whose rows are counted by index. A page looks at
SCAN_LIMIT events at most, however rarely its filters match.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from bongsu.model import EventStatus, Reason
from bongsu.store.core.query import Row, Statement, Transaction, as_uuid, fetch_one, in_both, optional_time
from bongsu.store.decisions.rows import MERGED
from bongsu.store.desk.cancellations import Cancellation, find_cancellation
from bongsu.store.outbox.rows import ROW_COLUMNS, EventRow, read_event_row

# Events that one page looks at: work for a twentieth of a second. With fewer, a caller with a rare filter asks more often.
SCAN_LIMIT = 50_000
# Members of a message that are asked when their deliveries are due. The last of all may have none.
_LAST_MEMBERS = 50
# An end that lies further ahead is no expectation, and might not fit into a date.
_LONGEST = timedelta(days=3650)

# The statuses of a delivery, in the order in which it takes them.
DELIVERY_STATUSES = ("READY", "SENDING", "SUCCESS", "FAIL", "UNKNOWN", "CANCELLED")
WAITING = ("READY", "SENDING")
ANSWERED = ("SUCCESS", "FAIL", "UNKNOWN")


# --- one event --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Recipients and deliveries of an event. Numbers that are zero are left out."""

    notified: int = 0
    suppressed: Mapping[str, int] = field(default_factory=dict)
    # By channel and status.
    deliveries: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Recipients for whom it was merged into an open digest.
    merged: int = 0

    @property
    def decided(self) -> int:
        return self.notified + self.merged + sum(self.suppressed.values())

    @property
    def made(self) -> int:
        return self._number_of(DELIVERY_STATUSES)

    @property
    def waiting(self) -> int:
        return self._number_of(WAITING)

    @property
    def answered(self) -> int:
        """Those that were sent and have an outcome."""
        return self._number_of(ANSWERED)

    def _number_of(self, statuses: Sequence[str]) -> int:
        return sum(each.get(status, 0) for each in self.deliveries.values() for status in statuses)


@dataclass(frozen=True)
class EventProgress:
    """An event and how far it has come, at `now` by the store's time."""

    event: EventRow
    now: datetime
    counts: Counts = Counts()
    # When workers may take it, if that lies ahead: it is scheduled, or waits for its next attempt.
    due_at: datetime | None = None
    # Since its first message was written; None if it has none.
    seconds: float | None = None
    cancellation: Cancellation | None = None
    # When the last of the waiting deliveries is due, estimated from the last members.
    last_due: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is finished and no delivery of it waits."""
        return self.event.status is not EventStatus.PENDING and not self.counts.waiting

    @property
    def rate_per_second(self) -> float | None:
        """Outcomes per second since the first message. None if there are none, or if nothing waits for them."""
        if not self.seconds or self.seconds < 0 or not self.counts.answered or not self.counts.waiting:
            return None
        return self.counts.answered / self.seconds

    @property
    def expected_end(self) -> datetime | None:
        return end_at_rate(self, self.rate_per_second)


def end_at_rate(progress: EventProgress, rate: float | None) -> datetime | None:
    """When what waits will have an outcome at that rate, and not before the last of it is due. None if nothing waits, or
    neither is known."""
    waiting = progress.counts.waiting
    if not waiting:
        return None
    ends = [progress.last_due] if progress.last_due is not None and progress.last_due > progress.now else []
    if rate and waiting / rate <= _LONGEST.total_seconds():
        ends.append(progress.now + timedelta(seconds=waiting / rate))
    return max(ends, default=None)


# When the last waiting delivery of the last members of each message is due: due times are spread in the order of member ids.
# On PostgreSQL each is looked up by its notification, and only then its status is tested: the planner would otherwise look
# at every waiting delivery, which a running campaign has by the hundred thousand. For BETWEEN see COUNTS; with it, no other
# index has this order.
_LAST_DUE_POSTGRES = f"""
           (SELECT max(d.due)
            FROM bongsu_messages AS m
            CROSS JOIN LATERAL (
                SELECT x.notification_id FROM bongsu_notifications AS x
                WHERE x.message_id BETWEEN m.message_id AND m.message_id
                ORDER BY x.message_id DESC, x.member_id DESC LIMIT {_LAST_MEMBERS}) AS n
            CROSS JOIN LATERAL (
                SELECT x.due, x.status, x.leased_by FROM bongsu_deliveries AS x
                WHERE x.notification_id = n.notification_id OFFSET 0) AS d
            WHERE m.event_id = e.event_id AND d.status = 'READY' AND d.leased_by IS NULL)"""
_LAST_DUE_SQLITE = f"""
           (SELECT max((
                SELECT max(d.due) FROM bongsu_deliveries AS d INDEXED BY bongsu_deliveries_notification
                WHERE d.status = 'READY' AND d.leased_by IS NULL AND d.notification_id IN (
                    SELECT n.notification_id FROM bongsu_notifications AS n WHERE n.message_id = m.message_id
                    ORDER BY n.member_id DESC LIMIT {_LAST_MEMBERS})))
            FROM bongsu_messages AS m WHERE m.event_id = e.event_id)"""

# One event by its primary key, the store's time, and how long ago its first message was written, by the unique key of
# messages. Locks nothing. $1 event.
FIND = in_both(
    lambda d: (
        f"""
    SELECT {ROW_COLUMNS}, {d.now} AS now,
           {d.seconds_since("(SELECT min(m.created_at) FROM bongsu_messages m WHERE m.event_id = e.event_id)")} AS seconds,
           {_LAST_DUE_POSTGRES if d.name == "postgresql" else _LAST_DUE_SQLITE} AS last_due
    FROM bongsu_events e WHERE e.event_id = $1"""
    )
)

# The counts of an event by channel and status for deliveries, with an empty channel for recipients. One statement, so that
# all numbers are of one moment. `is_kept`: read from bongsu_message_counts, without a look at notifications or deliveries;
# only these rows have MADE. The others are counted, by the unique keys that begin with the message and by the index of a
# delivery's notification; only these have READY and SENDING. Locks nothing. $1 event.
#
# On PostgreSQL, BETWEEN with the same number twice is an equation that the planner takes for a narrow range: where one
# message has most of the rows of a table, it would read the whole table for any message.
COUNTS = Statement(
    postgres="""
    WITH messages AS MATERIALIZED (
        SELECT message_id, is_bulk FROM bongsu_messages WHERE event_id = $1
    ), counted AS (
        SELECT true AS is_kept, c.channel, c.category, c.count
        FROM messages m
        CROSS JOIN LATERAL (SELECT * FROM bongsu_message_counts c WHERE c.message_id = m.message_id OFFSET 0) AS c
        WHERE m.is_bulk
        UNION ALL
        SELECT false, '', 'NOTIFIED', n.count
        FROM messages m
        CROSS JOIN LATERAL (
            SELECT count(*) AS count FROM bongsu_notifications n
            WHERE n.message_id BETWEEN m.message_id AND m.message_id) AS n
        WHERE NOT m.is_bulk
        UNION ALL
        SELECT false, '', s.reason, s.count
        FROM messages m
        CROSS JOIN LATERAL (
            SELECT s.reason, count(*) AS count FROM bongsu_suppressions s
            WHERE s.message_id BETWEEN m.message_id AND m.message_id GROUP BY s.reason) AS s
        WHERE NOT m.is_bulk
        UNION ALL
        SELECT false, d.channel, d.status, 1
        FROM messages m
        CROSS JOIN LATERAL (
            SELECT n.notification_id FROM bongsu_notifications n
            WHERE n.message_id BETWEEN m.message_id AND m.message_id OFFSET 0) AS n
        CROSS JOIN LATERAL (
            SELECT d.channel, d.status FROM bongsu_deliveries d WHERE d.notification_id = n.notification_id OFFSET 0) AS d
        WHERE NOT m.is_bulk)
    SELECT is_kept, channel, category, CAST(sum(count) AS bigint) AS count
    FROM counted GROUP BY is_kept, channel, category""",
    sqlite="""
    WITH messages AS MATERIALIZED (
        SELECT message_id, is_bulk FROM bongsu_messages WHERE event_id = $1
    ), counted AS (
        SELECT true AS is_kept, c.channel, c.category, c.count
        FROM messages m
        CROSS JOIN bongsu_message_counts c ON c.message_id = m.message_id
        WHERE m.is_bulk
        UNION ALL
        SELECT false, '', 'NOTIFIED', count(*)
        FROM messages m
        CROSS JOIN bongsu_notifications n INDEXED BY sqlite_autoindex_bongsu_notifications_1
          ON n.message_id = m.message_id
        WHERE NOT m.is_bulk
        UNION ALL
        SELECT false, '', s.reason, 1
        FROM messages m
        CROSS JOIN bongsu_suppressions s INDEXED BY sqlite_autoindex_bongsu_suppressions_1
          ON s.message_id = m.message_id
        WHERE NOT m.is_bulk
        UNION ALL
        SELECT false, d.channel, d.status, 1
        FROM messages m
        CROSS JOIN bongsu_notifications n INDEXED BY sqlite_autoindex_bongsu_notifications_1
          ON n.message_id = m.message_id
        CROSS JOIN bongsu_deliveries d INDEXED BY bongsu_deliveries_notification
          ON d.notification_id = n.notification_id
        WHERE NOT m.is_bulk)
    SELECT is_kept, channel, category, sum(count) AS count FROM counted GROUP BY is_kept, channel, category""",
)


async def find_progress(tx: Transaction, event_id: UUID) -> EventProgress | None:
    row = await fetch_one(tx, FIND(event_id))
    if row is None:
        return None
    dialect = tx.dialect
    event, now = read_event_row(dialect, row), dialect.time(row["now"])
    # Of an event that a worker has leased, `due` is the end of the lease.
    is_ahead = event.status is EventStatus.PENDING and not event.is_leased and event.due > now
    return EventProgress(
        event=event,
        now=now,
        counts=_counts(await tx.fetch(COUNTS(event_id))),
        due_at=event.due if is_ahead else None,
        seconds=row["seconds"],
        cancellation=await find_cancellation(tx, event_id),
        last_due=optional_time(dialect, row["last_due"]),
    )


def _counts(rows: Sequence[Row]) -> Counts:
    recipients: Counter[str] = Counter()
    deliveries: defaultdict[str, Counter[str]] = defaultdict(Counter)
    made: Counter[str] = Counter()
    for row in rows:
        channel, category, count = row["channel"], row["category"], row["count"]
        if not channel:
            recipients[category] += count
        elif category == "MADE":
            made[channel] += count
        else:
            deliveries[channel][category] += count
            # Counts are kept of what was made and of what has ended: what is left of the first is to be sent.
            made[channel] -= count if row["is_kept"] else 0
    for channel, count in made.items():
        deliveries[channel]["READY"] += max(count, 0)
    return Counts(
        recipients["NOTIFIED"],
        _without_zeros(recipients, Reason),
        {
            channel: known
            for channel in sorted(deliveries)
            if (known := _without_zeros(deliveries[channel], DELIVERY_STATUSES))
        },
        recipients[MERGED],
    )


def _without_zeros(counts: Counter[str], names: Iterable[str]) -> dict[str, int]:
    return {str(name): counts[name] for name in names if counts[name]}


# --- pages ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class PageCursor:
    """An event in the order of the list."""

    created_at: datetime
    event_id: UUID

    @property
    def parameters(self) -> tuple[datetime, UUID]:
        return self.created_at, self.event_id


_FIRST = PageCursor(datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))
_LAST = PageCursor(datetime(9999, 12, 31, tzinfo=UTC), UUID(int=2**128 - 1))


@dataclass(frozen=True)
class Filters:
    """What the events have in common. `since` and `until` are about when they were stored, which is also the order."""

    type: str | None = None
    status: EventStatus | None = None
    target_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def of_event(self) -> tuple[str | None, ...]:
        """Parameters $6 to $8 of a page. If all are None, every event of that time matches."""
        return self.type, self.status and self.status.value, self.target_id


class EventPage(NamedTuple):
    """Events, newest first, and the cursor of the next page. A page with few rows, or none, need not be the last."""

    rows: list[EventRow]
    next: PageCursor | None


# The events below ($1, $2) and from ($3, $4) on, by time and id.
_BETWEEN = "(e.created_at, e.event_id) < ($1, $2) AND (e.created_at, e.event_id) >= ($3, $4)"

# The event that $5 others come before, newest first, by the index of time and id alone. Locks nothing.
FLOOR = in_both(
    lambda d: (
        f"""
    SELECT e.created_at, e.event_id FROM bongsu_events e {d.index_hint("bongsu_events_created")}
    WHERE {_BETWEEN}
    ORDER BY e.created_at DESC, e.event_id DESC LIMIT 1 OFFSET $5"""
    )
)
# The newest events that match, by the index of time and id; it stops when it has enough. PostgreSQL may instead read and
# sort all between the bounds, which the floor keeps few. Locks nothing. $5 limit, $6 type, $7 status, $8 target.
PAGE = in_both(
    lambda d: (
        f"""
    SELECT {ROW_COLUMNS} FROM bongsu_events e {d.index_hint("bongsu_events_created")}
    WHERE {_BETWEEN}
      AND (CAST($6 AS text) IS NULL OR e.event_type = $6)
      AND (CAST($7 AS text) IS NULL OR e.status = $7)
      AND (CAST($8 AS text) IS NULL OR e.target_id = $8)
    ORDER BY e.created_at DESC, e.event_id DESC LIMIT $5"""
    )
)


async def find_page(
    tx: Transaction, filters: Filters, after: PageCursor | None = None, limit: int = 50, *, scan_limit: int = SCAN_LIMIT
) -> EventPage:
    """The newest events after the cursor that match, among at most `scan_limit` of them."""
    above = min(after or _LAST, _LAST if filters.until is None else PageCursor(filters.until, _FIRST.event_id))
    lowest = _FIRST if filters.since is None else PageCursor(filters.since, _FIRST.event_id)
    # One more than asked for, to know whether there is a next page. Where all match, no others need be looked at.
    floor = await _find_floor(tx, above, lowest, scan_limit if any(filters.of_event) else limit + 1)
    found = await tx.fetch(PAGE(*above.parameters, *(floor or lowest).parameters, limit + 1, *filters.of_event))
    rows = [read_event_row(tx.dialect, row) for row in found[:limit]]
    if len(found) > limit:
        return EventPage(rows, PageCursor(rows[-1].created_at, rows[-1].event_id))
    return EventPage(rows, floor)


async def _find_floor(tx: Transaction, above: PageCursor, lowest: PageCursor, scan_limit: int) -> PageCursor | None:
    """The last of that many events; None if there are fewer."""
    row = await fetch_one(tx, FLOOR(*above.parameters, *lowest.parameters, scan_limit - 1))
    return None if row is None else PageCursor(tx.dialect.time(row["created_at"]), as_uuid(row["event_id"]))
