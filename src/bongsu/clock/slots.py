"""When a job's turn comes, by its cron text and the wall clock of a time zone. Pure: moments in, moments out.

Cron speaks of what the clock on the wall shows, which in many places jumps twice a year. What is set for a time that is left
out comes as much later as the clock has jumped. What is set for an hour that comes twice comes once, in the first of
the two; unless it is set for every hour, and then it comes in both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

# Clocks are moved by an hour or, in one place, by half of one: what lies within two is looked at more closely.
_JUMP = timedelta(hours=2)


def newest_slot(cron: str, zone: ZoneInfo, now: datetime) -> datetime | None:
    """The last slot that has come, this moment included; None for a cron that never comes."""
    # From beyond what the wall shows: if its clock was just put back, slots of its next hours have come already.
    begin = now.astimezone(zone).replace(tzinfo=None) + _JUMP
    found = _first_fitting(cron, zone, begin, "get_prev", lambda moment: moment <= now)
    return max(found, default=None)


def next_slot(cron: str, zone: ZoneInfo, now: datetime) -> datetime | None:
    """The first slot that is still to come."""
    begin = now.astimezone(zone).replace(tzinfo=None) - _JUMP
    found = _first_fitting(cron, zone, begin, "get_next", lambda moment: moment > now)
    return min(found, default=None)


def _first_fitting(
    cron: str, zone: ZoneInfo, begin: datetime, step: str, fits: Callable[[datetime], bool]
) -> list[datetime]:
    """The first moment that fits, and those so near to it that a clock which jumps may have changed their order."""
    slots = croniter(cron, begin)
    found: list[datetime] = []
    first: datetime | None = None
    while True:
        try:
            wall: datetime = getattr(slots, step)(datetime)
        except ValueError:  # croniter has looked years far
            return found
        if first is not None and abs(wall - first) > _JUMP:
            return found
        fitting = [moment for moment in _moments(cron, zone, wall) if fits(moment)]
        found += fitting
        first = first or (wall if fitting else None)


def _moments(cron: str, zone: ZoneInfo, wall: datetime) -> list[datetime]:
    """When the wall shows that: usually once."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    # A second one that is earlier belongs to a time left out.
    is_every_hour = cron.split()[1].startswith("*")
    return [first, second] if is_every_hour and second > first else [first]
