"""Every Source behind the Consumer: what was written is stored once, and what cannot be stored is set aside."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bongsu.errors import BadEvent, SourceError, StoreUnreachable
from bongsu.ingress.consumer import Consumer, Received, Source
from bongsu.ingress.decode import decode_event
from bongsu.ingress.intake import Intake
from bongsu.model import Event, new_id
from bongsu.runtime import telemetry
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import same
from bongsu.store.outbox import NewEvent
from tests.conftest import KEYS
from tests.ingress.source_rigs import RIGS, SourceRig, rig_of, until_empty
from tests.support.waiting import until

PATIENCE_SECONDS = 60

Events = Sequence[Event | NewEvent]


@pytest.fixture(params=RIGS)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SourceRig]:
    async with rig_of(request.param, request, tmp_path) as rig:
        yield rig


@pytest.fixture
async def home(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Store]:
    """The store. What it does with events is tested on both databases elsewhere."""
    shutil.copy(sqlite_template, tmp_path / "bongsu.db")
    store = Store.open(Settings(data_dir=tmp_path, **KEYS))
    yield store
    await store.close()


@pytest.fixture
async def intake(home: Store) -> AsyncIterator[Intake]:
    async with running(Intake(home, LocalSignals(), "outbox")) as intake:
        yield intake


class Stored:
    """Stores events, and remembers in which order; fails as it is told to."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.order: list[str] = []
        self.failing: Callable[[Events], Exception | None] = lambda _events: None
        self.failed = asyncio.Event()

    async def accept(self, events: Events) -> Sequence[bool]:
        if error := self.failing(events):
            self.failed.set()
            raise error
        answers = await self._intake.accept_in_turn(events)
        self.order += [str(event.event_id) for event in events]
        return answers


@pytest.fixture
def stored(intake: Intake) -> Stored:
    return Stored(intake)


def message(**fields: Any) -> dict[str, Any]:
    return {"eventId": str(new_id()), "eventType": "order.paid", **fields}


def ids(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [each["eventId"] for each in messages]


async def event_ids(home: Store) -> set[str]:
    async with home.read() as tx:
        return {str(row["event_id"]) for row in await tx.fetch(same("SELECT event_id FROM bongsu_events")())}


def consumer(rig: SourceRig, stored: Stored, **options: Any) -> Consumer[Event | NewEvent]:
    return Consumer(rig.source(), decode_event, stored.accept, **options)


async def test_messages_are_stored_in_the_order_in_which_they_were_written(rig: SourceRig, stored: Stored) -> None:
    messages = [message(payload={"number": number}) for number in range(25)]
    await rig.put(*messages)
    async with running(consumer(rig, stored, limit=10)):
        await until(lambda: len(stored.order) >= 25)
        later = [message() for _ in range(3)]
        await rig.put(*later)
        await until_empty(rig)
    assert stored.order == ids(messages + later)


async def test_whatever_an_event_holds_arrives(rig: SourceRig, home: Store, stored: Stored) -> None:
    full = message(
        actorId="100% %s ? $1 :p0 {}",
        targetId="b'\"\\;--,NULL 🔥",
        refId="주문-1",
        payload={"이름": "사과 🔥", "list": [1, None, True, "x\ny\t\"'\\"], "long": "가" * 60_000},
    )
    await rig.put(full, message(payload={}))
    async with running(consumer(rig, stored)):
        await until_empty(rig)
    async with home.read() as tx:
        rows = await tx.fetch(same("SELECT * FROM bongsu_events WHERE actor_id IS NOT NULL")())
    assert [(row["actor_id"], row["target_id"], row["ref_id"]) for row in rows] == [
        (full["actorId"], full["targetId"], full["refId"])
    ]
    assert len(await event_ids(home)) == 2


async def test_a_message_that_was_not_acknowledged_is_delivered_again_and_stored_once(
    rig: SourceRig, home: Store, stored: Stored
) -> None:
    """As after a crash between the store's commit and the acknowledgement."""
    messages = [message() for _ in range(5)]
    await rig.put(*messages)
    crashed = rig.source()
    batch: list[Received] = []
    while len(batch) < len(messages):
        batch += await crashed.receive(100)
    await stored.accept([_event(each) for each in batch])
    await crashed.close()
    async with running(consumer(rig, stored)):
        await until_empty(rig)
    assert sorted(stored.order) == sorted(ids(messages) * 2)
    assert await event_ids(home) == set(ids(messages))


async def test_poison_is_set_aside_with_its_reason_and_the_others_stand(rig: SourceRig, home: Store, stored: Stored) -> None:
    good = [message() for _ in range(4)]
    bad = [message(payload="no JSON {"), message(payload="[1]"), message(eventType="a\u0001b"), message(payload="{}, {}")]
    await rig.put(good[0], bad[0], good[1], bad[1], bad[2], good[2], bad[3], good[3])
    async with running(consumer(rig, stored)):
        await until_empty(rig)
    assert await event_ids(home) == set(ids(good))
    rejected = await rig.rejected()
    assert set(rejected) == set(ids(bad))
    assert "payload" in rejected[bad[1]["eventId"]]
    assert "eventType" in rejected[bad[2]["eventId"]]


async def test_what_the_store_refuses_alone_is_isolated_and_set_aside(rig: SourceRig, home: Store, stored: Stored) -> None:
    messages = [message(refId=str(number)) for number in range(9)]
    refused = ids(messages)[4]
    stored.failing = lambda events: BadEvent("this one") if refused in {str(event.event_id) for event in events} else None
    await rig.put(*messages)
    with capture_logs() as logs:
        async with running(consumer(rig, stored)):
            await until_empty(rig)
    assert await event_ids(home) == set(ids(messages)) - {refused}
    reason, rejected = str(BadEvent("this one")), await rig.rejected()
    assert set(rejected) == {refused}
    assert [log["first"] for log in logs if log["event"] == "messages rejected"] == [reason]
    assert rejected[refused] == reason or not rig.keeps_reasons
    assert stored.order == [each for each in ids(messages) if each != refused]


async def test_while_the_store_is_away_nothing_is_rejected_and_nothing_lost(
    rig: SourceRig, home: Store, stored: Stored
) -> None:
    messages = [message() for _ in range(6)]
    stored.failing = lambda _events: StoreUnreachable("it is restarted")
    await rig.put(*messages)
    taking = consumer(rig, stored)
    with capture_logs() as logs:
        async with running(taking):
            for _ in range(3):
                stored.failed.clear()
                await asyncio.wait_for(stored.failed.wait(), PATIENCE_SECONDS)
            stored.failing = lambda _events: None
            await until_empty(rig)
    assert await rig.rejected() == {}
    assert stored.order == ids(messages)
    assert [log["event"] for log in logs if "store" in log["event"]] == ["store is away", "store is back"]


async def test_a_source_that_went_away_is_found_again_and_logged_once_each_way(
    rig: SourceRig, home: Store, stored: Stored
) -> None:
    first, later = message(), message()
    taking = consumer(rig, stored)
    with capture_logs() as logs:
        async with running(taking):
            await rig.put(first)
            await until_empty(rig)
            await rig.cut()
            await until(lambda: any(log["event"] == "source is away" for log in logs))
            await rig.mend()
            await rig.put(later)
            await until_empty(rig)
    assert stored.order == ids([first, later])
    assert [log["event"] for log in logs if log["event"].startswith("source")] == ["source is away", "source is back"]
    assert not any("password" in str(log) for log in logs)


async def test_a_source_that_goes_away_in_the_middle_of_a_batch_delivers_it_again(
    rig: SourceRig, home: Store, stored: Stored
) -> None:
    messages = [message() for _ in range(5)]
    await rig.put(*messages)
    is_cut = asyncio.Event()

    class CutAfterStoring(Stored):
        async def accept(self, events: Events) -> Sequence[bool]:
            answers = await super().accept(events)
            if not is_cut.is_set():
                is_cut.set()
                await rig.cut()
            return answers

    taking = consumer(rig, CutAfterStoring(stored._intake))
    async with running(taking):
        await is_cut.wait()
        await until(lambda: taking._source_outage._failures > 0)
        await rig.mend()
        await until_empty(rig)
    assert await event_ids(home) == set(ids(messages))
    assert await rig.rejected() == {}


async def test_two_consumers_at_once_store_each_message_once(rig: SourceRig, home: Store, stored: Stored) -> None:
    messages = [message() for _ in range(60)]
    async with running(consumer(rig, stored, limit=5)), running(consumer(rig, stored, limit=5)):
        for start in range(0, 60, 20):
            await rig.put(*messages[start : start + 20])
        await until_empty(rig)
    assert await event_ids(home) == set(ids(messages))


async def test_a_stop_hands_back_what_is_not_stored(rig: SourceRig, home: Store, stored: Stored) -> None:
    messages = [message() for _ in range(5)]
    await rig.put(*messages)
    stored.failing = lambda _events: StoreUnreachable("it is restarted")
    async with running(consumer(rig, stored)):
        await asyncio.wait_for(stored.failed.wait(), PATIENCE_SECONDS)
    stored.failing = lambda _events: None
    async with running(consumer(rig, stored)):
        await until_empty(rig)
    assert stored.order == ids(messages)


async def test_the_metrics_say_what_became_of_the_messages(rig: SourceRig, home: Store, stored: Stored) -> None:
    again, bad, new = [message() for _ in range(3)], message(payload="[1]"), message()
    await rig.put(*again)
    crashed = rig.source()
    batch: list[Received] = []
    while len(batch) < len(again):
        batch += await crashed.receive(100)
    await stored.accept([_event(each) for each in batch])
    await crashed.close()

    def counts() -> tuple[float, ...]:
        found = (telemetry.SOURCE_ACCEPTED, telemetry.SOURCE_REDELIVERED, telemetry.SOURCE_REJECTED, telemetry.SOURCE_ERRORS)
        return tuple(each.labels(crashed.name)._value.get() for each in found)

    before = counts()
    async with running(consumer(rig, stored)) as taking:
        await rig.put(bad, new)
        await until_empty(rig)
        await until(lambda: taking._source_outage.is_on is False and counts()[2] == before[2] + 1)
        accepted, redelivered, rejected, errors = (now - then for now, then in zip(counts(), before, strict=True))
        assert (accepted, redelivered, rejected, errors) == (1, 3, 1, 0)
        assert telemetry.SOURCE_UP.labels(crashed.name)._value.get() == 1
        assert telemetry.SOURCE_LAG.labels(crashed.name)._value.get() < PATIENCE_SECONDS
        await rig.cut()
        await until(lambda: telemetry.SOURCE_UP.labels(crashed.name)._value.get() == 0)
        assert counts()[3] > before[3]
        await rig.mend()


async def test_the_doctor_finds_a_source_that_is_there_and_names_the_cure_of_one_that_is_not(rig: SourceRig) -> None:
    source: Source = rig.source()
    assert "answers" in await source.check() or "read" in await source.check()
    await source.close()
    await rig.cut()
    with pytest.raises(SourceError, match="settings"):
        await source.check()
    await source.close()
    await rig.mend()


def _event(received: Received) -> Event | NewEvent:
    assert isinstance(received.body, bytes)
    event = decode_event(received.body)
    assert isinstance(event, Event | NewEvent)
    return event
