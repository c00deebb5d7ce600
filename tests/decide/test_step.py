from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from bongsu.decide.progress import Decision, EventInProgress
from bongsu.decide.worker import EventWorker
from bongsu.model import (
    Action,
    Audience,
    Channel,
    Device,
    Event,
    Everyone,
    Interested,
    Listed,
    Notice,
    NoticeType,
    Platform,
    Selected,
)
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings
from bongsu.store import Query, Store, Transaction, outbox
from bongsu.store.members.devices import put_device
from tests.conftest import SettingsMaker
from tests.support.decisions import (
    IN_APP,
    NOON,
    Clock,
    ClockedDecider,
    add_behaviors,
    add_members,
    decide,
    delivery_channels,
    notified_counts,
    results_by_member,
    rows,
    rules_notifying,
    run_sql,
    run_worker,
    set_preferences,
    tick_until_work,
    trigger_event,
    unread_is_exact,
)
from tests.support.rows import NOW, set_columns

PUSH = (Channel.PUSH,)
ALL = (Channel.PUSH, Channel.SMS, Channel.EMAIL, Channel.IN_APP)


@pytest.fixture(params=["sqlite", "postgresql few", "postgresql many"])
def settings(request: pytest.FixtureRequest, migrated_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """On PostgreSQL few members take another path than many."""
    if "many" in request.param:
        monkeypatch.setattr("bongsu.store.decisions.decide.FEW_RECIPIENTS", 0)
    return migrated_settings(request.param.split()[0])


async def test_each_member_of_the_audience_is_notified_once(store: Store, settings: Settings) -> None:
    await decide(store, settings, rules_notifying(Listed(("a", "b", "a"))), trigger_event("1"))
    assert await notified_counts(store) == {"a": 1, "b": 1}
    assert await unread_is_exact(store)


@pytest.mark.parametrize("chunk", [3, 100])
async def test_members_are_in_order_byte_by_byte(store: Store, settings: Settings, chunk: int) -> None:
    """The statements for many look between the first and the last of them."""
    some = ("A", "Z", "a", "z", "É", "é", "ｚ", "가나", "힣", "\U0001f525", "\ue000")
    async with store.transaction() as tx:
        for number, one in enumerate(some):
            await put_device(tx, one, "d", Device(token=f"t-{number}", platform=Platform.IOS, push_consent=True))
    await set_preferences(store, "z", enabled=False)
    await decide(store, settings, rules_notifying(Everyone(), NoticeType("N", PUSH)), trigger_event(), chunk=chunk)
    assert Counter(await delivery_channels(store)) == Counter((one, "PUSH") for one in some if one != "z")


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
async def test_an_audience_larger_than_a_step_is_notified_step_by_step(store: Store, settings: Settings, chunk: int) -> None:
    everyone = [f"m{number}" for number in range(7)]
    await add_members(store, *everyone)
    await decide(store, settings, rules_notifying(Everyone()), trigger_event("1"), trigger_event("2"), chunk=chunk)
    assert await notified_counts(store) == dict.fromkeys(everyone, 2)
    assert await unread_is_exact(store)


@pytest.mark.parametrize("chunk", [1, 3, 100])
async def test_interest_is_exact_however_it_is_cut(store: Store, settings: Settings, chunk: int) -> None:
    late = NOON - timedelta(days=7, seconds=1)
    await add_behaviors(store, "p1", "viewer", "both", "buyer", action=Action.VIEW, at=NOON - timedelta(days=7))
    await add_behaviors(store, "p1", "both", action=Action.ADD_TO_CART)
    await add_behaviors(store, "p1", "late", at=late)
    await add_behaviors(store, "p1", "other", action=Action.PURCHASE)
    await add_behaviors(store, "p2", "viewer", "elsewhere")
    looked = frozenset({Action.VIEW, Action.ADD_TO_CART})
    rules = rules_notifying(lambda event: Interested(event.ref_id or "", looked, 7))
    await decide(store, settings, rules, trigger_event("p1"), trigger_event("p2"), trigger_event("p3"), chunk=chunk)
    assert await notified_counts(store) == {"viewer": 2, "both": 1, "buyer": 1, "elsewhere": 1}


async def test_any_select_is_an_audience(store: Store, settings: Settings) -> None:
    await run_sql(
        store,
        "CREATE TABLE follows (who integer, whom text)",
        "INSERT INTO follows VALUES (1, 'x'), (2, 'x'), (9, 'x'), (9, 'x'), (3, 'y'), (NULL, 'x')",
    )
    rules = rules_notifying(lambda event: Selected("SELECT who FROM follows WHERE whom = :whom;", {"whom": event.ref_id}))
    await decide(store, settings, rules, trigger_event("x"), chunk=2)
    assert await notified_counts(store) == {"1": 1, "2": 1, "9": 1}


@pytest.mark.parametrize("count", [0, 9, 11, 95])
async def test_a_select_runs_once_however_many_it_finds(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    everyone = await followers(store, count)
    await add_members(store, *everyone)
    with recorded_statements(store, monkeypatch) as statements:
        await decide(store, settings, rules_notifying(Selected("SELECT who FROM follows")), trigger_event(), chunk=10)
    assert await notified_counts(store) == dict.fromkeys(everyone, 1)
    assert sum("FROM follows" in one for one in statements) == 1
    assert await rows(store, "SELECT * FROM bongsu_audience_snapshots") == []


async def test_who_follows_later_is_not_notified_and_who_left_is(store: Store, settings: Settings) -> None:
    """Who hears of it is settled before the first step."""
    everyone = await followers(store, 9)
    await add_members(store, *everyone)
    async with store.transaction() as tx:
        await outbox.add(tx, [trigger_event()])
    rules = rules_notifying(Selected("SELECT who FROM follows"))
    worker = EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock(), 2))
    await tick_until_work(worker)
    await tick_until_work(worker)
    assert 0 < len(await notified_counts(store)) < 9
    await run_sql(store, "DELETE FROM follows", "INSERT INTO follows VALUES ('m-999')")
    # Another takes over what this one had begun.
    await worker.stop()
    await set_columns(store, "events", due=NOW)
    await run_worker(EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock(), 4)))
    assert await notified_counts(store) == dict.fromkeys(everyone, 1)
    assert await rows(store, "SELECT * FROM bongsu_audience_snapshots") == []


async def test_an_event_that_failed_half_way_leaves_no_portions_and_asks_anew(store: Store, settings: Settings) -> None:
    everyone = await followers(store, 9)
    await add_members(store, *everyone)
    once = settings.model_copy(update={"max_retries": 0})
    async with store.transaction() as tx:
        await outbox.add(tx, [trigger_event()])
    kind = NoticeType("SAID", IN_APP)
    worker = EventWorker(
        store, rules_notifying(Selected("SELECT who FROM follows"), kind), once, Breaking(store, settings, steps=2)
    )
    await run_worker(worker)
    assert len(await notified_counts(store)) == 4
    ((status,),) = await rows(store, "SELECT status FROM bongsu_events")
    assert status == "FAILED"
    assert await rows(store, "SELECT * FROM bongsu_audience_snapshots") == []
    await run_sql(store, "DELETE FROM follows WHERE who = 'm-008'")
    await set_columns(store, "events", status="PENDING", attempts=0, due=NOW)
    await run_worker(
        EventWorker(
            store, rules_notifying(Selected("SELECT who FROM follows"), kind), once, Breaking(store, settings, steps=99)
        )
    )
    assert await notified_counts(store) == dict.fromkeys(everyone[:-1], 1)


async def test_several_selects_of_an_event_take_turns(store: Store, settings: Settings) -> None:
    everyone = await followers(store, 7)
    rules = Rules()

    @rules.rule("said")
    def said_twice(event: Event) -> list[Notice]:
        kinds = NoticeType("ONE", IN_APP), NoticeType("TWO", IN_APP)
        return [Notice(kind, Selected("SELECT who FROM follows"), title="t", body="b") for kind in kinds]

    await decide(store, settings, rules, trigger_event("1"), trigger_event("2"), chunk=3)
    assert await notified_counts(store) == dict.fromkeys(everyone, 4)
    assert await rows(store, "SELECT * FROM bongsu_audience_snapshots") == []


class Breaking(ClockedDecider):
    """Decides two at a time, so many steps, and no more."""

    def __init__(self, store: Store, settings: Settings, steps: int) -> None:
        super().__init__(store, settings, Clock(), 2)
        self._steps = steps

    async def decide_step(self, events: Sequence[EventInProgress]) -> Decision:
        self._steps -= 1
        if self._steps < 0:
            raise ValueError("no more")
        return await super().decide_step(events)


async def followers(store: Store, count: int) -> list[str]:
    everyone = [f"m-{number:03}" for number in range(count)]
    await run_sql(store, "CREATE TABLE follows (who text)", *(f"INSERT INTO follows VALUES ('{one}')" for one in everyone))
    return everyone


@contextlib.contextmanager
def recorded_statements(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every statement that a transaction runs meanwhile."""
    recorded: list[str] = []

    def recording(begin: Callable[..., Any]) -> Callable[..., Any]:
        @contextlib.asynccontextmanager
        async def begun(*arguments: Any) -> AsyncIterator[Recording]:
            async with begin(*arguments) as tx:
                yield Recording(tx, recorded)

        return begun

    with monkeypatch.context() as patch:
        for name in ("transaction", "read_within"):
            patch.setattr(store.database, name, recording(getattr(store.database, name)))
        yield recorded


class Recording:
    """A transaction that notes its statements."""

    def __init__(self, tx: Transaction, recorded: list[str]) -> None:
        self._tx = tx
        self._recorded = recorded
        self.dialect = tx.dialect

    async def fetch(self, *queries: Query) -> Any:
        self._recorded += [query.statement.postgres for query in queries]
        return await self._tx.fetch(*queries)

    async def execute(self, *queries: Query) -> list[int]:
        self._recorded += [query.statement.postgres for query in queries]
        return await self._tx.execute(*queries)


async def test_an_empty_audience_gets_no_notification(store: Store, settings: Settings) -> None:
    nobody = rules_notifying(
        lambda event: Selected("SELECT member_id FROM bongsu_members") if event.ref_id == "1" else Listed(())
    )
    await decide(store, settings, nobody, trigger_event("1"), trigger_event("2"))
    assert [tuple(row) for row in await rows(store, "SELECT status, count(*) FROM bongsu_events GROUP BY status")] == [
        ("DONE", 2)
    ]


async def test_a_broken_select_fails_its_event_alone(store: Store, settings: Settings) -> None:
    broken = settings.model_copy(update={"max_retries": 0})
    rules = rules_notifying(lambda event: Selected("SELECT x FROM nowhere") if event.ref_id == "bad" else Listed(("a",)))
    await decide(store, broken, rules, trigger_event("good"), trigger_event("bad"), trigger_event("fine"))
    assert await notified_counts(store) == {"a": 2}
    failed = await rows(store, "SELECT ref_id, error FROM bongsu_events WHERE status = 'FAILED'")
    assert [row[0] for row in failed] == ["bad"]
    assert "BadAudience" in failed[0][1]
    assert "nowhere" in failed[0][1]


async def test_the_same_about_the_same_is_a_duplicate_for_an_hour(store: Store, settings: Settings) -> None:
    clock = Clock()
    rules = rules_notifying(Listed(("a",)), subject="p1")
    await decide(store, settings, rules, trigger_event(), clock=clock)
    clock.forward(minutes=59)
    await decide(store, settings, rules, trigger_event(), clock=clock)
    assert await results_by_member(store) == {"a": {"NOTIFIED": 1, "DUPLICATE": 1}}
    clock.forward(minutes=1, seconds=1)
    await decide(store, settings, rules, trigger_event(), clock=clock)
    assert await notified_counts(store) == {"a": 2}


async def test_who_is_notified_days_after_the_others_gets_no_duplicate_within_the_hour(
    store: Store, settings: Settings
) -> None:
    clock = Clock()
    rules = rules_notifying(Listed(tuple("abcd")), subject="p1")
    async with store.transaction() as tx:
        await outbox.add(tx, [trigger_event()])
    worker = EventWorker(store, rules, settings, ClockedDecider(store, settings, clock, 1))
    await worker.tick()
    assert await notified_counts(store) == {"a": 1, "b": 1}
    clock.forward(days=3)
    await run_worker(worker)
    assert await notified_counts(store) == dict.fromkeys("abcd", 1)
    clock.forward(minutes=59)
    await decide(store, settings, rules, trigger_event(), clock=clock)
    assert await results_by_member(store) == {
        **{one: {"NOTIFIED": 2} for one in "ab"},
        **{one: {"NOTIFIED": 1, "DUPLICATE": 1} for one in "cd"},
    }


async def test_what_is_claimed_again_while_it_is_in_progress_is_notified_once(store: Store, settings: Settings) -> None:
    """Of those about the same thing some wait, and the leases of these end at once."""
    no_time = settings.model_copy(update={"lease_seconds": 0.0})
    kind = NoticeType("SAID", IN_APP, duplicate_hours=0)
    await decide(
        store, no_time, rules_notifying(Listed(("a",)), kind, subject="p1"), *(trigger_event(str(one)) for one in range(7))
    )
    assert await notified_counts(store) == {"a": 7}
    ends = await rows(store, "SELECT status, attempts, count(*) FROM bongsu_events GROUP BY status, attempts")
    assert [tuple(row) for row in ends] == [("DONE", 0, 7)]


@pytest.mark.parametrize(("audience", "kind", "expected"), [
    (Listed(("a", "b")), NoticeType("SAID", PUSH), 2),
    (Everyone(), NoticeType("SAID", PUSH), 2),
    (Listed(("a", "b")), NoticeType("SAID", IN_APP), 0),
    (Listed(("nobody-yet",)), NoticeType("SAID", PUSH), 0),
])  # fmt: skip
async def test_a_step_returns_how_many_deliveries_it_made(
    store: Store, settings: Settings, audience: Audience, kind: NoticeType, expected: int
) -> None:
    """Dispatchers are woken by that, and by nothing else before their next poll."""
    await add_members(store, "a", "b", device=True)
    decided: list[int] = []
    async with store.transaction() as tx:
        await outbox.add(tx, [trigger_event()])
    decider = ClockedDecider(store, settings, Clock())
    rules = rules_notifying(audience, kind)
    await run_worker(EventWorker(store, rules, settings, decider, lambda decision: decided.append(decision.deliveries)))
    assert decided == [expected]
    assert len(await delivery_channels(store)) == expected


async def test_of_two_duplicates_in_one_step_the_first_is_notified(store: Store, settings: Settings) -> None:
    await decide(
        store, settings, rules_notifying(Listed(("a", "b")), subject="p1"), *(trigger_event(str(one)) for one in range(3))
    )
    assert await results_by_member(store) == {one: {"NOTIFIED": 1, "DUPLICATE": 2} for one in "ab"}
    (ref_id,) = (await rows(store, "SELECT DISTINCT e.ref_id FROM bongsu_messages m JOIN bongsu_events e USING (event_id) "
                            "JOIN bongsu_notifications USING (message_id)"))[0]  # fmt: skip
    assert ref_id == "0"


async def test_the_eleventh_of_a_day_is_one_too_many(store: Store, settings: Settings) -> None:
    clock = Clock()
    await decide(
        store, settings, rules_notifying(Listed(("a", "b"))), *(trigger_event(str(one)) for one in range(12)), clock=clock
    )
    assert await results_by_member(store) == {one: {"NOTIFIED": 10, "RATE_LIMITED": 2} for one in "ab"}
    clock.forward(hours=12)
    await decide(store, settings, rules_notifying(Listed(("a",))), trigger_event(), clock=clock)
    assert (await notified_counts(store))["a"] == 11


async def test_the_day_is_the_members_own(store: Store, settings: Settings) -> None:
    await add_members(store, "seoul", "honolulu")
    await set_columns(store, "members", {"member_id": "honolulu"}, timezone="Pacific/Honolulu")
    clock = Clock(NOON + timedelta(hours=11, minutes=59))  # a minute before midnight in Seoul, early morning in Honolulu
    limited = settings.model_copy(update={"daily_limit": 1})
    rules = rules_notifying(Listed(("seoul", "honolulu")))
    await decide(store, limited, rules, trigger_event(), clock=clock)
    clock.forward(minutes=1)
    await decide(store, limited, rules, trigger_event(), clock=clock)
    assert await notified_counts(store) == {"seoul": 2, "honolulu": 1}


async def test_critical_ones_pass_the_cap_and_do_not_count(store: Store, settings: Settings) -> None:
    limited = settings.model_copy(update={"daily_limit": 1})
    critical = rules_notifying(Listed(("a",)), NoticeType("ALARM", IN_APP, is_critical=True))
    await decide(store, limited, critical, trigger_event("1"), trigger_event("2"))
    await decide(store, limited, rules_notifying(Listed(("a",))), trigger_event("3"), trigger_event("4"))
    await decide(store, limited, critical, trigger_event("5"))
    assert await results_by_member(store) == {"a": {"NOTIFIED": 4, "RATE_LIMITED": 1}}


async def test_preferences_are_kept(store: Store, settings: Settings) -> None:
    await set_preferences(store, "off", enabled=False)
    await set_preferences(store, "not-this", types={"SAID": {"enabled": False}})
    await set_preferences(store, "not-that", types={"OTHER": {"enabled": False}})
    await set_preferences(store, "no-way", types={"SAID": {"channels": ["SMS"]}})
    await decide(store, settings, rules_notifying(Listed(("off", "not-this", "not-that", "no-way", "new"))), trigger_event())
    assert await results_by_member(store) == {
        "off": {"USER_OPTED_OUT": 1},
        "not-this": {"USER_OPTED_OUT": 1},
        "not-that": {"NOTIFIED": 1},
        "no-way": {"USER_OPTED_OUT": 1},
        "new": {"NOTIFIED": 1},
    }
    critical = NoticeType("ALARM", IN_APP, is_critical=True)
    await decide(store, settings, rules_notifying(Listed(("off",)), critical), trigger_event())
    assert (await notified_counts(store))["off"] == 1


async def test_there_is_a_delivery_for_each_channel_that_reaches_the_member(store: Store, settings: Settings) -> None:
    await add_members(store, "all", "push", device=True)
    await add_members(store, "none", "phone")
    await set_columns(store, "members", {"member_id": "all"}, email="a@b.kr")
    await set_columns(store, "members", {"member_id": ["all", "phone"]}, phone="010")
    await set_preferences(store, "push", types={"SAID": {"channels": ["PUSH"]}})
    kind = NoticeType("SAID", ALL)
    await decide(store, settings, rules_notifying(Listed(("all", "push", "none", "phone")), kind), trigger_event())
    assert await delivery_channels(store) == [
        ("all", "EMAIL"),
        ("all", "PUSH"),
        ("all", "SMS"),
        ("phone", "SMS"),
        ("push", "PUSH"),
    ]
    assert await notified_counts(store) == {"all": 1, "push": 1, "none": 1, "phone": 1}


async def test_without_inbox_and_address_there_is_none(store: Store, settings: Settings) -> None:
    await add_members(store, "with", device=True)
    await add_members(store, "without", "refused", "gone", device=False)
    await add_members(store, "refused", "gone", device=True)
    await set_columns(store, "devices", {"member_id": "refused"}, has_consent=False)
    await set_columns(store, "devices", {"member_id": "gone"}, status="INVALID")
    await decide(store, settings, rules_notifying(Everyone(), NoticeType("SAID", PUSH)), trigger_event())
    assert await results_by_member(store) == {
        "with": {"NOTIFIED": 1},
        "without": {"NO_ADDRESS": 1},
        "refused": {"NO_ADDRESS": 1},
        "gone": {"NO_ADDRESS": 1},
    }


async def test_quiet_hours_defer_deliveries_and_nothing_else(store: Store, settings: Settings) -> None:
    await add_members(store, "asleep", "awake", device=True)
    await set_preferences(store, "asleep", quietHours={"start": "22:00", "end": "08:00"})
    night = Clock(NOON + timedelta(hours=11))  # 23:00 in Seoul
    kind = NoticeType("SAID", (Channel.PUSH, Channel.IN_APP))
    await decide(store, settings, rules_notifying(Everyone(), kind), trigger_event("1"), clock=night)
    alarm = NoticeType("ALARM", (Channel.PUSH, Channel.IN_APP), is_critical=True)
    await decide(store, settings, rules_notifying(Everyone(), alarm), trigger_event("2"), clock=night)
    assert await notified_counts(store) == {"asleep": 2, "awake": 2}
    found = await rows(
        store,
        """SELECT d.member_id, m.type, d.due, d.created_at FROM bongsu_deliveries d JOIN bongsu_messages m USING (message_id)
           ORDER BY d.member_id, m.type""",
    )
    waits = [(row[0], row[1], store.dialect.time(row[2]) - store.dialect.time(row[3])) for row in found]
    assert waits == [
        ("asleep", "ALARM", timedelta(0)),
        ("asleep", "SAID", timedelta(hours=9)),
        ("awake", "ALARM", timedelta(0)),
        ("awake", "SAID", timedelta(0)),
    ]


async def test_ids_of_a_member_grow_with_time(store: Store, settings: Settings) -> None:
    for one in range(3):
        await decide(store, settings, rules_notifying(Listed(("a", "b"))), trigger_event(str(one)))
    found = await rows(
        store,
        """SELECT e.ref_id FROM bongsu_notifications n JOIN bongsu_messages USING (message_id) JOIN bongsu_events e
           USING (event_id) WHERE n.member_id = 'a' ORDER BY n.notification_id""",
    )
    assert [row[0] for row in found] == ["0", "1", "2"]


async def test_everybody_reads_their_own_language(store: Store, settings: Settings) -> None:
    await add_members(store, "ko", "en", "fr", "unknown")
    for locale in ("ko", "en", "fr"):
        await set_columns(store, "members", {"member_id": locale}, locale=locale)
    followed = [Event(event_type="follow.created", actor_id="x", target_id=one) for one in ("ko", "en", "fr", "unknown")]
    await decide(store, settings, catalogue(settings), *followed)
    found = await rows(
        store, "SELECT n.member_id, m.locale FROM bongsu_notifications n JOIN bongsu_messages m USING (message_id)"
    )
    assert dict(tuple(row) for row in found) == {"ko": "ko", "en": "en", "fr": "ko", "unknown": "ko"}


@pytest.mark.parametrize("audience", [["a"], ("a",), "a", None])
async def test_what_is_not_an_audience_notifies_nobody(store: Store, settings: Settings, audience: object) -> None:
    """Above all not everybody."""
    await add_members(store, "a", "b")
    once = settings.model_copy(update={"max_retries": 0})
    await decide(store, once, rules_notifying(lambda _event: audience), trigger_event())  # type: ignore[arg-type,return-value]
    assert await notified_counts(store) == {}
    ((status, error),) = await rows(store, "SELECT status, error FROM bongsu_events")
    assert status == "FAILED"
    assert "write Listed" in error


async def test_an_unknown_time_zone_does_not_keep_others_from_being_notified(store: Store, settings: Settings) -> None:
    await add_members(store, "a", "b")
    await set_columns(store, "members", {"member_id": "a"}, timezone="Mars/Olympus")
    await decide(store, settings, rules_notifying(Everyone()), trigger_event("1"), trigger_event("2"))
    assert await notified_counts(store) == {"a": 2, "b": 2}


async def test_two_notices_of_one_event_about_the_same_are_one(store: Store, settings: Settings) -> None:
    twice = Rules()

    @twice.rule("said")
    def told_twice(_event: Event) -> list[Notice]:
        return [Notice(NoticeType("SAID", IN_APP), Listed(("a",)), title="t", body="b") for _ in range(2)]

    await decide(store, settings, twice, trigger_event())
    assert await results_by_member(store) == {"a": {"NOTIFIED": 1, "DUPLICATE": 1}}


async def test_a_select_without_the_rights_for_it_fails_its_event_alone(store: Store, settings: Settings) -> None:
    """On PostgreSQL a table misspelt after ours looked like a store that was never migrated."""
    once = settings.model_copy(update={"max_retries": 0})
    rules = rules_notifying(
        lambda event: Selected("SELECT x FROM bongsu_nowhere") if event.ref_id == "bad" else Listed(("a",))
    )
    await decide(store, once, rules, trigger_event("bad"), trigger_event("good"))
    assert await notified_counts(store) == {"a": 1}
    assert [tuple(row) for row in await rows(store, "SELECT ref_id FROM bongsu_events WHERE status = 'FAILED'")] == [
        ("bad",)
    ]
