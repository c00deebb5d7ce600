"""Digests: of notices that one key gathers, a member's first opens a digest and the others are merged into it.

A digest is an ordinary notification. Its deliveries are due when its window ends, with the text as it is then. A step has
either no notices with digests or only such, all with the same window (step.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from itertools import groupby
from typing import Any

from bongsu.decide.messages import MessageIds, Messages
from bongsu.decide.progress import EventInProgress
from bongsu.model import ID_LIMIT, Channel, Notice, Reason
from bongsu.model.channels import find_channel
from bongsu.settings import Settings
from bongsu.store import decisions
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import Candidate, DecisionCount, DecisionInputs, DecisionRows, DigestNotice
from bongsu.store.decisions.digests import (
    NAMED_ACTORS,
    Actor,
    DigestChanges,
    DigestRow,
    Entry,
    GrownDigest,
    find_actors,
)
from bongsu.store.decisions.rows import MERGED, MISSING, Recipients
from bongsu.store.inbox import changes


def digest_seconds(notice: Notice, settings: Settings) -> float:
    """The window in which this notice is gathered with others; 0 if it is a notification of its own."""
    kind = notice.type
    if kind.digest is None or kind.is_critical or key_of(notice) is None:
        return 0.0
    return settings.digest_seconds if kind.digest.seconds is None else kind.digest.seconds


def key_of(notice: Notice) -> str | None:
    """What it is gathered by. Of a long one the hash: an index entry of PostgreSQL has room for 2,704 bytes. It has the id
    of the member too, which may be 255 characters of four bytes."""
    key = notice.ref_id if notice.digest_key is None else notice.digest_key
    if key is None or len(key) <= ID_LIMIT:
        return key
    return f"sha256:{sha256(key.encode()).hexdigest()}"


def digest_notice(notice_index: int, event: EventInProgress) -> DigestNotice:
    notice, actor = event.current_notice, actor_of(event)
    return DigestNotice(notice_index, notice.type.name, key_of(notice) or "", actor.actor_id, actor.name)


def actor_of(event: EventInProgress) -> Actor:
    """Whose act it is, and the name that the event gives."""
    name = event.current_notice.data.get("actorName") or event.claimed.event.payload.get("actorName")
    return Actor(event.claimed.event.actor_id, name if isinstance(name, str) else None)


# --- what becomes of each recipient -----------------------------------------------------------------------------------


@dataclass
class Gathered:
    """A digest that a step opens or adds to."""

    notification_id: int
    member_id: str
    # How many it has with this step's.
    count: int
    is_in_inbox: bool
    # When it ends, if this step opens it.
    ends_at: datetime | None = None
    # What this step adds, the newest last.
    added: list[Candidate] = field(default_factory=list)
    change_id: int | None = None

    @property
    def newest(self) -> Candidate:
        return self.added[-1]


@dataclass
class Gathering:
    """What a step decides: the reason of each candidate (None: it opens a digest), and what it gathers."""

    reasons: list[str | None] = field(default_factory=list)
    digests: list[Gathered] = field(default_factory=list)


def gather(
    candidates: Sequence[Candidate], ids: Sequence[int], notices: Mapping[int, DigestNotice], daily_limit: int
) -> Gathering:
    """Decide for the candidates, which are in the order of members and notices, as if they came one after the other.

    `ids` has one for each: that of the notification, if it opens a digest, or the change id of the digest it is merged into.
    A merge does not count towards the cap, and is not limited by it.
    """
    gathering = Gathering()
    for _, of_member in groupby(zip(candidates, ids, strict=True), key=lambda pair: pair[0].member_id):
        _gather_member(gathering, of_member, notices, daily_limit)
    return gathering


def _gather_member(
    gathering: Gathering, rows: Iterable[tuple[Candidate, int]], notices: Mapping[int, DigestNotice], daily_limit: int
) -> None:
    open_digests: dict[tuple[str, str], Gathered] = {}
    actors: set[tuple[int, str]] = set()
    given: set[int] = set()
    opened = 0
    for row, drawn_id in rows:
        notice = notices[row.notice_index]
        key = notice.type, notice.key
        digest = open_digests.get(key) or _existing(row)
        actor = None if digest is None or notice.actor_id is None else (digest.notification_id, notice.actor_id)
        if row.reason is not None:
            gathering.reasons.append(row.reason)
            continue
        # Of notices with the same dedup key a member gets the first, and an actor counts once in a digest.
        if row.dedup in given or (digest is not None and (row.is_counted or actor in actors)):
            gathering.reasons.append(Reason.DUPLICATE.value)
            continue
        if digest is None:
            if row.is_capped and row.counted + opened >= daily_limit:
                gathering.reasons.append(Reason.RATE_LIMITED.value)
                continue
            opened += row.is_capped
            digest = Gathered(drawn_id, row.member_id, 0, _is_in_app(row.channels), ends_at=row.due)
        elif digest.ends_at is None and digest.is_in_inbox:
            digest.change_id = drawn_id
        if not digest.added:
            gathering.digests.append(digest)
        gathering.reasons.append(MERGED if digest.added or digest.ends_at is None else None)
        digest.added.append(row)
        digest.count += 1
        open_digests[key] = digest
        given.add(row.dedup)
        if notice.actor_id is not None:
            actors.add((digest.notification_id, notice.actor_id))


def _existing(row: Candidate) -> Gathered | None:
    if row.digest_id is None or row.size is None:
        return None
    return Gathered(row.digest_id, row.member_id, row.size, bool(row.is_in_inbox))


def _is_in_app(channels: int) -> bool:
    return bool(channels & find_channel(Channel.IN_APP).bit)


# --- the step ---------------------------------------------------------------------------------------------------------


async def decide_digests(
    tx: Transaction,
    messages: Messages,
    events: Sequence[EventInProgress],
    ids: MessageIds,
    recipients: Recipients,
    inputs: DecisionInputs,
) -> tuple[DecisionRows, DigestChanges]:
    """Decide for each recipient of notices with digests: opened, merged or suppressed. This locks the members, in id order.

    If some members are missing, only the rows that name them are right.
    """
    candidates = await decisions.find_candidates(tx, recipients, inputs)
    if any(row.reason == MISSING for row in candidates):
        return DecisionRows([DecisionCount(0, None, MISSING, 1, in_inbox=0)], recipients, inputs), DigestChanges()
    drawn = await changes.draw(tx, len(candidates)) if candidates else []
    notices = {notice.notice_index: notice for notice in inputs.digests}
    gathering = gather(candidates, drawn, notices, inputs.daily_limit)
    each = zip(candidates, drawn, gathering.reasons, strict=True)
    rows = [_decided(row, drawn_id, reason) for row, drawn_id, reason in each]
    decided = DecisionRows(_counts(candidates, gathering.reasons), recipients, inputs, rows)
    return decided, await _changes(tx, messages, events, ids, notices, gathering)


def _decided(row: Candidate, drawn_id: int, reason: str | None) -> tuple[Any, ...]:
    """As DECIDED has it."""
    return (
        row.notice_index, row.member_id, row.message_id, drawn_id, row.channels, row.rank, row.due, row.day, False,
        row.is_capped, reason,
    )  # fmt: skip


def _counts(candidates: Sequence[Candidate], reasons: Sequence[str | None]) -> list[DecisionCount]:
    counts: Counter[tuple[int, int, str | None]] = Counter()
    in_inbox: Counter[tuple[int, int, str | None]] = Counter()
    for row, reason in zip(candidates, reasons, strict=True):
        one = row.notice_index, row.message_id, reason
        counts[one] += 1
        in_inbox[one] += reason is None and _is_in_app(row.channels)
    return [DecisionCount(*one, count, in_inbox[one]) for one, count in counts.items()]


async def _changes(
    tx: Transaction,
    messages: Messages,
    events: Sequence[EventInProgress],
    ids: MessageIds,
    notices: Mapping[int, DigestNotice],
    gathering: Gathering,
) -> DigestChanges:
    """The rows of the digests with their texts, each rendered for its newest notice, in the language of that message."""
    before = await find_actors(tx, [one.notification_id for one in gathering.digests if one.ends_at is None])
    locales = {message_id: locale for (_, locale), message_id in ids.items()}
    newest_notices = [events[one.newest.notice_index].current_notice for one in gathering.digests]
    products = await messages.product_names(tx, newest_notices)
    opened, grown, entries = [], [], []
    for one in gathering.digests:
        added = [Actor(notices[row.notice_index].actor_id, notices[row.notice_index].actor_name) for row in one.added]
        actors = [*reversed(added), *before.get(one.notification_id, ())][:NAMED_ACTORS]
        newest = one.newest
        text = messages.render_digest(events[newest.notice_index], locales[newest.message_id], products, one.count, actors)
        if one.ends_at is None:
            grown.append(GrownDigest(one.notification_id, one.member_id, one.count, *text, one.change_id))
        else:
            notice = notices[newest.notice_index]
            opened.append(
                DigestRow(one.notification_id, one.member_id, notice.type, notice.key, one.ends_at, one.count, *text)
            )
        entries += [
            Entry(row.message_id, row.member_id, one.notification_id, *actor)
            for row, actor in zip(one.added, added, strict=True)
        ]
    return DigestChanges(opened, grown, entries)
