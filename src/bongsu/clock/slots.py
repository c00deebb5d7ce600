"""The slots of a cron expression in a time zone. Pure: times in, times out.

Cron is about local time, which in many zones jumps twice a year. A slot at a local time that is skipped comes later by the
size of the jump. A slot in an hour that occurs twice comes once, in the first of the two, unless the cron is for every hour:
then it comes in both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

# Local time jumps by an hour, in one zone by half an hour: slots within two hours may change their order.
_JUMP = timedelta(hours=2)


def newest_slot(cron: str, zone: ZoneInfo, now: datetime) -> datetime | None:
    """The last slot up to now, now included; None for a cron that never matches."""
    # From later than the local time: if clocks were just set back, slots of the next hours are in the past already.
    begin = now.astimezone(zone).replace(tzinfo=None) + _JUMP
    found = _first_fitting(cron, zone, begin, "get_prev", lambda moment: moment <= now)
    return max(found, default=None)


def next_slot(cron: str, zone: ZoneInfo, now: datetime) -> datetime | None:
    """The first slot after now."""
    begin = now.astimezone(zone).replace(tzinfo=None) - _JUMP
    found = _first_fitting(cron, zone, begin, "get_next", lambda moment: moment > now)
    return min(found, default=None)


def _first_fitting(
    cron: str, zone: ZoneInfo, begin: datetime, step: str, fits: Callable[[datetime], bool]
) -> list[datetime]:
    """The first time that fits, and those so near to it that a jump may have changed their order."""
    slots = croniter(cron, begin)
    found: list[datetime] = []
    first: datetime | None = None
    while True:
        try:
            wall: datetime = getattr(slots, step)(datetime)
        except ValueError:  # croniter found no match within its horizon of years
            return found
        if first is not None and abs(wall - first) > _JUMP:
            return found
        fitting = [moment for moment in _moments(cron, zone, wall) if fits(moment)]
        found += fitting
        first = first or (wall if fitting else None)


def _moments(cron: str, zone: ZoneInfo, wall: datetime) -> list[datetime]:
    """When it is that local time: usually once."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    # A second one that is earlier belongs to a local time that is skipped.
    is_every_hour = cron.split()[1].startswith("*")
    return [first, second] if is_every_hour and second > first else [first]
