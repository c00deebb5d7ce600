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
from bongsu.store.core.query import LARGEST_ID, Row, same
from bongsu.store.inbox import Act, MarkedRead, PageKind, Place, Position
from bongsu.store.inbox import marks as marking
from tests.support.inbox import add_unread, add_unread_without_messages, unread_rows
from tests.support.recorder import Recorder, postgres_plans, sqlite_plan
from tests.support.rows import Sql, add_many

EVERYTHING = PageQuery(limit=100)


class Listener:
    """Remembers the members whose changes were reported."""

    def __init__(self) -> None:
        self.reported: list[str] = []

    def __call__(self, member_id: str) -> None:
        self.reported.append(member_id)


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
        rows, unread = await statements.find_page(tx, "m", LARGEST_ID, 2)
        assert [row.notification_id for row in rows] == [ids[4], ids[3]]
        assert unread == 5
        rows, unread = await statements.find_page(tx, "m", ids[1], 2, PageKind.UNREAD)
        assert [row.notification_id for row in rows] == [ids[0]]
        assert unread == 5
        assert await statements.find_page(tx, "nobody", LARGEST_ID, 2) == ([], 0)
        assert await statements.count_unread(tx, "nobody") == 0


async def test_a_known_member_without_notifications_has_an_empty_page(store: Store) -> None:
    async with store.transaction() as tx:
        await members.ensure_members(tx, ["m"])
    async with store.read() as tx:
        assert await statements.find_page(tx, "m", LARGEST_ID, 2, PageKind.UNREAD) == ([], 0)


async def test_marking_up_to_an_id_marks_the_unread_of_this_member_in_parts(store: Store) -> None:
    ids = await notify(store, "m", 3)
    await notify(store, "other", 1)
    ids += await notify(store, "m", 3)
    async with store.transaction() as tx:
        assert await statements.mark_read(tx, "m", ids[4], 2) == MarkedRead(read=2, unread=4, end=ids[1])
        assert await statements.mark_read(tx, "m", ids[4], 9) == MarkedRead(read=3, unread=1, end=ids[4])
        assert await statements.mark_read(tx, "m", ids[4], 9) == MarkedRead(read=0, unread=1, end=ids[4])
        assert await statements.mark_read(tx, "nobody", LARGEST_ID, 9) == MarkedRead(read=0, unread=0, end=LARGEST_ID)
        assert await statements.find_newest_unread(tx, "m") == ids[5]
        assert await statements.find_newest_unread(tx, "nobody") is None
    assert await counts(store, "m") == (1, 1)
    assert await counts(store, "other") == (1, 1)


async def test_a_read_mark_does_not_go_back_and_covers_what_became_unread_again(store: Store) -> None:
    """A page has only the last mark: one that went back would leave what the mark before had covered unread there."""
    first, second, third = await notify(store, "m", 3)
    async with store.transaction() as tx:
        await statements.mark_read(tx, "m", third, 9)
        await statements.apply_act(tx, "m", first, Act.UNREAD)
        await statements.apply_act(tx, "m", second, Act.UNREAD)
        # Called when `first` was the newest unread.
        assert await statements.mark_read(tx, "m", first, 9) == MarkedRead(read=2, unread=0, end=third)
    assert (await marks(store, "m"))["read_up_to"] == third


async def test_a_notification_is_found_where_it_is_with_the_count_of_all(store: Store) -> None:
    one, two = await notify(store, "m", 2)
    others = await notify(store, "other", 1)
    async with store.transaction() as tx:
        assert await statements.find_state(tx, "m", others[0]) is None
        await statements.apply_act(tx, "m", one, Act.ARCHIVE)
        archived, unread = [await statements.find_state(tx, "m", each) for each in (one, two)]
    assert archived is not None
    assert (archived.position, archived.unread) == (Position(Place.ARCHIVE, is_read=True), 1)
    assert archived.read_at is not None
    assert unread is not None
    assert (unread.position, unread.read_at) == (Position(Place.INBOX, is_read=False), None)


async def test_what_is_archived_is_read_seen_and_in_a_list_of_its_own(store: Store) -> None:
    one, two = await notify(store, "m", 2)
    async with store.transaction() as tx:
        await statements.apply_act(tx, "m", one, Act.ARCHIVE)
        [row], unread = await statements.find_page(tx, "m", LARGEST_ID, 9, PageKind.ARCHIVE)
        assert (row.notification_id, unread) == (one, 1)
        assert row.read_at == row.seen_at == row.archived_at is not None
        assert [row.notification_id for row in (await statements.find_page(tx, "m", LARGEST_ID, 9))[0]] == [two]
        await statements.apply_act(tx, "m", one, Act.UNARCHIVE)
        assert await statements.find_page(tx, "m", LARGEST_ID, 9, PageKind.ARCHIVE) == ([], 1)
        rows, _ = await statements.find_page(tx, "m", LARGEST_ID, 9)
    assert [(row.notification_id, row.read_at is not None, row.archived_at) for row in rows] == [
        (two, False, None),
        (one, True, None),
    ]


async def test_seen_is_a_mark_that_costs_a_look_when_nothing_is_new(store: Store) -> None:
    ids = await notify(store, "m", 5)
    async with store.transaction() as tx:
        assert await statements.find_newest_unseen(tx, "m") == ids[4]
        assert await statements.mark_seen(tx, "m", ids[3], 3) == ids[2]
        assert await statements.mark_seen(tx, "m", ids[3], 3) == ids[3]
        rows, unread = await statements.find_page(tx, "m", LARGEST_ID, 9)
    assert [row.seen_at is not None for row in rows] == [False, True, True, True, True]
    assert unread == 5
    before = await marks(store, "m")
    assert before["seen_up_to"] == ids[3]
    async with store.transaction() as tx:
        assert await statements.mark_seen(tx, "m", ids[3], 3) == ids[3]
        assert await statements.mark_seen(tx, "m", ids[1], 3) == ids[3]
        assert await statements.mark_seen(tx, "nobody", ids[1], 3) == ids[1]
        await statements.mark_seen(tx, "m", ids[4], 3)
        assert await statements.find_newest_unseen(tx, "m") is None
    assert (await marks(store, "m"))["seen_up_to"] == ids[4]
    assert (await marks(store, "m"))["changed_id"] > before["changed_id"] > ids[4]


async def marks(store: Store, member_id: str) -> Row:
    async with store.read() as tx:
        [row] = await tx.fetch(same("SELECT * FROM bongsu_members WHERE member_id = $1")(member_id))
        return row


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
    await inbox.seen("m")
    await inbox.seen("m")
    await inbox.seen("nobody")
    for act in (Act.UNREAD, Act.ARCHIVE, Act.UNARCHIVE, Act.DELETE):
        assert await inbox.act("m", ids[0], act) is not None
        assert await inbox.act("m", ids[0], act) is not None
        assert await inbox.act("other", ids[0], act) is None
    assert listener.reported == ["m"] * 7


async def test_what_arrives_while_all_are_read_stays_unread(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(the_inbox, "MARK_CHUNK", 3)
    late: list[int] = []
    mark_read = statements.mark_read

    async def mark_after_one_more(tx: Transaction, **given: Any) -> MarkedRead:
        late.extend(await add_unread(tx, "m"))
        return await mark_read(tx, **given)

    await notify(store, "m", 7)
    monkeypatch.setattr(statements, "mark_read", mark_after_one_more)
    listener = Listener()
    inbox = Inbox(store, listener)
    # Three chunks, and one more before each.
    assert await inbox.read_all("m") == ReadAll(read=7, unread=3)
    assert listener.reported == ["m"]
    page = await inbox.page("m", PageQuery(unread="true"))
    assert [item.id for item in page.items] == [str(one) for one in reversed(late)]
    assert await counts(store, "m") == (3, 3)


async def test_of_many_who_read_the_same_one_at_once_one_changes_the_count(store: Store) -> None:
    listener = Listener()
    inbox = Inbox(store, listener)
    one, _ = await notify(store, "m", 2)
    answers = await asyncio.gather(*(inbox.read("m", one) for _ in range(15)))
    assert len({repr(answer) for answer in answers}) == 1
    assert listener.reported == ["m"]
    assert await counts(store, "m") == (1, 1)


async def test_those_who_read_different_ones_at_once_do_so_one_after_the_other(store: Store) -> None:
    listener = Listener()
    inbox = Inbox(store, listener)
    ids = await notify(store, "m", 15)
    answers = await asyncio.gather(*(inbox.read("m", one) for one in ids))
    # Each under the lock, each sees what those before it have left.
    assert listener.reported == ["m"] * 15
    assert sorted(answer.unread for answer in answers if answer) == list(range(15))


async def test_the_count_is_exact_under_concurrent_writers_and_readers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the_inbox, "MARK_CHUNK", 4)
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
    (lambda tx: statements.find_page(tx, "m", 9_500, 21), False),
    (lambda tx: statements.find_page(tx, "m", 9_500, 21, PageKind.UNREAD), True),
    (lambda tx: statements.find_newest_unread(tx, "m"), True),
    (lambda tx: statements.find_newest_unseen(tx, "m"), False),
    (lambda tx: tx.fetch(marking._FIND_READ_END("m", 9_100, 9_999, 100)), True),
    (lambda tx: tx.fetch(marking._MARK_READ("m", 9_999)), True),
    (lambda tx: tx.fetch(marking._FIND_SEEN_END("m", 9_100, 9_999, 100)), False),
    (lambda tx: tx.fetch(marking._MARK_SEEN("m", 9_100, 9_999)), False),
]


async def plans(tx: Transaction, query: Query) -> list[str]:
    """For these parameters, and on PostgreSQL for any parameters too."""
    return ["\n".join(await sqlite_plan(tx, query))] if tx.dialect.name == "sqlite" else await postgres_plans(tx, query)


async def test_the_inbox_is_read_by_its_indexes(store: Store) -> None:
    async with store.transaction() as tx:
        await members.ensure_members(tx, [f"m-{number}" for number in range(OTHERS)])
        await add_unread_without_messages(tx, "m", 10_000)
        await statements.mark_read(tx, "m", 9_000, 9_000)
        await statements.mark_seen(tx, "m", 9_000, 9_000)
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
    assert listener.reported == ["m"]
    assert await counts(store, "m") == (0, 0)
