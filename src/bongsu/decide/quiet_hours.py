"""What the clock says about a member: which day it is there, and when the quiet hours end. No I/O.

Quiet hours are read off the wall clock. When it jumps forward over their end, they end with the jump; when it goes back, an
hour that comes twice is quiet twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

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

    @property
    def seconds(self) -> float:
        """How long they last, on a day without a change of the clock."""
        return (self.end - self.start) % (24 * 60) * 60.0


def local_day(now: datetime, zone: ZoneInfo) -> int:
    """The day it is there, as a number that grows by one each midnight."""
    return now.astimezone(zone).toordinal()


def quiet_until(now: datetime, zone: ZoneInfo, quiet: Quiet) -> datetime | None:
    """The first moment from now on that is not quiet; None when this one is not."""
    if not _is_quiet(now, zone, quiet):
        return None
    today = now.astimezone(zone).date()
    # The day after tomorrow too: a clock set forward may jump over tomorrow's end and land in the quiet again.
    ends = (end for days in range(3) for end in _moments(today + timedelta(days=days), quiet.end, zone))
    return min(end for end in ends if end > now and not _is_quiet(end, zone, quiet))


def seconds_until_quiet(moment: datetime, zone: ZoneInfo, quiet: Quiet) -> float:
    """From a moment that is not quiet until the quiet hours begin next."""
    today = moment.astimezone(zone).date()
    starts = (start for days in range(3) for start in _moments(today + timedelta(days=days), quiet.start, zone))
    return min((start - moment).total_seconds() for start in starts if start > moment)


def _is_quiet(moment: datetime, zone: ZoneInfo, quiet: Quiet) -> bool:
    local = moment.astimezone(zone)
    return quiet.covers(local.hour * 60 + local.minute)


def _moments(day: date, minute: int, zone: ZoneInfo) -> list[datetime]:
    """When the wall clock shows that minute on that day: once, twice, or never; then the jump over it."""
    naive = datetime.combine(day, time(minute // 60, minute % 60))
    first, second = (naive.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    # Backwards, the first of two is the earlier one; forwards over a gap it is the other way round.
    return [first, second] if first <= second else [_jump(second, first, zone)]


@lru_cache(maxsize=1024)
def _jump(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The minute between the two at which the clock is set forward."""
    old = before.astimezone(zone).utcoffset()
    while after - before > _MINUTE:
        middle = before + ((after - before) // 2 // _MINUTE or 1) * _MINUTE
        if middle.astimezone(zone).utcoffset() == old:
            before = middle
        else:
            after = middle
    return after
