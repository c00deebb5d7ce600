"""Rows of our tables are written by the builders: otherwise a new column is an edit in every test that has an INSERT."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bongsu.store import Store
from bongsu.store.core.query import same
from tests.support.decisions import rows
from tests.support.rows import (
    NOW,
    Sql,
    add_delivery,
    add_delivery_for_each,
    add_device,
    add_event,
    add_many,
    add_member,
    add_message,
    add_notification,
    add_suppression,
    set_columns,
)

TESTS = Path(__file__).parents[1]
# An outbox is a table of another service, which writes to it as the tests do.
WRITE = re.compile(r"(INSERT INTO|UPDATE|COPY) bongsu_(?!outbox\b)", re.IGNORECASE)

# Tests whose subject is the statement itself.
WRITE_THEMSELVES = {
    "chaos/test_bursts.py": "publishes as a program in another language does",
    "decide/audience/test_selected.py": "a user's SELECT that would write",
    "ingress/test_plain_sql.py": "the documented INSERT for other languages",
    "store/core/test_sqlite.py": "bytes that are not text, written by another program",
    "store/core/test_transactions.py": "transactions and their row counts",
    "store/schema/test_migrate.py": "rows of older revisions",
}


def test_only_the_builders_write_to_our_tables() -> None:
    found = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if WRITE.search(path.read_text()) and path.relative_to(TESTS).as_posix() != "support/rows.py"
    }
    assert found - set(WRITE_THEMSELVES) == set(), "use the builders of tests/support/rows.py"
    assert set(WRITE_THEMSELVES) - found == set(), "they need no exception any more"


async def test_rows_have_defaults_and_the_columns_that_were_named(store: Store) -> None:
    at = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    async with store.transaction() as tx:
        await add_member(tx, "m-1", locale="en")
        await add_device(tx, "m-1", has_consent=False)
        event_id = await add_event(tx, status="DONE")
        message_id = await add_message(tx, event_id=event_id, title="가", created_at=at)
        notification_id = await add_notification(tx, "m-1", message_id)
        await add_delivery(tx, notification_id, "m-1", message_id, status="FAIL")
        await add_suppression(tx, message_id, "m-2", reason="NO_ADDRESS")
        ((created_at,),) = await tx.fetch(same("SELECT created_at FROM bongsu_messages")())
    assert store.dialect.time(created_at) == at
    for query, expected in (
        ("SELECT member_id, locale FROM bongsu_members", ("m-1", "en")),
        ("SELECT member_id, token, has_consent FROM bongsu_devices", ("m-1", "token-m-1", False)),
        ("SELECT title, priority FROM bongsu_messages", ("가", 1)),
        ("SELECT notification_id, status, channel FROM bongsu_deliveries", (notification_id, "FAIL", "PUSH")),
        ("SELECT member_id, reason FROM bongsu_suppressions", ("m-2", "NO_ADDRESS")),
    ):
        assert [tuple(row) for row in await rows(store, query)] == [expected]


async def test_many_rows_are_numbered_and_can_each_have_another(store: Store) -> None:
    async with store.transaction() as tx:
        await add_many(tx, "notifications", 3, member_id=Sql("'m-' || number"), message_id=7)
        await add_delivery_for_each(tx, "notifications WHERE member_id <> 'm-2'", status="SUCCESS")
    found = await rows(store, "SELECT member_id, message_id, status FROM bongsu_deliveries ORDER BY member_id")
    assert [tuple(row) for row in found] == [("m-1", 7, "SUCCESS"), ("m-3", 7, "SUCCESS")]


async def test_columns_are_set_where_it_says_and_times_are_the_stores(store: Store) -> None:
    async with store.transaction() as tx:
        for member_id in ("a", "b", "c"):
            await add_member(tx, member_id)
        await add_event(tx, due=timedelta(hours=-1))
        await add_event(tx, due=timedelta(hours=1))
        assert await set_columns(tx, "members", {"member_id": ["a", "b"], "phone": None}, phone="010", unread=2) == 2
        assert await set_columns(tx, "members", "phone IS NULL", unread=Sql("unread + 5")) == 1
    assert await set_columns(store, "members", email="a@example.org") == 3
    found = await rows(store, "SELECT member_id, phone, unread FROM bongsu_members ORDER BY member_id")
    assert [tuple(row) for row in found] == [("a", "010", 2), ("b", "010", 2), ("c", None, 5)]
    due = f"SELECT event_id FROM bongsu_events WHERE due <= {store.dialect.now}"
    assert len(await rows(store, due)) == 1
    await set_columns(store, "events", due=NOW)
    assert len(await rows(store, due)) == 2
