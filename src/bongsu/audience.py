"""Target: who is next in the audiences at hand, a bounded number at a time, in the order of member ids.

However an audience is described, it becomes a SELECT of member ids behind the last one reached. So targeting is a part of
the one statement that decides, and a fan-out that was interrupted goes on where it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache

from sqlalchemy import exc, text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.errors import BadAudience
from bongsu.model import Audience, Everyone, Interested, Listed, Selected
from bongsu.store import portions
from bongsu.store.databases import dialect_named
from bongsu.store.decisions import MANY
from bongsu.store.dialect import Binder
from bongsu.store.portions import Whose


@dataclass(frozen=True)
class Wanted:
    """A notice's audience from behind a member on; at first from behind nobody."""

    place: int
    audience: Audience
    whose: Whose
    after: str = ""


@dataclass(frozen=True)
class Reached:
    """How many of an audience were there, and where it goes on if it does."""

    count: int
    last: str = ""
    is_complete: bool = True


@dataclass
class Target:
    """The next members of some audiences, as a SELECT of (place, member_id)."""

    room: int
    # Members known by id, and the places whose audience has more of them than there was room for.
    rows: list[tuple[int, str]] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    places: list[int] = field(default_factory=list)
    # At most one look into a table, for one or several audiences, with its own room.
    looked_up: list[Wanted] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.looked_up

    @property
    def is_brief(self) -> bool:
        """Surely few, and not only perhaps."""
        return not self.looked_up and len(self.rows) < MANY

    def select(self, binder: Binder, now: datetime) -> str:
        parts = []
        if self.rows:
            given = binder.table({"place": "integer", "member_id": "text"}, self.rows)
            parts.append(f"SELECT given.place, given.member_id FROM {given}")
        if self.looked_up:
            # In brackets of its own, because of its LIMIT.
            parts.append(f"SELECT place, member_id FROM ({self._look_up(binder, now)}) AS looked_up")
        return " UNION ALL ".join(parts)

    def _look_up(self, binder: Binder, now: datetime) -> str:
        first = self.looked_up[0]
        if len(self.looked_up) > 1:
            return _interested_in_many(binder, self.looked_up, now, self.room)
        if isinstance(first.audience, Interested):
            return _interested_in_one(binder, first, first.audience, now, self.room)
        return f"""
            SELECT {first.place} AS place, member_id FROM bongsu_members WHERE member_id > {binder.value(first.after)}
            ORDER BY member_id LIMIT {self.room}"""

    def reached(self, found: Mapping[int, tuple[int, str]]) -> dict[int, Reached]:
        """How far each audience has come, given how many members of each were found and the last of them."""
        reached = {place: Reached(*found.get(place, (0, "")), is_complete=place not in self.cut) for place in self.places}
        if not self.looked_up:
            return reached
        counts = {one.place: found.get(one.place, (0, "")) for one in self.looked_up}
        if sum(count for count, _ in counts.values()) < self.room:
            return reached | {place: Reached(count, last) for place, (count, last) in counts.items()}
        # Full: the last audience with members in here may have more, and those behind it were not looked at.
        furthest = max(place for place, (count, _) in counts.items() if count)
        for place, (count, last) in counts.items():
            if place <= furthest:
                reached[place] = Reached(count, last, is_complete=place < furthest)
        return reached


async def target(tx: AsyncConnection, wanted: Sequence[Wanted], limit: int, together: int) -> Target:
    """What fits into a step: lists first, then one kind of the others. Those there is no room for wait for the next.

    `together` is how many audiences of the interested are looked for at once: all of them are read, however few fit.
    """
    found = Target(limit)
    for one in wanted:
        if found.room > 0 and isinstance(one.audience, Listed):
            ids = _in_order(one.audience.member_ids)
            start = bisect_right(ids, one.after)
            _take(found, one, ids[start : start + found.room], len(ids) - start)
    others = [one for one in wanted if not isinstance(one.audience, Listed)]
    if not others or found.room <= 0:
        return found
    first = others[0]
    match first.audience:
        case Selected():
            _take(found, first, *await _selected(tx, first.whose, first.audience, first.after, found.room, limit))
        case Interested() if not first.after:
            # Fresh ones together, because most are small. One that proved large goes on alone, in the order of the index.
            alike = [one for one in others if not one.after and _alike(first.audience, one.audience)]
            found.looked_up = alike[:together]
        case Interested() | Everyone():
            found.looked_up = [first]
        case _:
            raise TypeError(f"{first.audience!r:.100} is no audience: write Listed, Interested, Everyone or Selected")
    return found


def _take(found: Target, one: Wanted, member_ids: Sequence[str], available: int) -> None:
    found.places.append(one.place)
    found.rows += ((one.place, member_id) for member_id in member_ids)
    found.room -= len(member_ids)
    if len(member_ids) < available:
        found.cut.add(one.place)


@lru_cache(maxsize=16)
def _in_order(member_ids: tuple[str, ...]) -> list[str]:
    """Once for all portions of a long list."""
    return sorted(set(member_ids))


async def _selected(
    tx: AsyncConnection, whose: Whose, selected: Selected, after: str, room: int, size: int
) -> tuple[list[str], int]:
    """The next members, and how many there are at least. The user's SELECT is asked at the first step, and what it found
    beyond that is written down: so a step costs by its own members, and not by the whole audience."""
    portion = await portions.find(tx, whose, after) if after else None
    if portion is not None:
        taken = portion.member_ids[:room]
        if len(taken) == len(portion.member_ids):
            await portions.drop(tx, whose, taken[-1])
        return taken, len(portion.member_ids) + (not portion.is_last)
    try:
        found = await _ask(tx, selected, after, room)
        is_more = len(found) == room and await portions.keep(
            tx, whose, _named(tx, selected), selected.parameters, found[-1], size
        )
    except exc.DBAPIError as error:
        # What is wrong with the user's statement is not wrong with the store.
        if str(getattr(error.orig, "sqlstate", None) or "").startswith("42"):
            raise BadAudience(str(error.orig).partition("\n")[0]) from error
        raise
    return found, len(found) + is_more


async def _ask(tx: AsyncConnection, selected: Selected, after: str, limit: int) -> list[str]:
    query = text(f"""
        WITH named AS ({_named(tx, selected)})
        SELECT member_id FROM named WHERE member_id > :bongsu_after ORDER BY member_id LIMIT {limit}""")
    return [str(row[0]) for row in await tx.execute(query, {**selected.parameters, "bongsu_after": after})]


def _named(tx: AsyncConnection, selected: Selected) -> str:
    """The user's own SELECT, whatever its column is called and of whatever type it is."""
    dialect = dialect_named(tx.dialect.name)
    return f"""
        WITH audience(member_id) AS (
        {selected.sql.strip().rstrip(";")}
        ) SELECT DISTINCT {dialect.read_bytewise("member_id")} AS member_id FROM audience WHERE member_id IS NOT NULL"""


def _interested_in_one(binder: Binder, one: Wanted, interest: Interested, now: datetime, limit: int) -> str:
    since = binder.dialect.stored(_since(interest, now))
    return f"""
        SELECT {one.place} AS place, b.member_id FROM bongsu_behaviors b
        WHERE b.product_id = {binder.value(interest.product_id)} AND b.at >= {binder.value(since)}
          AND b.member_id > {binder.value(one.after)} AND {_among(interest)}
        GROUP BY b.member_id ORDER BY b.member_id LIMIT {limit}"""


def _interested_in_many(binder: Binder, wanted: Sequence[Wanted], now: datetime, limit: int) -> str:
    interests = [(one.place, one.audience) for one in wanted if isinstance(one.audience, Interested)]
    columns = {"place": "integer", "product_id": "text", "since": "timestamptz"}
    given = binder.table(columns, [(place, one.product_id, _since(one, now)) for place, one in interests])
    return f"""
        SELECT DISTINCT given.place, b.member_id FROM {given} CROSS JOIN bongsu_behaviors b
        WHERE b.product_id = given.product_id AND b.at >= given.since AND {_among(interests[0][1])}
        ORDER BY given.place, b.member_id LIMIT {limit}"""


def _alike(one: Audience, other: Audience) -> bool:
    return isinstance(one, Interested) and isinstance(other, Interested) and one.actions == other.actions


def _since(interest: Interested, now: datetime) -> datetime:
    return now - timedelta(days=interest.days)


def _among(interest: Interested) -> str:
    named = ", ".join(f"'{action.value}'" for action in sorted(interest.actions))
    return f"b.action IN ({named})" if named else "false"
