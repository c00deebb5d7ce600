"""Deciding and applying as statements: few and many rows lead to the same, and each step reads only its own rows."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bongsu.model import Action, Channel, Event, EventStatus
from bongsu.model.channels import to_bits
from bongsu.store import Query, Statement, Store, Transaction, decisions, outbox
from bongsu.store.core.query import OTHER_DATABASE, same
from bongsu.store.decisions import DecisionInputs, DedupKey, Message, NoticeRow, ProfileRow, StepChanges, apply, decide
from bongsu.store.decisions.messages import mark_used_again_query
from bongsu.store.decisions.recipients import FIND_EVERYONE, FIND_INTERESTED, Interest, find_everyone, find_interested
from tests.support.decisions import add_behaviors, add_members, rows, set_preferences, unread_is_exact
from tests.support.rows import Sql, add_many, add_notification, set_columns

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAY = NOW.toordinal()
ALL = to_bits(Channel)
LIMIT = 3
PATHS = pytest.mark.parametrize("few", [0, 1_000], ids=["many", "few"])


def inputs(*notices: NoticeRow, keys: tuple[DedupKey, ...] = ()) -> DecisionInputs:
    return DecisionInputs(
        notices=notices,
        profiles=[ProfileRow("", "", -1, -1, DAY, NOW)],
        contents=[(one.notice_index, "", 101 + one.notice_index) for one in notices],
        keys=keys,
        own_messages=[],
        daily_limit=LIMIT,
        now=NOW,
    )


def plain(notice_index: int, channels: int = ALL, *, is_critical: bool = False) -> NoticeRow:
    return NoticeRow(notice_index, notice_index, "PLAIN", channels, is_critical, not is_critical, 1)


def message(message_id: int, event: Event, notice: int = 0) -> Message:
    return Message(
        message_id, event.event_id, notice, "", "PLAIN", "s", "t", "b", None, "{}", ALL, 1, "at_most_once", False, NOW,
        last_notified_at=NOW,
    )  # fmt: skip


async def claimed_event(tx: Transaction) -> tuple[Event, tuple[UUID, int]]:
    event = Event(event_type="x")
    await outbox.add(tx, [event])
    (claimed,) = await outbox.claim(tx, 1, 60, "w")
    return event, (event.event_id, claimed.epoch)


@PATHS
async def test_every_reason_is_the_first_that_applies(store: Store, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(decide, "FEW_RECIPIENTS", few)
    await add_members(store, "device", "duplicate", "full", device=True)
    await add_members(store, "address-only", "off", "off-type", "other-channel", "none", "yesterday")
    await set_preferences(store, "off", enabled=False)
    await set_preferences(store, "off-type", types={"PLAIN": {"enabled": False}})
    await set_preferences(store, "other-channel", types={"PLAIN": {"channels": ["EMAIL"]}})
    await set_columns(store, "members", {"member_id": ["address-only", "yesterday"]}, phone="010")
    await set_columns(store, "members", {"member_id": "full"}, capped_day=DAY, capped_count=LIMIT)
    await set_columns(store, "members", {"member_id": "yesterday"}, capped_day=DAY - 1, capped_count=LIMIT)
    everyone = ["address-only", "device", "duplicate", "full", "none", "off", "off-type", "other-channel", "yesterday"]
    async with store.transaction() as tx:
        event, claim = await claimed_event(tx)
        await tx.execute(decisions.add_messages_query([message(7, Event(event_type="x"))]))
        await add_notification(tx, "duplicate", 7, created_at=NOW)
        push_and_sms = plain(0, to_bits([Channel.PUSH, Channel.SMS]))
        key = DedupKey(0, "PLAIN", "s", NOW - timedelta(hours=1))
        decided = await decisions.decide_members(tx, {0: everyone}, inputs(push_and_sms, keys=(key,)))
        assert not decided.is_incomplete
        changes = StepChanges(60, new_messages=[message(101, event)], finished=[claim])
        assert await decisions.apply_decision(tx, decided, changes) == 3
    found = await rows(store, "SELECT member_id, reason FROM bongsu_suppressions ORDER BY member_id")
    assert [tuple(row) for row in found] == [
        ("duplicate", "DUPLICATE"),
        ("full", "RATE_LIMITED"),
        ("none", "NO_ADDRESS"),
        ("off", "USER_OPTED_OUT"),
        ("off-type", "USER_OPTED_OUT"),
        ("other-channel", "USER_OPTED_OUT"),
    ]
    sent = await rows(store, "SELECT member_id, channel, device_id FROM bongsu_deliveries ORDER BY member_id")
    assert [tuple(row) for row in sent] == [
        ("address-only", "SMS", None),
        ("device", "PUSH", "phone"),
        ("yesterday", "SMS", None),
    ]
    capped = await rows(
        store, f"SELECT member_id, capped_count FROM bongsu_members WHERE capped_day = {DAY} ORDER BY member_id"
    )
    assert [tuple(row) for row in capped] == [("address-only", 1), ("device", 1), ("full", LIMIT), ("yesterday", 1)]
    async with store.read() as tx:
        stored = await outbox.find(tx, event.event_id)
    assert stored is not None
    assert stored.status is EventStatus.DONE


@PATHS
async def test_earlier_notices_of_a_step_count_towards_the_cap(
    store: Store, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(decide, "FEW_RECIPIENTS", few)
    await add_members(store, "a", "b")
    await set_preferences(store, "b", enabled=False)
    notices = [plain(0), plain(1), plain(2, is_critical=True), plain(3), plain(4), plain(5)]
    async with store.transaction() as tx:
        decided = await decisions.decide_members(
            tx, {notice_index: ["a", "b"] for notice_index in range(6)}, inputs(*notices)
        )
        event, claim = await claimed_event(tx)
        new = [message(101 + notice_index, event, notice_index) for notice_index in range(6)]
        await decisions.apply_decision(tx, decided, StepChanges(60, new, cursors={claim: "[0, 'b']"}))
    counts = {(one.notice_index, one.reason): one.recipients for one in decided.counts}
    notified, limited, opted_out = (0, 1, 3), (4, 5), (0, 1, 3, 4, 5)
    expected: dict[tuple[int, str | None], int] = {(2, None): 2}  # the critical one
    expected |= {(notice_index, None): 1 for notice_index in notified}
    expected |= {(notice_index, "RATE_LIMITED"): 1 for notice_index in limited}
    expected |= {(notice_index, "USER_OPTED_OUT"): 1 for notice_index in opted_out}
    assert counts == expected
    found = await rows(store, "SELECT member_id, unread, capped_count FROM bongsu_members ORDER BY member_id")
    assert [tuple(row) for row in found] == [("a", 4, 3), ("b", 1, 0)]
    assert await unread_is_exact(store)
    ((cursor, status),) = await rows(store, "SELECT fanout_cursor, status FROM bongsu_events")
    assert (cursor, status) == ("[0, 'b']", "PENDING")


@PATHS
async def test_missing_members_and_profiles_are_found(store: Store, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(decide, "FEW_RECIPIENTS", few)
    await add_members(store, "a", "b")
    await set_columns(store, "members", {"member_id": "b"}, locale="en")
    recipients = {0: ["a", "b", "new"]}
    async with store.transaction() as tx:
        decided = await decisions.decide_members(tx, recipients, inputs(plain(0)))
        assert decided.is_incomplete
        assert await decisions.find_missing_members(tx, recipients) == ["new"]
        assert {one.locale for one in await decisions.find_profiles(tx, recipients)} == {"", "en"}


async def test_a_message_is_never_marked_back_in_time(store: Store) -> None:
    later = NOW + timedelta(minutes=1)
    async with store.transaction() as tx:
        await tx.execute(
            decisions.add_messages_query(
                [message(one, Event(event_type="x"))._replace(last_notified_at=later) for one in (1, 2)]
            )
        )
        mark = mark_used_again_query([1], NOW)
        assert await tx.execute(mark) == [0]
        found = await tx.fetch(same("SELECT last_notified_at FROM bongsu_messages")())
    assert {store.dialect.time(row["last_notified_at"]) for row in found} == {later}


# --- audiences --------------------------------------------------------------------------------------------------------


async def test_members_come_in_id_order_behind_a_cursor(store: Store) -> None:
    await add_members(store, "b", "a", "é", "Z", "가")
    async with store.read() as tx:
        assert await find_everyone(tx, "", 3) == ["Z", "a", "b"]
        assert await find_everyone(tx, "b", 3) == ["é", "가"]
        assert await find_everyone(tx, "가", 3) == []


async def test_the_interested_of_several_products_come_each_with_a_limit(store: Store) -> None:
    await add_behaviors(store, "p1", "b", "a", "c", at=NOW)
    await add_behaviors(store, "p1", "a", action=Action.CLICK, at=NOW)
    await add_behaviors(store, "p2", "c", at=NOW)
    await add_behaviors(store, "p2", "old", at=NOW - timedelta(days=8))
    since = NOW - timedelta(days=7)
    interests = [Interest(5, "p1", since, ""), Interest(2, "p2", since, ""), Interest(7, "p1", since, "b")]
    async with store.read() as tx:
        found = await find_interested(tx, [*interests, Interest(1, "p3", since, "")], [Action.VIEW, Action.CLICK], 2)
        assert found == {5: ["a", "b"], 2: ["c"], 7: ["c"], 1: []}
        assert await find_interested(tx, interests[:1], [], 2) == {5: []}


# --- plans ------------------------------------------------------------------------------------------------------------

MANY = 20_000


async def small_step(store: Store, member_id: str, number: int) -> dict[str, int]:
    """Decide and apply for one member; on PostgreSQL, the rows read of each table."""
    async with store.transaction() as tx:
        event, claim = await claimed_event(tx)
        before = await rows_read(tx)
        one = inputs(plain(0), keys=(DedupKey(0, "PLAIN", f"{number}", NOW),))
        decided = await decisions.decide_members(tx, {0: [member_id]}, one)
        new = message(number, event)
        changes = StepChanges(60, [new], finished=[claim])
        await decisions.apply_decision(tx, decided, changes)
        after = await rows_read(tx)
    return {table: after[table] - before.get(table, 0) for table in after}


async def rows_read(tx: Transaction) -> dict[str, int]:
    if tx.dialect.name == "sqlite":
        return {}
    counted = "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) AS rows FROM pg_stat_xact_user_tables"
    return {row["relname"]: row["rows"] for row in await tx.fetch(same(counted)())}


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
async def test_a_small_step_reads_its_own_rows_however_many_there_are(store: Store) -> None:
    """By plans from a time when there were few: PostgreSQL keeps them."""
    await add_members(store, *(f"a-{number}" for number in range(10)), device=True)
    for number in range(5):
        await small_step(store, f"a-{number}", 101 + number)
    async with store.transaction() as tx:
        await add_many(tx, "members", MANY, member_id=Sql("'m-' || number"))
    await outbox.add_many(store, [Event(event_type="x") for _ in range(MANY)])
    read = await small_step(store, "a-7", 200)
    # The member was locked and counted, the event recorded, the device looked up.
    assert read["bongsu_members"] == 2
    assert read["bongsu_events"] == 1
    assert read["bongsu_devices"] <= 10
    async with store.transaction() as tx:
        before = await rows_read(tx)
        recipients = {0: ["a-7", "new"]}
        assert await decisions.find_missing_members(tx, recipients) == ["new"]
        assert len(await decisions.find_profiles(tx, recipients)) == 1
        after = await rows_read(tx)
    assert after["bongsu_members"] - before.get("bongsu_members", 0) == 2


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_no_statement_scans_a_table_on_sqlite(store: Store) -> None:
    await add_members(store, "a")
    scans = Counter[str]()
    statements = [
        one
        for module in (decide, apply)
        for one in vars(module).values()
        if isinstance(one, Statement) and one.sqlite != OTHER_DATABASE
    ]
    async with store.transaction() as tx:
        await tx.execute(decide.CREATE_DECIDED())
        for statement in (*statements, FIND_EVERYONE, FIND_INTERESTED):
            explained = Statement("", f"EXPLAIN QUERY PLAN {statement.sqlite}")
            for row in await tx.fetch(Query(explained, (None,) * 40)):
                scans.update([row["detail"]] if row["detail"].startswith("SCAN") else [])
    # Aliases of our own tables. What is scanned are parameters, results of earlier steps, and the decided rows (n).
    ours = {f"SCAN {alias}{index}" for alias in ("m", "d", "p", "b", "e") for index in ("", " USING INDEX")}
    assert not {one for one in scans if any(one == scan or one.startswith(f"{scan} ") for scan in ours)}, scans
    assert any(one.startswith("SCAN n") for one in scans)
