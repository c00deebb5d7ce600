from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import add
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bongsu.decide.quiet_hours import Quiet, local_day, quiet_until
from tests.support.long_runs import examples

SEOUL, NEW_YORK = ZoneInfo("Asia/Seoul"), ZoneInfo("America/New_York")
# Half an hour of daylight saving, a day left out altogether, odd offsets, midnight that does not exist.
ZONES = [
    "Asia/Seoul",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Santiago",
    "Africa/Casablanca",
    "UTC",
]


FIRST = datetime(2026, 1, 1, tzinfo=UTC)
YEARS = 2 * 366 * 24


def _changes() -> list[int]:
    """The minutes since FIRST at which the clock of one of the zones is set, to within an hour."""
    found = set()
    for zone in map(ZoneInfo, ZONES):
        offsets = [(FIRST + timedelta(hours=hour)).astimezone(zone).utcoffset() for hour in range(YEARS)]
        found |= {60 * hour for hour in range(1, YEARS) if offsets[hour] != offsets[hour - 1]}
    return sorted(found)


# Minutes since FIRST: any, and those around a change of the clock. And minutes of the day: any, and those of the night.
# The changes are looked for when a test draws one: every process of a run imports this file.
CHANGES = some.deferred(lambda: some.sampled_from(_changes()))
MINUTES = some.integers(0, 60 * YEARS) | some.builds(add, CHANGES, some.integers(-1500, 200))
MINUTES_OF_DAY = some.integers(0, 1439) | some.integers(0, 240)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("2026-11-15T21:59:59+09:00", None),
        ("2026-11-15T22:00:00+09:00", "2026-11-16T08:00:00+09:00"),
        ("2026-11-16T00:00:00+09:00", "2026-11-16T08:00:00+09:00"),
        ("2026-11-16T07:59:59+09:00", "2026-11-16T08:00:00+09:00"),
        ("2026-11-16T08:00:00+09:00", None),
    ],
)
def test_quiet_hours_pass_midnight(now: str, until: str | None) -> None:
    assert quiet_until(at(now), SEOUL, Quiet(22 * 60, 8 * 60)) == (until and at(until))


@pytest.mark.parametrize(
    ("now", "start", "end", "until"),
    [
        # 2026-03-08, New York: 02:00 becomes 03:00. An end that does not exist is the jump itself.
        ("2026-03-08T01:30:00-05:00", "22:00", "02:30", "2026-03-08T03:00:00-04:00"),
        ("2026-03-08T01:30:00-05:00", "22:00", "08:00", "2026-03-08T08:00:00-04:00"),
        # Over its end and into the quiet again: the end is the next day's.
        ("2026-03-08T01:30:00-05:00", "02:45", "02:30", "2026-03-09T02:30:00-04:00"),
        # 2026-11-01: 02:00 becomes 01:00. What comes twice is quiet twice.
        ("2026-11-01T01:15:00-04:00", "22:00", "01:30", "2026-11-01T01:30:00-04:00"),
        ("2026-11-01T01:45:00-04:00", "22:00", "01:30", None),
        ("2026-11-01T01:15:00-05:00", "22:00", "01:30", "2026-11-01T01:30:00-05:00"),
        ("2026-11-01T00:30:00-04:00", "22:00", "08:00", "2026-11-01T08:00:00-05:00"),
        # What comes twice is not quiet twice either: set back, the clock is before their start again.
        ("2026-11-01T01:45:00-04:00", "01:30", "05:00", "2026-11-01T01:00:00-05:00"),
    ],
)
def test_quiet_hours_follow_the_wall_clock_when_it_is_set(now: str, start: str, end: str, until: str | None) -> None:
    hours = Quiet(_minute(start), _minute(end))
    assert quiet_until(at(now), NEW_YORK, hours) == (until and at(until))


@settings(max_examples=examples(100), deadline=None)
@given(minutes=MINUTES, zone=some.sampled_from(ZONES).map(ZoneInfo), start=MINUTES_OF_DAY, end=MINUTES_OF_DAY)
def test_the_end_is_the_first_minute_a_watcher_of_the_clock_would_name(
    minutes: int, zone: ZoneInfo, start: int, end: int
) -> None:
    if start == end:
        return
    now = FIRST + timedelta(minutes=minutes)
    watched = now
    while Quiet(start, end).covers(_wall_minute(watched, zone)):
        watched += timedelta(minutes=1)
    assert quiet_until(now, zone, Quiet(start, end)) == (None if watched == now else watched)


def test_the_day_begins_at_the_members_midnight() -> None:
    before, after = at("2026-11-15T23:59:59+09:00"), at("2026-11-16T00:00:00+09:00")
    assert local_day(after, SEOUL) == local_day(before, SEOUL) + 1
    assert local_day(after, NEW_YORK) == local_day(before, NEW_YORK)


def _minute(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def _wall_minute(moment: datetime, zone: ZoneInfo) -> int:
    local = moment.astimezone(zone)
    return local.hour * 60 + local.minute
