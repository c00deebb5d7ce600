"""Erasing a member: nothing of them is left in any table, others keep theirs, and it is finished whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest

from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.decide.step import NotPrepared
from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.desk import erase as module
from bongsu.desk.dead_filter import DeadFilter
from bongsu.desk.erase import Erasures, erase_job, member_hash
from bongsu.errors import StoreRolledBack
from bongsu.model import Action, Behavior, Channel, Device, Everyone, Listed, Member, NoticeType, Platform, Preferences
from bongsu.model.job import Job
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Query, Row, Store, Transaction
from bongsu.store.core.query import same
from bongsu.store.desk import history
from bongsu.store.members import erasure, find_member, products, put_member, put_preferences
from bongsu.store.members.devices import put_device
from bongsu.store.runs import find_last
from tests.support.cancellations import request_cancel, run_cancel_steps
from tests.support.decisions import decide, rows, rules_notifying, trigger_event
from tests.support.replays import dead_letters
from tests.support.rows import add_attempt, add_event, add_row, add_suppression
from tests.support.runs import LEASE_SECONDS, run_by_hand
from tests.support.senders import AnsweringSender, HeldSender

TYPE = NoticeType("SAID", (Channel.PUSH, Channel.IN_APP, Channel.SMS))
SECRETS = ("erased-one", "erased@shop.example", "+821055556666", "token-of-the-erased", "address-of-the-erased")


async def add_person(store: Store, member_id: str, name: str) -> None:
    async with store.transaction() as tx:
        known: dict[str, Any] = {
            "email": f"{name}@shop.example",
            "phone": "+821055556666" if name == "erased" else "+821011112222",
        }
        await put_member(tx, member_id, Member(**known))
        device = Device(token=f"token-of-the-{name}", platform=Platform.ANDROID, push_consent=True)
        await put_device(tx, member_id, "phone", device)
        await put_preferences(tx, member_id, Preferences.model_validate({"types": {"OTHER": {"enabled": False}}}))
    async with store.transaction() as tx:
        seen = [Behavior(user_id=member_id, product_id=f"p-{number}", action=Action.VIEW) for number in range(7)]
        await products.add_behaviors(tx, seen)


async def notify(store: Store, settings: Settings, *member_ids: str, count: int = 1) -> list[UUID]:
    events = [trigger_event(target_id=member_ids[0], payload={"to": list(member_ids)}) for _ in range(count)]
    await decide(store, settings, rules_notifying(Listed(member_ids), TYPE), *events)
    return [event.event_id for event in events]


async def add_everything(store: Store, settings: Settings) -> None:
    """What a member may leave in any table, and another who shares some of it."""
    relaxed = settings.model_copy(update={"daily_limit": 100})
    await add_person(store, "erased-one", "erased")
    await add_person(store, "other", "other")
    await notify(store, relaxed, "erased-one", count=5)
    await notify(store, relaxed, "erased-one", "other", count=2)
    await notify(store, relaxed, "other")
    async with store.transaction() as tx:
        for row in await tx.fetch(same("SELECT delivery_id FROM bongsu_deliveries WHERE member_id = 'erased-one'")()):
            await add_attempt(tx, row["delivery_id"], code="TIMEOUT")
        (message,) = await tx.fetch(same("SELECT min(message_id) AS first FROM bongsu_messages")())
        await add_suppression(tx, message["first"] + 7, "erased-one")
        for status in ("FAILED", "UNHANDLED", "PENDING"):
            payload = '{"email": "erased@shop.example"}'
            await add_event(tx, target_id="erased-one", status=status, payload=payload, error="address-of-the-erased")


async def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables."""
    names = (
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'bongsu_%'"
        if store.dialect.name == "sqlite"
        else "SELECT tablename AS name FROM pg_tables WHERE tablename LIKE 'bongsu_%'"
    )
    found = {}
    for row in await rows(store, names):
        found[row["name"]] = [dict(one) for one in await rows(store, f"SELECT * FROM {row['name']}")]
    return found


async def traces(store: Store, secrets: tuple[str, ...] = SECRETS) -> list[tuple[str, str, str]]:
    """Where any of these stands, in any column of any table."""
    return [
        (table, column, secret)
        for table, found in (await everything(store)).items()
        for row in found
        for column, value in row.items()
        for secret in secrets
        if secret in str(value)
    ]


@pytest.mark.parametrize("batch", [1, 2, 500])
async def test_nothing_is_left_of_an_erased_member_and_others_keep_theirs(
    store: Store, settings: Settings, batch: int
) -> None:
    await add_everything(store, settings)
    before = await everything(store)
    run = await Erasures(store, LocalSignals(), LEASE_SECONDS, batch).erase("erased-one", "key:…abcd")
    # Events that name the other too are theirs as well.
    left = [trace for trace in await traces(store) if trace[:2] != ("bongsu_events", "payload")]
    assert left == [("bongsu_events", "target_id", "erased-one")] * 2
    after = await everything(store)
    for table, found in after.items():
        of_other = [row for row in found if row.get("member_id") == "other"]
        assert of_other == [row for row in before[table] if row.get("member_id") == "other"], table
    async with store.read() as tx:
        assert await find_member(tx, "erased-one") is None
        assert (await history.find_page(tx, history.Filters(member_id="erased-one"))).rows == []
        assert len((await history.find_page(tx, history.Filters(member_id="other"))).rows) == 3
    assert run.input == {"memberSha256": member_hash("erased-one")}
    assert run.requested_by == "key:…abcd"
    kinds = ("notifications", "messages", "suppressions", "behaviors", "devices", "members")
    assert [run.counts[kind] for kind in kinds] == [7, 5, 1, 7, 1, 1]
    statuses = [row["status"] for row in after["bongsu_events"]]
    assert (len(statuses), statuses.count("CANCELLED"), statuses.count("PENDING")) == (11, 3, 0)


async def test_an_unknown_member_is_erased_too_and_twice(store: Store) -> None:
    erasures = Erasures(store, LocalSignals(), LEASE_SECONDS)
    for _ in range(2):
        run = await erasures.erase("nobody", "cli:tester")
        assert (run.result, run.error) == ("nothing was stored", None)
    assert await traces(store, ("nobody",)) == []


async def test_an_erasure_that_was_interrupted_is_finished_by_another_process(store: Store, settings: Settings) -> None:
    await add_everything(store, settings)
    runs, interrupted = Runs(store, LEASE_SECONDS), 0
    job = erase_job(LocalSignals(), 1)

    def interrupt(run: Run) -> None:
        if run.steps == 3:
            under_way.cancel()

    wanted: dict[str, Any] = {"input": {"memberId": "erased-one"}, "subject": "s", "on_step": interrupt}
    under_way: asyncio.Task[Any] = asyncio.create_task(runs.run_by_hand(job, "cli:tester", **wanted))
    with pytest.raises(asyncio.CancelledError):
        await under_way
    while abandoned := await runs.find_abandoned():
        taken = await runs.take_over(abandoned[0])
        assert taken is not None
        under_way = asyncio.create_task(runs.execute(job, taken, interrupt))
        try:
            await under_way
        except asyncio.CancelledError:
            interrupted += 1
    assert interrupted > 1
    async with store.read() as tx:
        last = await find_last(tx, "erase")
    assert last is not None
    assert (last.error, last.counts["notifications"], last.counts["members"]) == (None, 7, 1)
    left = [trace for trace in await traces(store) if trace[0] != "bongsu_events"]
    assert left == []


async def test_erasing_while_deciding_sending_and_registering_leaves_no_half_of_a_member(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    relaxed = settings.model_copy(update={"daily_limit": 10_000})
    members = ("a", "b", "erased-one")
    for member_id in members:
        await add_person(store, member_id, "erased" if member_id == "erased-one" else member_id)
    erasures = Erasures(store, LocalSignals(), LEASE_SECONDS, batch=3)
    is_over = asyncio.Event()

    async def send() -> None:
        dispatcher = Dispatcher(store, GuardedSender(AnsweringSender()), relaxed)
        while not is_over.is_set():
            await dispatcher.tick()
        await dispatcher.stop()

    async def register() -> None:
        device = Device(token="token-of-the-erased", platform=Platform.ANDROID, push_consent=True)
        while not is_over.is_set():
            # Answered with 503 if it comes between two erasures.
            with contextlib.suppress(StoreRolledBack):
                await store.run(lambda tx: put_device(tx, "erased-one", "phone", device))

    async def erase() -> None:
        for _ in range(10):
            await erasures.erase("erased-one", "cli:tester")
        is_over.set()

    async def publish() -> None:
        # Bounded: on a busy machine it would add as fast as the erasures, by three rows at a time, delete.
        for _ in range(60):
            # The worker says so and decides it again at its next tick.
            with contextlib.suppress(NotPrepared):
                await notify(store, relaxed, *members, count=3)
            if is_over.is_set():
                break

    await asyncio.gather(send(), register(), erase(), publish())
    await erasures.erase("erased-one", "cli:tester")
    left = [trace for trace in await traces(store) if trace[0] != "bongsu_events"]
    assert left == []
    orphans = """SELECT 1 FROM bongsu_deliveries WHERE notification_id NOT IN (
        SELECT notification_id FROM bongsu_notifications)"""
    assert not await rows(store, orphans)


async def test_an_event_to_an_erased_member_that_waited_does_not_make_them_anew(store: Store, settings: Settings) -> None:
    await add_person(store, "erased-one", "erased")
    async with store.transaction() as tx:
        event_id = await add_event(tx, event_type="said", target_id="erased-one")
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("erased-one", "cli:tester")
    await decide(store, settings, rules_notifying(lambda event: Listed((event.target_id or "?",)), TYPE))
    assert await rows(store, "SELECT 1 FROM bongsu_members") == []
    (event,) = await rows(store, "SELECT event_id, status FROM bongsu_events")
    assert (UUID(str(event["event_id"])), event["status"]) == (event_id, "CANCELLED")


# --- where else an id may stand ---------------------------------------------------------------------------------------


async def test_an_erased_id_is_no_ones_saved_place(store: Store, settings: Settings) -> None:
    """A fan-out, a cancellation and a run keep the last member they came to; an event that waits, too."""
    await add_person(store, "erased-one", "erased")
    event = trigger_event()
    await decide(store, settings, rules_notifying(Everyone(), TYPE), event, chunk=1)
    await request_cancel(store, event.event_id, withdraw=True)
    await run_cancel_steps(store, limit=1)
    async with store.transaction() as tx:
        await add_event(tx, target_id="erased-one", fanout_cursor='[0, "erased-one"]')

    async def look(run: Run) -> str:
        await run.save(cursor="erased-one")
        return "looked at all"

    await run_by_hand(store, Job("recommend", "Looks at members.", look))
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("erased-one", "cli:tester")
    assert await traces(store, ("erased-one",)) == []


async def test_what_was_requested_about_an_erased_member_is_kept_without_the_id(store: Store) -> None:
    await add_person(store, "erased-one", "erased")
    dead = dead_letters(store, LocalSignals())
    await dead.replay(DeadFilter.model_validate({"userId": "erased-one", "code": "TIMEOUT"}), "cli:tester")
    await dead.replay(DeadFilter.model_validate({"userId": "other"}), "cli:tester")

    async def fail(_run: Run) -> str:
        raise ValueError("as after a fault of ours")

    wanted = {"memberId": "erased-one"}
    await Runs(store, LEASE_SECONDS).run_by_hand(Job("erase", "Fails.", fail), "cli:tester", input=wanted, subject="s")
    assert await traces(store, ("erased-one",)) != []
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("erased-one", "cli:tester")
    assert await traces(store, ("erased-one",)) == []
    found = [orjson.loads(row["input"]) for row in await rows(store, "SELECT input FROM bongsu_runs ORDER BY run_id")]
    erased = {"memberSha256": member_hash("erased-one")}
    assert [one.get("filter", one) for one in found] == [
        {"code": "TIMEOUT", "userSha256": member_hash("erased-one")},
        {"userId": "other"},
        erased,
        erased,
    ]


async def test_a_message_to_two_who_are_erased_at_once_is_deleted(store: Store, settings: Settings) -> None:
    """Whoever finds the message's event locked by the other erasure waits for it: the other may see the message in use."""
    if store.dialect.name == "sqlite":
        return  # has one writer
    for member_id in ("erased-one", "erased-two"):
        await add_person(store, member_id, member_id)
    await notify(store, settings, "erased-one", "erased-two")
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("erased-one", "cli:tester")
    async with store.transaction() as other:
        await other.fetch(same("SELECT event_id FROM bongsu_events FOR UPDATE")())
        erasing = asyncio.create_task(Erasures(store, LocalSignals(), LEASE_SECONDS).erase("erased-two", "cli:tester"))
        while not erasing.done() and not await rows(store, "SELECT 1 FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0.01)
    await erasing
    assert await traces(store, ("erased-one", "erased-two")) == []
    assert await rows(store, "SELECT 1 FROM bongsu_messages") == []


async def test_a_send_that_ends_after_its_delivery_was_erased_leaves_nothing(store: Store, settings: Settings) -> None:
    await add_person(store, "erased-one", "erased")
    await notify(store, settings, "erased-one")
    sender = HeldSender()
    dispatcher = Dispatcher(store, GuardedSender(sender), settings)
    tick = asyncio.create_task(dispatcher.tick())
    await sender.has_begun.wait()
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("erased-one", "cli:tester")
    sender.may_answer.set()
    await tick
    await dispatcher.stop()
    assert await rows(store, "SELECT 1 FROM bongsu_deliveries") == []
    assert await rows(store, "SELECT 1 FROM bongsu_attempts") == []


async def test_an_erasure_that_was_abandoned_for_days_is_finished(store: Store) -> None:
    await add_person(store, "erased-one", "erased")
    async with store.transaction() as tx:
        wanted = orjson.dumps({"memberId": "erased-one"}).decode()
        started: dict[str, Any] = {"job": "erase", "subject": "s", "input": wanted, "started_at": timedelta(days=-7)}
        await add_row(tx, "runs", **started)
    runs = Runs(store, LEASE_SECONDS)
    (found,) = await runs.find_abandoned()
    taken = await runs.take_over(found)
    assert taken is not None
    ended = await runs.execute(erase_job(LocalSignals()), taken)
    assert ended.run.error is None
    assert await traces(store) == []


async def test_an_event_that_is_published_during_the_last_part_is_cancelled_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.dialect.name == "sqlite":
        return  # has one writer
    await add_person(store, "erased-one", "erased")
    cancel = erasure.cancel_events

    async def cancel_and_publish(*given: Any) -> int:
        cancelled = await cancel(*given)
        if not await rows(store, "SELECT 1 FROM bongsu_events"):
            async with store.transaction() as tx:
                await add_event(tx, target_id="erased-one")
        return cancelled

    monkeypatch.setattr(erasure, "cancel_events", cancel_and_publish)
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("erased-one", "cli:tester")
    assert [row["status"] for row in await rows(store, "SELECT status FROM bongsu_events")] == ["CANCELLED"]
    assert await traces(store) == []


async def test_registering_a_new_device_while_erasing_is_no_deadlock(store: Store) -> None:
    """Both lock the member before the devices."""
    if store.dialect.name == "sqlite":
        return  # has one writer
    await add_person(store, "erased-one", "erased")
    device = Device(token="token-of-the-second", platform=Platform.IOS, push_consent=True)
    fetch_begun, erasing = asyncio.Event(), asyncio.Event()

    class Held:
        """A transaction that waits behind the locks of a registration until the erasure waits for them."""

        def __init__(self, tx: Transaction) -> None:
            self._tx, self.dialect = tx, tx.dialect

        async def fetch(self, *queries: Query) -> Sequence[Row]:
            found = await self._tx.fetch(*queries)
            fetch_begun.set()
            await erasing.wait()
            return found

        async def execute(self, *queries: Query) -> list[int]:
            return await self._tx.execute(*queries)

    async def register() -> None:
        async with store.transaction() as tx:
            await put_device(Held(tx), "erased-one", "tablet", device)

    registering = asyncio.create_task(register())
    await fetch_begun.wait()
    erasure_run = asyncio.create_task(Erasures(store, LocalSignals(), LEASE_SECONDS).erase("erased-one", "cli:tester"))
    while not await rows(store, "SELECT 1 FROM pg_locks WHERE NOT granted"):
        await asyncio.sleep(0.01)
    erasing.set()
    await registering
    await erasure_run
    assert await traces(store, (*SECRETS, "token-of-the-second")) == []
