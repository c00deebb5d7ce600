"""The local time of a member: which day it is there, and when the quiet hours begin and end. No I/O.

Quiet hours are read off the wall clock. When it jumps forward over their end, they end with the jump; when it goes back, an
hour that comes twice is quiet twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

# Days, in nearly all zones. What is spread over more than a year keeps its pace after that, and ignores quiet hours.
MOST_TIMES = 400
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Quiet:
    """From one minute of the day up to another, past midnight when the end is the earlier one."""

    start: int
    end: int

    def covers(self, minute: int) -> bool:
        if self.start <= self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


def local_day(now: datetime, zone: ZoneInfo) -> int:
    """The day it is there, as a number that grows by one each midnight."""
    return now.astimezone(zone).toordinal()


def quiet_until(now: datetime, zone: ZoneInfo, quiet: Quiet) -> datetime | None:
    """The first moment from now on that is not quiet; None when this one is not."""
    if not _is_quiet(now, zone, quiet):
        return None
    return min(end for end in _bounds(now, quiet.end, zone) if end > now and not _is_quiet(end, zone, quiet))


def quiet_from(moment: datetime, zone: ZoneInfo, quiet: Quiet) -> datetime:
    """The first moment after this one, which is not quiet, that is."""
    starts = _bounds(moment, quiet.start, zone)
    return min(start for start in starts if start > moment and _is_quiet(start, zone, quiet))


class Active(NamedTuple):
    """A time between quiet hours: `since` and `until` on a clock that stands still in them, and for how long it has stood
    still before. In seconds."""

    since: float
    until: float
    quiet_before: float


def active_times(start: datetime, zone: ZoneInfo, quiet: Quiet, first: float, last: float) -> Iterator[Active]:
    """Those that cover the seconds from `first` to `last` on that clock, which begins at a moment that is not quiet."""
    moment, since = start, 0.0
    for _ in range(MOST_TIMES):
        end = quiet_from(moment, zone, quiet)
        until = since + (end - moment).total_seconds()
        if until > first:
            yield Active(since, until, (moment - start).total_seconds() - since)
        if until > last:
            return
        moment, since = quiet_until(end, zone, quiet) or end, until
    yield Active(since, math.inf, (moment - start).total_seconds() - since)


def _bounds(moment: datetime, minute: int, zone: ZoneInfo) -> Iterator[datetime]:
    """Where quiet hours may begin, or end, that do so at that minute of the day: there, and where the clock is set.

    Set back, it comes to an hour again; set forward, it may jump over the end, and into the quiet of the next day.
    """
    today = moment.astimezone(zone).date()
    for day in (today + timedelta(days=number) for number in range(4)):
        yield from _moments(day, minute, zone)
        yield from _changes(day, zone)


@lru_cache(maxsize=1024)
def _changes(day: date, zone: ZoneInfo) -> list[datetime]:
    """When the clock is set on that day, if it is."""
    begin = datetime.combine(day, time(), zone).astimezone(UTC)
    end = datetime.combine(day + timedelta(days=1), time(), zone).astimezone(UTC)
    is_set = begin.astimezone(zone).utcoffset() != end.astimezone(zone).utcoffset()
    return [_change(begin, end, zone)] if is_set else []


def _is_quiet(moment: datetime, zone: ZoneInfo, quiet: Quiet) -> bool:
    local = moment.astimezone(zone)
    return quiet.covers(local.hour * 60 + local.minute)


def _moments(day: date, minute: int, zone: ZoneInfo) -> list[datetime]:
    """When the wall clock shows that minute on that day: once, twice, or never; then the jump over it."""
    naive = datetime.combine(day, time(minute // 60, minute % 60))
    first, second = (naive.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    # Backwards, the first of two is the earlier one; forwards over a gap it is the other way round.
    return [first, second] if first <= second else [_change(second, first, zone)]


@lru_cache(maxsize=1024)
def _change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The minute between the two at which the clock is set."""
    old = before.astimezone(zone).utcoffset()
    while after - before > _MINUTE:
        middle = before + ((after - before) // 2 // _MINUTE or 1) * _MINUTE
        if middle.astimezone(zone).utcoffset() == old:
            before = middle
        else:
            after = middle
    return after
