"""What goes into a decision and what comes out of it, as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from bongsu.store.core.query import Dialect, Row, optional_time

# By the index of its notice in the step: the member ids for whom it is to be decided, sorted, each once.
Recipients = Mapping[int, Sequence[str]]

# The reason of a row that could not be decided: the member, or the member's profile, was not known to the caller.
MISSING = "?"
# The reason of a member who has no notification of a message because it was merged into an open digest.
MERGED = "MERGED"

# With up to this many recent messages of a dedup key, each recipient is looked up in each of them. With more, everyone they
# went to is read instead: that is as many rows as were notified, which of a campaign, with its few messages, is too many.
MANY_MESSAGES = 100


class Message(NamedTuple):
    """The content of one notice of one event in one language, shared by all its notifications."""

    message_id: int
    event_id: UUID
    notice_index: int
    locale: str
    type: str
    subject: str
    title: str
    body: str
    ref_id: str | None
    data: str
    channels: int
    priority: int
    guarantee: str
    is_critical: bool
    created_at: datetime
    expires_at: datetime | None = None
    # When a member was last notified of it; None as long as no member was.
    last_notified_at: datetime | None = None
    # Whether its notice's audience did not fit into one step. Its recipients and deliveries are then counted as they change.
    is_bulk: bool = False
    # Whether its notice has a digest: the texts of its notifications are in bongsu_digests.
    is_digest: bool = False


MESSAGE = {
    "message_id": "bigint",
    "event_id": "uuid",
    "notice_index": "integer",
    "locale": "text",
    "type": "text",
    "subject": "text",
    "title": "text",
    "body": "text",
    "ref_id": "text",
    "data": "text",
    "channels": "integer",
    "priority": "integer",
    "guarantee": "text",
    "is_critical": "boolean",
    "created_at": "timestamptz",
    "expires_at": "timestamptz",
    "last_notified_at": "timestamptz",
    "is_bulk": "boolean",
    "is_digest": "boolean",
}


class NoticeRow(NamedTuple):
    """A notice of the step. `notice_index` counts within the step; notices with the same dedup key have the same `dedup`."""

    notice_index: int
    dedup: int
    type: str
    channels: int
    is_critical: bool
    # Whether it counts towards the daily cap, and is limited by it.
    is_capped: bool
    rank: int


NOTICE = {
    "notice_index": "integer",
    "dedup": "integer",
    "type": "text",
    "channels": "integer",
    "is_critical": "boolean",
    "is_capped": "boolean",
    "rank": "integer",
}


@dataclass(frozen=True)
class Profile:
    """What of a member decides the language, the day and the quiet hours."""

    locale: str = ""
    timezone: str = ""
    quiet_start: int = -1
    quiet_end: int = -1


class ProfileRow(NamedTuple):
    """A profile, and what follows from it now: the member's day, and when what is not critical may be sent."""

    locale: str
    timezone: str
    quiet_start: int
    quiet_end: int
    day: int
    due: datetime


PROFILE = {
    "locale": "text",
    "timezone": "text",
    "quiet_start": "integer",
    "quiet_end": "integer",
    "day": "integer",
    "due": "timestamptz",
}


class PacedNotice(NamedTuple):
    """A notice whose deliveries are spread: one member in so many seconds, after those of earlier steps."""

    notice_index: int
    seconds: float
    before: int


PACED_NOTICE = {"notice_index": "integer", "seconds": "double precision", "before": "integer"}


class ActiveTime(NamedTuple):
    """A time in which members with these quiet hours may be sent to, as pacing needs it: `since` and `until` on a clock
    that runs from the due time on and stands still in quiet hours, and for how long it has stood still before. All in
    microseconds."""

    timezone: str
    quiet_start: int
    quiet_end: int
    since: int
    until: int
    quiet_before: int


ACTIVE_TIME = {
    "timezone": "text",
    "quiet_start": "integer",
    "quiet_end": "integer",
    "since": "bigint",
    "until": "bigint",
    "quiet_before": "bigint",
}

# The message that members of a locale get of a notice.
CONTENT = {"notice_index": "integer", "locale": "text", "message_id": "bigint"}


class DedupKey(NamedTuple):
    """What makes a notice a duplicate of another one, and since when: its dedup window."""

    dedup: int
    type: str
    subject: str
    since: datetime


DEDUP_KEY = {"dedup": "integer", "type": "text", "subject": "text", "since": "timestamptz"}


class DigestNotice(NamedTuple):
    """What a notice is gathered by, and whose act it is about."""

    notice_index: int
    type: str
    key: str
    actor_id: str | None
    actor_name: str | None


DIGEST_NOTICE = {
    "notice_index": "integer",
    "type": "text",
    "key": "text",
    "actor_id": "text",
    "actor_name": "text",
}


@dataclass(frozen=True)
class DecisionInputs:
    """Everything a decision depends on besides the members' own rows."""

    notices: Sequence[NoticeRow]
    profiles: Sequence[ProfileRow]
    # notice_index, locale of the member, message id
    contents: Sequence[tuple[int, str, int]]
    keys: Sequence[DedupKey]
    # Messages that the notices themselves have written in earlier steps. They are no duplicates of themselves.
    own_messages: Sequence[int]
    daily_limit: int
    now: datetime
    # Indexes of notices whose audiences did not fit into one step.
    bulk: frozenset[int] = frozenset()
    paced: Sequence[PacedNotice] = ()
    # Of members with quiet hours, if a notice is paced.
    active: Sequence[ActiveTime] = ()
    # Of each notice, if those of the step have digests. All have the same window.
    digests: Sequence[DigestNotice] = ()


# A decided row, in bongsu_decided and as a parameter. No reason: the member gets a notification. The reason MERGED: it was
# merged into an open digest.
DECIDED = {
    "notice_index": "integer",
    "member_id": "text",
    "message_id": "bigint",
    "notification_id": "bigint",
    "channels": "integer",
    "rank": "integer",
    "due": "timestamptz",
    "day": "integer",
    "is_critical": "boolean",
    "is_capped": "boolean",
    "reason": "text",
}


class Candidate(NamedTuple):
    """A recipient of a notice with a digest: the first reason against it so far, and the open digest it can be merged
    into."""

    notice_index: int
    member_id: str
    dedup: int
    message_id: int
    channels: int
    rank: int
    # When the digest that it may open ends: its push is due then.
    due: datetime
    day: int
    # Whether it counts towards the daily cap, and how much of that is used.
    is_capped: bool
    counted: int
    reason: str | None
    digest_id: int | None
    # How many that digest has gathered, whether it is in the inbox, and whether it has something of the same actor.
    size: int | None
    is_in_inbox: bool | None
    is_counted: bool


def candidate_of(dialect: Dialect, row: Row) -> Candidate:
    values = {name: row[name] for name in Candidate._fields}
    # What could not be decided has none.
    due = optional_time(dialect, row["due"])
    return Candidate(**{**values, "due": due, "is_capped": bool(row["is_capped"]), "is_counted": bool(row["is_counted"])})


class DecisionCount(NamedTuple):
    """So many recipients of a notice have the same message and the same reason."""

    notice_index: int
    message_id: int | None
    reason: str | None
    recipients: int
    # How many of them have it in the inbox.
    in_inbox: int


@dataclass(frozen=True)
class DecisionRows:
    """What was decided: the counts, and the rows themselves unless they are in bongsu_decided."""

    counts: Sequence[DecisionCount]
    recipients: Recipients
    inputs: DecisionInputs
    rows: Sequence[Row] | Sequence[tuple[Any, ...]] | None = None

    @property
    def is_incomplete(self) -> bool:
        """Some members or profiles are missing: see find_missing_members and find_profiles."""
        return any(count.reason == MISSING for count in self.counts)

    @property
    def notified_messages(self) -> set[int]:
        """Messages of which some member gets a notification, or has it merged into one: others can be duplicates of them."""
        return {count.message_id for count in self.counts if count.reason in (None, MERGED) and count.message_id is not None}
