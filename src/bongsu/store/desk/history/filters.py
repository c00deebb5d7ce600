"""What a page of the history is filtered by: as parameters, and as the SQL conditions that every page statement uses.

Parameters $1 to $8 are the same in all of them: $1 limit, $2 type, $3 event, $4 since, $5 until, $6 status, $7 channel, $8
the channel's bit. A filter that is not used is NULL. In the conditions m is the message, t the notification or suppression.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from bongsu.model.channels import Channel, find_channel
from bongsu.store.core.query import LARGEST_ID
from bongsu.store.members.channel_bits import BITS

# Larger than any member id: the last character there is, more often than an id is long.
LAST_MEMBER = "\U0010ffff" * 256


class Status(StrEnum):
    """What became of a notification, or why there is none."""

    SENT = "SENT"
    FAILED = "FAILED"
    PENDING = "PENDING"
    UNKNOWN = "UNKNOWN"
    CANCELLED = "CANCELLED"
    RATE_LIMITED = "RATE_LIMITED"
    DUPLICATE = "DUPLICATE"
    USER_OPTED_OUT = "USER_OPTED_OUT"
    NO_ADDRESS = "NO_ADDRESS"
    MERGED = "MERGED"


@dataclass(frozen=True)
class Filters:
    """What the rows have in common. `since` and `until` are about the time of the message, which is also the order."""

    member_id: str | None = None
    type: str | None = None
    event_id: UUID | None = None
    status: Status | None = None
    channel: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def of_message(self) -> tuple[Any, ...]:
        """Parameters $2 to $5."""
        return self.type, self.event_id, self.since, self.until

    def parameters(self, limit: int) -> tuple[Any, ...]:
        """Parameters $1 to $8."""
        bit = None if self.channel is None else find_channel(self.channel).bit
        return limit, *self.of_message, self.status and self.status.value, self.channel, bit


@dataclass(frozen=True, order=True)
class PageCursor:
    """A row in the order of the pages, or the end of a message's rows, which has an empty member id. The next page begins
    after it."""

    message_id: int = LARGEST_ID
    member_id: str = LAST_MEMBER


_IN_APP = BITS[Channel.IN_APP]

# --- as SQL -----------------------------------------------------------------------------------------------------------

# Deliveries without which a notification is neither FAILED nor UNKNOWN, and those without which it is not PENDING.
DEAD = "('FAIL', 'UNKNOWN')"
OPEN = "('READY', 'SENDING')"

# The status of a notification. A delivery under way decides it, then one whose outcome is unknown: an operator must not take
# for final what may still change. After that one success is enough. If all failed it is FAILED although the inbox has it,
# because that is what an operator searches for; and if all were cancelled, CANCELLED. A digest that is not sent because its
# member has read or deleted it in the inbox is SENT: the inbox is where they got it. Without deliveries it is in the inbox
# alone, and SENT unless it was withdrawn: its event was cancelled, or all that a digest had gathered. What the member has
# archived or deleted was not. What waits of a cancelled event is not sent, although its row has READY for a while.
_STATUS = f"""CASE (SELECT max(CASE WHEN d.status = 'CANCELLED' AND d.code IN ('READ', 'DELETED')
                                        AND ({{row}}.channels & {_IN_APP} <> 0 OR {{row}}.archived_at IS NOT NULL
                                             OR {{row}}.deleted_at IS NOT NULL) THEN 2
                                   WHEN d.status = 'CANCELLED' OR (d.status = 'READY' AND m.cancelled_at IS NOT NULL) THEN 0
                                   WHEN d.status = 'FAIL' THEN 1 WHEN d.status = 'SUCCESS' THEN 2
                                   WHEN d.status = 'UNKNOWN' THEN 3 ELSE 4 END)
                   FROM bongsu_deliveries d WHERE d.notification_id = {{row}}.notification_id)
              WHEN 4 THEN 'PENDING' WHEN 3 THEN 'UNKNOWN' WHEN 2 THEN 'SENT' WHEN 1 THEN 'FAILED' WHEN 0 THEN 'CANCELLED'
              ELSE CASE WHEN (m.cancelled_at IS NOT NULL OR m.is_digest) AND {{row}}.channels & {_IN_APP} = 0
                             AND {{row}}.archived_at IS NULL AND {{row}}.deleted_at IS NULL THEN 'CANCELLED'
                        ELSE 'SENT' END END"""

# Both tables give rows of these columns. The status is worked out for the rows of the page only. What the member has
# archived or deleted went to the inbox, although the bit is not set any more.
NOTIFICATION = f"""t.message_id, t.member_id, t.notification_id,
               t.channels | CASE WHEN t.archived_at IS NULL AND t.deleted_at IS NULL THEN 0 ELSE {_IN_APP} END AS channels,
               t.created_at, t.read_at, t.archived_at, t.deleted_at, CAST(NULL AS text) AS reason"""
SUPPRESSION = """t.message_id, t.member_id, CAST(NULL AS bigint) AS notification_id, m.channels, t.created_at,
               CAST(NULL AS timestamptz) AS read_at, CAST(NULL AS timestamptz) AS archived_at,
               CAST(NULL AS timestamptz) AS deleted_at, t.reason"""
# A digest has another text than its message. What was merged into one names its notification, and when it left that.
_DIGEST = (
    "CASE WHEN m.is_digest THEN (SELECT g.{text} FROM bongsu_digests g WHERE g.notification_id = page.notification_id) END"
)
_OF_ENTRY = f"""CASE WHEN page.reason = '{Status.MERGED}' THEN (
                    SELECT {{column}} FROM bongsu_digest_entries e
                    WHERE e.message_id = page.message_id AND e.member_id = page.member_id) END"""
PAGE_ROW = f"""page.message_id, page.member_id, m.event_id, m.type, m.subject, m.locale, m.is_critical,
           coalesce({_DIGEST.format(text="title")}, m.title) AS title,
           coalesce({_DIGEST.format(text="body")}, m.body) AS body,
           {_OF_ENTRY.format(column="e.notification_id")} AS merged_into, {_OF_ENTRY.format(column="e.left_at")} AS left_at,
           page.channels, page.notification_id, page.created_at, page.read_at, page.archived_at, page.deleted_at,
           coalesce(page.reason, {_STATUS.format(row="page")}) AS status"""

# The message has that type, event and time.
MESSAGE_FITS = """(CAST($2 AS text) IS NULL OR m.type = $2)
          AND (CAST($3 AS uuid) IS NULL OR m.event_id = $3)
          AND (CAST($4 AS timestamptz) IS NULL OR m.created_at >= $4)
          AND (CAST($5 AS timestamptz) IS NULL OR m.created_at < $5)"""
# Whether rows of either table can have the status. Both databases test this once and then do not read the other table.
IS_OF_NOTIFICATIONS = "(CAST($6 AS text) IS NULL OR $6 IN ('SENT', 'FAILED', 'PENDING', 'UNKNOWN', 'CANCELLED'))"
IS_OF_SUPPRESSIONS = "(CAST($6 AS text) IS NULL OR $6 NOT IN ('SENT', 'FAILED', 'PENDING', 'UNKNOWN', 'CANCELLED'))"
# The notification has that status and channel. By which channels it is sent is what its deliveries say: a member may have no
# device. A scalar subquery and not EXISTS, for which PostgreSQL might read all deliveries into a hash table.
NOTIFICATION_FITS = f"""(CAST($6 AS text) IS NULL OR {_STATUS.format(row="t")} = $6)
          AND (CAST($7 AS text) IS NULL
               OR ($7 = '{Channel.IN_APP}' AND (t.channels & CAST($8 AS integer) <> 0
                                     OR t.archived_at IS NOT NULL OR t.deleted_at IS NOT NULL))
               OR (SELECT 1 FROM bongsu_deliveries d
                   WHERE d.notification_id = t.notification_id AND d.channel = $7 LIMIT 1) IS NOT NULL)"""
# The suppression has that reason, and the notification would have had that channel.
SUPPRESSION_FITS = """(CAST($6 AS text) IS NULL OR t.reason = $6)
          AND (CAST($7 AS text) IS NULL OR m.channels & CAST($8 AS integer) <> 0)"""
