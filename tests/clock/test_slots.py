"""When slots come, where the clock on the wall jumps and where it does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.clock.slots import count_slots, explain, newest_slot, next_slot
from bongsu.model.base import check_cron

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
        ("2026-03-01T08:59:59.999999+09:00", "2026-02-28T21:55:00+09:00", "2026-03-01T09:00:00+09:00"),
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
    assert count_slots(cron, zone, at(begin) - timedelta(microseconds=1), end, 1_000) == len(found)
    return found


def test_what_is_set_for_a_skipped_time_comes_at_the_next_valid_one() -> None:
    # On 8 March 2026 New York's clocks go from 02:00 (07:00 UTC) to 03:00.
    assert slots("30 2 * * *", NEW_YORK, "2026-03-08T05:00:00Z", 24) == ["07:00"]
    assert slots("0,30 2 * * *", NEW_YORK, "2026-03-08T05:00:00Z", 24) == ["07:00"]
    assert slots("30,0 2,3 8 3 *", NEW_YORK, "2026-03-08T05:00:00Z", 24) == ["07:00", "07:30"]
    assert newest_slot("0 3 8 3 *", NEW_YORK, at("2026-06-01T00:00:00Z")) == at("2026-03-08T07:00:00Z")
    halves = [f"{hour:02}:{minute}" for hour in (5, 6, 7, 8) for minute in ("00", "30")]
    assert slots("*/30 * * * *", NEW_YORK, "2026-03-08T05:00:00Z", 4) == halves


def test_what_is_set_for_an_hour_that_comes_twice_comes_once() -> None:
    # On 1 November 2026 they go from 02:00 (06:00 UTC) back to 01:00.
    assert slots("30 1 * * *", NEW_YORK, "2026-11-01T04:00:00Z", 24) == ["05:30"]
    assert slots("0,20,40 1 * * *", NEW_YORK, "2026-11-01T04:00:00Z", 24) == ["05:00", "05:20", "05:40"]


def test_in_the_second_of_two_hours_the_slot_of_the_first_is_the_newest_and_does_not_come_again() -> None:
    for minute in (0, 15, 30, 45):
        now = at(f"2026-11-01T06:{minute:02}:00Z")
        assert newest_slot("30 1 * * *", NEW_YORK, now) == at("2026-11-01T05:30:00Z")
        assert next_slot("30 1 * * *", NEW_YORK, now) == at("2026-11-02T06:30:00Z")


def test_the_slot_at_which_a_clock_is_set_back_by_two_hours_is_the_newest() -> None:
    moment = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
    assert newest_slot("0 2 * * *", ZoneInfo("Antarctica/Troll"), moment) == moment


def test_what_is_set_for_every_hour_comes_in_both_of_them() -> None:
    halves = [f"{hour:02}:{minute}" for hour in (4, 5, 6, 7) for minute in ("00", "30")]
    assert slots("*/30 * * * *", NEW_YORK, "2026-11-01T04:00:00Z", 4) == halves


ZONES = ["Asia/Seoul", "America/New_York", "Australia/Lord_Howe", "Europe/London", "America/Sao_Paulo", "UTC"]
CRONS = [RECOVERY, "30 2 * * *", "30 1 * * *", "0 0 * * 0", "15 */2 * * *", "0,30 1-3 * * *", "0 12 L * *"]


@given(
    zone=st.sampled_from(ZONES), cron=st.sampled_from(CRONS), moment=st.datetimes(datetime(2015, 1, 1), datetime(2030, 1, 1))
)
def test_a_moment_lies_between_its_newest_slot_and_the_next(zone: str, cron: str, moment: datetime) -> None:
    """No slot is found in the wrong direction, or between the two."""
    now, where = moment.replace(tzinfo=UTC), ZoneInfo(zone)
    newest, following = newest_slot(cron, where, now), next_slot(cron, where, now)
    assert newest is not None
    assert following is not None
    assert newest <= now < following
    if zone == "Australia/Lord_Howe":
        return  # the only zone that changes by half an hour, which cronsim steps over by whole hours
    assert next_slot(cron, where, newest) == following
    assert count_slots(cron, where, newest, following, 10) == 0


def test_counting_slots_stops_at_its_limit() -> None:
    assert count_slots("* * * * *", SEOUL, at("2020-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"), 1_000) == 1_000


def test_a_cron_text_is_explained_in_words() -> None:
    assert explain("0 9 * * 1") == "At 09:00 on Monday"


@given(st.text("0123456789*/,-#LW \n", max_size=30) | st.text(max_size=10))
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    try:
        check_cron(text)
    except ValueError as error:
        assert "five cron fields" in str(error)
    else:
        assert explain(text)
        next_slot(text, SEOUL, at("2026-03-01T00:00:00Z"))


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 9 * *", "0 0 9 * * *", "every day", "61 * * * *", ""])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="five cron fields"):
        check_cron(text)
