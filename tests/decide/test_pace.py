"""A paced notice: its deliveries are spread over time, across steps and workers, and never into a member's quiet hours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from math import ceil, inf
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bongsu.decide.quiet_hours import MOST_TIMES, Quiet, active_times, quiet_until
from bongsu.decide.worker import EventWorker
from bongsu.errors import BadApp
from bongsu.model import Channel, Device, Event, Listed, Notice, NoticeType, Platform
from bongsu.rules import DIRECT, Rules
from bongsu.rules.direct import direct
from bongsu.rules.engine import App
from bongsu.rules.fields import MOST_A_MINUTE
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store.members import ensure_members
from bongsu.store.members.devices import put_device
from tests.decide.test_quiet_hours import FIRST, MINUTES, MINUTES_OF_DAY, ZONES
from tests.support.decisions import (
    NOON,
    Clock,
    ClockedDecider,
    add_members,
    decide,
    rows,
    rules_notifying,
    run_worker,
    set_preferences,
    trigger_event,
)
from tests.support.long_runs import examples
from tests.support.rows import NOW, add_device_for_each, set_columns

BOTH = (Channel.PUSH, Channel.IN_APP)
SEOUL = ZoneInfo("Asia/Seoul")
# A member each ten seconds.
PACED = NoticeType("PACED", BOTH, pace_per_minute=6)


async def due_times(store: Store) -> dict[str, float]:
    """For each member the seconds from NOON until the push is due."""
    found = await rows(store, "SELECT member_id, due FROM bongsu_deliveries WHERE channel = 'PUSH' ORDER BY member_id")
    return {row["member_id"]: (store.dialect.time(row["due"]) - NOON).total_seconds() for row in found}


def names(count: int) -> tuple[str, ...]:
    return tuple(f"m-{number:03}" for number in range(count))


@pytest.mark.parametrize("chunk", [100, 12, 5, 1])
async def test_members_are_spread_in_id_order_over_all_steps(store: Store, settings: Settings, chunk: int) -> None:
    who = names(12)
    await add_members(store, *who, device=True)
    await decide(store, settings, rules_notifying(Listed(who), PACED), trigger_event(), chunk=chunk)
    assert await due_times(store) == pytest.approx({one: 10.0 * place for place, one in enumerate(who)})
    # In the inbox at once.
    assert [row[0] for row in await rows(store, "SELECT unread FROM bongsu_members")] == [1] * len(who)


async def test_only_those_who_are_notified_take_a_place(store: Store, settings: Settings) -> None:
    who = names(6)
    await add_members(store, *who, device=True)
    await set_preferences(store, who[1], enabled=False)
    await set_preferences(store, who[3], types={"PACED": {"channels": ["IN_APP"]}})
    await decide(store, settings, rules_notifying(Listed(who), PACED), trigger_event(), chunk=2)
    # One who has it in the inbox alone has a place too, and no push.
    assert await due_times(store) == pytest.approx({who[0]: 0.0, who[2]: 10.0, who[4]: 30.0, who[5]: 40.0})


async def test_another_worker_goes_on_with_the_next_place(store: Store, settings: Settings) -> None:
    who = names(9)
    await add_members(store, *who, device=True)
    event = trigger_event()
    async with store.transaction() as tx:
        await outbox.add(tx, [event])
    rules, clock = rules_notifying(Listed(who), PACED), Clock()
    first = EventWorker(store, rules, settings, ClockedDecider(store, settings, clock, 4))
    await first.tick()
    assert len(await due_times(store)) < len(who)
    # It dies, and its lease ends.
    async with store.transaction() as tx:
        await outbox.give_back(tx, [one.claimed for one in first._in_progress], 0.0)
    await run_worker(EventWorker(store, rules, settings, ClockedDecider(store, settings, clock, 4)))
    assert await due_times(store) == pytest.approx({one: 10.0 * place for place, one in enumerate(who)})


async def test_what_is_decided_later_is_spread_from_then_on_and_never_closer(store: Store, settings: Settings) -> None:
    """As after an outage in which nothing was decided."""
    who = names(12)
    await add_members(store, *who, device=True)
    clock = Clock()
    async with store.transaction() as tx:
        await outbox.add(tx, [trigger_event()])
    for hours in (0, 1, 24):
        clock.forward(hours=hours)
        worker = EventWorker(store, rules_notifying(Listed(who), PACED), settings, ClockedDecider(store, settings, clock, 2))
        await worker.tick()
        await set_columns(store, "events", {"status": "PENDING"}, due=NOW)
    times = list((await due_times(store)).values())
    assert len(times) == len(who)
    assert all(later - earlier >= 10.0 - 1e-6 for earlier, later in pairwise(times))
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(25 * 3600 + 110)


async def test_all_that_a_member_gets_of_it_is_due_at_once(store: Store, settings: Settings) -> None:
    who = names(3)
    await add_members(store, *who, device=True)
    async with store.transaction() as tx:
        for one in who:
            await put_device(tx, one, "tablet", Device(token=f"tablet-{one}", platform=Platform.IOS, push_consent=True))
    await set_columns(store, "members", email="a@example.org")
    kind = NoticeType("PACED", (*BOTH, Channel.EMAIL), pace_per_minute=6)
    await decide(store, settings, rules_notifying(Listed(who), kind), trigger_event(), chunk=2)
    found = await rows(
        store, "SELECT member_id, count(*) AS count, count(DISTINCT due) AS times FROM bongsu_deliveries GROUP BY member_id"
    )
    assert sorted((row["member_id"], row["count"], row["times"]) for row in found) == [(one, 3, 1) for one in who]
    assert list((await due_times(store)).values()) == pytest.approx([0, 10, 20])


async def test_a_second_notice_of_an_event_is_spread_by_itself(store: Store, settings: Settings) -> None:
    who = names(5)
    await add_members(store, *who, device=True)
    rules = Rules()

    @rules.rule("said")
    def two(event: Event) -> list[Notice]:
        other = NoticeType("OTHER", (Channel.SMS, Channel.IN_APP), pace_per_minute=12)
        return [Notice(kind, Listed(who), title="t", body="b") for kind in (PACED, other)]

    await set_columns(store, "members", phone="+821012345678")
    await decide(store, settings, rules, trigger_event(), chunk=2)
    found = await rows(store, "SELECT member_id, due FROM bongsu_deliveries WHERE channel = 'SMS' ORDER BY member_id")
    by_sms = [(store.dialect.time(row["due"]) - NOON).total_seconds() for row in found]
    assert list((await due_times(store)).values()) == pytest.approx([0, 10, 20, 30, 40])
    assert by_sms == pytest.approx([0, 5, 10, 15, 20])


async def test_paced_and_other_notices_in_one_step_do_not_mix(store: Store, settings: Settings) -> None:
    who = names(4)
    await add_members(store, *who, device=True)
    plain = NoticeType("PLAIN", BOTH)
    rules = Rules(rules_notifying(Listed(who), PACED))

    @rules.rule("plain")
    def other(_event: Event) -> Notice:
        return Notice(plain, Listed(who), title="t", body="b")

    await decide(store, settings, rules, trigger_event(), Event(event_type="plain"))
    found = await rows(
        store,
        """SELECT m.type, count(DISTINCT d.due) AS times FROM bongsu_deliveries AS d
           JOIN bongsu_messages AS m ON m.message_id = d.message_id GROUP BY m.type""",
    )
    assert {row["type"]: row["times"] for row in found} == {"PACED": 4, "PLAIN": 1}


# --- quiet hours ------------------------------------------------------------------------------------------------------

MINUTE = timedelta(minutes=1)


def is_quiet(moment: datetime, zone: ZoneInfo, quiet: Quiet) -> bool:
    local = moment.astimezone(zone)
    return quiet.covers(local.hour * 60 + local.minute)


def active_minutes(start: datetime, zone: ZoneInfo, quiet: Quiet) -> Iterator[datetime]:
    """The model: walk on minute by minute, and count only those that are not quiet. From the beginning of a minute on."""
    moment = start
    while True:
        if not is_quiet(moment, zone, quiet):
            yield moment
        moment += MINUTE


@hypothesis_settings(max_examples=examples(70), deadline=None)
@given(
    start=MINUTES_OF_DAY,
    end=MINUTES_OF_DAY,
    zone=st.sampled_from(ZONES).map(ZoneInfo),
    minutes=MINUTES,
    first=st.integers(0, 3_000),
    more=st.integers(0, 3_000),
)
# From noon on 2026-10-31 in New York, where the clock is set back at 02:00 and comes to 01:00 again.
@example(start=22 * 60, end=90, zone=ZoneInfo("America/New_York"), minutes=303 * 1440 + 960, first=0, more=1_000)
def test_between_quiet_hours_the_clock_runs_as_if_there_were_none(
    start: int, end: int, zone: ZoneInfo, minutes: int, first: int, more: int
) -> None:
    if start == end or (start - end) % 1440 < 60:
        return  # the model would walk for weeks
    quiet, now = Quiet(start, end), FIRST + minutes * MINUTE
    begin = quiet_until(now, zone, quiet) or now
    times = list(active_times(begin, zone, quiet, 60.0 * first, 60.0 * (first + more)))
    # They cover all that was asked for, without a gap.
    assert times[0].since <= 60 * first
    assert times[-1].until > 60 * (first + more)
    assert all(one.until == other.since for one, other in pairwise(times))
    walked = list(islice(active_minutes(now, zone, quiet), first + more + 1))
    for one in times:
        for place in range(max(first, ceil(one.since / 60)), min(first + more + 1, ceil(one.until / 60))):
            assert begin + timedelta(seconds=60 * place + one.quiet_before) == walked[place]


def test_beyond_a_year_no_quiet_hours_are_looked_at() -> None:
    times = list(active_times(NOON, SEOUL, Quiet(22 * 60, 8 * 60), 0.0, 1e12))
    assert len(times) == MOST_TIMES + 1
    assert times[-1].until == inf


PROFILES = [
    ("Asia/Seoul", 22 * 60, 8 * 60),
    ("America/New_York", 22 * 60, 8 * 60),
    ("America/New_York", 60, 150),
    # When the clock is set back, this comes to its last half hour twice.
    ("America/New_York", 22 * 60, 90),
    ("Australia/Lord_Howe", 1 * 60 + 45, 2 * 60 + 15),
    ("", 12 * 60 + 10, 12 * 60 + 20),
    (None, None, None),
]


@pytest.mark.parametrize(
    "now",
    [
        datetime(2026, 3, 6, 3, tzinfo=UTC),  # two days before New York's clock is set forward
        datetime(2026, 10, 30, 3, tzinfo=UTC),  # two days before it is set back
        datetime(2026, 10, 3, 20, tzinfo=UTC),  # Lord Howe's is set within hours
        datetime(2026, 6, 1, 14, tzinfo=UTC),  # quiet in Seoul
    ],
    ids=str,
)
async def test_a_notice_that_goes_out_over_days_reaches_nobody_in_quiet_hours(
    store: Store, settings: Settings, now: datetime
) -> None:
    who = [f"m-{number:04}" for number in range(4_000)]
    async with store.transaction() as tx:
        await ensure_members(tx, who)
        await add_device_for_each(tx, "members")
        for number, (zone, start, end) in enumerate(PROFILES):
            if start is not None:
                theirs = f"CAST(substr(member_id, 3) AS integer) % {len(PROFILES)} = {number}"
                await set_columns(tx, "members", theirs, timezone=zone, quiet_start=start, quiet_end=end)
    # A member each minute, which is almost three days.
    slow = NoticeType("SLOW", BOTH, pace_per_minute=1)
    await decide(store, settings, rules_notifying(Listed(tuple(who)), slow), trigger_event(), chunk=1_500, clock=Clock(now))
    found = {
        row["member_id"]: store.dialect.time(row["due"])
        for row in await rows(store, "SELECT member_id, due FROM bongsu_deliveries")
    }
    for number, (zone, start, end) in enumerate(PROFILES):
        expected = [now + place * MINUTE for place in range(len(who))]
        if start is not None and end is not None:
            walk = active_minutes(now, ZoneInfo(zone or "Asia/Seoul"), Quiet(start, end))
            expected = list(islice(walk, len(who)))
        mine = range(number, len(who), len(PROFILES))
        assert [found[who[place]] for place in mine] == [expected[place] for place in mine]


@pytest.mark.parametrize("pace", [7, 13, 59, 1_001])
async def test_the_last_before_quiet_hours_is_not_rounded_into_them(store: Store, settings: Settings, pace: int) -> None:
    """A pace that does not divide the minute: sums of such fractions are not exact."""
    who = names(150)
    await add_members(store, *who, device=True)
    for one in who:
        await set_preferences(store, one, quietHours={"start": "12:01", "end": "11:59"})
    kind = NoticeType("PACED", BOTH, pace_per_minute=pace)
    await decide(store, settings, rules_notifying(Listed(who), kind), trigger_event(), chunk=40)
    quiet = Quiet(_minute("12:01"), _minute("11:59"))
    times = await due_times(store)
    assert not any(is_quiet(NOON + timedelta(seconds=one), SEOUL, quiet) for one in times.values())
    assert list(times.values()) == sorted(times.values())


def _minute(clock: str) -> int:
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


@pytest.mark.parametrize("start", ["11:00", "12:01"])
async def test_a_critical_one_is_paced_and_knows_no_quiet_hours(store: Store, settings: Settings, start: str) -> None:
    who = names(12)
    await add_members(store, *who, device=True)
    for one in who:
        await set_preferences(store, one, quietHours={"start": start, "end": "13:00"})
    kind = NoticeType("PACED", BOTH, pace_per_minute=6, is_critical=True)
    await decide(store, settings, rules_notifying(Listed(who), kind), trigger_event(), chunk=5)
    assert await due_times(store) == pytest.approx({one: 10.0 * place for place, one in enumerate(who)})


# --- who may say it ---------------------------------------------------------------------------------------------------


def test_a_type_and_a_direct_send_say_the_pace() -> None:
    app = App()
    kind = app.type("SALE", channels=["PUSH"], pace_per_minute=600)
    assert kind.pace_per_minute == 600
    rules = direct(app.types)
    payload = {"type": "SALE", "userIds": ["a"], "title": "t", "body": "b"}
    (as_declared,) = rules.detect(Event(event_type=DIRECT, payload=payload))
    (slower,) = rules.detect(Event(event_type=DIRECT, payload={**payload, "pacePerMinute": 60}))
    assert (as_declared.type.pace_per_minute, slower.type.pace_per_minute) == (600, 60)


@pytest.mark.parametrize("pace", [0, -1, 1.5, 60.0, inf, "60", "", True, False, [60], MOST_A_MINUTE + 1])
def test_what_is_no_pace_is_refused(pace: object) -> None:
    refusal = "must be a whole number of members a minute, 1 to 10000000, not "
    app = App()
    with pytest.raises(BadApp, match=f"Notice type SALE: pace_per_minute {refusal}"):
        app.type("SALE", channels=["PUSH"], pace_per_minute=pace)  # type: ignore[arg-type]
    assert "SALE" not in app.types
    payload = {"type": "SALE", "userIds": ["a"], "title": "t", "body": "b", "pacePerMinute": pace}
    if pace != inf:
        with pytest.raises(ValueError, match=f"payload.pacePerMinute {refusal}"):
            direct({}).detect(Event(event_type=DIRECT, payload=payload))


@pytest.mark.parametrize("pace", [None, 1, MOST_A_MINUTE])
def test_the_slowest_and_the_fastest_pace_and_none_are_paces(pace: int | None) -> None:
    assert App().type("SALE", channels=["PUSH"], pace_per_minute=pace).pace_per_minute == pace


async def test_a_direct_send_is_spread_as_it_asks(store: Store, settings: Settings) -> None:
    who = names(4)
    await add_members(store, *who, device=True)
    payload = {"type": "SALE", "userIds": list(who), "title": "t", "body": "b", "pacePerMinute": 30}
    await decide(store, settings, direct({}), Event(event_type=DIRECT, payload=payload), chunk=3)
    assert list((await due_times(store)).values()) == pytest.approx([0, 2, 4, 6])
