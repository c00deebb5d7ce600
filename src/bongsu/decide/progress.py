"""Events being decided: how far each has come, and what a step has decided."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from bongsu.model import Delta, Listed, Notice, Selected
from bongsu.runtime import telemetry
from bongsu.store.decisions import DecisionRows, Message, StepEffect
from bongsu.store.decisions.digests import DigestChanges
from bongsu.store.decisions.rows import MERGED
from bongsu.store.outbox import Begun, ClaimedEvent


@dataclass
class EventInProgress:
    """A claimed event, its notices, and how far it has come: the current notice, and the last member decided of it."""

    claimed: ClaimedEvent
    notices: Sequence[Notice]
    # What it counts, once, with the step that finishes it.
    deltas: Sequence[Delta] = ()
    notice: int = 0
    after: str = ""
    # Messages already written, by notice and locale.
    messages: dict[tuple[int, str], int] = field(default_factory=dict)
    # How many members were notified by the steps of the current notice so far.
    notified: int = 0
    # Notices whose audience is a user's SELECT, which has run: its members are stored.
    stored_audiences: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Lists in id order, each member once: every step looks for its cursor in them."""
        self.notices = [
            _with_list(notice, notice.audience.member_ids)
            if isinstance(notice.audience, Listed) and len(notice.audience.member_ids) > 1
            else notice
            for notice in self.notices
        ]

    @property
    def event_id(self) -> UUID:
        return self.claimed.event.event_id

    @property
    def claim(self) -> tuple[UUID, int]:
        return self.event_id, self.claimed.epoch

    @property
    def position(self) -> tuple[int, str]:
        """How far it has come: the current notice, and its last member that is decided."""
        return self.notice, self.after

    @property
    def is_done(self) -> bool:
        """No notice is left to decide."""
        return self.notice >= len(self.notices)

    @property
    def is_long(self) -> bool:
        """The audience of the current notice did not fit into a step, so it may take many more."""
        return bool(self.after)

    @property
    def is_ready(self) -> bool:
        """A step can decide it: it waits for no SELECT."""
        is_selected = not self.is_done and isinstance(self.current_notice.audience, Selected)
        return not is_selected or self.notice in self.stored_audiences

    @property
    def is_listed(self) -> bool:
        """The audience of the current notice is a list; so is that of an event without a notice left to decide."""
        return self.is_done or isinstance(self.current_notice.audience, Listed)

    @property
    def current_notice(self) -> Notice:
        return self.notices[self.notice]

    @property
    def dedup_key(self) -> tuple[str, str]:
        return self.current_notice.type.name, self.current_notice.subject

    @property
    def own_messages(self) -> list[int]:
        """What the current notice has written in earlier steps."""
        return [message_id for (notice, _), message_id in self.messages.items() if notice == self.notice]

    def resume(self, begun: Begun) -> None:
        self.notice, self.after = json.loads(begun.cursor)
        self.messages.update(begun.messages)
        self.notified = begun.notified.get(self.notice, 0)

    def list_audience(self, member_ids: Sequence[str]) -> None:
        """The audience of the current notice is exactly these members."""
        self.notices = [
            _with_list(notice, member_ids) if index == self.notice else notice for index, notice in enumerate(self.notices)
        ]

    def position_after(self, cursor: str | None) -> tuple[int, str]:
        """Where it continues: behind that member, or with the next notice."""
        return (self.notice + 1, "") if cursor is None else (self.notice, cursor)


def _with_list(notice: Notice, member_ids: Sequence[str]) -> Notice:
    return replace(notice, audience=Listed(tuple(sorted(set(member_ids)))))


@dataclass
class Decision:
    """What a step leads to. It holds once its transaction is committed; call `settle` then."""

    finished: list[EventInProgress] = field(default_factory=list)
    # Events that continue, and from where.
    unfinished: list[tuple[EventInProgress, tuple[int, str]]] = field(default_factory=list)
    # Events that another worker has claimed meanwhile. Nothing was decided for them.
    lost: list[EventInProgress] = field(default_factory=list)
    new_messages: list[tuple[EventInProgress, Message]] = field(default_factory=list)
    # Messages of earlier steps of which more members are notified.
    used_again: list[int] = field(default_factory=list)
    # What was decided for the members; None if there were none.
    rows: DecisionRows | None = None
    # What it does to digests.
    digests: DigestChanges = field(default_factory=DigestChanges)
    # The effects of the events that it finishes, other than their notices.
    effects: list[StepEffect] = field(default_factory=list)
    # How many deliveries it made.
    deliveries: int = 0
    # Recipients by notice type and reason; no reason means notified, MERGED merged into a digest.
    counts: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    # Members notified, by event.
    notified: Counter[UUID] = field(default_factory=Counter)

    @property
    def events(self) -> list[EventInProgress]:
        """Those that the step has advanced."""
        return [*self.finished, *(event for event, _ in self.unfinished)]

    @property
    def contents(self) -> list[Message]:
        return [message for _, message in self.new_messages]

    @property
    def notified_by_message(self) -> Counter[int]:
        """Members notified, by message."""
        counts: Counter[int] = Counter()
        for count in self.rows.counts if self.rows is not None else ():
            if count.reason is None and count.message_id is not None:
                counts[count.message_id] += count.recipients
        return counts

    @property
    def updated(self) -> list[str]:
        """Members whose inboxes show a digest that has grown."""
        return [digest.member_id for digest in self.digests.grown if digest.change_id is not None]

    @property
    def cursors(self) -> dict[tuple[UUID, int], str]:
        return {event.claim: json.dumps(position, ensure_ascii=False) for event, position in self.unfinished}

    def settle(self) -> None:
        """Advance the events in memory to where the store now has them, and count for the metrics."""
        for event, message in self.new_messages:
            event.messages[message.notice_index, message.locale] = message.message_id
        for event, (notice, after) in self.unfinished:
            event.notified = 0 if notice != event.notice else event.notified + self.notified[event.event_id]
            event.notice, event.after = notice, after
        for (type_name, reason), count in self.counts.items():
            if reason is None:
                telemetry.NOTIFICATIONS.labels(type_name).inc(count)
            elif reason == MERGED:
                telemetry.MERGED.labels(type_name).inc(count)
            else:
                telemetry.SUPPRESSIONS.labels(type_name, reason).inc(count)
