"""Decide: an event's notices become inbox rows, deliveries and suppressions, for a bounded number of members at a time.

All of one step is one transaction: the cursor, the duplicate window, the daily caps, the inbox and the ways out change
together or not at all. Locks are taken in one order everywhere: what the notices are about, the events, the members by id.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import audience, telemetry
from bongsu.audience import Reached, Target, Wanted
from bongsu.errors import BadTemplate
from bongsu.guard import Quiet, local_day, quiet_until
from bongsu.model import Notice, Priority, utc_now
from bongsu.settings import Settings
from bongsu.store import decisions
from bongsu.store.databases import dialect_named
from bongsu.store.decisions import UNPREPARED, Case, Count, Judged, Key, Message, Profile, Step
from bongsu.store.dialect import Statement
from bongsu.store.events import Claimed
from bongsu.store.portions import Whose
from bongsu.store.progress import Begun
from bongsu.templates import Templates

# Members decided in one transaction: enough that its fixed cost is nothing per member, few enough that it holds its locks
# for well under a second and a crash repeats little.
CHUNK = 10_000
# Profiles given with each step. More would cost every step; members with one beyond these cost theirs a second attempt.
PROFILES = 256

# Small audiences of the interested decided in one step, at most. A hundred members each then fill it.
MOST_TOGETHER = 128

LANES = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}

_log = telemetry.log("bongsu.fanout")


class Unprepared(Exception):
    """Some of the audience were not known when the step began. Let them come into being, then decide again."""

    def __init__(self, member_ids: Sequence[str]) -> None:
        super().__init__(f"{len(member_ids)} members are not known yet")
        self.member_ids = member_ids


@dataclass
class Work:
    """An event in hand, its notices, and how far they have come: the notice under way, and the member reached in it."""

    claimed: Claimed
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
    def is_silent(self) -> bool:
        """Nothing is left to be said."""
        return self.notice >= len(self.notices)

    @property
    def is_long(self) -> bool:
        """Its audience did not fit into a step, so it may take many more."""
        return bool(self.after)

    @property
    def said(self) -> Notice:
        return self.notices[self.notice]

    @property
    def about(self) -> tuple[str, str]:
        return self.said.type.name, self.said.subject

    def resume(self, begun: Begun) -> None:
        self.notice, self.after = json.loads(begun.cursor)
        self.messages.update(begun.messages)

    def behind(self, reached: Reached) -> tuple[int, str]:
        """Where it goes on: behind the last member, or with the next notice."""
        return (self.notice + 1, "") if reached.is_complete else (self.notice, reached.last)


@dataclass
class Decision:
    """What a step has led to. It holds when its transaction is committed, and is to be settled then."""

    finished: list[Work] = field(default_factory=list)
    # Events that go on, and from where.
    unfinished: list[tuple[Work, tuple[int, str]]] = field(default_factory=list)
    messages: list[tuple[Work, str, int]] = field(default_factory=list)
    words: list[Message] = field(default_factory=list)
    # What is to be written for the members it is about, if there are any.
    step: Step | None = None
    # How many deliveries that were: ways out of the house, for a dispatcher to take.
    deliveries: int = 0
    # By type and reason; told where there is none.
    counts: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    @property
    def cursors(self) -> dict[tuple[UUID, int], str]:
        return {work.claim: json.dumps(behind, ensure_ascii=False) for work, behind in self.unfinished}

    def settle(self) -> None:
        """Works move on to where the store now has them, and the metrics hear of it."""
        for work, locale, message_id in self.messages:
            work.messages[work.notice, locale] = message_id
        for work, behind in self.unfinished:
            work.notice, work.after = behind
        for (type_name, reason), count in self.counts.items():
            if reason is None:
                telemetry.NOTIFICATIONS.labels(type_name).inc(count)
            else:
                telemetry.SUPPRESSIONS.labels(type_name, reason).inc(count)


@dataclass(frozen=True)
class Needs:
    """What a step of some events takes before it can be decided: names to be had alone, and ids for new messages."""

    names: Sequence[str]
    messages: int


class FanOut:
    """Turns notices into what members get."""

    def __init__(
        self, templates: Templates, settings: Settings, chunk: int = CHUNK, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._templates = templates
        self._settings = settings
        self._chunk = chunk
        self._clock = clock
        # How many audiences of the interested are looked for at once.
        self._together = MOST_TOGETHER
        # Those met last, at the end. Who has said nothing has the first.
        self._profiles = {Profile(): None}

    def foresee(self, works: Sequence[Work]) -> Needs:
        """For the next step of these events, or of some of them."""
        names = []
        messages = 0
        for work in works:
            if work.is_silent:
                continue
            if key := self._duplicate_key(work):
                names.append(f"{key[0]} {key[1]}")
            # What has no words is heard of when there is somebody to say it to.
            with contextlib.suppress(BadTemplate):
                messages += sum(known is None for known in self._needed([work]).values())
        return Needs(names, messages)

    async def decide(self, tx: AsyncConnection, works: Sequence[Work], message_ids: Sequence[int]) -> Decision:
        """The next step of these events, which the transaction holds, as it does all they need. It is yet to be carried out.

        Those there was no room for are not in the answer. Of each event the notice under way, never the one behind it: so
        one cursor says how far the event has come. Of two about the same thing only the first, so that the second can see
        it when its turn comes.
        """
        decision = Decision([work for work in works if work.is_silent])
        first: dict[tuple[str, str], Work] = {}
        for work in works:
            if not work.is_silent:
                first.setdefault(work.about, work)
        spoken = list(first.values())
        now = self._clock()
        wanted = [
            Wanted(place, work.said.audience, Whose(work.event_id, work.notice), work.after)
            for place, work in enumerate(spoken)
        ]
        target = await audience.target(tx, wanted, self._chunk, self._together)
        counts: Sequence[Count] = []
        if not target.is_empty:
            words = self._words(spoken, message_ids)
            case = self._case(spoken, words, now)
            judged = await decisions.judge(tx, lambda binder: target.select(binder, now), case, is_brief=target.is_brief)
            if any(one.reason == UNPREPARED for one in judged.counts):
                raise await self._unprepared(tx, judged)
            counts = judged.counts
            said = await self._said(tx, spoken, words, counts, now, decision)
            channels = decisions.as_bits(channel for work in spoken for channel in work.said.type.channels)
            decision.step = Step(case, judged, channels, said)
        self._move_on(spoken, target, counts, decision)
        return decision

    def _move_on(self, works: Sequence[Work], target: Target, counts: Sequence[Count], decision: Decision) -> None:
        """How far each event comes by that."""
        found: dict[int, tuple[int, str]] = {}
        for one in counts:
            count, last = found.get(one.place, (0, ""))
            found[one.place] = count + one.count, max(last, one.last)
            decision.counts[works[one.place].said.type.name, one.reason] += one.count
        reached_all = target.reached(found)
        self._learn(target, reached_all)
        for place, reached in reached_all.items():
            work = works[place]
            behind = work.behind(reached)
            if behind[0] >= len(work.notices):
                decision.finished.append(work)
            else:
                decision.unfinished.append((work, behind))

    def _learn(self, target: Target, reached: Mapping[int, Reached]) -> None:
        """Half as many the next time if not all of them fitted, twice as many if they did."""
        looked_up = target.looked_up
        if looked_up and not all(one.place in reached and reached[one.place].is_complete for one in looked_up):
            self._together = max(1, len(looked_up) // 2)
        elif len(looked_up) == self._together:
            self._together = min(MOST_TOGETHER, self._together * 2)

    def _case(self, works: Sequence[Work], words: Mapping[tuple[int, str], int], now: datetime) -> Case:
        return Case(
            [self._notice(place, work, now) for place, work in enumerate(works)],
            [self._day_and_due(profile, now) for profile in self._profiles],
            [
                (place, raw, words[place, self._locale(work.said, raw)])
                for place, work in enumerate(works)
                for raw in self._locales
            ],
            self._keys(works, now),
            # A notice is no duplicate of itself: those of its members who were told by an earlier step are not in this one.
            [one for work in works for (notice, _), one in work.messages.items() if notice == work.notice],
            self._settings.daily_limit,
        )

    async def _unprepared(self, tx: AsyncConnection, judged: Judged) -> Unprepared:
        member_ids, profiles = await decisions.find_unprepared(tx, judged)
        for profile in profiles:
            self._profiles.pop(profile, None)
            self._profiles[profile] = None
        # All that this step needs, however many they are; of the others those met last.
        for profile in list(self._profiles)[: max(0, len(self._profiles) - max(PROFILES, len(profiles)))]:
            del self._profiles[profile]
        return Unprepared(member_ids)

    def _keys(self, works: Sequence[Work], now: datetime) -> list[Key]:
        keys = ((place, self._duplicate_key(work)) for place, work in enumerate(works))
        return [Key(place, key[0], key[1], now - timedelta(hours=key[2])) for place, key in keys if key is not None]

    def _duplicate_key(self, work: Work) -> tuple[str, str, float] | None:
        """Type, subject and hours in which the notice under way may be a duplicate; None where it cannot be one."""
        said = work.said
        hours = self._settings.duplicate_hours if said.type.duplicate_hours is None else said.type.duplicate_hours
        # About the event itself, it can only be a duplicate of another of the event's own notices.
        is_alone = sum((one.type.name, one.subject) == work.about for one in work.notices) == 1
        if hours <= 0 or (said.subject == str(work.event_id) and is_alone):
            return None
        return said.type.name, said.subject, hours

    def _notice(self, place: int, work: Work, now: datetime) -> tuple[int, str, int, bool, int, datetime]:
        kind = work.said.type
        return place, kind.name, decisions.as_bits(kind.channels), kind.is_critical, LANES[kind.priority], now

    def _day_and_due(self, profile: Profile, now: datetime) -> tuple[str, str, int, int, int, datetime]:
        zone = _zone(profile.timezone) or self._settings.zone
        due = None
        if profile.quiet_start >= 0:
            due = quiet_until(now, zone, Quiet(profile.quiet_start, profile.quiet_end))
        day = local_day(now, zone)
        return profile.locale, profile.timezone, profile.quiet_start, profile.quiet_end, day, due or now

    # --- words --------------------------------------------------------------------------------------------------------

    def _locale(self, said: Notice, locale: str) -> str:
        """The locale whose words a member of that locale reads."""
        if said.title is not None and said.body is not None:
            return ""  # said as it stands, to everybody
        return self._templates.locale_for(said.type.name, locale or None)

    @property
    def _locales(self) -> list[str]:
        return sorted({profile.locale for profile in self._profiles})

    def _needed(self, works: Sequence[Work]) -> dict[tuple[int, str], int | None]:
        """The message's id, where it has one, for each notice and locale whose words may be needed."""
        return {
            (place, locale): work.messages.get((work.notice, locale))
            for place, work in enumerate(works)
            for locale in (self._locale(work.said, raw) for raw in self._locales)
        }

    def _words(self, works: Sequence[Work], new_ids: Sequence[int]) -> dict[tuple[int, str], int]:
        """The same, with new ids for those that have none. There are at least as many as that takes."""
        new = iter(new_ids)
        return {one: next(new) if known is None else known for one, known in self._needed(works).items()}

    async def _said(
        self,
        tx: AsyncConnection,
        works: Sequence[Work],
        words: Mapping[tuple[int, str], int],
        counts: Sequence[Count],
        now: datetime,
        decision: Decision,
    ) -> list[Statement]:
        """What writes down those words that somebody reads, or would have read; and that those were told that were."""
        dialect = dialect_named(tx.dialect.name)
        statements = []
        met = {one.message_id for one in counts}
        told = {one.message_id for one in counts if one.reason is None}
        known = {message_id for work in works for message_id in work.messages.values()}
        new = [(works[place], locale, one) for (place, locale), one in words.items() if one in met and one not in known]
        products = sorted({work.said.product_id for work, _, _ in new if work.said.product_id is not None})
        names = await decisions.product_names(tx, products) if products else {}
        if new:
            decision.messages += new
            decision.words += (
                self._message(work, locale, message_id, names.get(work.said.product_id or ""), message_id in told, now)
                for work, locale, message_id in new
            )
            statements.append(decisions.adding(dialect, decision.words))
        if told_again := [one for one in told & known if one is not None]:
            statements.append(decisions.marking_told(dialect, told_again, now))
        return statements

    def _message(
        self, work: Work, locale: str, message_id: int, product_name: str | None, is_told: bool, now: datetime
    ) -> Message:
        said, event = work.said, work.claimed.event
        words = self._templates.phrase(said, event, locale or None, product_name)
        hours = said.type.expires_hours
        return Message(
            message_id=message_id,
            event_id=event.event_id,
            notice=work.notice,
            locale=locale,
            type=said.type.name,
            subject=said.subject,
            title=words.title,
            body=words.body,
            ref_id=said.ref_id,
            data=json.dumps(dict(said.data), ensure_ascii=False, allow_nan=False, separators=(",", ":")),
            channels=decisions.as_bits(said.type.channels),
            lane=LANES[said.type.priority],
            guarantee=said.type.guarantee.value,
            is_critical=said.type.is_critical,
            created_at=now,
            expires_at=None if hours is None else now + timedelta(hours=hours),
            told_at=now if is_told else None,
        )


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo | None:
    """None when there is none, or none of that name on this machine: that is no reason to tell nobody anything."""
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        _log.error("a member's time zone is not known here: the house's own is used", timezone=name)
        return None
