"""Decide: an event's notices become inbox rows, deliveries and suppressions, for a bounded number of members at a time.

One step is one transaction: the cursor, the dedup window, the daily caps, the inbox and the deliveries change together or
not at all. Locks are taken in one order everywhere: dedup keys, events, members by id. All times are the store's.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bongsu import telemetry
from bongsu.audience import NextRecipients, Recipients, Remainder
from bongsu.errors import BadTemplate
from bongsu.guard import Quiet, local_day, quiet_until
from bongsu.model import Notice, Priority
from bongsu.settings import Settings
from bongsu.store import decisions
from bongsu.store.audience_snapshots import NoticeKey
from bongsu.store.channel_bits import to_bits
from bongsu.store.decisions import DecisionInputs, DecisionRows, DedupKey, Message, NoticeRow, Profile, ProfileRow
from bongsu.store.outbox import Begun, ClaimedEvent, LockedClaims
from bongsu.store.query import Transaction
from bongsu.templates import Templates

# Members decided in one transaction: enough that its fixed cost is nothing per member, few enough that it holds its locks
# for well under a second and a crash repeats little.
CHUNK = 10_000
# Profiles given with each step. More would cost every step; members with another profile cost theirs a second attempt.
PROFILES = 256

LANES = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}

_log = telemetry.log("bongsu.fanout")


class MissingMembers(Exception):
    """Some recipients are no members yet, or have profiles that were not known. Insert the members, then decide again."""

    def __init__(self, member_ids: Sequence[str]) -> None:
        super().__init__(f"{len(member_ids)} members are missing")
        self.member_ids = member_ids


@dataclass
class EventInProgress:
    """A claimed event, its notices, and how far it has come: the current notice, and the last member decided of it."""

    claimed: ClaimedEvent
    notices: Sequence[Notice]
    notice: int = 0
    after: str = ""
    # Messages already written, by notice and locale.
    messages: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def event_id(self) -> UUID:
        return self.claimed.event.event_id

    @property
    def claim(self) -> tuple[UUID, int]:
        return self.event_id, self.claimed.epoch

    @property
    def is_done(self) -> bool:
        """No notice is left to decide."""
        return self.notice >= len(self.notices)

    @property
    def is_long(self) -> bool:
        """Its audience did not fit into a step, so it may take many more."""
        return bool(self.after)

    @property
    def current_notice(self) -> Notice:
        return self.notices[self.notice]

    @property
    def dedup_key(self) -> tuple[str, str]:
        return self.current_notice.type.name, self.current_notice.subject

    def resume(self, begun: Begun) -> None:
        self.notice, self.after = json.loads(begun.cursor)
        self.messages.update(begun.messages)

    def position_after(self, cursor: str | None) -> tuple[int, str]:
        """Where it continues: behind that member, or with the next notice."""
        return (self.notice + 1, "") if cursor is None else (self.notice, cursor)


@dataclass
class Decision:
    """What a step leads to. It holds once its transaction is committed; call `settle` then."""

    finished: list[EventInProgress] = field(default_factory=list)
    # Events that continue, and from where.
    unfinished: list[tuple[EventInProgress, tuple[int, str]]] = field(default_factory=list)
    # New messages: the event, the locale, the id.
    messages: list[tuple[EventInProgress, str, int]] = field(default_factory=list)
    # The contents of those.
    words: list[Message] = field(default_factory=list)
    # Messages of earlier steps of which more members are notified.
    used_again: list[int] = field(default_factory=list)
    # What was decided for the members; None if there were none.
    rows: DecisionRows | None = None
    # How many deliveries it made.
    deliveries: int = 0
    # Recipients by notice type and reason; no reason means notified.
    counts: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    @property
    def cursors(self) -> dict[tuple[UUID, int], str]:
        return {event.claim: json.dumps(position, ensure_ascii=False) for event, position in self.unfinished}

    def settle(self) -> None:
        """Advance the events in memory to where the store now has them, and count for the metrics."""
        for event, locale, message_id in self.messages:
            event.messages[event.notice, locale] = message_id
        for event, position in self.unfinished:
            event.notice, event.after = position
        for (type_name, reason), count in self.counts.items():
            if reason is None:
                telemetry.NOTIFICATIONS.labels(type_name).inc(count)
            else:
                telemetry.SUPPRESSIONS.labels(type_name, reason).inc(count)


@dataclass(frozen=True)
class RequiredLocks:
    """What a step takes before it decides: names to lock, and ids for so many new messages."""

    names: Sequence[str]
    messages: int


class FanOut:
    """Decides the notices of events, step by step."""

    def __init__(self, templates: Templates, settings: Settings, chunk: int = CHUNK) -> None:
        self._templates = templates
        self._settings = settings
        self._next_recipients = NextRecipients(chunk)
        # Those met last come last. The first is that of members who have set nothing.
        self._profiles = {Profile(): None}

    def required_locks(self, events: Sequence[EventInProgress]) -> RequiredLocks:
        """For the next step of these events, or of some of them."""
        names = []
        messages = 0
        for event in events:
            if event.is_done:
                continue
            if window := self._dedup_window(event):
                names.append(f"{window[0]} {window[1]}")
            # A missing template is reported only when a recipient needs it.
            with contextlib.suppress(BadTemplate):
                messages += sum(known is None for known in self._known_messages([event]).values())
        return RequiredLocks(names, messages)

    async def decide(self, tx: Transaction, events: Sequence[EventInProgress], held: LockedClaims) -> Decision:
        """Decide the next step of these events, whose locks the transaction holds. The caller applies the decision.

        Events there was no room for are not in it. Of each event only the current notice is decided, so that one cursor says
        how far the event has come. Of two events with the same dedup key only the first, so that the second can see it when
        its turn comes.
        """
        decision = Decision([event for event in events if event.is_done])
        active = _first_of_each_key(events)
        recipients = await self._next_recipients.find(tx, _remainders(active), held.now)
        if not recipients.is_empty:
            contents = self._assign_messages(active, held.message_ids)
            inputs = self._inputs(active, contents, held.now)
            decision.rows = await decisions.decide_members(tx, recipients.members, inputs)
            if decision.rows.is_incomplete:
                raise await self._missing(tx, recipients)
            await self._render_messages(tx, active, contents, decision, held.now)
            for one in decision.rows.counts:
                decision.counts[active[one.place].current_notice.type.name, one.reason] += one.recipients
        for place in recipients.members:
            position = active[place].position_after(recipients.cursor(place))
            if position[0] >= len(active[place].notices):
                decision.finished.append(active[place])
            else:
                decision.unfinished.append((active[place], position))
        return decision

    async def _missing(self, tx: Transaction, recipients: Recipients) -> MissingMembers:
        """Remember the profiles of these recipients; the error names those who are no members yet."""
        profiles = await decisions.find_profiles(tx, recipients.members)
        for profile in profiles:
            self._profiles.pop(profile, None)
            self._profiles[profile] = None
        # All that this step needs, however many they are; of the others those met last.
        for profile in list(self._profiles)[: max(0, len(self._profiles) - max(PROFILES, len(profiles)))]:
            del self._profiles[profile]
        return MissingMembers(await decisions.find_missing_members(tx, recipients.members))

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _inputs(
        self, events: Sequence[EventInProgress], contents: Mapping[tuple[int, str], int], now: datetime
    ) -> DecisionInputs:
        return DecisionInputs(
            notices=[_notice_row(place, event.current_notice) for place, event in enumerate(events)],
            profiles=[self._profile_row(profile, now) for profile in self._profiles],
            contents=[
                (place, locale, contents[place, self._content_locale(event.current_notice, locale)])
                for place, event in enumerate(events)
                for locale in self._locales
            ],
            keys=self._dedup_keys(events, now),
            own_messages=[
                message_id
                for event in events
                for (notice, _), message_id in event.messages.items()
                if notice == event.notice
            ],
            daily_limit=self._settings.daily_limit,
            now=now,
        )

    def _dedup_keys(self, events: Sequence[EventInProgress], now: datetime) -> list[DedupKey]:
        windows = ((place, self._dedup_window(event)) for place, event in enumerate(events))
        return [DedupKey(place, one[0], one[1], now - timedelta(hours=one[2])) for place, one in windows if one is not None]

    def _dedup_window(self, event: EventInProgress) -> tuple[str, str, float] | None:
        """Type, subject and hours in which the current notice may be a duplicate; None where it cannot be one."""
        notice = event.current_notice
        hours = self._settings.duplicate_hours if notice.type.duplicate_hours is None else notice.type.duplicate_hours
        # With the event itself as subject, it can only be a duplicate of another of the event's own notices.
        is_only = sum((one.type.name, one.subject) == event.dedup_key for one in event.notices) == 1
        if hours <= 0 or (notice.subject == str(event.event_id) and is_only):
            return None
        return notice.type.name, notice.subject, hours

    def _profile_row(self, profile: Profile, now: datetime) -> ProfileRow:
        zone = _zone(profile.timezone) or self._settings.zone
        due = None
        if profile.quiet_start >= 0:
            due = quiet_until(now, zone, Quiet(profile.quiet_start, profile.quiet_end))
        day = local_day(now, zone)
        return ProfileRow(profile.locale, profile.timezone, profile.quiet_start, profile.quiet_end, day, due or now)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _content_locale(self, notice: Notice, locale: str) -> str:
        """The locale of the message that a member of that locale gets."""
        if notice.title is not None and notice.body is not None:
            return ""  # the same for everyone
        return self._templates.locale_for(notice.type.name, locale or None)

    @property
    def _locales(self) -> list[str]:
        return sorted({profile.locale for profile in self._profiles})

    def _known_messages(self, events: Sequence[EventInProgress]) -> dict[tuple[int, str], int | None]:
        """For each notice and locale whose message may be needed: its id, if it is written already."""
        return {
            (place, locale): event.messages.get((event.notice, locale))
            for place, event in enumerate(events)
            for locale in (self._content_locale(event.current_notice, one) for one in self._locales)
        }

    def _assign_messages(self, events: Sequence[EventInProgress], new_ids: Sequence[int]) -> dict[tuple[int, str], int]:
        """The same, with new ids for those that have none. `required_locks` has asked for enough of them."""
        new = iter(new_ids)
        return {one: next(new) if known is None else known for one, known in self._known_messages(events).items()}

    async def _render_messages(
        self,
        tx: Transaction,
        events: Sequence[EventInProgress],
        contents: Mapping[tuple[int, str], int],
        decision: Decision,
        now: datetime,
    ) -> None:
        """Render the new messages that recipients have, notified or not; note which known ones are used again."""
        assert decision.rows is not None
        needed = {one.message_id for one in decision.rows.counts}
        notified = decision.rows.notified_messages
        known = {message_id for event in events for message_id in event.messages.values()}
        decision.messages = [
            (events[place], locale, one) for (place, locale), one in contents.items() if one in needed and one not in known
        ]
        notices = [event.current_notice for event, _, _ in decision.messages]
        products = sorted({notice.product_id for notice in notices if notice.product_id is not None})
        names = await decisions.find_product_names(tx, products) if products else {}
        decision.words = [
            self._render(event, locale, message_id, names.get(notice.product_id or ""), message_id in notified, now)
            for (event, locale, message_id), notice in zip(decision.messages, notices, strict=True)
        ]
        decision.used_again = sorted(notified & known)

    def _render(
        self,
        event: EventInProgress,
        locale: str,
        message_id: int,
        product_name: str | None,
        is_notified: bool,
        now: datetime,
    ) -> Message:
        notice = event.current_notice
        content = self._templates.phrase(notice, event.claimed.event, locale or None, product_name)
        hours = notice.type.expires_hours
        return Message(
            message_id=message_id,
            event_id=event.event_id,
            notice=event.notice,
            locale=locale,
            type=notice.type.name,
            subject=notice.subject,
            title=content.title,
            body=content.body,
            ref_id=notice.ref_id,
            data=json.dumps(dict(notice.data), ensure_ascii=False, allow_nan=False, separators=(",", ":")),
            channels=to_bits(notice.type.channels),
            lane=LANES[notice.type.priority],
            guarantee=notice.type.guarantee.value,
            is_critical=notice.type.is_critical,
            created_at=now,
            expires_at=None if hours is None else now + timedelta(hours=hours),
            told_at=now if is_notified else None,
        )


def _first_of_each_key(events: Sequence[EventInProgress]) -> list[EventInProgress]:
    first: dict[tuple[str, str], EventInProgress] = {}
    for event in events:
        if not event.is_done:
            first.setdefault(event.dedup_key, event)
    return list(first.values())


def _remainders(events: Sequence[EventInProgress]) -> list[Remainder]:
    return [
        Remainder(place, event.current_notice.audience, NoticeKey(event.event_id, event.notice), event.after)
        for place, event in enumerate(events)
    ]


def _notice_row(place: int, notice: Notice) -> NoticeRow:
    kind = notice.type
    return NoticeRow(place, kind.name, to_bits(kind.channels), kind.is_critical, LANES[kind.priority])


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo | None:
    """None when there is none, or none of that name on this machine; the default time zone is used then."""
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        _log.error("unknown time zone of a member, using the default", timezone=name)
        return None
