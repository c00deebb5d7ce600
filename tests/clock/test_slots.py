"""When slots come, where the clock on the wall jumps and where it does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from bongsu.clock.slots import newest_slot, next_slot

SEOUL, NEW_YORK = ZoneInfo("Asia/Seoul"), ZoneInfo("America/New_York")
RECOVERY = "*/5 9-21 * * *"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("now", "newest", "following"),
    [
        ("2026-03-01T09:00:00+09:00", "2026-03-01T09:00:00+09:00", "2026-03-01T09:05:00+09:00"),
        ("2026-03-01T09:04:59.999999+09:00", "2026-03-01T09:00:00+09:00", "2026-03-01T09:05:00+09:00"),
        ("2026-03-01T08:59:59+09:00", "2026-02-28T21:55:00+09:00", "2026-03-01T09:00:00+09:00"),
        ("2026-03-01T23:30:00+09:00", "2026-03-01T21:55:00+09:00", "2026-03-02T09:00:00+09:00"),
    ],
)
def test_the_recovery_job_comes_every_five_minutes_by_day(now: str, newest: str, following: str) -> None:
    assert newest_slot(RECOVERY, SEOUL, at(now)) == at(newest)
    assert next_slot(RECOVERY, SEOUL, at(now)) == at(following)


def slots(cron: str, zone: ZoneInfo, begin: str, hours: int) -> list[str]:
    """All slots of so many hours, each found from the one before; and found again by looking back."""
    moment, end = at(begin) - timedelta(microseconds=1), at(begin) + timedelta(hours=hours)
    found = []
    while (slot := next_slot(cron, zone, moment)) is not None and slot < end:
        assert newest_slot(cron, zone, slot) == slot
        found.append(slot.strftime("%H:%M"))
        moment = slot
    return found


def test_what_is_set_for_a_time_left_out_comes_as_much_later() -> None:
    # On 8 March 2026 New York's clocks go from 02:00 (07:00 UTC) to 03:00.
    assert slots("30 2 * * *", NEW_YORK, "2026-03-08T05:00:00Z", 24) == ["07:30"]
    # 02:30 is left out and comes at 03:30; so 03:00, though later on the wall, comes first.
    assert slots("30,0 2,3 8 3 *", NEW_YORK, "2026-03-08T05:00:00Z", 24) == ["07:00", "07:30"]
    assert newest_slot("0 3 8 3 *", NEW_YORK, at("2026-06-01T00:00:00Z")) == at("2026-03-08T07:00:00Z")
    halves = [f"{hour:02}:{minute}" for hour in (5, 6, 7, 8) for minute in ("00", "30")]
    assert slots("*/30 * * * *", NEW_YORK, "2026-03-08T05:00:00Z", 4) == halves


def test_what_is_set_for_an_hour_that_comes_twice_comes_once() -> None:
    # On 1 November 2026 they go from 02:00 (06:00 UTC) back to 01:00.
    assert slots("30 1 * * *", NEW_YORK, "2026-11-01T04:00:00Z", 24) == ["05:30"]
    assert slots("*/20 1 * * *", NEW_YORK, "2026-11-01T04:00:00Z", 24) == ["05:00", "05:20", "05:40"]


def test_what_is_set_for_every_hour_comes_in_both_of_them() -> None:
    halves = [f"{hour:02}:{minute}" for hour in (4, 5, 6, 7) for minute in ("00", "30")]
    assert slots("*/30 * * * *", NEW_YORK, "2026-11-01T04:00:00Z", 4) == halves


def test_a_day_that_never_comes_has_no_slot() -> None:
    assert next_slot("0 0 30 2 *", SEOUL, at("2026-03-01T00:00:00Z")) is None
    assert newest_slot("0 0 30 2 *", SEOUL, at("2026-03-01T00:00:00Z")) is None
