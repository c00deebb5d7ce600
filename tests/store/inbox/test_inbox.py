"""The inbox on both databases: against a model, under concurrency, and by its indexes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bongsu.api import inbox as the_inbox
from bongsu.api.inbox import Inbox, PageQuery, ReadAll, UnreadCount
from bongsu.store import Query, Store, Transaction, members
from bongsu.store import inbox as statements
from bongsu.store.core.query import LARGEST_ID, same
from bongsu.store.inbox import MarkedRead
from tests.support.inbox import add_unread, add_unread_without_messages, unread_rows
from tests.support.recorder import Recorder, postgres_plans, sqlite_plan
from tests.support.rows import Sql, add_many

EVERYTHING = PageQuery(limit=100)


class Listener:
    """Remembers the unread counts that were reported."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, int]] = []

    async def __call__(self, member_id: str, unread: int) -> None:
        self.reported.append((member_id, unread))


async def notify(store: Store, member_id: str, count: int = 1) -> list[int]:
    async with store.transaction() as tx:
        return await add_unread(tx, member_id, count)


async def counts(store: Store, member_id: str) -> tuple[int, int]:
    """The count that is stored, and the count of the rows."""
    async with store.read() as tx:
        return await statements.count_unread(tx, member_id), await unread_rows(tx, member_id)


# --- the statements ---------------------------------------------------------------------------------------------------


async def test_a_page_is_the_newest_below_and_the_count_of_all(store: Store) -> None:
    ids = await notify(store, "m", 5)
    await notify(store, "other", 2)
    async with store.read() as tx:
        rows, unread = await statements.find_page(tx, "m", LARGEST_ID, 2, only_unread=False)
        assert [row.notification_id for row in rows] == [ids[4], ids[3]]
        assert unread == 5
        rows, unread = await statements.find_page(tx, "m", ids[1], 2, only_unread=True)
        assert [row.notification_id for row in rows] == [ids[0]]
        assert unread == 5
        assert await statements.find_page(tx, "nobody", LARGEST_ID, 2, only_unread=False) == ([], 0)
        assert await statements.count_unread(tx, "nobody") == 0


async def test_a_known_member_without_notifications_has_an_empty_page(store: Store) -> None:
    async with store.transaction() as tx:
        await members.ensure_members(tx, ["m"])
    async with store.read() as tx:
        assert await statements.find_page(tx, "m", LARGEST_ID, 2, only_unread=True) == ([], 0)


async def test_marking_between_two_ids_marks_the_unread_of_this_member(store: Store) -> None:
    ids = await notify(store, "m", 3)
    others = await notify(store, "other", 1)
    ids += await notify(store, "m", 3)
    async with store.transaction() as tx:
        assert await statements.mark_read(tx, "m", ids[2] - 1, ids[2]) == MarkedRead(read=1, unread=5)
        assert await statements.find_end(tx, "m", 0, ids[-1], 3) == ids[3]
        assert await statements.find_end(tx, "m", 0, ids[-1], 6) == ids[-1]
        assert await statements.mark_read(tx, "m", ids[0], ids[4]) == MarkedRead(read=3, unread=2)
        assert await statements.mark_read(tx, "m", ids[0], ids[4]) == MarkedRead(read=0, unread=2)
        assert await statements.mark_read(tx, "nobody", 0, LARGEST_ID) == MarkedRead(read=0, unread=0)
        assert await statements.find_newest_unread(tx, "m") == ids[5]
        assert await statements.find_newest_unread(tx, "nobody") is None
        assert await statements.find_read_state(tx, "m", others[0]) is None
        first, third = [await statements.find_read_state(tx, "m", one) for one in (ids[0], ids[2])]
    assert first is not None
    assert (first.read_at, first.unread) == (None, 2)
    assert third is not None
    assert third.read_at is not None
    assert await counts(store, "other") == (1, 1)


# --- marking as read, reported to the listener ------------------------------------------------------------------------


async def test_changes_are_reported_and_only_changes(store: Store) -> None:
    listener = Listener()
    inbox = Inbox(store, listener)
    ids = await notify(store, "m", 3)
    first = await inbox.read("m", ids[0])
    assert await inbox.read("m", ids[0]) == first
    assert await inbox.read("other", ids[0]) is None
    assert await inbox.read_all("m") == ReadAll(read=2, unread=0)
    assert await inbox.read_all("m") == ReadAll(read=0, unread=0)
    assert await inbox.read_all("nobody") == ReadAll(read=0, unread=0)
    assert listener.reported == [("m", 2), ("m", 0)]


async def test_what_arrives_while_all_are_read_stays_unread(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(the_inbox, "READ_ALL_CHUNK", 3)
    late: list[int] = []

    async def more_arrives(member_id: str, unread: int) -> None:
        late.extend(await notify(store, member_id))

    await notify(store, "m", 7)
    inbox = Inbox(store, more_arrives)
    # Three chunks; one more arrived after each, and the answer counts those before the last commit.
    assert await inbox.read_all("m") == ReadAll(read=7, unread=2)
    page = await inbox.page("m", PageQuery(unread="true"))
    assert [item.id for item in page.items] == [str(one) for one in reversed(late)]
    assert await counts(store, "m") == (3, 3)


async def test_of_many_who_read_the_same_one_at_once_one_changes_the_count(store: Store) -> None:
    listener = Listener()
    inbox = Inbox(store, listener)
    one, _ = await notify(store, "m", 2)
    answers = await asyncio.gather(*(inbox.read("m", one) for _ in range(15)))
    assert len({repr(answer) for answer in answers}) == 1
    assert listener.reported == [("m", 1)]
    assert await counts(store, "m") == (1, 1)


async def test_those_who_read_different_ones_at_once_do_so_one_after_the_other(store: Store) -> None:
    listener = Listener()
    inbox = Inbox(store, listener)
    ids = await notify(store, "m", 15)
    answers = await asyncio.gather(*(inbox.read("m", one) for one in ids))
    # Each under the lock, each sees what those before it have left.
    assert sorted(unread for _, unread in listener.reported) == list(range(15))
    assert sorted(answer.unread for answer in answers if answer) == list(range(15))


async def test_the_count_is_exact_under_concurrent_writers_and_readers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the_inbox, "READ_ALL_CHUNK", 4)
    dice = random.Random(7)
    inbox = Inbox(store)
    ids = ["a", "b"]
    known = {member: await notify(store, member, 10) for member in ids}

    async def teller(member: str) -> None:
        for _ in range(5):
            known[member].extend(await notify(store, member, dice.randint(1, 4)))

    async def reader(member: str) -> None:
        for _ in range(10):
            answer = await inbox.read(member, dice.choice(known[member]))
            assert answer is not None
            assert answer.unread >= 0

    async def sweeper(member: str) -> None:
        for _ in range(3):
            await inbox.read_all(member)

    async def looker(member: str) -> None:
        for _ in range(10):
            page = await inbox.page(member, EVERYTHING)
            assert page.unread == sum(item.read_at is None for item in page.items)

    work = [who(member) for member in ids for who in (teller, reader, reader, sweeper, sweeper, looker)]
    dice.shuffle(work)
    await asyncio.gather(*work)
    for member in ids:
        kept, true = await counts(store, member)
        assert kept == true
        assert (await inbox.read_all(member)) == ReadAll(read=true, unread=0)
        assert await counts(store, member) == (0, 0)


# --- where an index is the point --------------------------------------------------------------------------------------

# The planners prefer to read a small table whole.
OTHERS = 3_000

Call = Callable[[Transaction], Awaitable[Any]]
INBOX_CALLS: list[tuple[Call, bool]] = [
    (lambda tx: statements.find_page(tx, "m", 9_500, 21, only_unread=False), False),
    (lambda tx: statements.find_page(tx, "m", 9_500, 21, only_unread=True), True),
    (lambda tx: statements.find_newest_unread(tx, "m"), True),
    (lambda tx: statements.find_end(tx, "m", 9_100, 9_999, 100), True),
    (lambda tx: statements.mark_read(tx, "m", 9_100, 9_999), True),
]


async def plans(tx: Transaction, query: Query) -> list[str]:
    """For these parameters, and on PostgreSQL for any parameters too."""
    return ["\n".join(await sqlite_plan(tx, query))] if tx.dialect.name == "sqlite" else await postgres_plans(tx, query)


async def test_the_inbox_is_read_by_its_indexes(store: Store) -> None:
    async with store.transaction() as tx:
        await members.ensure_members(tx, [f"m-{number}" for number in range(OTHERS)])
        await add_unread_without_messages(tx, "m", 10_000)
        await statements.mark_read(tx, "m", 0, 9_000)
        await add_unread(tx, "other", 8_000)
        await add_many(tx, "digests", 8_000, member_id="other", notification_id=Sql("number"))
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    is_postgres = store.dialect.name == "postgresql"
    # PostgreSQL has the inbox's order in the primary key.
    inbox = "bongsu_notifications_pkey" if is_postgres else "bongsu_notifications_inbox"
    for call, is_unread in INBOX_CALLS:
        async with store.transaction() as tx:
            recorder = Recorder(tx.dialect)
            await call(recorder)
            (query,) = [one for one in recorder.queries if "bongsu_notifications" in one.statement.postgres]
            found = await plans(tx, query)
        for plan in found:
            assert ("bongsu_notifications_unread" if is_unread else inbox) in plan, plan
            # In the index's own order: a page must not cost the sorting of an inbox.
            below_limit = plan.partition("Limit  ")[2] if is_postgres else plan.partition("SCAN n LEFT-JOIN")[0]
            assert "Sort" not in below_limit, plan
            assert "TEMP B-TREE" not in below_limit, plan
        assert "Seq Scan" not in found[0], found[0]
        assert "SCAN bongsu" not in found[0], found[0]
        assert "SCAN m" not in found[0], found[0]


async def test_a_hundred_thousand_unread_are_counted_by_one_row_and_read_in_chunks(store: Store) -> None:
    listener = Listener()
    async with store.transaction() as tx:
        await members.ensure_members(tx, [f"m-{number}" for number in range(OTHERS)])
        await add_unread_without_messages(tx, "m", 100_000)
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE bongsu_members")())
    assert await Inbox(store).unread_count("m") == UnreadCount(unread=100_000)
    async with store.transaction() as tx:
        recorder = Recorder(tx.dialect)
        await statements.count_unread(recorder, "m")
        (query,) = recorder.queries
        for plan in await plans(tx, query):
            steps = plan.splitlines()
            found = "Index Scan using bongsu_members_pkey" if store.dialect.name == "postgresql" else "SEARCH bongsu_members"
            assert steps[0].startswith(found), plan
            assert "bongsu_notifications" not in plan, plan
    assert await Inbox(store, listener).read_all("m") == ReadAll(read=100_000, unread=0)
    assert listener.reported == [("m", unread) for unread in range(90_000, -1, -10_000)]
    assert await counts(store, "m") == (0, 0)
