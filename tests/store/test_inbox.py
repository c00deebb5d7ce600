"""The inbox on both databases: against a model, under rivals, and by its indexes."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from sqlalchemy import text

from bongsu import inbox as the_inbox
from bongsu.inbox import Inbox, PageQuery
from bongsu.store import Store, people
from bongsu.store import inbox as statements
from bongsu.store.inbox import LARGEST_ID, Changed
from tests.told import pile_up, tell, unread_rows

EVERYTHING = PageQuery(limit=100)


class Ear:
    """Hears whose unread count became what."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    async def __call__(self, member_id: str, unread: int) -> None:
        self.heard.append((member_id, unread))


async def told(store: Store, member_id: str, count: int = 1) -> list[int]:
    async with store.write() as tx:
        return await tell(tx, member_id, count)


async def counts(store: Store, member_id: str) -> tuple[int, int]:
    """The count that is kept, and the count that is true."""
    async with store.read() as connection:
        return await statements.count_unread(connection, member_id), await unread_rows(connection, member_id)


# --- the statements ---------------------------------------------------------------------------------------------------


async def test_a_page_is_the_newest_below_and_the_count_of_all(store: Store) -> None:
    ids = await told(store, "m", 5)
    await told(store, "other", 2)
    async with store.read() as connection:
        rows, unread = await statements.find_page(connection, "m", LARGEST_ID, 2, only_unread=False)
        assert [row.notification_id for row in rows] == [ids[4], ids[3]]
        assert unread == 5
        rows, unread = await statements.find_page(connection, "m", ids[1], 2, only_unread=True)
        assert [row.notification_id for row in rows] == [ids[0]]
        assert unread == 5
        assert await statements.find_page(connection, "nobody", LARGEST_ID, 2, only_unread=False) == ([], 0)
        assert await statements.count_unread(connection, "nobody") == 0


async def test_a_known_member_without_notifications_has_an_empty_page(store: Store) -> None:
    async with store.write() as tx:
        await people.mention(tx, ["m"])
    async with store.read() as connection:
        assert await statements.find_page(connection, "m", LARGEST_ID, 2, only_unread=True) == ([], 0)


async def test_reading_between_two_ids_reads_what_is_unread_there_and_of_this_member(store: Store) -> None:
    ids = await told(store, "m", 3)
    others = await told(store, "other", 1)
    ids += await told(store, "m", 3)
    async with store.write() as tx:
        assert await statements.read_between(tx, "m", ids[2] - 1, ids[2]) == Changed(read=1, unread=5)
        assert await statements.find_end(tx, "m", 0, ids[-1], 3) == ids[3]
        assert await statements.find_end(tx, "m", 0, ids[-1], 6) == ids[-1]
        assert await statements.read_between(tx, "m", ids[0], ids[4]) == Changed(read=3, unread=2)
        assert await statements.read_between(tx, "m", ids[0], ids[4]) == Changed(read=0, unread=2)
        assert await statements.read_between(tx, "nobody", 0, LARGEST_ID) == Changed(read=0, unread=0)
        assert await statements.find_newest_unread(tx, "m") == ids[5]
        assert await statements.find_newest_unread(tx, "nobody") is None
        assert await statements.find_reading(tx, "m", others[0]) is None
        first, third = [await statements.find_reading(tx, "m", one) for one in (ids[0], ids[2])]
    assert first is not None
    assert (first.read_at, first.unread) == (None, 2)
    assert third is not None
    assert third.read_at is not None
    assert await counts(store, "other") == (1, 1)


# --- reading, told to whoever listens ---------------------------------------------------------------------------------


async def test_whoever_listens_hears_of_changes_and_only_of_changes(store: Store) -> None:
    ear = Ear()
    inbox = Inbox(store, ear)
    ids = await told(store, "m", 3)
    first = await inbox.read("m", ids[0])
    assert await inbox.read("m", ids[0]) == first
    assert await inbox.read("other", ids[0]) is None
    assert await inbox.read_all("m") == {"read": 2, "unread": 0}
    assert await inbox.read_all("m") == {"read": 0, "unread": 0}
    assert await inbox.read_all("nobody") == {"read": 0, "unread": 0}
    assert ear.heard == [("m", 2), ("m", 0)]


async def test_what_arrives_while_all_are_read_stays_unread(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(the_inbox, "READ_ALL_CHUNK", 3)
    late: list[int] = []

    async def more_arrives(member_id: str, unread: int) -> None:
        late.extend(await told(store, member_id))

    await told(store, "m", 7)
    inbox = Inbox(store, more_arrives)
    # Three chunks; one more arrived after each, and the answer counts those before the last commit.
    assert await inbox.read_all("m") == {"read": 7, "unread": 2}
    page = await inbox.page("m", PageQuery(unread="true"))
    assert [item["id"] for item in page["items"]] == [str(one) for one in reversed(late)]
    assert await counts(store, "m") == (3, 3)


async def test_of_many_who_read_the_same_one_at_once_one_changes_the_count(store: Store) -> None:
    ear = Ear()
    inbox = Inbox(store, ear)
    one, _ = await told(store, "m", 2)
    answers = await asyncio.gather(*(inbox.read("m", one) for _ in range(15)))
    assert len({json.dumps(answer) for answer in answers}) == 1
    assert ear.heard == [("m", 1)]
    assert await counts(store, "m") == (1, 1)


async def test_those_who_read_different_ones_at_once_do_so_one_after_the_other(store: Store) -> None:
    ear = Ear()
    inbox = Inbox(store, ear)
    ids = await told(store, "m", 15)
    answers = await asyncio.gather(*(inbox.read("m", one) for one in ids))
    # Each under the lock, each sees what those before it have left.
    assert sorted(unread for _, unread in ear.heard) == list(range(15))
    assert sorted(answer["unread"] for answer in answers if answer) == list(range(15))


async def test_the_count_is_exact_whoever_tells_and_reads_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(the_inbox, "READ_ALL_CHUNK", 4)
    dice = random.Random(7)
    inbox = Inbox(store)
    members = ["a", "b"]
    known = {member: await told(store, member, 10) for member in members}

    async def teller(member: str) -> None:
        for _ in range(5):
            known[member].extend(await told(store, member, dice.randint(1, 4)))

    async def reader(member: str) -> None:
        for _ in range(10):
            answer = await inbox.read(member, dice.choice(known[member]))
            assert answer is not None
            assert answer["unread"] >= 0

    async def sweeper(member: str) -> None:
        for _ in range(3):
            await inbox.read_all(member)

    async def looker(member: str) -> None:
        for _ in range(10):
            page = await inbox.page(member, EVERYTHING)
            assert page["unread"] == sum(item["readAt"] is None for item in page["items"])

    work = [who(member) for member in members for who in (teller, reader, reader, sweeper, sweeper, looker)]
    dice.shuffle(work)
    await asyncio.gather(*work)
    for member in members:
        kept, true = await counts(store, member)
        assert kept == true
        assert (await inbox.read_all(member)) == {"read": true, "unread": 0}
        assert await counts(store, member) == (0, 0)


# --- where an index is the point --------------------------------------------------------------------------------------

# Of a small table the planners rather read the whole.
OTHERS = 3_000
VALUES = {"member_id": "m", "below": 9_500, "limit": 21, "after_id": 9_100, "last_id": 9_999, "skipped": 99}


async def plans(store: Store, statement: str) -> list[str]:
    """How the database would go about it: knowing the values, and on PostgreSQL for any values too."""
    async with store.write() as tx:
        if store.dialect.name == "sqlite":
            steps = await tx.execute(text(f"EXPLAIN QUERY PLAN {statement}"), VALUES)
            return ["\n".join(str(step[3]) for step in steps)]
        names = [name for name in VALUES if f":{name}" in statement]
        for place, name in enumerate(names, 1):
            statement = statement.replace(f":{name}", f"${place}")
        kinds = ", ".join("text" if name == "member_id" else "bigint" for name in names)
        given = ", ".join(repr(VALUES[name]) for name in names)
        await tx.exec_driver_sql(f"PREPARE explained ({kinds}) AS {statement}")
        found = []
        for mode in ("force_custom_plan", "force_generic_plan"):
            await tx.exec_driver_sql(f"SET LOCAL plan_cache_mode = {mode}")
            steps = await tx.exec_driver_sql(f"EXPLAIN EXECUTE explained ({given})")
            found.append("\n".join(str(step[0]) for step in steps))
        await tx.exec_driver_sql("DEALLOCATE explained")
        return found


async def test_the_inbox_is_read_by_its_indexes(store: Store) -> None:
    async with store.write() as tx:
        await people.mention(tx, [f"m-{number}" for number in range(OTHERS)])
        await pile_up(tx, "m", 10_000)
        await statements.read_between(tx, "m", 0, 9_000)
        await tell(tx, "other", 8_000)
    async with store.write() as tx:
        await tx.execute(text("ANALYZE"))
    dialect = store.dialect
    is_postgres = dialect.name == "postgresql"
    # PostgreSQL has the inbox's order in the primary key.
    inbox = "bongsu_notifications_pkey" if is_postgres else "bongsu_notifications_inbox"
    unread = "bongsu_notifications_unread"
    for statement, index in (
        (statements.page_statement(dialect, only_unread=False), inbox),
        (statements.page_statement(dialect, only_unread=True), unread),
        (statements.newest_statement(dialect), unread),
        (statements.end_statement(dialect), unread),
        (statements.read_statement(dialect), unread),
    ):
        found = await plans(store, statement)
        for plan in found:
            assert index in plan, plan
            # In the index's own order: a page must not cost the sorting of an inbox.
            below_limit = plan.partition("Limit  ")[2] if is_postgres else plan.partition("SCAN n LEFT-JOIN")[0]
            assert "Sort" not in below_limit, plan
            assert "TEMP B-TREE" not in below_limit, plan
        assert "Seq Scan" not in found[0], found[0]
        assert "SCAN bongsu" not in found[0], found[0]
        assert "SCAN m" not in found[0], found[0]


async def test_a_hundred_thousand_unread_are_counted_by_one_row_and_read_in_chunks(store: Store) -> None:
    ear = Ear()
    async with store.write() as tx:
        await people.mention(tx, [f"m-{number}" for number in range(OTHERS)])
        await pile_up(tx, "m", 100_000)
    async with store.write() as tx:
        await tx.execute(text("ANALYZE bongsu_members"))
    assert await Inbox(store).unread_count("m") == {"unread": 100_000}
    for plan in await plans(store, statements.UNREAD):
        steps = plan.splitlines()
        found = "Index Scan using bongsu_members_pkey" if store.dialect.name == "postgresql" else "SEARCH bongsu_members"
        assert steps[0].startswith(found), plan
        assert "bongsu_notifications" not in plan, plan
    assert await Inbox(store, ear).read_all("m") == {"read": 100_000, "unread": 0}
    assert ear.heard == [("m", unread) for unread in range(90_000, -1, -10_000)]
    assert await counts(store, "m") == (0, 0)
