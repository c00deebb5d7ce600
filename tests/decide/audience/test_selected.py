"""A user's own SELECT runs before the step, beside everything else: it holds up no other event, and fails alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from bongsu.decide.worker import EventWorker
from bongsu.errors import BadAudience, StoreRefused
from bongsu.model import Audience, Event, Listed, Notice, NoticeType, Selected
from bongsu.rules.engine import Rules
from bongsu.settings import Settings
from bongsu.store import AUDIENCE_READERS, Store, outbox
from bongsu.store.decisions.audience_snapshots import select_portions
from tests.support.decisions import (
    IN_APP,
    Clock,
    ClockedDecider,
    add_members,
    decide,
    notified_counts,
    results_by_member,
    rows,
    rules_notifying,
    run_worker,
    tick_until_work,
    trigger_event,
)
from tests.support.outbox import add_events
from tests.support.rows import NOW, Sql, set_columns

# Neither ends by itself.
SLOW = {
    "postgresql": "SELECT 'slow' FROM pg_sleep(100000)",
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n",
}
EVERYONE = Selected("SELECT member_id FROM bongsu_members")


def slow_or_listed(store: Store) -> Any:
    def audience(event: Event) -> Audience:
        is_slow = (event.ref_id or "").startswith("slow")
        return Selected(SLOW[store.dialect.name]) if is_slow else Listed((event.ref_id or "",))

    return rules_notifying(audience)


async def test_other_events_are_decided_and_stored_while_selects_run(store: Store, settings: Settings) -> None:
    """More of them than run at a time."""
    patient = settings.model_copy(update={"audience_timeout_seconds": 3600.0})
    slow = [trigger_event(f"slow {number}") for number in range(AUDIENCE_READERS + 1)]
    await add_events(store, *slow, trigger_event("a"))
    worker = EventWorker(store, slow_or_listed(store), patient, ClockedDecider(store, patient, Clock()))
    await worker.tick()
    assert await notified_counts(store) == {"a": 1}
    # On SQLite a transaction that is held would keep this one waiting.
    await add_events(store, trigger_event("b"))
    await worker.tick()
    assert await notified_counts(store) == {"a": 1, "b": 1}
    held = await rows(store, "SELECT ref_id FROM bongsu_events WHERE leased_by IS NOT NULL ORDER BY ref_id")
    assert [row["ref_id"] for row in held] == [event.ref_id for event in slow]
    # Stopping waits for none of them, and gives them back unharmed.
    await worker.stop()
    left = await rows(
        store, "SELECT DISTINCT status, attempts, claim_count FROM bongsu_events WHERE leased_by IS NULL AND claim_count = 0"
    )
    assert ("PENDING", 0, 0) in [tuple(row) for row in left]


async def test_a_select_that_takes_too_long_is_stopped_and_fails_its_event_alone(store: Store, settings: Settings) -> None:
    once_more = settings.model_copy(update={"max_retries": 1, "retry_base_seconds": 0.0, "audience_timeout_seconds": 0.1})
    await decide(store, once_more, slow_or_listed(store), trigger_event("a"), trigger_event("slow"), trigger_event("b"))
    assert await results_by_member(store) == {"a": {"NOTIFIED": 1}, "b": {"NOTIFIED": 1}}
    ((ref_id, attempts, error),) = await rows(
        store, "SELECT ref_id, attempts, error FROM bongsu_events WHERE status = 'FAILED'"
    )
    assert (ref_id, attempts) == ("slow", 2)
    assert error.startswith("bongsu.errors.BadAudience: It took longer than BONGSU_AUDIENCE_TIMEOUT_SECONDS (0.1 s)")


async def test_after_one_was_stopped_its_connection_serves_the_next(store: Store) -> None:
    await add_members(store, "a")
    for _ in range(AUDIENCE_READERS + 1):
        with pytest.raises(BadAudience):
            async with store.read_within(0.05) as tx:
                await select_portions(tx, Selected(SLOW[store.dialect.name]), "", 10, 0.05)
    async with store.read_within(30) as tx:
        (found,) = await select_portions(tx, EVERYONE, "", 10, 30)
    assert found.member_ids == ["a"]


async def test_a_select_that_would_write_is_refused(store: Store) -> None:
    sql = "INSERT INTO bongsu_members (member_id) VALUES ('new') RETURNING member_id"
    with pytest.raises(BadAudience):
        async with store.read_within(30) as tx:
            await select_portions(tx, Selected(sql), "", 10, 30)
    assert await rows(store, "SELECT member_id FROM bongsu_members") == []


async def test_a_claim_that_was_lost_meanwhile_stores_no_members(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members of two claims' SELECTs must not mix."""
    everyone = [f"m{number}" for number in range(9)]
    await add_members(store, *everyone)
    await add_events(store, trigger_event("x"))
    is_claimed_again = asyncio.Event()
    read_within = store.database.read_within

    @contextlib.asynccontextmanager
    async def late(seconds: float) -> AsyncIterator[Any]:
        async with read_within(seconds) as tx:
            yield tx
        await is_claimed_again.wait()

    with monkeypatch.context() as patch:
        patch.setattr(store.database, "read_within", late)
        worker = EventWorker(store, rules_notifying(EVERYONE), settings, ClockedDecider(store, settings, Clock(), 2))
        await worker.tick()
        await set_columns(store, "events", epoch=Sql("epoch + 1"), due=NOW)
        is_claimed_again.set()
        assert await worker.selects.wait()
    assert await rows(store, "SELECT * FROM bongsu_audience_snapshots") == []
    await run_worker(EventWorker(store, rules_notifying(EVERYONE), settings, ClockedDecider(store, settings, Clock(), 2)))
    assert await notified_counts(store) == dict.fromkeys(everyone, 1)
    # The first finds out, and tells nobody.
    await tick_until_work(worker)
    await worker.stop()
    assert await notified_counts(store) == dict.fromkeys(everyone, 1)


async def test_the_select_of_the_next_notice_runs_although_the_last_one_was_not_taken_yet(
    store: Store, settings: Settings
) -> None:
    """It ended in the middle of a tick, whose step decided its notice already."""
    await add_members(store, "a", "b")
    rules = Rules()

    @rules.rule("said")
    def two_selects(_event: Event) -> Iterable[Notice]:
        for name in ("FIRST", "SECOND"):
            yield Notice(NoticeType(name, IN_APP), EVERYONE, subject=name, title="t", body="b")

    await add_events(store, trigger_event("x"))
    worker = EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock()))
    await worker.tick()
    assert await worker.selects.wait()
    await worker._continue()
    assert await notified_counts(store) == {"a": 1, "b": 1}
    await run_worker(worker)
    assert await notified_counts(store) == {"a": 2, "b": 2}


async def test_selects_that_fail_while_the_store_refuses_results_are_tried_again(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several fail together, and the first cannot be recorded: none stays claimed with nothing to wait for."""
    quick = settings.model_copy(update={"retry_base_seconds": 0.0, "max_retries": 0})
    await add_events(store, trigger_event("a"), trigger_event("b"), trigger_event("c"))
    rules = rules_notifying(lambda _event: Selected("SELECT nothing FROM nowhere"))
    worker = EventWorker(store, rules, quick, ClockedDecider(store, quick, Clock()))
    record, refusals = outbox.record, 1

    async def refuse(*arguments: Any) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise StoreRefused("read-only")
        return await record(*arguments)

    monkeypatch.setattr(outbox, "record", refuse)
    async with asyncio.timeout(60):
        while len(await rows(store, "SELECT 1 FROM bongsu_events WHERE status = 'FAILED'")) < 3:
            with contextlib.suppress(StoreRefused):
                await worker.tick()
            await asyncio.sleep(0)
    await worker.stop()
    assert not refusals
