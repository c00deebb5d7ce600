"""Who is next in the audiences of a step: a bounded number of members, in id order, behind the last one decided.

The id of the last member is the cursor, so a fan-out that was interrupted continues where it stopped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bongsu.model import Audience, Everyone, Interested, Listed, Selected
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import audience_snapshots, recipients
from bongsu.store.decisions.audience_snapshots import NoticeKey
from bongsu.store.decisions.recipients import Interest

# Audiences of interested members that are looked up in one step, at most. A hundred members each fill a step.
MOST_TOGETHER = 128


@dataclass(frozen=True)
class Remainder:
    """What is left of a notice's audience: the members behind a cursor. `place` is the notice's number in the step. A list
    is in id order, and the members of a user's SELECT are stored."""

    place: int
    audience: Audience
    key: NoticeKey
    after: str = ""


@dataclass
class Recipients:
    """The next members of some audiences, and which audiences have more of them."""

    limit: int
    # By place, sorted. Audiences that are not here wait for another step.
    members: dict[int, list[str]] = field(default_factory=dict)
    unfinished: set[int] = field(default_factory=set)
    count: int = 0

    @property
    def room(self) -> int:
        return self.limit - self.count

    @property
    def is_empty(self) -> bool:
        return not self.count

    def add(self, place: int, member_ids: Sequence[str], *, is_more: bool = False) -> None:
        """All of an audience; only the first of the step may be taken in part. `is_more`: it has others beside these.

        So an audience is left unfinished only if it does not fit into a whole step: that makes it bulk.
        """
        is_part = is_more or len(member_ids) > self.room
        if is_part and self.count:
            return
        taken = list(member_ids[: self.room])
        self.members[place] = taken
        self.count += len(taken)
        if is_part:
            self.unfinished.add(place)

    def cursor(self, place: int) -> str | None:
        """The last member taken of an unfinished audience; None if that audience is done."""
        return self.members[place][-1] if place in self.unfinished else None


class NextRecipients:
    """Finds them, and adapts how many small audiences it looks up at once to how many fit into a step."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._together = MOST_TOGETHER

    async def find(self, tx: Transaction, remainders: Sequence[Remainder], now: datetime) -> Recipients:
        """What fits into a step: lists first, then one kind of the others. The rest waits for the next step.

        An audience whose size is not known beforehand has a step to itself, unless it is one of many that are small.
        """
        found = Recipients(self._limit)
        others = []
        for one in remainders:
            if not isinstance(one.audience, Listed):
                others.append(one)
            elif found.room > 0:
                ids = one.audience.member_ids
                found.add(one.place, ids[bisect_right(ids, one.after) :])
        if not others or found.room <= 0:
            return found
        first = others[0]
        if not isinstance(first.audience, Interested) and not found.is_empty:
            return found
        match first.audience:
            case Selected():
                await _add_stored(tx, found, first)
            case Interested() as interested:
                await self._add_interested(tx, found, _alike(first, interested, others), interested, now)
            case Everyone():
                # One more than fits: an audience that fills the step is not a large one.
                found.add(first.place, await recipients.find_everyone(tx, first.after, found.room + 1))
            case _:
                raise TypeError(f"{first.audience!r:.100} is no audience: write Listed, Interested, Everyone or Selected")
        return found

    async def _add_interested(
        self, tx: Transaction, found: Recipients, alike: Sequence[Remainder], interested: Interested, now: datetime
    ) -> None:
        """Small audiences together, because most are small."""
        looked_up = alike[: self._together]
        interests = [
            Interest(one.place, one.audience.product_id, now - timedelta(days=one.audience.days), one.after)
            for one in looked_up
            if isinstance(one.audience, Interested)
        ]
        # One more than fits, to know which of them do.
        members = await recipients.find_interested(tx, interests, interested.actions, found.room + 1)
        for one in looked_up:
            found.add(one.place, members[one.place])
        self._adapt(looked_up, found)

    def _adapt(self, looked_up: Sequence[Remainder], found: Recipients) -> None:
        """Half as many the next time if not all of them fitted, twice as many if they did."""
        if any(one.place not in found.members or one.place in found.unfinished for one in looked_up):
            self._together = max(1, len(looked_up) // 2)
        elif len(looked_up) == self._together:
            self._together = min(MOST_TOGETHER, self._together * 2)


async def _add_stored(tx: Transaction, found: Recipients, one: Remainder) -> None:
    """The next members of a user's SELECT, which has run before the first step."""
    snapshot = await audience_snapshots.find(tx, one.key, one.after)
    if snapshot is None:
        raise LookupError("the members that its SELECT found are no longer stored: it runs again")
    found.add(one.place, snapshot.member_ids, is_more=not snapshot.is_last)
    taken = found.members[one.place]
    if len(taken) == len(snapshot.member_ids):
        await audience_snapshots.drop(tx, one.key, taken[-1])


def _alike(first: Remainder, interested: Interested, others: Sequence[Remainder]) -> list[Remainder]:
    """Those that one statement can look up: not begun yet, and about the same actions. One that proved large goes alone."""
    if first.after:
        return [first]
    return [
        one
        for one in others
        if not one.after and isinstance(one.audience, Interested) and one.audience.actions == interested.actions
    ]
