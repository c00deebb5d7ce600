"""The statements of open streams: their plans, as carried out, with a full table around the few members asked for."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from bongsu.model import new_id
from bongsu.store import Store, Transaction, members
from bongsu.store.core import sqlite
from bongsu.store.core.query import same
from bongsu.store.core.sqlite import SqliteDatabase
from bongsu.store.inbox import changes
from bongsu.store.inbox import live as statements
from bongsu.store.messages.content import find_content
from tests.support.recorder import Recorder, sqlite_plan
from tests.support.rows import Sql, add_for_each, add_many, set_columns

MEMBERS = 3_000
MESSAGES = 2_000
# Of each message; one more, the last, goes to everyone.
RECIPIENTS = 10
ALL = MESSAGES + 1
# PostgreSQL plans a statement for its values five times, and then perhaps for any values.
TIMES = 7

Call = Callable[[Transaction], Awaitable[Any]]
CONNECTED = [f"m-{number}" for number in range(500)]

CALLS: dict[str, Call] = {
    "the state of a member's inbox": lambda tx: statements.find_inbox_state(tx, "m-7"),
    "the last unread": lambda tx: statements.find_missed(tx, "m-7", 0, 10**6, 10, only_unread=True),
    "all above a cursor": lambda tx: statements.find_missed(tx, "m-7", 5, 10**6, 1_001, only_unread=False),
    "what one member has above a cursor": lambda tx: statements.find_new(tx, {"m-7": 5}, 2_000),
    "what many have above their cursors": lambda tx: statements.find_new(tx, dict.fromkeys(CONNECTED, 20_000), 2_000),
    "unread counts": lambda tx: statements.find_counts(tx, CONNECTED),
    "what has changed for one member": lambda tx: changes.find_missed_changes(tx, "m-7", 5, 10**6, 1_001),
    "what has changed for many members": lambda tx: changes.find_changes(
        tx, [(member_id, 0, 10**6, position) for position, member_id in enumerate(CONNECTED)], 2_000
    ),
    "the content of one message": lambda tx: find_content(tx, [7]),
    "the content of many messages": lambda tx: find_content(tx, list(range(1, 501))),
    "how many recipients one message has": lambda tx: statements.count_recipients(tx, [ALL], 101),
    "how many recipients many messages have": lambda tx: statements.count_recipients(tx, list(range(1, 501)), 101),
    "the recipients of one message": lambda tx: statements.find_recipients(tx, [7]),
    "the recipients of many messages": lambda tx: statements.find_recipients(tx, list(range(1, 201))),
}


@pytest.fixture
async def full(store: Store) -> AsyncIterator[Store]:
    async with store.transaction() as tx:
        await members.ensure_members(tx, [f"m-{number}" for number in range(MEMBERS)])
        # Spread over all messages: the last of them goes to everyone.
        await add_many(tx, "messages", ALL, message_id=Sql("number"), event_id=new_id(), notice_index=Sql("number"))
        member, message = f"'m-' || ((number * 7) % {MEMBERS})", f"1 + (number - 1) / {RECIPIENTS}"
        await add_many(tx, "notifications", MESSAGES * RECIPIENTS, member_id=Sql(member), message_id=Sql(message))
        await add_for_each(tx, "notifications", "members", member_id=Sql("member_id"), message_id=ALL)
        await set_columns(tx, "notifications", "notification_id % 20 = 0", change_id=Sql("notification_id + 100000"))
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    yield store


async def test_no_table_is_read_from_end_to_end(full: Store) -> None:
    async with full.transaction() as tx:
        for name, call in CALLS.items():
            for _ in range(TIMES):
                await (check_counts(tx, call, name) if full.dialect.name == "postgresql" else check_plans(tx, call, name))


SEQUENTIAL_SCANS = same("SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE relname LIKE 'bongsu_%'")


async def check_counts(tx: Transaction, call: Call, name: str) -> None:
    """PostgreSQL counts the sequential scans of each table, this transaction's included."""
    before = sorted(tuple(row) for row in await tx.fetch(SEQUENTIAL_SCANS()))
    await call(tx)
    assert before == sorted(tuple(row) for row in await tx.fetch(SEQUENTIAL_SCANS())), name


async def check_plans(tx: Transaction, call: Call, name: str) -> None:
    recorder = Recorder(tx.dialect)
    await call(recorder)
    assert recorder.queries, name
    for query in recorder.queries:
        plan = await sqlite_plan(tx, query)
        assert any(step.startswith("SEARCH") for step in plan), (name, plan)
        # Tables by their names or our aliases of one letter; other scans are of the given rows.
        whole = [step for step in plan if re.match(r"SCAN (bongsu_\w+|[a-z])( |$)|BLOOM|.*AUTOMATIC", step)]
        assert whole == [], (name, plan)


async def test_a_count_is_not_taken_for_newer_than_it_is(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite another connection may write in the middle of a statement, which does not see it any more."""
    if not isinstance(full.database, SqliteDatabase):
        return  # now() is when the statement began
    calls: dict[str, Callable[[Transaction], Awaitable[list[datetime]]]] = {
        "new": lambda tx: _moments(statements.find_new(tx, dict.fromkeys(CONNECTED, 20_000), 2_000)),
        "recipients": lambda tx: _moments(statements.find_recipients(tx, list(range(1, 201)))),
    }
    async with full.read() as tx:
        for name, call in calls.items():
            seen: list[datetime] = []

            def write_meanwhile(seen: list[datetime] = seen) -> None:
                if not seen:
                    time.sleep(0.003)  # its clock counts milliseconds
                    seen.append(datetime.now(UTC))
                    time.sleep(0.003)

            with monkeypatch.context() as patched:
                patched.setattr(sqlite, "STEPS", 5_000)
                patched.setattr(sqlite.TimeLimits, "_may_not_go_on", lambda _self, write=write_meanwhile: write())
                moments = await call(tx)
            assert seen, name
            assert moments, name
            assert max(moments) < seen[0], name


async def _moments(
    found: Awaitable[Sequence[statements.NotificationGroup | statements.Recipient]],
) -> list[datetime]:
    return [one.as_of for one in await found]
