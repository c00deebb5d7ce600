"""Erasing a member: nothing of them is left in any table, others keep theirs, and it is finished whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID

import pytest

from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.decide.step import NotPrepared
from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.desk import erase as module
from bongsu.desk.erase import Erasures, erase_job, member_hash
from bongsu.errors import StoreRolledBack
from bongsu.model import Action, Behavior, Channel, Device, Listed, Member, NoticeType, Platform, Preferences
from bongsu.model.outcome import Accepted, Outcome, Outgoing
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import same
from bongsu.store.desk import history
from bongsu.store.members import find_member, products, put_member, put_preferences
from bongsu.store.members.devices import put_device
from bongsu.store.runs import find_last
from tests.support.decisions import decide, rows, rules_notifying, trigger_event
from tests.support.rows import add_attempt, add_event, add_suppression
from tests.support.runs import LEASE_SECONDS

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


class Sender:
    channel = Channel.PUSH

    async def send(self, outgoing: Outgoing) -> Outcome:
        await asyncio.sleep(0)
        return Accepted("ref")

    async def close(self) -> None: ...


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
        dispatcher = Dispatcher(store, GuardedSender(Sender()), relaxed)
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
        while not is_over.is_set():
            # The worker says so and decides it again at its next tick.
            with contextlib.suppress(NotPrepared):
                await notify(store, relaxed, *members, count=3)

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
