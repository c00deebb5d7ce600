"""A paced notice: its deliveries are spread over time, across steps and workers, and never into a member's quiet hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.decide.quiet_hours import Quiet, quiet_until, seconds_until_quiet
from bongsu.decide.worker import EventWorker
from bongsu.errors import BadApp
from bongsu.model import Channel, Event, Listed, Notice, NoticeType
from bongsu.rules import DIRECT, Rules
from bongsu.rules.direct import direct
from bongsu.rules.engine import App
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from tests.deciding import NOON, Clock, ClockedDecider, decide, members, prefers, rows, said, says, work

BOTH = (Channel.PUSH, Channel.IN_APP)
SEOUL = ZoneInfo("Asia/Seoul")
# A member each ten seconds.
PACED = NoticeType("PACED", BOTH, pace_per_minute=6)


async def due_times(store: Store) -> dict[str, float]:
    """For each member the seconds from NOON until the push is due."""
    found = await rows(store, "SELECT member_id, due FROM bongsu_deliveries WHERE channel = 'PUSH'")
    return {row["member_id"]: (store.dialect.time(row["due"]) - NOON).total_seconds() for row in found}


def names(count: int) -> tuple[str, ...]:
    return tuple(f"m-{number:03}" for number in range(count))


@pytest.mark.parametrize("chunk", [100, 12, 5, 1])
async def test_members_are_spread_in_id_order_over_all_steps(store: Store, settings: Settings, chunk: int) -> None:
    who = names(12)
    await members(store, *who, device=True)
    await decide(store, settings, says(Listed(who), PACED), said(), chunk=chunk)
    assert await due_times(store) == pytest.approx({one: 10.0 * place for place, one in enumerate(who)})
    # In the inbox at once.
    assert [row[0] for row in await rows(store, "SELECT unread FROM bongsu_members")] == [1] * len(who)


async def test_only_those_who_are_notified_take_a_place(store: Store, settings: Settings) -> None:
    who = names(6)
    await members(store, *who, device=True)
    await prefers(store, who[1], enabled=False)
    await prefers(store, who[3], types={"PACED": {"channels": ["IN_APP"]}})
    await decide(store, settings, says(Listed(who), PACED), said(), chunk=2)
    # One who has it in the inbox alone has a place too, and no push.
    assert await due_times(store) == pytest.approx({who[0]: 0.0, who[2]: 10.0, who[4]: 30.0, who[5]: 40.0})


async def test_another_worker_goes_on_with_the_next_place(store: Store, settings: Settings) -> None:
    who = names(9)
    await members(store, *who, device=True)
    event = said()
    async with store.transaction() as tx:
        await outbox.add(tx, [event])
    rules, clock = says(Listed(who), PACED), Clock()
    first = EventWorker(store, rules, settings, ClockedDecider(store, settings, clock, 4))
    await first.tick()
    assert len(await due_times(store)) < len(who)
    # It dies, and its lease ends.
    async with store.transaction() as tx:
        await outbox.give_back(tx, [one.claimed for one in first._in_progress], 0.0)
    await work(EventWorker(store, rules, settings, ClockedDecider(store, settings, clock, 4)))
    assert await due_times(store) == pytest.approx({one: 10.0 * place for place, one in enumerate(who)})


async def test_paced_and_other_notices_in_one_step_do_not_mix(store: Store, settings: Settings) -> None:
    who = names(4)
    await members(store, *who, device=True)
    plain = NoticeType("PLAIN", BOTH)
    rules = Rules(says(Listed(who), PACED))

    @rules.rule("plain")
    def other(_event: Event) -> Notice:
        return Notice(plain, Listed(who), title="t", body="b")

    await decide(store, settings, rules, said(), Event(event_type="plain"))
    found = await rows(
        store,
        """SELECT m.type, count(DISTINCT d.due) AS times FROM bongsu_deliveries AS d
           JOIN bongsu_messages AS m ON m.message_id = d.message_id GROUP BY m.type""",
    )
    assert {row["type"]: row["times"] for row in found} == {"PACED": 4, "PLAIN": 1}


# --- quiet hours ------------------------------------------------------------------------------------------------------


def as_if_the_clock_stood_still(start: datetime, zone: ZoneInfo, quiet: Quiet, seconds: float) -> datetime:
    """The model: walk on minute by minute, and count only those that are not quiet."""
    moment = quiet_until(start, zone, quiet) or start
    left = seconds
    while True:
        active = seconds_until_quiet(moment, zone, quiet)
        if left < active:
            return moment + timedelta(seconds=left)
        left -= active
        begin = moment + timedelta(seconds=active)
        moment = quiet_until(begin, zone, quiet) or begin


@pytest.mark.parametrize(("start", "end"), [("22:00", "08:00"), ("12:05", "12:10"), ("11:00", "13:00"), ("12:01", "11:59")])
@pytest.mark.parametrize("pace", [1, 60])
async def test_quiet_hours_are_passed_over(store: Store, settings: Settings, start: str, end: str, pace: int) -> None:
    who = names(30)
    await members(store, *who, device=True)
    for one in who:
        await prefers(store, one, quietHours={"start": start, "end": end})
    kind = NoticeType("PACED", BOTH, pace_per_minute=pace)
    await decide(store, settings, says(Listed(who), kind), said(), chunk=7)
    quiet = Quiet(_minute(start), _minute(end))
    found = await due_times(store)
    for place, one in enumerate(who):
        expected = as_if_the_clock_stood_still(NOON, SEOUL, quiet, place * 60 / pace)
        assert found[one] == pytest.approx((expected - NOON).total_seconds())
        assert quiet_until(NOON + timedelta(seconds=found[one]), SEOUL, quiet) is None


def _minute(clock: str) -> int:
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


async def test_a_critical_one_is_paced_and_knows_no_quiet_hours(store: Store, settings: Settings) -> None:
    who = names(3)
    await members(store, *who, device=True)
    for one in who:
        await prefers(store, one, quietHours={"start": "11:00", "end": "13:00"})
    kind = NoticeType("PACED", BOTH, pace_per_minute=6, is_critical=True)
    await decide(store, settings, says(Listed(who), kind), said())
    assert await due_times(store) == pytest.approx({who[0]: 0.0, who[1]: 10.0, who[2]: 20.0})


@given(
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.sampled_from(["Asia/Seoul", "UTC", "America/New_York"]),
    st.integers(0, 2 * 86_400),
)
def test_it_is_known_when_quiet_hours_begin(start: int, end: int, zone: str, seconds: int) -> None:
    if start == end:
        return
    quiet, at = Quiet(start, end), datetime(2026, 5, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    moment = quiet_until(at, ZoneInfo(zone), quiet) or at
    wait = seconds_until_quiet(moment, ZoneInfo(zone), quiet)
    begin = moment + timedelta(seconds=wait)
    assert 0 < wait <= 86_400
    assert quiet_until(begin, ZoneInfo(zone), quiet) is not None
    assert quiet_until(begin - timedelta(seconds=1), ZoneInfo(zone), quiet) is None


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


@pytest.mark.parametrize("pace", [0, -1, 1.5, "60", True])
def test_what_is_no_pace_is_refused(pace: object) -> None:
    with pytest.raises(BadApp, match="pace_per_minute must be a whole number of members a minute, 1 or more"):
        App().type("SALE", channels=["PUSH"], pace_per_minute=pace)  # type: ignore[arg-type]
