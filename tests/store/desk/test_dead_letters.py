"""Dead letters in the store: what each filter finds, what a replay changes and what it leaves as it is."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from bongsu.clock.scheduler import Clock
from bongsu.desk.dead_filter import DeadFilter
from bongsu.desk.dead_letters import replay_job
from bongsu.desk.lists import fill_page
from bongsu.desk.stored_dead_letters import FEW_REPLAYED, count_dead
from bongsu.errors import ReplayWithoutFilter
from bongsu.model import Channel, Event, new_id, utc_now
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import DELIVERIES_TOPIC, EVENTS_TOPIC
from bongsu.store import Store, Transaction, outbox, runs
from bongsu.store.core.query import in_both, same
from bongsu.store.deliveries.recovery import FIND_RETRYABLE, SETTLE_ABANDONED
from bongsu.store.desk import dead_letters, stats
from bongsu.store.desk.dead_letters import DeadPage, Filters, Kind, State
from tests.support.deliveries import (
    RANK_AGAIN,
    add_delivery_in_state,
    add_guaranteed_message,
    add_one_delivery,
    dead_of_every_rank,
    delivery_columns,
    failed_event,
)
from tests.support.plans import generic_plan
from tests.support.replays import dead_letters as letters_of
from tests.support.replays import replay, stored
from tests.support.rows import Sql, add_many, set_columns

FINISHED = 20_000


async def find(store: Store, **filters: Any) -> list[str]:
    async with store.read() as tx:
        rows, more = await dead_letters.find_page(tx, Filters(**filters), limit=100)
        assert more is None
    assert await count_dead(store, Filters(**filters)) == len(rows)
    return [row.id for row in rows]


async def test_each_filter_finds_its_own(store: Store) -> None:
    now, event_id = utc_now(), new_id()
    async with store.transaction() as tx:
        priced = await add_guaranteed_message(tx, event_id=event_id)
        liked = await add_guaranteed_message(tx, type_name="POST_LIKE")
        a = str(await add_delivery_in_state(tx, priced, "FAIL", "a", code="UNREGISTERED"))
        b = str(await add_delivery_in_state(tx, priced, "UNKNOWN", "b", code="TIMEOUT", channel="SMS"))
        c = str(await add_delivery_in_state(tx, liked, "FAIL", "a", code="TIMEOUT", finished_at=timedelta(hours=-2)))
        for status in ("READY", "SENDING", "SUCCESS"):
            await add_delivery_in_state(tx, liked, status, f"not dead: {status}")
    e = str(await failed_event(store, "KeyError: 'x'", "order.paid"))
    f = str(await failed_event(store, "it is no more", finished_at=now - timedelta(hours=2)))
    hour = now - timedelta(hours=1)
    for filters, found in (
        ({}, [e, f, c, b, a]),
        ({"kind": Kind.EVENT}, [e, f]),
        ({"kind": Kind.DELIVERY}, [c, b, a]),
        ({"id": int(a)}, [a]),
        ({"id": UUID(e)}, [e]),
        ({"state": State.FAILED}, [e, f]),
        ({"state": State.FAIL}, [c, a]),
        ({"state": State.UNKNOWN}, [b]),
        ({"code": "TIMEOUT"}, [c, b]),
        ({"code": "KeyError"}, [e]),
        ({"code": "it is no more"}, [f]),
        ({"code": "Key"}, []),
        ({"channel": Channel.SMS}, [b]),
        ({"type": "PRICE_DROP"}, [b, a]),
        ({"type": "order.paid"}, [e]),
        ({"member_id": "a"}, [c, a]),
        ({"event_id": event_id}, [b, a]),
        ({"event_id": UUID(e)}, [e]),
        ({"id": UUID(e), "event_id": UUID(e)}, [e]),
        ({"id": UUID(e), "event_id": UUID(f)}, []),
        ({"id": UUID(e), "type": "another"}, []),
        ({"id": UUID(f), "since": hour}, []),
        ({"id": int(a), "member_id": "b"}, []),
        ({"since": hour}, [e, b, a]),
        ({"until": hour}, [f, c]),
        ({"member_id": "a", "code": "TIMEOUT"}, [c]),
        ({"channel": Channel.PUSH, "kind": Kind.EVENT}, []),
    ):
        assert await find(store, **filters) == found, filters


async def test_unhandled_events_are_dead_letters_of_their_own_state(store: Store) -> None:
    failed = str(await failed_event(store, "KeyError: 'x'", "order.paid"))
    unhandled = await failed_event(store, "", "order.shiped")
    await set_columns(store, "events", {"event_id": unhandled}, status="UNHANDLED", error=None)
    assert sorted(await find(store)) == sorted([failed, str(unhandled)])
    assert await find(store, state=State.FAILED) == [failed]
    assert await find(store, state=State.UNHANDLED) == [str(unhandled)]
    assert await find(store, state=State.UNHANDLED, event_id=unhandled) == [str(unhandled)]
    assert await find(store, state=State.FAILED, event_id=unhandled) == []
    assert await run(store, state=State.UNHANDLED) == (1, 1)
    assert await find(store) == [failed]


async def test_pages_go_through_both_kinds_without_a_gap(store: Store) -> None:
    moment = utc_now()
    # Three that died together: their ids tell them apart.
    failed = [str(await failed_event(store, finished_at=moment)) for _ in range(3)]
    deliveries = [str(await add_one_delivery(store, "FAIL")) for _ in range(3)]
    expected = sorted(failed, reverse=True) + deliveries[::-1]
    async with store.read() as tx:
        for limit, scan_limit in ((2, 20_000), (3, 20_000), (6, 20_000), (2, 1), (100, 2), (2, 3)):
            assert await walk(tx, Filters(), limit, scan_limit) == expected
        for one in (UUID(expected[0]), int(expected[-1])):
            (row,), _ = await dead_letters.find_page(tx, Filters(id=one))
            assert await dead_letters.find_page(tx, Filters(id=one), dead_letters.cursor_of(row)) == ([], None)


async def walk(tx: Transaction, filters: Filters, limit: int, scan_limit: int) -> list[str]:
    """The ids of all pages."""
    page = await dead_letters.find_page(tx, filters, None, limit, scan_limit=scan_limit)
    seen = [row.id for row in page.rows]
    while page.next is not None:
        page = await dead_letters.find_page(tx, filters, page.next, limit, scan_limit=scan_limit)
        assert len(page.rows) <= limit
        seen += [row.id for row in page.rows]
    return seen


async def test_a_filter_that_matches_nothing_looks_at_a_bounded_part(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        await failed_event(store)
        await add_one_delivery(store, "FAIL")
    rare = str(await add_one_delivery(store, "FAIL", code="RARE"))
    for _ in range(3):
        await add_one_delivery(store, "FAIL")
    filters = Filters(code="RARE")
    async with store.read() as tx:
        page = await dead_letters.find_page(tx, filters, None, 10, scan_limit=2)
        assert (page.rows, page.next is not None) == ([], True)
        assert await walk(tx, filters, 10, 2) == [rare]
    # Whoever counts, replays or sits at a terminal goes on until all are seen.
    for function in (dead_letters.find_page, dead_letters.count_page):
        monkeypatch.setitem(function.__kwdefaults__, "scan_limit", 2)  # type: ignore[arg-type]
    assert await count_dead(store, filters) == 1
    listing = partial(letters_of(store).list, DeadFilter.model_validate({"code": "RARE"}))
    rows, end = await fill_page(listing, None, 50)
    assert ([row.id for row in rows], end) == ([rare], None)
    assert await run(store, code="RARE") == (1, 1)
    assert await count_dead(store, Filters()) == 13


async def run(store: Store, batch: int = 1_000, **filters: Any) -> tuple[int, int]:
    new_series = bool(filters.pop("new_series", False))
    asked = DeadFilter.model_validate(filters)
    return await replay(store, asked, new_collapse_id=new_series, batch=batch)


@pytest.mark.parametrize("new_series", [False, True])
async def test_a_replayed_delivery_begins_anew_but_for_its_epoch(store: Store, new_series: bool) -> None:
    one = await add_one_delivery(
        store, "FAIL", recovery_rounds=3, claim_count=2, collapse_series=4, detail="said", is_retryable=True, leased_by="w"
    )
    sent = await add_one_delivery(store, "SUCCESS")
    assert await run(store, state="FAIL", new_series=new_series) == (1, 1)
    fate = ("status", "attempts", "recovery_rounds", "claim_count", "epoch", "collapse_series", "is_retryable")
    assert await delivery_columns(store, one, *fate) == ("READY", 0, 0, 0, 3, 4 + new_series, False)
    assert await delivery_columns(store, one, "code", "detail", "leased_by", "finished_at") == (None, None, None, None)
    assert await delivery_columns(store, sent, "status") == "SUCCESS"
    assert await run(store, state="FAIL") == (0, 0)


@pytest.mark.parametrize("count", [FEW_REPLAYED, FEW_REPLAYED + 1])
async def test_a_replay_of_many_goes_behind_all_that_is_not_critical(store: Store, count: int) -> None:
    before = await dead_of_every_rank(store, count)
    assert await run(store, state="FAIL") == (count, count)
    for delivery_id, rank in before.items():
        assert await delivery_columns(store, delivery_id, "rank") == (RANK_AGAIN[rank] if count > FEW_REPLAYED else rank)


async def test_a_replayed_event_goes_on_where_it_was(store: Store) -> None:
    event_id = await failed_event(store)
    assert await run(store, id=str(event_id)) == (1, 1)
    query = in_both(
        lambda d: (
            f"""
        SELECT status, attempts, claim_count, error, finished_at, leased_by, epoch, fanout_cursor, due <= {d.now} AS is_due
        FROM bongsu_events"""
        )
    )
    async with store.read() as tx:
        (row,) = await tx.fetch(query())
    assert tuple(row) == ("PENDING", 0, 0, None, None, None, 9, "1:m-7", True)


async def replays(store: Store) -> list[tuple[Any, ...]]:
    """Who requested which, and how many, oldest first."""
    async with store.read() as tx:
        found = await runs.find_newest(tx, "replay", 100)
    return [
        (run.requested_by, run.input["kinds"], run.input["newCollapseId"], run.input["filter"], dict(run.counts), run.result)
        for run in reversed(found)
    ]


async def test_each_replay_leaves_a_record_of_who_and_what(store: Store) -> None:
    await failed_event(store)
    for _ in range(5):
        await add_one_delivery(store, "UNKNOWN", code="TIMEOUT")
    assert await run(store, batch=2, code="TIMEOUT", channel="PUSH") == (5, 5)
    assert await run(store, kind="event", new_series=True) == (1, 1)
    assert await run(store, to="2020-01-01T00:00:00Z") == (0, 0)
    assert await replays(store) == [
        (
            "cli:tester", ["deliveries"], False, {"code": "TIMEOUT", "channel": "PUSH"}, {"matched": 5, "replayed": 5},
            "5 matched, 5 replayed",
        ),
        ("cli:tester", ["events"], True, {"kind": "event"}, {"matched": 1, "replayed": 1}, "1 matched, 1 replayed"),
        (
            "cli:tester", ["events", "deliveries"], False, {"to": "2020-01-01T00:00:00Z"}, {}, "0 matched, 0 replayed",
        ),
    ]  # fmt: skip


async def test_what_fails_again_while_a_replay_runs_is_not_replayed_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await add_one_delivery(store, "FAIL")
    asked = DeadFilter.model_validate({"state": "FAIL"})
    find_page = dead_letters.find_page

    async def find_after_a_death(tx: Transaction, *given: Any) -> DeadPage:
        # No sooner replayed than dead.
        await set_columns(tx, "deliveries", {"status": "READY"}, status="FAIL", recovery_rounds=9)
        return await find_page(tx, *given)

    monkeypatch.setattr(dead_letters, "find_page", find_after_a_death)
    assert await replay(store, asked, batch=1) == (3, 3)


async def test_a_replay_whose_process_stops_is_gone_on_with_by_a_clock(store: Store) -> None:
    ids = [await add_one_delivery(store, "FAIL") for _ in range(5)]
    begun: asyncio.Task[Any]

    def stop_after_first_batch(_matched: int) -> None:
        begun.cancel()

    dead = letters_of(store, batch=2)
    asked = DeadFilter.model_validate({"state": "FAIL"})
    begun = asyncio.create_task(dead.replay(asked, "cli:tester", new_collapse_id=True, progress=stop_after_first_batch))
    with pytest.raises(asyncio.CancelledError):
        await begun
    assert sorted([await delivery_columns(store, one, "status") for one in ids]) == ["FAIL"] * 3 + ["READY"] * 2
    # One of the first batch has failed again meanwhile: it was visited.
    await set_columns(store, "deliveries", {"delivery_id": ids[-1]}, status="FAIL")
    clock = Clock(store, [replay_job(stored(store, batch=2))], ZoneInfo("UTC"))
    await clock.tick()
    await clock.wait_finished()
    columns = [await delivery_columns(store, one, "status", "collapse_series") for one in ids]
    assert columns == [("READY", 1)] * 4 + [("FAIL", 1)]
    ((who, *_, counts, result),) = await replays(store)
    assert (who, counts, result) == ("cli:tester", {"matched": 5, "replayed": 5}, "5 matched, 5 replayed")


async def test_two_replays_at_once_replay_each_once(store: Store) -> None:
    for _ in range(20):
        await add_one_delivery(store, "FAIL")
    first, second = await asyncio.gather(run(store, batch=5, state="FAIL"), run(store, batch=5, state="FAIL"))
    assert first[1] + second[1] == 20


async def test_a_replay_wakes_the_workers_it_has_work_for(store: Store) -> None:
    woken: list[str] = []
    signals = LocalSignals()
    await failed_event(store)
    with (
        signals.listen(EVENTS_TOPIC, lambda _: woken.append("events")),
        signals.listen(DELIVERIES_TOPIC, lambda _: woken.append("deliveries")),
    ):
        await replay(store, {"kind": "event"}, signals=signals)
        assert woken == ["events"]
        await add_one_delivery(store, "FAIL")
        await replay(store, {"kind": "delivery"}, signals=signals)
        assert woken == ["events", "deliveries"]


async def test_a_replay_of_everything_there_is_is_refused(store: Store) -> None:
    with pytest.raises(ReplayWithoutFilter):
        await replay(store, DeadFilter())
    assert await replays(store) == []


async def test_the_unfinished_and_the_dead_are_counted(store: Store) -> None:
    for status in ("READY", "READY", "SENDING", "FAIL", "FAIL", "FAIL", "SUCCESS"):
        await add_one_delivery(store, status)
    async with store.read() as tx:
        assert await stats.count_deliveries(tx) == {"READY": 2, "SENDING": 1, "FAIL": 3, "UNKNOWN": 0}


# --- plans ------------------------------------------------------------------------------------------------------------


# In the generic plan none of the filters narrows the search: the order and the bounds alone decide.
INDEXES = {
    dead_letters.DELIVERIES: "bongsu_deliveries_dead",
    dead_letters.COUNT_DELIVERIES: "bongsu_deliveries_dead",
    dead_letters.EVENTS: "bongsu_events_dead",
    dead_letters.COUNT_EVENTS: "bongsu_events_dead",
    dead_letters.EVENTS_FLOOR: "bongsu_events_dead",
    dead_letters.DELIVERIES_FLOOR: "bongsu_deliveries_dead",
    # On PostgreSQL either by its id or, where few are dead, among them.
    dead_letters.EVENT_BY_ID: "bongsu_events_",
    FIND_RETRYABLE: "bongsu_deliveries_retryable",
    SETTLE_ABANDONED: "bongsu_deliveries_sending",
    stats.COUNT_OPEN: "bongsu_deliveries_due",
    stats.COUNT_DEAD: "bongsu_deliveries_dead",
}


async def test_dead_letters_are_found_by_the_index_of_the_dead_alone(store: Store) -> None:
    """With many sent deliveries and few others, of which the fewest may be retried."""
    for _ in range(50):
        await add_one_delivery(store, "FAIL")
    await add_one_delivery(store, "FAIL", is_retryable=True)
    await add_one_delivery(store, "SENDING")
    await failed_event(store)
    async with store.transaction() as tx:
        await outbox.add(tx, [Event(event_type="x") for _ in range(FINISHED // 10)])
        await set_columns(tx, "events", {"status": "PENDING"}, status="DONE")
        sent = {"notification_id": Sql("number"), "member_id": "m", "message_id": 1, "status": "SUCCESS"}
        await add_many(tx, "deliveries", FINISHED, **sent)
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    whole = re.compile(r"Seq Scan on bongsu_(deliveries|events)|^SCAN (d|e|bongsu_deliveries)$", re.MULTILINE)
    for statement, index in INDEXES.items():
        steps = await generic_plan(store, statement)
        assert index in steps, steps
        assert not whole.search(steps), steps
