"""What was withdrawn leaves the open pages: on both databases, in one process and over Redis, from few and from many."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx
import pytest

from bongsu.errors import StoreUnreachable
from bongsu.live import announce, frames, withdrawals
from bongsu.live.announce import announce_withdrawn
from bongsu.live.messages import WithdrawnMessage, write_notification
from bongsu.live.withdrawals import Withdrawals
from bongsu.runtime.loop import running
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import MESSAGES_TOPIC, WITHDRAWN_TOPIC, member_topic
from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store.inbox import live as statements
from tests.live.client import EventSource
from tests.live.harness import Live, bearer, live_on, withdraw, write, write_to_all
from tests.store.inbox import test_live_plans as plans

MEMBERS = ["m-1", "m-2", "m-3"]
full = plans.full


@pytest.fixture(params=["few", "many"])
def amount(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to announce, with the same members."""
    if request.param == "many":
        monkeypatch.setattr(announce, "FEW", 0)


@pytest.fixture(params=["one process", "over Redis"])
async def serving(store: Store, settings: Settings, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Live, Signals]]:
    """A gateway, and the signals of a worker in the same process or in another."""
    settings = settings.model_copy(update={"sse_ping_seconds": 600})
    if request.param == "one process":
        async with live_on(store, settings) as live:
            yield live, live.signals
        return
    url = request.getfixturevalue("redis_server").url
    async with live_on(store, settings.model_copy(update={"redis_url": url})) as live, running(RedisSignals(url)) as others:
        yield live, others


@contextlib.asynccontextmanager
async def pages_of(live: Live, *member_ids: str) -> AsyncIterator[list[EventSource]]:
    async with contextlib.AsyncExitStack() as stack:
        pages = [await stack.enter_async_context(live.open(one)) for one in member_ids]
        for page in pages:
            await page.until_live()
        yield pages


def has_unread(count: int) -> Callable[[EventSource], bool]:
    return lambda page: page.seen("badge")[-1:] == [{"unread": count}]


def kinds(page: EventSource) -> list[str]:
    return [one.event for one in page.frames]


# --- what a page gets -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("amount")
async def test_every_open_page_gets_the_id_and_then_the_new_count(serving: tuple[Live, Signals]) -> None:
    live, signals = serving
    message_id = await write_to_all(live.store, MEMBERS)
    [other], _ = await write(live.store, "m-1")
    async with pages_of(live, *MEMBERS, "m-1", "stranger") as [one, two, three, second, stranger]:
        step = await withdraw(live.store, message_id)
        announce_withdrawn(signals, message_id, step)
        gone = dict(step)
        assert sorted(gone) == MEMBERS
        for page, member_id, unread in ((one, "m-1", 1), (second, "m-1", 1), (two, "m-2", 0), (three, "m-3", 0)):
            await page.until(has_unread(unread))
            assert page.seen("withdrawn") == [{"id": str(gone[member_id])}]
            assert kinds(page)[-2:] == ["withdrawn", "badge"]
        assert [page.told for page in (one, second)] == [[gone["m-1"], other]] * 2
        await stranger.until_told(await live.ring("stranger"))
        assert stranger.seen("withdrawn") == []


@pytest.mark.usefixtures("amount")
async def test_one_that_was_read_is_withdrawn_and_the_count_stays(live: Live) -> None:
    message_id = await write_to_all(live.store, ["m-1"])
    [kept], _ = await write(live.store, "m-1")
    headers = bearer(live.settings, "m-1")
    async with pages_of(live, "m-1") as [page], httpx.AsyncClient(base_url=live.address, headers=headers) as inbox:
        gone = page.told[0]
        await inbox.post(f"/api/notifications/{gone}/read")
        await page.until(has_unread(1))
        announce_withdrawn(live.signals, message_id, await withdraw(live.store, message_id))
        assert await page.until_seen("withdrawn") == [{"id": str(gone)}]
        listed = (await inbox.get("/api/notifications")).json()
        await page.until_told([gone, kept, *await live.ring()])
        await page.until(has_unread(2))
    assert [one["unread"] for one in page.seen("badge")] == [2, 1, 2]
    assert ([one["id"] for one in listed["items"]], listed["unread"]) == ([str(kept)], 1)


@pytest.mark.usefixtures("amount")
async def test_the_cursor_stays_so_nothing_is_repeated_or_skipped_after_a_reconnect(live: Live) -> None:
    message_id = await write_to_all(live.store, ["m-1"])
    async with pages_of(live, "m-1") as [page]:
        [gone] = page.told
        announce_withdrawn(live.signals, message_id, await withdraw(live.store, message_id))
        await page.until_seen("withdrawn")
        assert page.last_id == str(gone)
        [kept] = await live.ring()
        await page.until_told([gone, kept])
        # This one is withdrawn before it was sent: the cursor stays before it.
        _, [unsent] = await write(live.store, "m-1")
        announce_withdrawn(live.signals, unsent, await withdraw(live.store, unsent))
        await page.until_seen("withdrawn", 2)
        assert page.last_id == str(kept)
    missed, _ = await write(live.store, "m-1", 2)
    for cursor, expected in ((gone, [kept, *missed]), (kept, missed), (missed[0], missed[1:])):
        again = live.open()
        again.last_id = str(cursor)
        async with again:
            await again.until(lambda page: page.last_id == str(missed[-1]))
            assert again.told == expected
            assert again.seen("badge") == [{"unread": 3}]
            assert again.seen("withdrawn") == []


# --- in whatever order ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("amount")
@pytest.mark.parametrize("moment", ["before the read", "after the read"])
async def test_a_page_that_attaches_meanwhile_never_gets_the_notification_after_its_withdrawal(
    live: Live, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    message_id = await write_to_all(live.store, ["m-1"])
    [kept], _ = await write(live.store, "m-1")
    find, gone = statements.find_missed, 0

    async def withdraw_now() -> None:
        nonlocal gone
        [(_, gone)] = step = await withdraw(live.store, message_id)
        announce_withdrawn(live.signals, message_id, step)
        await live.gateway.hub.catch_up.idle.wait()

    async def find_missed(tx: Transaction, *arguments: Any, **options: Any) -> list[statements.NewNotification]:
        if moment == "before the read":
            await withdraw_now()
        found = await find(tx, *arguments, **options)
        if moment == "after the read":
            await withdraw_now()
        return found

    monkeypatch.setattr(statements, "find_missed", find_missed)
    async with live.open() as page:
        assert await page.until_seen("withdrawn") == [{"id": str(gone)}]
        await page.until(has_unread(1))
        sent = kinds(page)[: kinds(page).index("withdrawn")].count("notification")
        assert page.told == ([kept] if moment == "before the read" else [gone, kept])
        assert sent == len(page.told)
        await page.until_told([*page.told, *await live.ring()])


@pytest.mark.usefixtures("amount")
async def test_what_a_read_under_way_still_finds_is_sent_before_its_withdrawal(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, step = statements.find_new, list[tuple[str, int]]()

    async def find_new(tx: Transaction, cursors: Mapping[str, int], limit: int) -> list[statements.NotificationGroup]:
        found = await find(tx, cursors, limit)
        if not step:
            step.extend(await withdraw(live.store, message_id))
            announce_withdrawn(live.signals, message_id, step)
        return found

    async with pages_of(live, "m-1") as [page]:
        message_id = await write_to_all(live.store, ["m-1"])
        monkeypatch.setattr(statements, "find_new", find_new)
        live.gateway.hub.catch_up.mark(["m-1"])
        await page.until_seen("withdrawn")
        await page.until(has_unread(0))
        assert page.told == [dict(step)["m-1"]]
        assert kinds(page)[-2:] == ["withdrawn", "badge"]


@pytest.mark.usefixtures("amount")
async def test_a_signal_that_carries_the_notification_and_comes_late_is_not_sent(live: Live) -> None:
    async with pages_of(live, "m-1") as [page]:
        message_id = await write_to_all(live.store, ["m-1"])
        async with live.store.read() as tx:
            [recipient] = await statements.find_recipients(tx, [message_id])
        announce_withdrawn(live.signals, message_id, await withdraw(live.store, message_id))
        await page.until_seen("withdrawn")
        chunk = frames.notification(recipient.notification.notification_id, b'"}')
        live.signals.send(member_topic("m-1"), write_notification(recipient, chunk))
        await page.until_told(await live.ring())
        await page.until(has_unread(1))


async def test_one_announced_twice_is_sent_once(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    message_id = await write_to_all(live.store, ["m-1"])
    async with pages_of(live, "m-1") as [page]:
        step = await withdraw(live.store, message_id)
        announce_withdrawn(live.signals, message_id, step)
        monkeypatch.setattr(announce, "FEW", 0)
        for _ in range(2):
            announce_withdrawn(live.signals, message_id, step)
            await live.gateway.hub.catch_up.idle.wait()
        await page.until_told([dict(step)["m-1"], *await live.ring()])
        assert page.seen("withdrawn") == [{"id": str(dict(step)["m-1"])}]


@pytest.mark.usefixtures("amount")
async def test_signals_of_an_unknown_kind_do_no_harm(serving: tuple[Live, Signals]) -> None:
    live, signals = serving
    message_id = await write_to_all(live.store, MEMBERS)
    async with pages_of(live, "m-1") as [page]:
        for topic in (member_topic("m-1"), MESSAGES_TOPIC, WITHDRAWN_TOPIC):
            for data in (b"", b"?", b"?{}", b"w", b"w?", b"w[1,2,3]"):
                signals.send(topic, data)
        step = await withdraw(live.store, message_id)
        announce_withdrawn(signals, message_id, step)
        assert await page.until_seen("withdrawn") == [{"id": str(dict(step)["m-1"])}]
        await page.until(has_unread(0))


async def test_a_store_that_fails_is_asked_again(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "FEW", 0)
    monkeypatch.setattr(withdrawals, "MEMBERS", 1)
    find, calls = statements.find_withdrawn, 0

    async def find_or_fail(tx: Transaction, message_id: int, member_ids: Sequence[str]) -> dict[int, str]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnreachable("gone for a moment")
        return await find(tx, message_id, member_ids)

    monkeypatch.setattr(statements, "find_withdrawn", find_or_fail)
    message_id = await write_to_all(live.store, MEMBERS)
    async with pages_of(live, *MEMBERS) as pages:
        step = await withdraw(live.store, message_id)
        announce_withdrawn(live.signals, message_id, step)
        for page, member_id in zip(pages, MEMBERS, strict=True):
            await page.until(has_unread(0))
            assert await page.until_seen("withdrawn") == [{"id": str(dict(step)[member_id])}]
    assert calls == 5


# --- what it costs ----------------------------------------------------------------------------------------------------


async def test_members_without_an_open_page_here_are_not_read(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Sequence[str]] = []
    find = statements.find_withdrawn

    async def find_withdrawn(tx: Transaction, message_id: int, member_ids: Sequence[str]) -> dict[int, str]:
        read.append(member_ids)
        return await find(tx, message_id, member_ids)

    monkeypatch.setattr(statements, "find_withdrawn", find_withdrawn)
    message_id = await write_to_all(live.store, [f"m-{number:03}" for number in range(310)])
    async with pages_of(live, "m-001", "m-150", "m-309") as pages:
        gone: dict[str, int] = {}
        # Two steps with many members, of whom one and then none has a page; then steps with few.
        for first, last in (("m-000", "m-120"), ("m-180", "m-299"), ("m-300", "m-309"), ("m-121", "m-179")):
            step = await withdraw(live.store, message_id, first, last)
            announce_withdrawn(live.signals, message_id, step)
            gone.update(step)
        assert len(gone) == 310
        for page, member_id in zip(pages, ("m-001", "m-150", "m-309"), strict=True):
            await page.until(has_unread(0))
            assert page.seen("withdrawn") == [{"id": str(gone[member_id])}]
    assert read == [["m-001"]]


async def test_one_signal_names_a_message_withdrawn_from_many(live: Live) -> None:
    heard: list[bytes | None] = []
    members = [f"m-{number:03}" for number in range(announce.FEW + 1)]
    with contextlib.ExitStack() as stack:
        for topic in (WITHDRAWN_TOPIC, *(member_topic(one) for one in members)):
            stack.enter_context(live.signals.listen(topic, heard.append))
        announce_withdrawn(live.signals, 7, [])
        assert heard == []
        announce_withdrawn(live.signals, 7, [(one, number) for number, one in enumerate(members)])
        assert heard == [b'w[7,"m-000","m-100"]']
        heard.clear()
        announce_withdrawn(live.signals, 7, [(one, number) for number, one in enumerate(members[1:], 1)])
        assert heard == [b"w%d" % number for number in range(1, announce.FEW + 1)]


async def test_signals_about_a_message_that_is_waiting_are_read_as_one_range(store: Store) -> None:
    waiting = Withdrawals(NOBODY, lambda _: None)
    for first, last in (("m-3", "m-4"), ("m-1", "m-2"), ("m-2", "m-3")):
        waiting.add_message(WithdrawnMessage(7, first, last))
    assert list(waiting._messages.values()) == [WithdrawnMessage(7, "m-1", "m-4")]
    assert await waiting.send(store) == 0
    assert waiting._messages == {}


async def test_what_was_withdrawn_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(withdrawals, "REMEMBERED", 2)
    remembered = Withdrawals(NOBODY, lambda _: None)
    for number in (1, 2, 3, 3):
        remembered.add("m-1", number)
    assert [number in remembered for number in (1, 2, 3)] == [False, True, True]


class Nobody:
    def __len__(self) -> int:
        return 0

    def members(self) -> list[Any]:
        return []

    def member(self, member_id: str) -> None:
        return None


NOBODY = Nobody()


# --- the statement ----------------------------------------------------------------------------------------------------


async def test_only_notifications_out_of_the_inbox_are_found(store: Store) -> None:
    message_id, other = await write_to_all(store, MEMBERS), await write_to_all(store, MEMBERS)
    step = dict(await withdraw(store, message_id, "m-1", "m-2"))
    await withdraw(store, other, "m-1", "m-1")
    async with store.read() as tx:
        assert await statements.find_withdrawn(tx, message_id, ["m-0", "m-2", "m-3"]) == {step["m-2"]: "m-2"}
        found = await statements.find_withdrawn(tx, message_id, MEMBERS)
    assert found == {notification_id: member_id for member_id, notification_id in step.items()}


async def test_no_table_is_read_from_end_to_end(full: Store) -> None:
    check = plans.check_counts if full.dialect.name == "postgresql" else plans.check_plans
    async with full.transaction() as tx:
        for message_id in (7, plans.ALL):
            for _ in range(plans.TIMES):
                await check(tx, lambda tx, one=message_id: statements.find_withdrawn(tx, one, plans.CONNECTED), "withdrawn")  # type: ignore[misc]
