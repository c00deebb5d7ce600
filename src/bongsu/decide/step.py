"""Decide: an event's notices become inbox rows, deliveries and suppressions, for a bounded number of members at a time.

One step is one transaction: the cursor, the dedup window, the daily caps, the inbox and the deliveries change together or
not at all. Locks are taken in one order everywhere: dedup keys, events, members by id. All times are the store's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from bongsu.decide.audience import NextRecipients, Recipients, Remainder
from bongsu.decide.digest import decide_digests, digest_notice, digest_seconds
from bongsu.decide.effects import effects_of
from bongsu.decide.messages import MessageIds, Messages
from bongsu.decide.profiles import Profiles
from bongsu.decide.progress import Decision, EventInProgress
from bongsu.errors import BadTemplate
from bongsu.model import Notice
from bongsu.model.channels import to_bits
from bongsu.render.templates import Templates
from bongsu.settings import Settings
from bongsu.store import Store, decisions, members, outbox
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import ActiveTime, DecisionInputs, DedupKey, NoticeRow, PacedNotice, Profile, StepChanges
from bongsu.store.decisions.audience_snapshots import NoticeKey
from bongsu.store.decisions.digests import apply_digests
from bongsu.store.messages.content import MessageCache
from bongsu.store.outbox import LockedClaims
from bongsu.store.ranks import rank_of

# Members decided in one transaction: enough that its fixed cost is nothing per member, few enough that members' own calls
# hardly wait for its locks and a crash repeats little. Twice as many → 2 % less time in all, and locks held twice as long.
CHUNK = 5_000
# A step is given all profiles this process knows if they are no more than this, or than one for so many of its members. Else
# it looks up those of its members: what follows from a profile takes about as long to compute as eight members to look up.
FEW_PROFILES = 32
MEMBERS_PER_PROFILE = 8


class NotPrepared(Exception):
    """Some recipients are not members yet, or have profiles that this process does not know. The step was rolled back."""

    def __init__(self, recipients: Recipients) -> None:
        super().__init__("members or their profiles changed while they were being decided")
        self.recipients = recipients


class Decider:
    """Decides the notices of events, step by step."""

    def __init__(
        self,
        store: Store,
        templates: Templates,
        settings: Settings,
        chunk: int = CHUNK,
        message_cache: MessageCache | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self.chunk = chunk
        self._next_recipients = NextRecipients(chunk)
        self._profiles = Profiles(settings.zone)
        self._messages = Messages(templates)
        self._message_cache = message_cache or MessageCache()

    async def decide_step(self, events: Sequence[EventInProgress]) -> Decision:
        """Decide one bounded step of these events. Everything commits together or not at all.

        Events that did not fit into the step are not in the decision. Of each event only the current notice is decided, so
        that one cursor is enough for the event.
        """
        try:
            return await self._decide(events)
        except NotPrepared as step:
            await self._prepare(step.recipients)
            return await self._decide(events)

    async def _decide(self, events: Sequence[EventInProgress]) -> Decision:
        async with self._store.transaction() as tx:
            held = await self.lock_claims(tx, events)
            decision = Decision(lost=[event for event in events if event.claim not in held.claims])
            open_events = [event for event in events if event.claim in held.claims]
            together = self._decidable_together(open_events)
            recipients = await self._next_recipients.find(tx, _remainders(together), held.now)
            if not recipients.is_empty:
                await self._decide_members(tx, decision, together, recipients, held)
            self._advance(decision, open_events, together, recipients)
            decision.effects = effects_of(decision.finished)
            decision.deliveries = await decisions.apply_decision(tx, decision.rows, self._changes(decision))
            await apply_digests(tx, decision.digests, held.now)
            await decisions.apply_effects(tx, decision.effects)
        self._message_cache.add(decision.contents)
        decision.settle()
        return decision

    # --- the parts of a step, in order ------------------------------------------------------------------------------

    async def lock_claims(self, tx: Transaction, events: Sequence[EventInProgress]) -> LockedClaims:
        """Lock the dedup keys, then the events; draw ids for as many messages as the step may need."""
        names = []
        messages = 0
        for event in events:
            if event.is_done:
                continue
            if self._may_be_duplicate(event):
                names.append(" ".join(event.dedup_key))
            # A missing template is reported only when a recipient needs it.
            with contextlib.suppress(BadTemplate):
                messages += self._messages.count_new(event, self._profiles.locales)
        return await outbox.lock_claims(tx, [event.claim for event in events], names, messages)

    async def _decide_members(
        self,
        tx: Transaction,
        decision: Decision,
        events: Sequence[EventInProgress],
        recipients: Recipients,
        held: LockedClaims,
    ) -> None:
        """Decide for each recipient, and render the messages they have. This locks the members, in id order."""
        bulk = frozenset(index for index in recipients.members if index in recipients.unfinished or events[index].is_long)
        ids = self._messages.assign_ids(events, self._profiles.locales, held.message_ids)
        profiles = await self._step_profiles(tx, recipients)
        inputs = self._inputs(events, ids, recipients, bulk, profiles, held.now)
        if inputs.digests:
            messages = self._messages
            rows, decision.digests = await decide_digests(tx, messages, events, ids, recipients.members, inputs)
        else:
            rows = await decisions.decide_members(tx, recipients.members, inputs)
        if rows.is_incomplete:
            raise NotPrepared(recipients)
        needed = {count.message_id for count in rows.counts if count.message_id is not None}
        notified = rows.notified_messages
        decision.rows = rows
        decision.new_messages = await self._messages.render_new(
            tx, events, ids, needed, notified, bulk, held.now, are_digests=bool(inputs.digests)
        )
        decision.used_again = sorted(notified & {message_id for event in events for message_id in event.own_messages})
        for count in rows.counts:
            decision.counts[events[count.notice_index].current_notice.type.name, count.reason] += count.recipients
            if count.reason is None:
                decision.notified[events[count.notice_index].event_id] += count.recipients

    async def _step_profiles(self, tx: Transaction, recipients: Recipients) -> Sequence[Profile]:
        """The profiles of the step's members; with others that are known, if these are few beside the members."""
        known = self._profiles.known
        if len(known) <= max(FEW_PROFILES, recipients.count // MEMBERS_PER_PROFILE):
            return known
        return await decisions.find_profiles(tx, recipients.members)

    @staticmethod
    def _advance(
        decision: Decision, events: Sequence[EventInProgress], together: Sequence[EventInProgress], recipients: Recipients
    ) -> None:
        """Which events are finished with this step, and from where the others continue."""
        decision.finished = [event for event in events if event.is_done]
        for notice_index in recipients.members:
            event = together[notice_index]
            position = event.position_after(recipients.cursor(notice_index))
            if position[0] >= len(event.notices):
                decision.finished.append(event)
            else:
                decision.unfinished.append((event, position))

    def _changes(self, decision: Decision) -> StepChanges:
        return StepChanges(
            lease_seconds=self._settings.lease_seconds,
            new_messages=decision.contents,
            used_again=decision.used_again,
            finished=[event.claim for event in decision.finished],
            cursors=decision.cursors,
        )

    async def _prepare(self, recipients: Recipients) -> None:
        """Insert members that are missing and learn the others' profiles, so that the step can be decided.

        In a transaction of its own: rows inserted under the step's locks would break the lock order.
        """
        async with self._store.transaction() as tx:
            missing = await decisions.find_missing_members(tx, recipients.members)
            await members.ensure_members(tx, missing)
            self._profiles.remember(await decisions.find_profiles(tx, recipients.members))

    # --- what the decision depends on -------------------------------------------------------------------------------

    def _inputs(
        self,
        events: Sequence[EventInProgress],
        ids: MessageIds,
        recipients: Recipients,
        bulk: frozenset[int],
        profiles: Sequence[Profile],
        now: datetime,
    ) -> DecisionInputs:
        keys = self._number_keys(events)
        window = self._window(events[0]) if events else 0.0
        paced = [
            notice
            for notice_index in recipients.members
            if (notice := _paced_notice(notice_index, events[notice_index])) is not None
        ]
        return DecisionInputs(
            notices=[
                _notice_row(notice_index, event.current_notice, keys[notice_index], is_bulk=notice_index in bulk)
                for notice_index, event in enumerate(events)
            ],
            profiles=self._profiles.rows(profiles, now, timedelta(seconds=window)),
            contents=[
                (notice_index, locale, ids[notice_index, content_locale])
                for notice_index, event in enumerate(events)
                for locale, content_locale in self._messages.content_locales(
                    event.current_notice, self._profiles.locales
                ).items()
            ],
            keys=self._dedup_keys(events, keys, now),
            own_messages=[message_id for event in events for message_id in event.own_messages],
            daily_limit=self._settings.daily_limit,
            now=now,
            bulk=bulk,
            paced=paced,
            active=self._active_times(paced, recipients, profiles, now) if paced else (),
            digests=[digest_notice(notice_index, event) for notice_index, event in enumerate(events)] if window else (),
        )

    def _active_times(
        self, paced: Sequence[PacedNotice], recipients: Recipients, profiles: Sequence[Profile], now: datetime
    ) -> list[ActiveTime]:
        """When members may be sent to, from the first paced delivery of this step to the last."""
        first = min(notice.seconds * notice.before for notice in paced)
        last = max(notice.seconds * (notice.before + len(recipients.members[notice.notice_index])) for notice in paced)
        return self._profiles.active_rows(profiles, now, first, last)

    def _window(self, event: EventInProgress) -> float:
        """In how many seconds its current notice is gathered with others; 0: it has no digest."""
        return digest_seconds(event.current_notice, self._settings)

    def _decidable_together(self, events: Iterable[EventInProgress]) -> list[EventInProgress]:
        """Those whose current notices one statement can decide.

        All have the same digest window, or none has one: that of the first. Of events with the same dedup key only those of
        the same type: with another window or cap, which of them is the duplicate would depend on more than their order. And
        one that continues goes alone: the others are duplicates of what it has sent before, it is not. Those behind one that
        has to wait wait too.
        """
        first: dict[tuple[str, str], EventInProgress] = {}
        closed: set[tuple[str, str]] = set()
        together: list[EventInProgress] = []
        for event in events:
            if event.is_done or (together and self._window(event) != self._window(together[0])):
                continue
            key = event.dedup_key
            other = first.setdefault(key, event)
            is_alike = event.current_notice.type == other.current_notice.type and not event.is_long and not other.is_long
            if other is event or (is_alike and key not in closed):
                together.append(event)
            else:
                closed.add(key)
        return together

    def _number_keys(self, events: Sequence[EventInProgress]) -> list[int]:
        """For each event the number of its dedup key: the same number where one may be a duplicate of the other."""
        numbers: dict[tuple[str, str], int] = {}
        keys = (
            event.dedup_key if self._dedup_hours(event.current_notice) > 0 else (str(event.event_id), "") for event in events
        )
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    def _dedup_keys(self, events: Sequence[EventInProgress], keys: Sequence[int], now: datetime) -> list[DedupKey]:
        """Of each key once: notices with the same key have the same type here, and so the same window."""
        windows: dict[int, DedupKey] = {}
        for event, number in zip(events, keys, strict=True):
            if number not in windows and self._may_be_duplicate(event):
                since = now - timedelta(hours=self._dedup_hours(event.current_notice))
                windows[number] = DedupKey(number, *event.dedup_key, since)
        return list(windows.values())

    def _may_be_duplicate(self, event: EventInProgress) -> bool:
        if self._dedup_hours(event.current_notice) <= 0:
            return False
        # With the event itself as subject, it can only be a duplicate of another of the event's own notices.
        is_only = sum((notice.type.name, notice.subject) == event.dedup_key for notice in event.notices) == 1
        return event.current_notice.subject != str(event.event_id) or not is_only

    def _dedup_hours(self, notice: Notice) -> float:
        own = notice.type.duplicate_hours
        return self._settings.duplicate_hours if own is None else own


def _remainders(events: Sequence[EventInProgress]) -> list[Remainder]:
    return [
        Remainder(notice_index, event.current_notice.audience, NoticeKey(event.event_id, event.notice), event.after)
        for notice_index, event in enumerate(events)
    ]


def _paced_notice(notice_index: int, event: EventInProgress) -> PacedNotice | None:
    per_minute = event.current_notice.type.pace_per_minute
    return None if per_minute is None else PacedNotice(notice_index, 60 / per_minute, event.notified)


def _notice_row(notice_index: int, notice: Notice, key: int, *, is_bulk: bool) -> NoticeRow:
    kind = notice.type
    rank = rank_of(kind.priority, is_critical=kind.is_critical, is_bulk=is_bulk or notice.bulk)
    is_capped = kind.is_capped and not kind.is_critical
    return NoticeRow(notice_index, key, kind.name, to_bits(kind.channels), kind.is_critical, is_capped, rank)
