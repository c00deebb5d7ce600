"""The slots of a cron text in a time zone. Pure: times in, times out.

Cron is about local time, which in many zones jumps twice a year. cronsim follows Debian's cron: a slot at a local time that
is skipped comes at the next valid one, and one in an hour that is repeated comes once, in the first of the two. Cron texts
whose minute or hour begins with `*` follow the clock on the wall: skipped times do not come, repeated ones come twice. On
Lord Howe Island, where clocks change by half an hour, the first of these may be missed on the day of the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim

# Clocks are set back by two hours at most (Antarctica/Troll). cronsim looks at the time on the wall, which is that much
# behind then, and leaves out the slot at that very time.
_SET_BACK = timedelta(hours=3)


def next_slot(cron: str, zone: ZoneInfo, now: datetime) -> datetime | None:
    """The first slot after now; None if there is none within fifty years."""
    return next(slots_after(cron, zone, now), None)


def newest_slot(cron: str, zone: ZoneInfo, now: datetime) -> datetime | None:
    """The last slot up to now, now included."""
    backwards = CronSim(cron, (now + _SET_BACK).astimezone(zone), reverse=True)
    return next((slot for slot in map(_utc, backwards) if slot <= now), None)


def slots_after(cron: str, zone: ZoneInfo, now: datetime) -> Iterator[datetime]:
    """All slots after now, in order."""
    return (slot for slot in map(_utc, CronSim(cron, now.astimezone(zone))) if slot > now)


def count_slots(cron: str, zone: ZoneInfo, since: datetime, until: datetime, limit: int) -> int:
    """How many slots lie between the two, both excluded. It stops at the limit."""
    slots = islice(slots_after(cron, zone, since), limit)
    return sum(1 for _ in takewhile(lambda slot: slot < until, slots))


def explain(cron: str) -> str:
    """The cron text in words."""
    return CronSim(cron, datetime.now(UTC)).explain()


def _utc(moment: datetime) -> datetime:
    """Python compares two times of one zone by the clock on the wall, which is wrong in a repeated hour."""
    return moment.astimezone(UTC)
