"""What was updated or withdrawn reaches open pages and those that come back: by one cursor, in order, once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from bongsu.errors import StoreUnreachable
from bongsu.live import announce, catchup, encode, hub
from bongsu.live.announce import announce_change, announce_changes
from bongsu.live.messages import write_notification
from bongsu.runtime.loop import running
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import MESSAGES_TOPIC, member_topic
from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store.inbox import changes
from bongsu.store.inbox import live as statements
from tests.live.client import EventSource
from tests.live.harness import Live, change, live_on, mark_all, withdraw, write, write_to_all
from tests.support.rows import NOW, set_columns

MEMBERS = ["m-1", "m-2", "m-3"]


@pytest.fixture(params=["few", "many"])
def amount(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to announce, with the same members."""
    if request.param == "many":
        monkeypatch.setattr(announce, "FEW", 0)


@pytest.fixture(params=["one process", "over Redis"])
async def serving(store: Store, settings: Settings, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Live, Signals]]:
    """A gateway, and the signals of a worker in the same process or in another."""
    settings = settings.model_copy(update={"sse_ping_seconds": 600})
    wire = "sse" if store.dialect.name == "sqlite" else "ws"
    if request.param == "one process":
        async with live_on(store, settings, wire) as live:
            yield live, live.signals
        return
    url = request.getfixturevalue("redis_server").url
    settings = settings.model_copy(update={"redis_url": url})
    async with live_on(store, settings, wire) as live, running(RedisSignals(url)) as others:
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


def announce_step(signals: Signals, step: Sequence[tuple[str, int]]) -> None:
    announce_changes(signals, [member_id for member_id, _ in step])


# --- what an open page gets -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("amount")
async def test_every_open_page_gets_the_id_and_then_the_new_count(serving: tuple[Live, Signals]) -> None:
    live, signals = serving
    message_id = await write_to_all(live.store, MEMBERS)
    [other], _ = await write(live.store, "m-1")
    async with pages_of(live, *MEMBERS, "m-1", "stranger") as [one, two, three, second, stranger]:
        step = await withdraw(live.store, message_id)
        announce_step(signals, step)
        gone = dict(step)
        assert sorted(gone) == MEMBERS
        for page, member_id, unread in ((one, "m-1", 1), (second, "m-1", 1), (two, "m-2", 0), (three, "m-3", 0)):
            await page.until(has_unread(unread))
            assert page.seen("withdrawn") == [{"id": str(gone[member_id])}]
            assert kinds(page)[-2:] == ["withdrawn", "badge"]
        assert [page.told for page in (one, second)] == [[gone["m-1"], other]] * 2
        await stranger.until_told(await live.ring("stranger"))
        assert stranger.seen("withdrawn") == []


async def test_an_update_has_the_whole_notification_as_it_is_now(live: Live) -> None:
    [first], _ = await write(live.store, "m-1", title="hello")
    async with pages_of(live, "m-1") as [page]:
        change_id = await change(live.store, "m-1", first, read_at=NOW, seen_at=NOW)
        announce_change(live.signals, "m-1")
        [shown] = await page.until_seen("updated")
        assert page.last_id == str(change_id)
        assert (shown["id"], shown["title"], shown["archivedAt"]) == (str(first), "hello", None)
        assert shown["readAt"].endswith("+00:00")
        assert shown["seenAt"].endswith("+00:00")
        assert list(page.seen("notification")[0]) == [
            "id", "createdAt", "type", "title", "message", "refId", "data",
        ]  # fmt: skip
        assert set(shown) - set(page.seen("notification")[0]) == {"readAt", "seenAt", "archivedAt", "updatedAt"}


async def test_reading_and_seeing_all_are_one_event_each(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 3)
    async with pages_of(live, "m-1") as [page]:
        await mark_all(live.store, "m-1", ids[1])
        last = await mark_all(live.store, "m-1", ids[2], "seen")
        announce_change(live.signals, "m-1")
        await page.until_seen("seen")
        assert (page.seen("read"), page.seen("seen")) == ([{"upTo": str(ids[1])}], [{"upTo": str(ids[2])}])
        assert page.last_id == str(last)


async def test_a_change_without_a_signal_comes_before_the_next_notification(live: Live) -> None:
    [first], _ = await write(live.store, "m-1")
    async with pages_of(live, "m-1") as [page]:
        await change(live.store, "m-1", first, read_at=NOW)
        await page.until_told([first, *await live.ring()])
        assert [kind for kind in kinds(page) if kind != "badge"] == ["notification", "updated", "notification"]


async def test_who_wants_nothing_is_still_shown_what_was_done_in_another_tab(live: Live) -> None:
    """The page's list has it: what is critical, and what came before."""
    [one], [message] = await write(live.store, "m-1")
    await set_columns(live.store, "members", {"member_id": "m-1"}, is_enabled=False)
    async with pages_of(live, "m-1") as [page]:
        last = await change(live.store, "m-1", one, read_at=NOW)
        announce_change(live.signals, "m-1")
        [shown] = await page.until_seen("updated")
        assert (shown["id"], shown["readAt"] is None, page.last_id) == (str(one), False, str(last))
        announce_step(live.signals, await withdraw(live.store, message))
        assert await page.until_seen("withdrawn") == [{"id": str(one)}]
    async with live.open(last_id=str(one)) as again:
        assert await again.until_seen("withdrawn") == [{"id": str(one)}]


# --- who comes back ---------------------------------------------------------------------------------------------------


async def test_who_comes_back_gets_what_came_changed_and_was_withdrawn_in_order(live: Live) -> None:
    [old, gone], [_, message] = await write(live.store, "m-1", 2)
    cursor = gone
    [new], _ = await write(live.store, "m-1")
    await change(live.store, "m-1", old, read_at=NOW)
    await withdraw(live.store, message)
    await mark_all(live.store, "m-1", old)
    [newest], _ = await write(live.store, "m-1")
    last = await change(live.store, "m-1", old, seen_at=NOW)
    page = live.open()
    page.last_id = str(cursor)
    async with page:
        await page.until(lambda page: page.last_id == str(last))
        await page.until_told([new, newest])
    shown = [(frame.event, frame.data.get("id") or frame.data["upTo"]) for frame in page.frames if frame.event != "badge"]
    assert shown == [
        ("notification", str(new)),
        ("withdrawn", str(gone)),
        ("read", str(old)),
        ("notification", str(newest)),
        ("updated", str(old)),
    ]
    ids = [int(frame.id) for frame in page.frames if frame.event != "badge"]
    assert ids == sorted(set(ids))
    # From each of these places the rest comes, and nothing twice.
    for number, start in enumerate(ids, 1):
        again = live.open()
        again.last_id = str(start)
        async with again:
            await again.until(lambda page: page.last_id == str(last))
            await again.until_seen("badge")
        assert [int(frame.id) for frame in again.frames if frame.event != "badge"] == ids[number:]


async def test_beyond_the_bound_the_newest_changes_come_and_a_reset_says_so(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MISSED_LIMIT", 3)
    ids, _ = await write(live.store, "m-1", 4)
    changed = [await change(live.store, "m-1", one, read_at=NOW) for one in ids[:2]]
    page = live.open()
    page.last_id = str(ids[0])
    async with page:
        await page.until(lambda page: page.last_id == str(changed[-1]))
        await page.until_seen("badge")
    assert [frame.event for frame in page.frames] == ["reset", "badge", "notification", "updated", "updated"]


async def test_a_page_without_a_cursor_begins_behind_the_changes(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 2)
    last = await change(live.store, "m-1", ids[0], seen_at=NOW)
    async with live.open() as page:
        await page.until(lambda page: page.last_id == str(last))
        await page.until_told(ids)
        assert page.seen("updated") == []
        await page.until_told([*ids, *await live.ring()])


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
        announce_step(live.signals, step)
        await live.gateway.catch_up.idle.wait()

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
            announce_step(live.signals, step)
        return found

    async with pages_of(live, "m-1") as [page]:
        message_id = await write_to_all(live.store, ["m-1"])
        monkeypatch.setattr(statements, "find_new", find_new)
        live.gateway.catch_up.mark(["m-1"])
        await page.until_seen("withdrawn")
        await page.until(has_unread(0))
        assert page.told == [dict(step)["m-1"]]
        assert kinds(page)[-2:] == ["withdrawn", "badge"]


async def test_a_notification_that_commits_while_changes_are_read_is_not_skipped(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the statements a new one and a change of another commit: the change must not take the cursor past it."""
    find, later = changes.find_changes, list[int]()
    ids, _ = await write(live.store, "m-1", 2)

    async def find_changes(tx: Transaction, spans: Sequence[Any], limit: int) -> changes.MemberChanges:
        if not later:
            later.extend((await write(live.store, "m-1"))[0])
            await change(live.store, "m-1", ids[1], read_at=NOW)
        return await find(tx, spans, limit)

    async with pages_of(live, "m-1") as [page]:
        monkeypatch.setattr(changes, "find_changes", find_changes)
        await change(live.store, "m-1", ids[0], read_at=NOW)
        announce_change(live.signals, "m-1")
        await page.until_seen("updated")
        announce_change(live.signals, "m-1")
        await page.until_seen("updated", 2)
        assert [kind for kind in kinds(page) if kind != "badge"][2:] == ["updated", "notification", "updated"]
        assert page.told == [*ids, *later]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_however_much_is_read_at_a_time_everything_comes_in_order(
    live: Live, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(catchup, "NOTIFICATIONS", limit)
    old = {member_id: (await write(live.store, member_id))[0][0] for member_id in MEMBERS}
    async with pages_of(live, *MEMBERS) as pages:
        expected = {member_id: list[tuple[str, int]]() for member_id in MEMBERS}
        for number in range(4):
            for member_id in MEMBERS[number % 2 :]:
                [new], _ = await write(live.store, member_id)
                changed = old[member_id] if number % 2 else new
                # What is changed again is sent at the place of its last change only.
                expected[member_id] = [one for one in expected[member_id] if one != ("updated", changed)]
                last = await change(live.store, member_id, changed, read_at=NOW)
                expected[member_id] += [("notification", new), ("updated", changed)]
        live.gateway.catch_up.mark(MEMBERS)
        for page, member_id in zip(pages, MEMBERS, strict=True):
            await page.until(lambda page, one=member_id: len(page.told) == 1 + _new(expected[one]))  # type: ignore[misc]
        await pages[-1].until(lambda page: page.last_id == str(last))
        await live.gateway.catch_up.idle.wait()
    for page, member_id in zip(pages, MEMBERS, strict=True):
        shown = [(frame.event, int(frame.data["id"])) for frame in page.frames if frame.event != "badge"]
        assert shown[1:] == expected[member_id]
        ids = [int(frame.id) for frame in page.frames if frame.event != "badge"]
        assert ids == sorted(set(ids))


def _new(events: Sequence[tuple[str, int]]) -> int:
    return sum(kind == "notification" for kind, _ in events)


async def test_a_signal_that_carries_the_notification_and_comes_late_is_not_sent(live: Live) -> None:
    async with pages_of(live, "m-1") as [page]:
        message_id = await write_to_all(live.store, ["m-1"])
        async with live.store.read() as tx:
            [recipient] = await statements.find_recipients(tx, [message_id])
        announce_step(live.signals, await withdraw(live.store, message_id))
        await page.until_seen("withdrawn")
        data = encode.with_id(recipient.notification.notification_id, b'"}')
        live.signals.send(member_topic("m-1"), write_notification(recipient, data))
        await page.until_told(await live.ring())
        await page.until(has_unread(1))


async def test_a_signal_with_a_notification_does_not_jump_over_a_change_after_it(live: Live) -> None:
    """It was announced late: its notification has been changed meanwhile, and so has another."""
    [first], _ = await write(live.store, "m-1")
    async with pages_of(live, "m-1") as [page]:
        await change(live.store, "m-1", first, read_at=NOW)
        ids, [message] = await write(live.store, "m-1")
        last = await change(live.store, "m-1", ids[0], seen_at=NOW)
        live.ringer.announcer.announce([message])
        await page.until(lambda page: page.last_id == str(last))
        assert [kind for kind in kinds(page) if kind != "badge"][1:] == ["updated", "notification", "updated"]


async def test_one_announced_twice_is_sent_once(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    message_id = await write_to_all(live.store, ["m-1"])
    async with pages_of(live, "m-1") as [page]:
        step = await withdraw(live.store, message_id)
        announce_step(live.signals, step)
        monkeypatch.setattr(announce, "FEW", 0)
        for _ in range(2):
            announce_step(live.signals, step)
            await live.gateway.catch_up.idle.wait()
        await page.until_told([dict(step)["m-1"], *await live.ring()])
        assert page.seen("withdrawn") == [{"id": str(dict(step)["m-1"])}]


@pytest.mark.usefixtures("amount")
async def test_signals_of_an_unknown_kind_do_no_harm(serving: tuple[Live, Signals]) -> None:
    live, signals = serving
    message_id = await write_to_all(live.store, MEMBERS)
    async with pages_of(live, "m-1") as [page]:
        for topic in (member_topic("m-1"), MESSAGES_TOPIC):
            for data in (b"", b"?", b"?{}", b"w", b"w?", b"w[1,2,3]"):
                signals.send(topic, data)
        step = await withdraw(live.store, message_id)
        announce_step(signals, step)
        assert await page.until_seen("withdrawn") == [{"id": str(dict(step)["m-1"])}]
        await page.until(has_unread(0))


async def test_a_store_that_fails_is_asked_again(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "FEW", 0)
    monkeypatch.setattr(catchup, "MEMBERS", 1)
    find, calls = changes.find_changes, 0

    async def find_or_fail(tx: Transaction, spans: Sequence[Any], limit: int) -> changes.MemberChanges:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnreachable("gone for a moment")
        return await find(tx, spans, limit)

    monkeypatch.setattr(changes, "find_changes", find_or_fail)
    message_id = await write_to_all(live.store, MEMBERS)
    async with pages_of(live, *MEMBERS) as pages:
        step = await withdraw(live.store, message_id)
        announce_step(live.signals, step)
        for page, member_id in zip(pages, MEMBERS, strict=True):
            await page.until(has_unread(0))
            assert await page.until_seen("withdrawn") == [{"id": str(dict(step)[member_id])}]
    assert calls > 2


# --- what it costs ----------------------------------------------------------------------------------------------------


async def test_members_without_an_open_page_here_are_not_read(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    find = changes.find_changes

    async def find_changes(tx: Transaction, spans: Sequence[Any], limit: int) -> changes.MemberChanges:
        read.extend(member_id for member_id, *_ in spans)
        return await find(tx, spans, limit)

    monkeypatch.setattr(changes, "find_changes", find_changes)
    message_id = await write_to_all(live.store, [f"m-{number:03}" for number in range(310)])
    async with pages_of(live, "m-001", "m-150", "m-309") as pages:
        gone: dict[str, int] = {}
        # Two steps with many members, of whom one and then none has a page; then steps with few.
        for first, last in (("m-000", "m-120"), ("m-180", "m-299"), ("m-300", "m-309"), ("m-121", "m-179")):
            step = await withdraw(live.store, message_id, first, last)
            announce_step(live.signals, step)
            gone.update(step)
        assert len(gone) == 310
        for page, member_id in zip(pages, ("m-001", "m-150", "m-309"), strict=True):
            await page.until(has_unread(0))
            assert page.seen("withdrawn") == [{"id": str(gone[member_id])}]
    assert sorted(read) == ["m-001", "m-150", "m-309"]


async def test_changes_are_read_only_of_members_who_have_some(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> Any:
        raise AssertionError("nothing has changed")

    monkeypatch.setattr(changes, "find_changes", fail)
    message_id = await write_to_all(live.store, MEMBERS)
    await withdraw(live.store, message_id)
    async with pages_of(live, *MEMBERS) as pages:
        await write_to_all(live.store, MEMBERS)
        live.gateway.catch_up.on_broadcast(b"[1]")
        for page in pages:
            await page.until_seen("notification")
        live.gateway.catch_up.mark(MEMBERS)
        await live.gateway.catch_up.idle.wait()


async def test_one_signal_names_the_members_of_a_message_withdrawn_from_many(live: Live) -> None:
    heard: list[bytes | None] = []
    members = [f"m-{number:03}" for number in range(announce.FEW + 1)]
    with contextlib.ExitStack() as stack:
        for topic in (MESSAGES_TOPIC, *(member_topic(one) for one in members)):
            stack.enter_context(live.signals.listen(topic, heard.append))
        announce_changes(live.signals, [])
        assert heard == []
        announce_changes(live.signals, members)
        assert heard == [b'w["m-000","m-100"]']
        heard.clear()
        announce_changes(live.signals, members[1:])
        assert heard == [b""] * announce.FEW
