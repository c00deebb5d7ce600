"""What open streams ask the store: the plans, as carried out, with a full inbox around the few who are asked about."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store import Store, people
from bongsu.store import live as statements
from bongsu.store.sqlite import SQLITE

MEMBERS = 3_000
MESSAGES = 2_000
# Of each message; one more, the last, goes to everybody.
READERS = 10
ALL = MESSAGES + 1
# PostgreSQL plans a statement for its values five times, and then perhaps for any values.
TIMES = 7

_EVENT = {"postgresql": "gen_random_uuid()", "sqlite": "hex(randomblob(16))"}
Look = Callable[[AsyncConnection], Awaitable[Any]]
HERE = [f"m-{number}" for number in range(0, 500)]

LOOKS: dict[str, Look] = {
    "how a member stands": lambda tx: statements.find_standing(tx, "m-7"),
    "the last unread": lambda tx: statements.find_missed(tx, "m-7", 0, 10**6, 10, only_unread=True),
    "all after a cursor": lambda tx: statements.find_missed(tx, "m-7", 5, 10**6, 1_001, only_unread=False),
    "what one has beyond a cursor": lambda tx: statements.find_news(tx, {"m-7": 5}, 2_000),
    "what many have beyond their cursors": lambda tx: statements.find_news(tx, dict.fromkeys(HERE, 20_000), 2_000),
    "how many stand": lambda tx: statements.find_counts(tx, HERE),
    "the words of one message": lambda tx: statements.find_words(tx, [7]),
    "the words of many messages": lambda tx: statements.find_words(tx, list(range(1, 501))),
    "how many one message went to": lambda tx: statements.count_told(tx, [ALL], 101),
    "how many many messages went to": lambda tx: statements.count_told(tx, list(range(1, 501)), 101),
    "whom one message went to": lambda tx: statements.find_told(tx, [7]),
    "whom many messages went to": lambda tx: statements.find_told(tx, list(range(1, 201))),
}


@pytest.fixture
async def full(store: Store) -> AsyncIterator[Store]:
    now, event = store.dialect.now, _EVENT[store.dialect.name]
    numbers = """WITH RECURSIVE numbered (number) AS (
        SELECT 0 UNION ALL SELECT number + 1 FROM numbered WHERE number < {last})"""
    async with store.write() as tx:
        await people.mention(tx, [f"m-{number}" for number in range(MEMBERS)])
        await tx.execute(
            text(f"""
                INSERT INTO bongsu_messages (message_id, event_id, notice, locale, type, subject, title, body, data,
                                             channels, lane, guarantee, is_critical, created_at)
                {numbers.format(last=MESSAGES)}
                SELECT number + 1, {event}, 0, 'ko', 'NOTICE', '', '', '', '{{}}', 8, 1, 'at_most_once', false, {now}
                FROM numbered""")
        )
        for chosen in (
            f"""{numbers.format(last=MESSAGES * READERS - 1)}
                SELECT 'm-' || ((number * 7) % {MEMBERS}), 1 + number / {READERS}, 8, {now} FROM numbered""",
            f"SELECT member_id, {ALL}, 8, {now} FROM bongsu_members",
        ):
            await tx.execute(
                text(f"INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at) {chosen}")
            )
    async with store.write() as tx:
        await tx.execute(text("ANALYZE"))
    yield store


async def test_no_table_is_read_from_end_to_end(full: Store) -> None:
    async with full.write() as tx:
        for name, look in LOOKS.items():
            for _ in range(TIMES):
                await (counted(tx, look, name) if full.dialect.name == "postgresql" else explained(tx, look, name))


async def counted(tx: AsyncConnection, look: Look, name: str) -> None:
    """PostgreSQL counts the whole reads of each table, this transaction's included."""
    query = text("SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE relname LIKE 'bongsu_%'")
    before = [tuple(row) for row in await tx.execute(query)]
    await look(tx)
    assert sorted(before) == sorted(tuple(row) for row in await tx.execute(query)), name


async def explained(tx: AsyncConnection, look: Look, name: str) -> None:
    """SQLite tells what it was asked, and then how it went about it."""
    driver = (await tx.get_raw_connection()).driver_connection
    assert isinstance(driver, aiosqlite.Connection)
    asked: list[str] = []
    await driver.set_trace_callback(asked.append)
    await look(tx)
    await driver.set_trace_callback(None)  # type: ignore[arg-type]
    selects = [one for one in asked if one.lstrip().startswith("SELECT") and "bongsu_" in one]
    assert selects, name
    for statement in selects:
        plan = [str(row[3]) async for row in await driver.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert any(step.startswith("SEARCH") for step in plan), (name, plan)
        # Tables by their names or ours for them; other scans are of what was given.
        whole = [step for step in plan if re.match(r"SCAN (bongsu_\w+|[a-z])( |$)|BLOOM|.*AUTOMATIC", step)]
        assert whole == [], (name, plan)


async def test_a_count_is_not_taken_for_newer_than_it_is(full: Store) -> None:
    """SQLite lets somebody else write in the middle of a statement that sees nothing of it any more."""
    if full.dialect.name != "sqlite":
        return  # now() is when the statement began
    looks: dict[str, Callable[[AsyncConnection], Awaitable[list[datetime]]]] = {
        "news": lambda tx: _moments(statements.find_news(tx, dict.fromkeys(HERE, 20_000), 2_000)),
        "told": lambda tx: _moments(statements.find_told(tx, list(range(1, 201)))),
    }
    async with full.read() as connection:
        driver = SQLITE.driver(connection)
        for name, look in looks.items():
            seen: list[datetime] = []

            def write_meanwhile(seen: list[datetime] = seen) -> None:
                if not seen:
                    time.sleep(0.003)  # its clock counts milliseconds
                    seen.append(datetime.now(UTC))
                    time.sleep(0.003)

            await driver.set_progress_handler(write_meanwhile, 5_000)
            moments = await look(connection)
            await driver.set_progress_handler(None, 0)  # type: ignore[arg-type]
            assert seen, name
            assert moments, name
            assert max(moments) < seen[0], name


async def _moments(found: Awaitable[Sequence[statements.Fresh | statements.Told]]) -> list[datetime]:
    return [one.as_of for one in await found]
