"""The history's statements: every filter against a plain model of it, what a status is, and how little a page reads."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, combinations
from typing import Any
from uuid import UUID

import pytest

from bongsu.model import Channel, new_id
from bongsu.store import Share, Store, Transaction, inbox
from bongsu.store.core.query import same
from bongsu.store.desk import history
from bongsu.store.desk.history import Filters, HistoryRow, PageCursor, Status
from bongsu.store.inbox import Act
from tests.support.notifications import (
    BOTH,
    NOON,
    add_many_notifications,
    add_many_recipients,
    add_past_message,
    add_past_notification,
    add_past_suppression,
)
from tests.support.plans import generic_plan
from tests.support.rows import Sql, add_delivery_for_each, add_many, set_columns

HOUR = timedelta(hours=1)


async def pages(tx: Transaction, filters: Filters, limit: int, scan_limit: int = history.SCAN_LIMIT) -> list[HistoryRow]:
    """All that fits the filters, a page after the other."""
    page = await history.find_page(tx, filters, None, limit, scan_limit=scan_limit)
    rows = page.rows
    while page.next is not None:
        assert len(page.rows) <= limit
        page = await history.find_page(tx, filters, page.next, limit, scan_limit=scan_limit)
        rows += page.rows
    return rows


@dataclass(frozen=True)
class Known:
    """A row as it was written."""

    message_id: int
    member_id: str
    type: str
    event_id: UUID
    hours: int
    status: str
    channels: frozenset[Channel]

    def fits(self, asked: Filters) -> bool:
        at = NOON + self.hours * HOUR
        return (
            asked.member_id in (None, self.member_id)
            and asked.type in (None, self.type)
            and asked.event_id in (None, self.event_id)
            and asked.status in (None, self.status)
            and (asked.channel is None or asked.channel in self.channels)
            and (asked.since is None or asked.since <= at)
            and (asked.until is None or at < asked.until)
        )


async def some_past(tx: Transaction) -> list[Known]:
    """Forty messages, one an hour, for up to six members each, some told and some not."""
    dice = random.Random(7)
    states = {"READY": "PENDING", "SENDING": "PENDING", "UNKNOWN": "UNKNOWN", "SUCCESS": "SENT", "FAIL": "FAILED"}
    known = []
    events = [new_id() for _ in range(30)]
    for hours in range(40):
        # An event may speak in several languages, and so in several messages.
        event_id, type_name = events[hours % 30], dice.choice(["PRICE_DROP", "POST_LIKE", "NOTICE"])
        message_id = await add_past_message(tx, type_name, NOON + hours * HOUR, event_id=event_id, locale=f"l{hours}")
        for member_id in dice.sample(["a", "b", "c", "ㄱ", "\U0010ffff", "~"], dice.randrange(7)):
            kind = dice.choice([*states, "IN_APP", "RATE_LIMITED", "USER_OPTED_OUT"])
            channels, status = frozenset(BOTH), states.get(kind, kind)
            if kind in states:
                await add_past_notification(tx, message_id, member_id, kind, at=NOON + hours * HOUR)
            elif kind == "IN_APP":
                await add_past_notification(tx, message_id, member_id, at=NOON + hours * HOUR)
                channels, status = frozenset({Channel.IN_APP}), "SENT"
            else:
                await add_past_suppression(tx, message_id, member_id, kind)
            known.append(Known(message_id, member_id, type_name, event_id, hours, status, channels))
    return sorted(known, key=lambda one: (one.message_id, one.member_id), reverse=True)


def questions(known: Sequence[Known]) -> list[Filters]:
    """Each filter alone, and pairs of them that go together."""
    one = known[len(known) // 2]
    parts: list[dict[str, Any]] = [
        {"member_id": one.member_id},
        {"member_id": "\U0010ffff"},
        {"type": one.type},
        {"event_id": one.event_id},
        {"event_id": new_id()},
        *({"status": status} for status in Status),
        *({"channel": channel} for channel in Channel),
        {"since": NOON + 20 * HOUR},
        {"until": NOON + 20 * HOUR},
        {"since": NOON + 10 * HOUR, "until": NOON + 11 * HOUR},
        {"since": NOON + 100 * HOUR},
        {"until": NOON - HOUR},
    ]
    pairs = [first | second for first, second in combinations(parts, 2) if not first.keys() & second.keys()]
    pairs = random.Random(7).sample(pairs, 70)
    return [Filters(**part) for part in ({}, *parts, *pairs)]


async def test_every_filter_finds_exactly_what_fits_it_in_pages_of_any_size(store: Store) -> None:
    async with store.transaction() as tx:
        known = await some_past(tx)
        found_any = 0
        for number, asked in enumerate(questions(known)):
            # A page that may look at few rows has few, or none, and the next one goes on behind them.
            rows = await pages(tx, asked, (5, 200, 11)[number % 3], (3, 20_000, 20, 1)[number % 4])
            expected = [(one.message_id, one.member_id, one.status) for one in known if one.fits(asked)]
            assert [(row.message_id, row.member_id, row.status.value) for row in rows] == expected, asked
            found_any += bool(expected)
    assert len(known) > 90
    assert found_any > 35


async def test_many_that_wait_are_found_as_few_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store.transaction() as tx:
        known = await some_past(tx)
        expected = [(one.message_id, one.member_id) for one in known if one.status == "PENDING"]
        assert len(expected) > 10
        for few in (history.FEW_DELIVERIES, 3):
            monkeypatch.setattr(history, "FEW_DELIVERIES", few)
            rows = await pages(tx, Filters(status=Status.PENDING), limit=4)
            assert [(row.message_id, row.member_id) for row in rows] == expected


async def test_a_row_says_all_there_is(store: Store) -> None:
    async with store.transaction() as tx:
        event_id = new_id()
        message_id = await add_past_message(tx, event_id=event_id)
        notification_id = await add_past_notification(tx, message_id, "a", "FAIL", code="UNREGISTERED", attempts=3)
        await add_past_suppression(tx, message_id, "b", "DUPLICATE")
        (not_told, told), _ = await history.find_page(tx, Filters())
    assert (told.message_id, told.member_id, told.notification_id) == (message_id, "a", notification_id)
    assert (told.event_id, told.type, told.subject, told.locale) == (event_id, "PRICE_DROP", "product-1", "ko")
    assert (told.title, told.body) == ("사과 가격이 내렸어요", "지금 10% 싸요")
    assert (told.status, told.channels, told.created_at, told.read_at) == (Status.FAILED, BOTH, NOON, None)
    (delivery,) = told.deliveries
    assert (delivery.channel, delivery.device_id, delivery.status) == (Channel.PUSH, "d-0", "FAIL")
    assert (delivery.code, delivery.attempts, delivery.is_simulated) == ("UNREGISTERED", 3, False)
    assert (delivery.created_at, delivery.finished_at, delivery.due) == (NOON, None, NOON)
    assert (not_told.member_id, not_told.notification_id, not_told.status) == ("b", None, Status.DUPLICATE)
    assert (not_told.channels, not_told.deliveries, not_told.title) == (BOTH, (), told.title)


def outcome(states: Sequence[str]) -> str:
    """In words: under way, else not known, else one way reached the member, else it failed; the inbox alone never fails."""
    if {"READY", "SENDING"} & set(states):
        return "PENDING"
    if "UNKNOWN" in states:
        return "UNKNOWN"
    if "SUCCESS" in states or not states:
        return "SENT"
    return "FAILED"


async def test_what_is_under_way_or_unknown_is_never_called_settled(store: Store) -> None:
    every = ("READY", "SENDING", "SUCCESS", "FAIL", "UNKNOWN")
    subsets = list(chain.from_iterable(combinations(every, size) for size in range(len(every) + 1)))
    async with store.transaction() as tx:
        for in_app in (True, False):
            message_id = await add_past_message(tx)
            channels = BOTH if in_app else (Channel.PUSH,)
            for number, states in enumerate(subsets):
                await add_past_notification(tx, message_id, f"m-{number:02d}", *states, channels=channels)
            rows, _ = await history.find_page(tx, Filters(), limit=len(subsets))
            expected = [outcome(states) for states in subsets]
            assert [row.status.value for row in reversed(rows)] == expected
            for status in (Status.FAILED, Status.UNKNOWN, Status.PENDING):
                asked = Filters(event_id=rows[0].event_id, status=status)
                found = await pages(tx, asked, limit=3)
                assert [row.member_id for row in reversed(found)] == [
                    f"m-{number:02d}" for number, one in enumerate(expected) if one == status
                ]


async def test_what_a_member_archived_or_deleted_stays_with_its_channels_and_status(store: Store) -> None:
    async with store.transaction() as tx:
        message_id = await add_past_message(tx, channels=(Channel.IN_APP,))
        ids = {}
        for member_id in ("archived", "deleted", "stays", "withdrawn"):
            ids[member_id] = await add_past_notification(tx, message_id, member_id, channels=(Channel.IN_APP,))
        await inbox.apply_act(tx, "archived", ids["archived"], Act.ARCHIVE)
        await inbox.apply_act(tx, "deleted", ids["deleted"], Act.DELETE)
        # The event was cancelled afterwards, and withdrawn from one inbox so far.
        await set_columns(tx, "messages", {"message_id": message_id}, cancelled_at=NOON)
        await set_columns(tx, "notifications", {"member_id": "withdrawn"}, channels=0)
        rows, _ = await history.find_page(tx, Filters(event_id=None))
        by_channel, _ = await history.find_page(tx, Filters(channel=Channel.IN_APP))
        sent = await pages(tx, Filters(status=Status.SENT), limit=2)
    withdrawn, stays, deleted, archived = rows
    assert by_channel == [stays, deleted, archived] == sent
    assert {row.channels for row in sent} == {(Channel.IN_APP,)}
    assert withdrawn.status is Status.CANCELLED
    assert (archived.archived_at is not None, archived.deleted_at) == (True, None)
    assert (deleted.archived_at, deleted.deleted_at is not None) == (None, True)
    assert (stays.archived_at, stays.deleted_at) == (None, None)


# --- how little a page reads ------------------------------------------------------------------------------------------

MANY = 20_000
PAGE = 20


async def long_past(tx: Transaction) -> HistoryRow:
    """Many small messages, then one for many members, then small ones again. A row of the large one."""
    await add_many_notifications(tx, "busy", MANY, NOON)
    event_id = new_id()
    for minute in range(60):
        at = NOON + timedelta(minutes=60 + minute)
        message_id = await add_past_message(tx, "POST_LIKE", at, subject=str(minute))
        await add_past_notification(tx, message_id, "m-000007", at=at)
        if minute == 50:
            await add_many_recipients(tx, await add_past_message(tx, "NOTICE", at, event_id=event_id), MANY, at)
    for member_id in ("u-1", "u-2", "u-3"):
        await add_past_notification(tx, message_id, member_id, "UNKNOWN", "FAIL", "UNKNOWN")
    await tx.execute(same("ANALYZE")())
    (row,), _ = await history.find_page(tx, Filters(event_id=event_id), limit=1)
    return row


def cases(large: HistoryRow) -> dict[str, tuple[Filters, PageCursor | None, int]]:
    """What is asked, and how many rows it has to find."""
    middle = PageCursor(large.message_id, "m-010000")
    quarter = NOON + timedelta(minutes=75)
    return {
        "everything": (Filters(), None, PAGE),
        "behind a member of the large one": (Filters(), middle, PAGE),
        "a member": (Filters(member_id="m-000009"), None, 1),
        "an event": (Filters(event_id=large.event_id), None, PAGE),
        "an event, later on": (Filters(event_id=large.event_id), middle, PAGE),
        "a member's part in an event": (Filters(event_id=large.event_id, member_id="m-000009"), None, 1),
        "a type": (Filters(type="POST_LIKE"), PageCursor(large.message_id, ""), PAGE),
        "a type and a time": (Filters(type="POST_LIKE", since=quarter, until=quarter + timedelta(minutes=5)), None, 5),
        "those not told of the newest": (Filters(status=Status.DUPLICATE), None, PAGE),
        "a time without anything": (Filters(since=NOON + timedelta(days=1)), None, 0),
        "what failed, and nothing did": (Filters(status=Status.FAILED), None, 0),
        "what is unknown, and there is little": (Filters(status=Status.UNKNOWN), None, 3),
        "what failed of a large one": (Filters(status=Status.FAILED, event_id=large.event_id), middle, 0),
        "what waits, and nothing does": (Filters(status=Status.PENDING), None, 0),
        "what failed of a type": (Filters(status=Status.FAILED, type="POST_LIKE"), None, 0),
    }


# As commands of an operator run it, where PostgreSQL plans for any values, and as requests do, where it may plan for each.
@pytest.mark.parametrize("share", [Share.WORK, Share.MEMBERS])
async def test_a_page_reads_little_however_much_there_is(store: Store, share: Share) -> None:
    async with store.share(share).transaction() as tx:
        large = await long_past(tx)
        is_postgres = store.dialect.name == "postgresql"
        # Rows where the server counts them, of 80,000 in the tables. SQLite counts steps of its machine, here in thousands:
        # to read one of the tables from end to end takes it a hundred or more.
        measure, limit = (rows_read, 2_500) if is_postgres else (count_steps, 30)
        for name, (filters, behind, expected) in cases(large).items():
            before = await measure(tx)
            found, _ = await history.find_page(tx, filters, behind, PAGE)
            cost = await measure(tx) - (before if is_postgres else 0)
            assert len(found) == expected, name
            assert cost < limit, name


SCAN = 500
# Nothing has one of these, or only what comes after many others.
RARE = {
    "a status": Filters(status=Status.CANCELLED),
    "a reason": Filters(status=Status.NO_ADDRESS),
    "a channel": Filters(channel=Channel.SMS),
    "a type": Filters(type="NONE"),
    "a type and a channel": Filters(type="NOTICE", channel=Channel.SMS),
    "a status of a type": Filters(type="POST_LIKE", status=Status.CANCELLED),
    "what failed, of many that failed on one device and not on the other": Filters(status=Status.FAILED),
    "what failed of a type": Filters(status=Status.FAILED, type="NONE"),
    "what is unknown": Filters(status=Status.UNKNOWN, until=NOON + timedelta(minutes=111)),
    "what waits, where many do": Filters(status=Status.PENDING, type="NONE"),
}


@pytest.mark.parametrize("share", [Share.WORK, Share.OPERATORS])
async def test_a_filter_that_matches_nothing_reads_a_bounded_part_and_says_where_to_go_on(
    store: Store, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FEW_DELIVERIES", SCAN)
    async with store.share(share).transaction() as tx:
        await long_past(tx)
        for status in ("FAIL", "SUCCESS", "READY"):
            # READY last: whoever has one of each waits, and has not failed.
            await deliver_many(tx, MANY, status)
        await tx.execute(same("ANALYZE")())
        is_postgres = store.dialect.name == "postgresql"
        # Of 140,000 rows. A row costs at most five looks at messages, one at itself and two at its deliveries, twice.
        measure, limit = (rows_read, 30 * SCAN) if is_postgres else (count_steps, 600)
        for name, filters in RARE.items():
            before = await measure(tx)
            found = await history.find_page(tx, filters, None, PAGE, scan_limit=SCAN)
            cost = await measure(tx) - (before if is_postgres else 0)
            assert (found.rows, found.next is not None) == ([], True), name
            assert cost < limit, name


# What each statement reads each table by, as the two databases call it.
KEYS = {
    history.BY_MEMBER: (
        ("bongsu_notifications_pkey", "bongsu_suppressions_member", "bongsu_messages_pkey"),
        ("bongsu_notifications_inbox", "bongsu_suppressions_member", "SEARCH m USING INTEGER PRIMARY KEY"),
    ),
    history.BY_MESSAGES: (
        ("Backward using bongsu_notifications_message_id_member_id_key", "Backward using bongsu_suppressions_pkey"),
        ("sqlite_autoindex_bongsu_notifications_1 (message_id=? AND member_id>? AND member_id<?)",
         "sqlite_autoindex_bongsu_suppressions_1 (message_id=? AND member_id>? AND member_id<?)"),
    ),
    history.BY_DEAD_DELIVERIES: (("bongsu_deliveries_dead_by_message",), ("bongsu_deliveries_dead_by_message",)),
    history.BY_OPEN_DELIVERIES: (("bongsu_deliveries_due",), ("bongsu_deliveries_due",)),
    history.BOUNDS_OF_EVENT: (
        ("bongsu_messages_event_id_notice_index_locale_key",),
        ("sqlite_autoindex_bongsu_messages_1",),
    ),
    history.MESSAGES_FLOOR: (("Backward using bongsu_messages_pkey",), ("USING INTEGER PRIMARY KEY",)),
    history.ROWS_FLOOR: (
        ("Only Scan Backward using bongsu_notifications_message_id_member_id_key",
         "Only Scan Backward using bongsu_suppressions_pkey"),
        ("COVERING INDEX sqlite_autoindex_bongsu_notifications_1 (message_id=? AND member_id<?)",
         "COVERING INDEX sqlite_autoindex_bongsu_suppressions_1 (message_id=? AND member_id<?)"),
    ),
    history.DEAD_FLOOR: (("bongsu_deliveries_dead_by_message",), ("bongsu_deliveries_dead_by_message",)),
    history.COUNT_OPEN: (("bongsu_deliveries_due",), ("bongsu_deliveries_due",)),
}  # fmt: skip


async def test_each_table_is_read_by_the_key_that_is_meant_for_it(store: Store) -> None:
    async with store.transaction() as tx:
        await long_past(tx)
        await deliver_many(tx, MANY)
        await add_many(tx, "digests", MANY, member_id="busy", notification_id=Sql("number"))
        await add_many(tx, "digest_entries", MANY, member_id="busy", notification_id=1, message_id=Sql("number"))
        await tx.execute(same("ANALYZE")())
    whole = re.compile(r"Seq Scan on bongsu|^SCAN (m|t|d|one|bongsu_\w+)$", re.MULTILINE)
    for statement, (on_postgres, on_sqlite) in KEYS.items():
        steps = await generic_plan(store, statement)
        for key in on_postgres if store.dialect.name == "postgresql" else on_sqlite:
            assert key in steps, steps
        assert not whole.search(steps), steps


async def deliver_many(tx: Transaction, count: int, status: str = "SUCCESS") -> None:
    """So many deliveries of that status, of the newest notifications."""
    newest = f"notifications ORDER BY notification_id DESC LIMIT {count}"
    times = {"due": Sql("created_at"), "created_at": Sql("created_at")}
    await add_delivery_for_each(tx, newest, status=status, **times)


async def rows_read(tx: Transaction) -> int:
    """Rows of the large tables that this transaction has read, by whichever way."""
    counted = same("""
        SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) AS rows FROM pg_stat_xact_user_tables
        WHERE relname IN ('bongsu_messages', 'bongsu_notifications', 'bongsu_suppressions', 'bongsu_deliveries')""")
    (row,) = await tx.fetch(counted())
    return int(row["rows"])


_steps: list[int] = []


async def count_steps(tx: Any) -> int:
    """Thousands of steps of SQLite's machine on this connection since it was last asked."""
    counted = len(_steps)
    _steps.clear()
    await tx._thread.run(lambda driver: driver.set_progress_handler(lambda: _steps.append(1), 1000))
    return counted
