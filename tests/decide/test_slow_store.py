"""A store that is locked or slow is no event's fault: nothing is counted as an attempt, and nothing fails."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from bongsu.decide.worker import EventWorker
from bongsu.errors import StoreBusy, StoreTooSlow
from bongsu.model import Event, Listed
from bongsu.settings import Settings
from bongsu.store import Share, Store, migrate, outbox
from bongsu.store.core import postgres, sqlite
from tests.store.core.limits import limit
from tests.support.decisions import (
    Clock,
    ClockedDecider,
    results_by_member,
    rows,
    rules_notifying,
    run_worker,
    trigger_event,
)

LOCK_SECONDS = 0.1


@contextlib.contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """The inbox table on PostgreSQL, as while an index is built; the file on SQLite."""
    if settings.is_embedded:
        with contextlib.closing(sqlite3.connect(settings.data_dir / "bongsu.db", isolation_level=None)) as rival:
            rival.execute("BEGIN IMMEDIATE")
            yield
        return
    with psycopg.connect(settings.database_url) as operator:
        operator.execute("LOCK TABLE bongsu_notifications IN SHARE MODE")
        yield


@pytest.fixture
async def store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """Waits for locks no longer than a test should."""
    limit(monkeypatch, Share.WORK, lock_seconds=LOCK_SECONDS, wait_seconds=LOCK_SECONDS)
    monkeypatch.setattr(sqlite, "BUSY_MILLISECONDS", int(LOCK_SECONDS * 1000))
    store = Store.open(settings)
    await migrate(store)
    yield store
    await store.close()


async def published(store: Store, count: int) -> list[Event]:
    events = [trigger_event(str(number)) for number in range(count)]
    async with store.transaction() as tx:
        await outbox.add(tx, events)
    return events


async def decided_in_vain(store: Store, settings: Settings, worker: EventWorker, error: type[Exception]) -> None:
    """More often than an event may be attempted, and more often than it may crash workers."""
    for _ in range(settings.max_retries + outbox.SUSPECT_AFTER + outbox.CRASHES_ALONE + 2):
        claimed = await worker._claim()
        assert claimed
        with locked(settings), pytest.raises(error):
            await worker._begin(claimed)
        await worker._give_back()
    found = await rows(store, "SELECT DISTINCT status, attempts, claim_count, error FROM bongsu_events")
    assert [tuple(row) for row in found] == [("PENDING", 0, 0, None)]


async def test_events_decided_while_the_store_is_locked_use_no_attempt(store: Store, settings: Settings) -> None:
    soon = settings.model_copy(update={"retry_base_seconds": 0.0})
    await published(store, 3)
    worker = EventWorker(store, rules_notifying(Listed(("a",))), soon, ClockedDecider(store, soon, Clock()))
    await decided_in_vain(store, soon, worker, StoreBusy)
    await run_worker(worker)
    assert await results_by_member(store) == {"a": {"NOTIFIED": 3}}


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
async def test_a_statement_that_takes_too_long_uses_no_attempt(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, Share.WORK, lock_seconds=60)
    monkeypatch.setattr(postgres, "STATEMENT_SECONDS", LOCK_SECONDS)
    slow = Store.open(settings)
    # The one that is tried alone, because it may be what is slow, waits for as long as a lease.
    soon = settings.model_copy(update={"retry_base_seconds": 0.0, "lease_seconds": 0.0})
    await published(store, 3)
    worker = EventWorker(slow, rules_notifying(Listed(("a",))), soon, ClockedDecider(slow, soon, Clock()))
    await decided_in_vain(slow, soon, worker, StoreTooSlow)
    await run_worker(worker)
    await slow.close()
    assert await results_by_member(store) == {"a": {"NOTIFIED": 3}}
